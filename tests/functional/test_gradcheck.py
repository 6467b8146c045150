"""gradcheck and gradgradcheck accept right gradients and describe wrong ones; anomaly detection names the line of NaN in gradients."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow

autograd = flow.autograd
X, W = 2 * np.random.default_rng(1).standard_normal((3, 4)), np.random.default_rng(2).standard_normal((4, 2))


def function_with(backward: Any) -> Any:
    """Return x^3 with the gradient `backward(x, dy)`."""

    class Cube(autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return backward(ctx.saved_tensors[0], dy)

    return Cube.apply


RIGHT = function_with(lambda x, dy: dy * 3 * x * x)
WRONG = function_with(lambda x, dy: dy * flow.where(flow.gt(x, 1), x, 3 * x * x))
WRONG_TWICE = function_with(lambda x, dy: dy * 3 * x * x.detach())


@pytest.mark.parametrize("fast", [False, True])
@with_ranks(1, 2)
def test_gradcheck_accepts_right_and_rejects_wrong_gradients(n: int, fast: bool) -> None:
    here = flow.placement("cpu", range(n))
    for placement_options in ({}, *({"placement": here, "sbp": how} for how in (flow.sbp.split(0), flow.sbp.split(1), flow.sbp.partial_sum))):
        x = flow.tensor(X, requires_grad=True, **placement_options)
        w = flow.tensor(W, requires_grad=True, **({**placement_options, "sbp": flow.sbp.broadcast} if placement_options else {}))
        assert autograd.gradcheck(lambda x, w: (x @ w, x.exp()), (x, w), fast_mode=fast)
        assert autograd.gradgradcheck(lambda x, w: (x @ w).tanh(), (x, w), fast_mode=fast)
        assert autograd.gradcheck(RIGHT, x, fast_mode=fast) and autograd.gradgradcheck(RIGHT, x, fast_mode=fast)
        assert not autograd.gradcheck(WRONG, x, raise_exception=False, fast_mode=fast)
        assert autograd.gradcheck(WRONG_TWICE, x) and not autograd.gradgradcheck(WRONG_TWICE, x, raise_exception=False, fast_mode=fast)
        assert x.grad is None


def test_gradcheck_describes_the_wrong_gradient() -> None:
    x = flow.tensor([[0.5, 2.0]], dtype=flow.float64, requires_grad=True)
    with pytest.raises(autograd.GradcheckError) as raised:
        autograd.gradcheck(lambda x: (x * 1, WRONG(x)), x)
    for fact in ("output 1, float64[1,2]", "input 0, float64[1,2]", "[0, 1]", " 2,", " 12", "1 of 4", "test_gradcheck.py"):
        assert fact in str(raised.value)
    assert isinstance(raised.value, RuntimeError)
    draws = iter(range(100))
    with pytest.raises(autograd.GradcheckError, match="two runs differ"):
        autograd.gradcheck(function_with(lambda x, dy: dy * 3 * x * x + next(draws)), x)
    with pytest.raises(flow.DtypeError, match=r"input 0 is float32\[2\]"):
        autograd.gradcheck(RIGHT, flow.ones(2, requires_grad=True))
    with pytest.raises(flow.ArgumentError, match="none of the 1 inputs"):
        autograd.gradcheck(RIGHT, flow.ones(2, dtype=flow.float64))


def test_gradcheck_skips_inputs_without_gradients() -> None:
    x = flow.tensor(X, requires_grad=True)
    assert autograd.gradcheck(lambda x, k: (x[:0], x * k, x.detach() * 0), (x, 3))
    assert not autograd.gradcheck(lambda x: x.detach() * 2, x, raise_exception=False)
    assert autograd.gradgradcheck(lambda x: x * x, x, flow.tensor(X))


# -------------------------------------------------------------------- NaN in gradients


def here() -> int:
    """Return the line of the call."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.mark.parametrize("n", [1, 2])
def test_nan_in_a_gradient_names_the_line_of_its_op(n: int) -> None:
    def program(rank: int) -> str:
        placement_options = flow.placement("cpu", range(n))
        x = flow.tensor([4.0, 1.0, 0.0], placement=placement_options, sbp=flow.sbp.split(0), requires_grad=True)
        with autograd.detect_anomaly():
            assert autograd.is_anomaly_enabled()
            y = x.sqrt()
            line = here() - 1
            z = (y * 0).sum()
            with pytest.raises(flow.JobError) as raised:
                z.backward()
        assert not autograd.is_anomaly_enabled() and x.grad is None
        for fact in ("NaN", "sqrt", f"test_gradcheck.py:{line}", "float32[3]"):
            assert fact in str(raised.value)
        (x.sqrt() * 0).sum().backward()  # nobody looks
        assert np.isnan(x.grad.numpy()).tolist() == [False, False, True]
        return str(raised.value)

    assert len(set(on_ranks(n, program))) == 1, "all ranks give one answer, whose piece ever it is in"


def test_anomaly_detection_can_be_switched() -> None:
    x = flow.tensor([0.0], requires_grad=True)

    def nan() -> Any:
        (x.sqrt() * 0).backward()

    with autograd.set_detect_anomaly(True):
        with autograd.detect_anomaly(check_nan=False):
            nan()
        with pytest.raises(flow.JobError, match="NaN"):
            nan()
        with autograd.set_detect_anomaly(False):
            nan()
    nan()
    autograd.set_detect_anomaly(True)
    with pytest.raises(flow.JobError, match="NaN"):
        nan()
    autograd.set_detect_anomaly(False)
    with pytest.raises(flow.ArgumentError, match=r"set_detect_anomaly at .*: mode must be True or False; got 'no'"):
        autograd.set_detect_anomaly("no")  # type: ignore[arg-type]
    assert not autograd.is_anomaly_enabled()
    nan()


def test_a_failing_backward_names_the_forward_line() -> None:
    def fails(x: Any, dy: Any) -> Any:
        raise ValueError("no gradient today")

    x = flow.tensor(X, requires_grad=True)
    with autograd.detect_anomaly():
        y = function_with(fails)(x)
        line = here() - 1
        with pytest.raises(ValueError, match="no gradient today") as raised:
            y.sum().backward()
    assert any("Cube" in note and f"test_gradcheck.py:{line}" in note for note in raised.value.__notes__)
