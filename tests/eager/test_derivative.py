"""What the tape keeps and what a backward pass computes: no more than is asked for; and whose memory gradients are in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core.errors import JobError
from jobflow.core.layout import Layout, Placement
from jobflow.core.types import TensorType, float32
from jobflow.eager import run
from jobflow.engine.placements import placement, sbp
from jobflow.functional.creation import tensor
from jobflow.functional.global_tensors import to_global
from jobflow.functional.tensor_class import Tensor
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.derivative import derivative
from jobflow.ops.matmul import MatMul
from jobflow.ops.op import Op
from jobflow.ops.scalar import FillLike

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
W = np.arange(12, dtype=np.float32).reshape(3, 4)
MATRICES = (TensorType((2, 3), float32), TensorType((3, 4), float32), TensorType((2, 4), float32))


def leaf(array: Any) -> Tensor:
    return tensor(array, requires_grad=True)


def test_products_that_nobody_asks_for_are_not_made() -> None:
    of_both = derivative(MatMul(), MATRICES, (True,), (True, True))
    of_weights = derivative(MatMul(), MATRICES, (True,), (False, True))
    assert [len(found.steps) for found in (of_both, of_weights)] == [2, 1]
    assert of_weights.results[0] is None
    assert of_weights.reads == {0, 3}  # x and the gradient of the product
    assert of_weights.own == (False, True)


@with_ranks(1)
def test_a_gradient_that_is_that_of_the_output_is_nobodys_own() -> None:
    x, y = leaf(X), leaf(X)
    seed = tensor(np.ones_like(X))
    (x + y).backward(seed)
    for a, b in ((x.grad, y.grad), (x.grad, seed), (y.grad, seed)):
        assert a is not None and b is not None and not np.shares_memory(a.array, b.array)


@with_ranks(1)
def test_only_the_data_of_a_product_with_weights_are_kept() -> None:
    x, w = tensor(X), leaf(W)
    y = x @ w
    assert y.node is not None
    kept = y.node.saved_tensors()
    assert [part is None for part in kept] == [False, True, True]
    y.sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), X.T @ np.ones((2, 4), np.float32))


@pytest.mark.parametrize("kept", ["nothing", "the tensor", "the array", "another"])
@with_ranks(1)
def test_a_gradient_that_a_hook_keeps_is_not_the_leafs_memory(kept: str) -> None:
    held: list[Any] = []

    def hook(gradient: Tensor) -> Tensor | None:
        if kept == "the tensor":
            held.append(gradient)
        elif kept == "the array":
            held.append(gradient.array)
        elif kept == "another":
            held.append(gradient * 2)
            return held[0]  # type: ignore[no-any-return]
        return None

    x = leaf(X)
    x.register_hook(hook)
    (x * x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), 2 * X * (2 if kept == "another" else 1))
    for other in held:
        assert not np.shares_memory(x.grad.array, other.array if isinstance(other, Tensor) else other)


def test_an_op_without_a_gradient_is_an_error_only_where_one_is_asked_for() -> None:
    class Mute(FillLike):
        """Like its base, which has no gradient for anybody."""

        abstract = True
        grad = Op.grad

    def program(rank: int) -> None:
        x = leaf(X)
        y = run.run(Mute(1.0), x)
        assert y.requires_grad
        with pytest.raises(JobError, match="Mute has no gradient"):
            y.backward(tensor(X))

    on_ranks(1, program)


@with_ranks(1)
def test_gradients_of_a_view_of_a_number_are_not_views_of_the_seed() -> None:
    x = leaf(np.array([3.0], np.float32))
    y = run.run(BroadcastTo((4,)), x)
    y.backward(tensor(np.ones(4, np.float32)))
    assert x.grad is not None and x.grad.array.base is None
    np.testing.assert_array_equal(x.grad.numpy(), [4.0])


@pytest.mark.parametrize("target", [sbp.split(0), sbp.split(1), sbp.partial_sum])
@with_ranks(1, 2)
def test_a_change_that_moves_nothing_has_memory_of_its_own(rank: int, n: int, target: Any) -> None:
    """B -> S and B -> P: each rank takes its part of what it has."""
    place = placement("cpu", range(n))
    x = to_global(tensor(X), place, sbp.broadcast)
    y = to_global(x, sbp=target)
    assert not np.shares_memory(x.array, y.array)
    box = Layout(Placement("cpu", tuple(range(n))), (target,)).box(X.shape, rank)
    np.testing.assert_array_equal(y.array, X[box.slices] if rank == 0 or target != sbp.partial_sum else 0 * X)
    turned = to_global(tensor(X).t(), place, sbp.broadcast)
    np.testing.assert_array_equal(to_global(turned, sbp=target).numpy(), X.T)
