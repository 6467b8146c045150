"""Saved tensors and computed gradients: no more than needed, and the memory of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core.errors import JobError
from jobflow.core.layout import Layout, Placement
from jobflow.core.types import TensorType, float32
from jobflow.engine.placements import placement, sbp
from jobflow.functional.creation import tensor
from jobflow.functional.global_tensors import to_global
from jobflow.functional.tensor_class import Tensor
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.derivative import derivative
from jobflow.ops.matmul import MatMul
from jobflow.ops.op import Op
from jobflow.ops.scalar import FillLike
from jobflow.tensors import run

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
W = np.arange(12, dtype=np.float32).reshape(3, 4)
MATRICES = (TensorType((2, 3), float32), TensorType((3, 4), float32), TensorType((2, 4), float32))


def leaf(array: Any) -> Tensor:
    return tensor(array, requires_grad=True)


def test_unneeded_products_are_not_computed() -> None:
    of_both = derivative(MatMul(), MATRICES, (True,), (True, True))
    of_weights = derivative(MatMul(), MATRICES, (True,), (False, True))
    assert [len(values.steps) for values in (of_both, of_weights)] == [2, 1]
    assert of_weights.results[0] is None
    assert of_weights.reads == {0, 3}  # x and the gradient of the product
    assert of_weights.own == (False, True)


@with_ranks(1)
def test_a_passed_on_gradient_is_not_owned() -> None:
    x, y = leaf(X), leaf(X)
    seed = tensor(np.ones_like(X))
    (x + y).backward(seed)
    for a, b in ((x.grad, y.grad), (x.grad, seed), (y.grad, seed)):
        assert a is not None and b is not None and not np.shares_memory(a.array, b.array)


@with_ranks(1)
def test_a_product_with_weights_saves_only_its_data() -> None:
    x, w = tensor(X), leaf(W)
    y = x @ w
    assert y.node is not None
    saved = y.node.saved_tensors()
    assert [part is None for part in saved] == [False, True, True]
    y.sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), X.T @ np.ones((2, 4), np.float32))


@pytest.mark.parametrize("saved", ["nothing", "the tensor", "the array", "another"])
@with_ranks(1)
def test_a_gradient_stored_by_a_hook_does_not_share_the_memory_of_the_leaf(saved: str) -> None:
    held: list[Any] = []

    def hook(gradient: Tensor) -> Tensor | None:
        if saved == "the tensor":
            held.append(gradient)
        elif saved == "the array":
            held.append(gradient.array)
        elif saved == "another":
            held.append(gradient * 2)
            return held[0]  # type: ignore[no-any-return]
        return None

    x = leaf(X)
    x.register_hook(hook)
    (x * x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), 2 * X * (2 if saved == "another" else 1))
    for other in held:
        assert not np.shares_memory(x.grad.array, other.array if isinstance(other, Tensor) else other)


def test_an_operation_without_a_gradient_raises_only_if_one_is_needed() -> None:
    class Mute(FillLike):
        """An operation without a gradient."""

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
def test_a_local_change_of_layout_copies(rank: int, n: int, target: Any) -> None:
    """B -> S and B -> P: each rank copies a part of its piece."""
    placement_options = placement("cpu", range(n))
    x = to_global(tensor(X), placement_options, sbp.broadcast)
    y = to_global(x, sbp=target)
    assert not np.shares_memory(x.array, y.array)
    box = Layout(Placement("cpu", tuple(range(n))), (target,)).box(X.shape, rank)
    np.testing.assert_array_equal(y.array, X[box.slices] if rank == 0 or target != sbp.partial_sum else 0 * X)
    turned = to_global(tensor(X).t(), placement_options, sbp.broadcast)
    np.testing.assert_array_equal(to_global(turned, sbp=target).numpy(), X.T)
