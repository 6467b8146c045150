"""Comparisons of functions of tensors with NumPy, on local tensors and in every layout, with gradients of local tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ranks import on_ranks

from jobflow.core.layout import B, P, S
from jobflow.engine.placements import placement
from jobflow.functional.creation import tensor
from jobflow.functional.global_tensors import to_global

Function = Callable[..., Any]
Case = tuple[Function, Function, Sequence[Any]]


def layouts(array: np.ndarray[Any, Any]) -> list[Any]:
    """Return all sbp on one dimension of ranks, without partial ones for bool tensors."""
    return [B, *([] if array.dtype == bool else [P]), *(S(axis) for axis in range(array.ndim))]


def with_layout(array: np.ndarray[Any, Any], here: placement, how: Any, rank: int) -> Any:
    """Return a global tensor of this value; addends of a partial tensor differ in sign and size."""
    n = here.ranks.size
    if how != P or n == 1:
        return tensor(array, placement=here, sbp=how)
    addend = (0.25 * array + 1).astype(array.dtype)
    return to_global(tensor(addend if rank < n - 1 else array - (n - 1) * addend), placement=here, sbp=P)


def differentiated(function: Function, xs: list[Any], expected: list[bool]) -> tuple[Any, list[Any]]:
    """Return the value, and the gradients of the sum of its elements with weights 1, 2, 3 ..."""
    for x, wants in zip(xs, expected, strict=True):
        x.requires_grad_(wants)
    y = function(*xs)
    if y.requires_grad:
        weights = tensor(np.arange(1, y.numel() + 1, dtype=y.dtype.numpy).reshape(y.shape))
        if y.is_global:
            weights = weights.to_global(placement=y.placement, sbp=[B] * len(y.sbp))
        (y * weights).sum().backward()
    return y, [x.grad for x in xs]


def compare(n: int, cases: Sequence[Case], tolerance: float = 1e-9) -> None:
    """Compare a function of tensors with the same function of arrays, in each case."""

    def program(rank: int) -> None:
        here = placement("cpu", range(n))
        for function, expected, arguments in cases:
            arrays = [np.asarray(a) for a in arguments]
            targets = [a.dtype.kind == "f" for a in arrays]
            value = np.asarray(expected(*arrays))
            local, grads = differentiated(function, [tensor(a) for a in arrays], targets)
            assert local.shape == value.shape
            np.testing.assert_allclose(local.detach().numpy(), value, rtol=tolerance, atol=tolerance, err_msg=str(local))
            for how in itertools.product(*map(layouts, arrays)):
                y, results = differentiated(function, [with_layout(a, here, s, rank) for a, s in zip(arrays, how, strict=True)], targets)
                assert y.dtype == local.dtype and y.shape == value.shape
                np.testing.assert_allclose(y.numpy(), value, rtol=tolerance, atol=tolerance, err_msg=f"{how} -> {y.sbp}")
                for grad, reference, s in zip(results, grads, how, strict=True):
                    assert (grad is None) == (reference is None), how
                    if grad is not None:
                        assert grad.sbp == (s,), how
                        np.testing.assert_allclose(grad.numpy(), reference.numpy(), rtol=tolerance, atol=tolerance, err_msg=f"gradient, {how}")

    on_ranks(n, program)
