"""Learning rates as formulas of the number of steps made, in float64, from which jobs and optimizers over tensors make their schedules."""

from __future__ import annotations

import math


def rising(base_lr: float, step: float, steps: float, start: float, end: float = 1.0) -> float:
    """base_lr times what goes evenly from start to end within `steps` steps"""
    return base_lr * (start + (end - start) * step / steps)


def _periods(step: int, steps: float, staircase: bool) -> float:
    return math.floor(step / steps) if staircase else step / steps


def exponential(base_lr: float, step: int, steps: float, decay_rate: float, staircase: bool = False) -> float:
    """base_lr decay_rate^p, p = step / steps, rounded down when `staircase`"""
    return float(base_lr * decay_rate ** _periods(step, steps, staircase))


def inverse_time(base_lr: float, step: int, steps: float, decay_rate: float, staircase: bool) -> float:
    """base_lr / (1 + decay_rate p), p as above"""
    return base_lr / (1 + decay_rate * _periods(step, steps, staircase))


def natural_exponential(base_lr: float, step: int, steps: float, decay_rate: float, staircase: bool) -> float:
    """base_lr exp(-decay_rate p), p as above"""
    return base_lr * math.exp(-decay_rate * _periods(step, steps, staircase))


def cosine(base_lr: float, step: int, steps: float, alpha: float) -> float:
    """base_lr ((1 - alpha) (1 + cos(pi s / steps)) / 2 + alpha), s = min(step, steps)"""
    return base_lr * ((1 - alpha) * 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps)) + alpha)


def annealing(base_lr: float, step: int, steps: float, end: float) -> float:
    """end + (base_lr - end) (1 + cos(pi step / steps)) / 2, which rises again after `steps`"""
    return end + (base_lr - end) * (1 + math.cos(math.pi * step / steps)) / 2


def linear_cosine(base_lr: float, step: int, steps: float, num_periods: float, alpha: float, beta: float) -> float:
    """base_lr ((alpha + (steps - s) / steps) (1 + cos(2 pi num_periods s / steps)) / 2 + beta), s = min(step, steps)"""
    s = min(step, steps)
    return base_lr * ((alpha + (steps - s) / steps) * (0.5 * (1 + math.cos(2 * math.pi * num_periods * s / steps))) + beta)


def polynomial(base_lr: float, step: int, steps: float, end_learning_rate: float, power: float, cycle: bool) -> float:
    """(base_lr - end) (1 - min(step, d) / d)^power + end, d = steps, or with `cycle` the next multiple of it"""
    d = steps * max(1, math.ceil(step / steps)) if cycle else steps
    return float((base_lr - end_learning_rate) * (1 - min(step, d) / d) ** power + end_learning_rate)
