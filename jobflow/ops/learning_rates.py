"""Learning rates as formulas of the number of completed steps, in float64; the basis of the schedules of jobs and optimizers.

The number of steps is a float or a float64 expression, and the rate has the same kind.  A GPU evaluates an expression without a host copy of
the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jobflow.core.types import float64
from jobflow.expressions import language
from jobflow.expressions.language import Expression


def _function(name: str, of_numbers: Callable[..., float]) -> Callable[..., float]:
    of_expressions: Callable[..., Any] = getattr(language, name)
    return lambda *x: of_expressions(*x) if any(isinstance(each, Expression) for each in x) else of_numbers(*x)


_cos, _exp, _floor, _ceil = (_function(name, getattr(math, name)) for name in ("cos", "exp", "floor", "ceil"))
_least, _most = _function("minimum", min), _function("maximum", max)


def _float(x: Any) -> float:
    rate: Any = x if isinstance(x, Expression) else float(x)
    return rate


def chosen(condition: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Return first() if the bool `condition` is true, else second(); if `condition` is an expression, return a `where` of both results."""
    if isinstance(condition, Expression):
        yes, no = first(), second()
        return language.where(condition, yes if isinstance(yes, Expression) else language.constant(yes, float64), no)
    return first() if condition else second()


def piece(boundaries: Sequence[float], values: Sequence[float], step: Any) -> Any:
    """Return values[i] for the first i with step <= boundaries[i], or the last value if `step` exceeds all boundaries."""
    if not boundaries:
        return values[0]
    return chosen(step <= boundaries[0], lambda: values[0], lambda: piece(boundaries[1:], values[1:], step))


def rising(base_lr: float, step: float, steps: float, start: float, end: float = 1.0) -> float:
    """Return base_lr (start + (end - start) step / steps), for 0 <= step <= steps."""
    return base_lr * (start + (end - start) * step / steps)


def _periods(step: int, steps: float, staircase: bool) -> float:
    return _floor(step / steps) if staircase else step / steps


def exponential(base_lr: float, step: int, steps: float, decay_rate: float, staircase: bool = False) -> float:
    """Return base_lr decay_rate^p, where p = step / steps, rounded down with `staircase`."""
    return _float(base_lr * decay_rate ** _periods(step, steps, staircase))


def inverse_time(base_lr: float, step: int, steps: float, decay_rate: float, staircase: bool) -> float:
    """Return base_lr / (1 + decay_rate p), where p = step / steps, rounded down with `staircase`."""
    return base_lr / (1 + decay_rate * _periods(step, steps, staircase))


def natural_exponential(base_lr: float, step: int, steps: float, decay_rate: float, staircase: bool) -> float:
    """Return base_lr exp(-decay_rate p), where p = step / steps, rounded down with `staircase`."""
    return base_lr * _exp(-decay_rate * _periods(step, steps, staircase))


def cosine(base_lr: float, step: float, steps: float, alpha: float) -> float:
    """Return base_lr ((1 - alpha) (1 + cos(pi s / steps)) / 2 + alpha), where s = min(step, steps)."""
    return base_lr * ((1 - alpha) * 0.5 * (1 + _cos(math.pi * _least(step, steps) / steps)) + alpha)


def annealing(base_lr: float, step: int, steps: float, end: float) -> float:
    """Return end + (base_lr - end) (1 + cos(pi step / steps)) / 2.  After `steps` steps, the rate rises again."""
    return end + (base_lr - end) * (1 + _cos(math.pi * step / steps)) / 2


def linear_cosine(base_lr: float, step: int, steps: float, num_periods: float, alpha: float, beta: float) -> float:
    """Return base_lr ((alpha + (steps - s) / steps) (1 + cos(2 pi num_periods s / steps)) / 2 + beta), where s = min(step, steps)."""
    s = _least(step, steps)
    return base_lr * ((alpha + (steps - s) / steps) * (0.5 * (1 + _cos(2 * math.pi * num_periods * s / steps))) + beta)


def polynomial(base_lr: float, step: int, steps: float, end_learning_rate: float, power: float, cycle: bool) -> float:
    """Return (base_lr - end) (1 - min(step, d) / d)^power + end, where end = end_learning_rate and d = steps.

    With `cycle`, d is the smallest positive multiple of `steps` that is at least `step`.
    """
    d = steps * _most(1, _ceil(step / steps)) if cycle else steps
    return _float((base_lr - end_learning_rate) * (1 - _least(step, d) / d) ** power + end_learning_rate)
