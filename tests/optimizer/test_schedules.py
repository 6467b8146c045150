"""Learning rates against their formulas."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import optimizer as opt
from jobflow.core.errors import ConfigError, JobError
from jobflow.ops.update import LearningRate

STEPS = (0, 1, 4, 5, 6, 9, 10, 11, 19, 20, 21, 25, 1000)


def curve(schedule: Any) -> list[float]:
    return [schedule.rate(step) for step in STEPS]


def close(schedule: Any, formula: Any) -> None:
    assert curve(schedule) == pytest.approx([formula(step) for step in STEPS], rel=1e-14, abs=0)


def test_constant() -> None:
    close(opt.PiecewiseConstantScheduler([], [0.3]), lambda t: 0.3)


def test_piecewise_constant_changes_after_its_boundary() -> None:
    close(opt.PiecewiseConstantScheduler([5, 20], [1.0, 0.5, 0.1]), lambda t: 1.0 if t <= 5 else 0.5 if t <= 20 else 0.1)


@pytest.mark.parametrize("scale", [0.1, [0.1, 0.01]])
def test_piecewise_scales_are_absolute(scale: Any) -> None:
    second = 0.1 if isinstance(scale, float) else 0.01
    close(opt.PiecewiseScalingScheduler(2.0, [5, 20], scale), lambda t: 2.0 if t <= 5 else 2.0 * 0.1 if t <= 20 else 2.0 * second)


def test_cosine() -> None:
    close(opt.CosineScheduler(0.2, 20, 0.1), lambda t: 0.2 * ((1 - 0.1) * 0.5 * (1 + math.cos(math.pi * min(t, 20) / 20)) + 0.1))
    assert opt.CosineScheduler(0.2, 20).rate(20) == 0.0


def test_polynomial() -> None:
    close(opt.PolynomialScheduler(0.2, 20, 0.01, 2.0), lambda t: (0.2 - 0.01) * (1 - min(t, 20) / 20) ** 2 + 0.01)
    assert opt.PolynomialSchduler(0.2, 20) == opt.PolynomialScheduler(0.2, 20, 0.0001, 1.0)


def test_polynomial_cycle() -> None:
    def formula(t: int) -> float:
        d = 10 * max(1, -(-t // 10))
        return (0.2 - 0.01) * (1 - t / d) ** 0.5 + 0.01

    close(opt.PolynomialScheduler(0.2, 10, 0.01, 0.5, cycle=True), formula)


@pytest.mark.parametrize("staircase", [False, True])
def test_decays_by_time(staircase: bool) -> None:
    def p(t: int) -> float:
        return t // 10 if staircase else t / 10

    close(opt.ExponentialScheduler(0.2, 10, 0.9, staircase), lambda t: 0.2 * 0.9 ** p(t))
    close(opt.InverseTimeScheduler(0.2, 10, 0.9, staircase), lambda t: 0.2 / (1 + 0.9 * p(t)))
    close(opt.NaturalExpScheduler(0.2, 10, 0.9, staircase), lambda t: 0.2 * math.exp(-0.9 * p(t)))


def test_linear_cosine() -> None:
    def formula(t: int) -> float:
        s = min(t, 20)
        return 0.2 * ((0.1 + (20 - s) / 20) * 0.5 * (1 + math.cos(2 * math.pi * 1.5 * s / 20)) + 0.02)

    close(opt.LinearCosineScheduler(0.2, 20, 1.5, 0.1, 0.02), formula)


def test_warmups_decide_the_first_steps_and_the_schedule_goes_on_with_the_absolute_step() -> None:
    schedule = opt.CosineScheduler(0.2, 20)
    linear = opt.CosineScheduler(0.2, 20, warmup=opt.warmup.linear(5, 0.1))
    constant = opt.CosineScheduler(0.2, 20, warmup=opt.warmup.constant(5, 0.25))
    close(linear, lambda t: 0.2 * (0.1 + 0.9 * t / 5) if t < 5 else schedule.rate(t))
    close(constant, lambda t: 0.2 * 0.25 if t < 5 else schedule.rate(t))


def test_a_warmup_that_leaves_no_steps_decides_alone() -> None:
    """A job of one epoch whose schedule has five epochs of warm-up: steps of the rest are negative, and not met."""
    schedule = opt.CosineScheduler(0.2, -12, warmup=opt.warmup.linear(3, 0.0))

    @flow.global_function("train")
    def step() -> tp.Numpy:
        loss = flow.math.reduce_sum(flow.get_variable("w", (1,), initializer=flow.zeros_initializer()))
        opt.SGD(schedule, momentum=0.0).minimize(loss)
        return loss

    np.testing.assert_allclose([step()[0] for _ in range(3)], [0, 0, -0.2 / 3], rtol=1e-6)
    with pytest.raises(flow.JobflowError, match="steps -12 define no rate at step 3, after the warm-up"):
        step()


def test_warmup_towards_the_base_rate() -> None:
    warmup = opt.warmup.constant(5, 0.5)
    assert opt.PiecewiseConstantScheduler([2], [0.3, 0.9], warmup).rate(4) == 0.15
    assert opt.PiecewiseScalingScheduler(0.3, [2], 0.1, warmup).rate(4) == 0.15
    assert opt.ExponentialScheduler(0.3, 1, 0.1, warmup=warmup).rate(4) == 0.15
    assert opt.ExponentialScheduler(0.3, 1, 0.1, warmup=opt.warmup.linear(0, 0.5)).rate(0) == 0.3


def test_schedules_pickle_print_and_serve_as_attributes_of_ops() -> None:
    schedule = opt.PiecewiseConstantScheduler([5], [1, 2], opt.warmup.linear(3, 0.0))
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert repr(schedule) == "PiecewiseConstantScheduler(boundaries=(5.0,), values=(1.0, 2.0), warmup=LinearWarmup(steps=3, start_multiplier=0.0))"
    assert hash(LearningRate(schedule)) == hash(LearningRate(pickle.loads(pickle.dumps(schedule))))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: opt.PiecewiseConstantScheduler([5], [1.0]), "boundaries has length 1, so values must have length 2, not 1"),
        (lambda: opt.PiecewiseConstantScheduler([5, 5], [1.0, 2, 3]), "boundaries must be strictly increasing, not [5, 5]"),
        (lambda: opt.PiecewiseConstantScheduler([], 0.1), "values must be a list of numbers, not 0.1"),
        (lambda: opt.PiecewiseConstantScheduler([], ["a"]), "values must be a list of numbers, not ['a']"),
        (lambda: opt.PiecewiseScalingScheduler(0.1, [5], [1, 2]), "boundaries has length 1, so scale must have the same length, not 2"),
        (lambda: opt.PiecewiseScalingScheduler("0.1", [5], [1]), "base_lr must be a number, not '0.1'"),
        (lambda: opt.CosineScheduler(0.1, 0), "steps must be a positive number, not 0"),
        (lambda: opt.CosineScheduler(None, 3), "base_lr must be a number, not None"),
        (lambda: opt.PolynomialScheduler(0.1, 10, power=None), "power must be a number, not None"),
        (lambda: opt.ExponentialScheduler(0.1, 10, "0.9"), "decay_rate must be a number, not '0.9'"),
        (lambda: opt.InverseTimeScheduler(0.1, 10, 0.9, staircase="no"), "staircase must be True or False, not 'no'"),
        (lambda: opt.CosineScheduler(0.1, 3, warmup=5), "warmup must be warmup.constant(steps, multiplier) or warmup.linear"),
        (lambda: opt.warmup.linear(-1, 0.1), "warmup.linear at test_schedules.py"),
        (lambda: opt.warmup.constant(1, "x"), "multiplier must be a number, not 'x'"),
    ],
)
def test_schedules_that_make_no_sense(make: Any, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert text in str(raised.value)
    assert " at test_schedules.py:" in str(raised.value)


def test_a_rate_from_a_tensor_is_known_in_a_job_only() -> None:
    with pytest.raises(ConfigError, match="lbn must be the logical_blob_name of a tensor, not 3"):
        opt.CustomScheduler(3)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="only a run of the job computes the rate, tensor 'lr/out'"):
        opt.CustomScheduler("lr/out").rate(0)
