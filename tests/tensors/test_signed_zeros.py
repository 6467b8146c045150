"""Caches distinguish 0.0 and -0.0: an operation with one of them is never reused for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

X = np.float32([-1.0, 2.0, -3.0])
MASK = np.array([True, False, True])

#: by name: what a number goes into as an attribute
USES: dict[str, Callable[[Any, float], Any]] = {
    "full": lambda x, zero: flow.full((3,), zero),
    "mul": lambda x, zero: x * zero,
    "masked_fill": lambda x, zero: x.masked_fill(flow.tensor(MASK), zero),
    "pad": lambda x, zero: flow.nn.functional.pad(x, (1, 1), value=zero),
    "where": lambda x, zero: flow.where(flow.tensor(MASK), x, flow.full((3,), zero)),
    "clamp": lambda x, zero: x.clamp(max=zero),
    "leaky_relu": lambda x, zero: flow.nn.functional.leaky_relu(x, zero),
    "fill_": lambda x, zero: x.clone().fill_(zero),
}


def signs(use: Callable[[Any, float], Any], zero: float) -> list[bool]:
    """Return the positions of negative zeros."""
    output = use(flow.tensor(X), zero).numpy()
    assert (output == 0).any()
    return [bool(sign) for sign in np.signbit(output[output == 0])]


@pytest.mark.parametrize("first", [0.0, -0.0])
@pytest.mark.parametrize("name", USES)
def test_caches_distinguish_signed_zeros(name: str, first: float) -> None:
    use = USES[name]
    signs(use, first)  # now it is known
    again, other = signs(use, first), signs(use, -first)
    assert other == [not sign for sign in again]


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_gradients_distinguish_signed_zeros(first: float) -> None:
    def slope(zero: float) -> Any:
        x = flow.tensor(np.float32([1.0]), requires_grad=True)
        (x * zero).sum().backward()
        return np.signbit(x.grad.numpy()).item()

    slope(first)
    assert (slope(0.0), slope(-0.0)) == (False, True)


def test_graphs_distinguish_signed_zeros() -> None:
    class Both(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return x * 0.0, x * -0.0

    plus, minus = Both()(flow.tensor(np.float32([1.0])))
    assert (np.signbit(plus.numpy()).item(), np.signbit(minus.numpy()).item()) == (False, True)


def test_jobs_distinguish_signed_zeros() -> None:
    @flow.global_function()
    def both(x: tp.Numpy.Placeholder((1,))) -> tuple[tp.Numpy, tp.Numpy]:
        return x * 0.0, x * -0.0

    plus, minus = both(np.float32([1.0]))
    assert (np.signbit(plus).item(), np.signbit(minus).item()) == (False, True)


def test_caches_distinguish_true_one_and_one_point_zero() -> None:
    output = [flow.full((2,), value) for value in (True, 1, 1.0)]
    assert [x.dtype for x in output] == [flow.full((2,), value).dtype for value in (True, 1, 1.0)]
    ids = flow.tensor([[1, 2], [3, 4]])
    assert ids[1].tolist() == [3, 4]
    assert ids[True].tolist() == [[[1, 2], [3, 4]]]
    assert ids[np.int64(1)].tolist() == [3, 4]
