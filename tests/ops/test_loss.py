"""Losses on large logits, labels out of range, and messages."""

from __future__ import annotations

from typing import Any

import laws
import numpy as np
import pytest

import jobflow as flow
from jobflow import scope
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError
from jobflow.core.types import type_of
from jobflow.kernels import registry
from jobflow.kernels.target import CPU
from jobflow.ops import elementwise_loss, loss
from jobflow.ops.margin_loss import CombinedMargin
from jobflow.ops.op import Op
from jobflow.ops.pointwise import ElementwiseGrad
from jobflow.ops.softmax import CausalSoftmax, Softmax
from jobflow.tensors.run import run_several

Array = np.ndarray[Any, Any]
LOGITS = np.array([[1000.0, 0.0, -1000.0], [3.0, 4.0, 5.0]])


def bound(op: Op, inputs: list[Array], outputs: list[Array]) -> list[Array]:
    for function, arguments in registry.bind(op, CPU, laws.Bench(), inputs, outputs):
        function(*arguments)
    return outputs


def test_large_logits() -> None:
    """Nothing overflows; a probability of zero counts as 1e-20."""
    labels = np.array([2, 1])
    value, *rows = laws.run(loss.SparseSoftmaxCrossEntropy(), [LOGITS, labels])
    rest = 4.0 - np.log(np.exp([3.0, 4.0, 5.0]).sum())
    np.testing.assert_allclose(value, [-np.log(1e-20), -rest], rtol=1e-12)
    (dx,) = laws.run(loss.SparseSoftmaxCrossEntropyGrad(), [LOGITS, labels, *rows, np.ones(2)])
    np.testing.assert_allclose(dx[0], [1, 0, -1])


def test_a_margin_of_the_cosine_alone() -> None:
    """No angle is computed: the angle of a cosine of 1 has no derivative, and rounded cosines above 1 have no angle."""
    cosines, ids, dy = np.array([[1 + 1e-7, 0.5], [0.25, 1.0]]), np.array([0, 1]), np.array([[2.0, 3.0], [4.0, 5.0]])
    y, _ = laws.run(CombinedMargin(1.0, 0.0, 0.25), [cosines, ids])
    np.testing.assert_allclose(y, cosines - 0.25 * np.eye(2), rtol=1e-12)
    x = flow.tensor(cosines, requires_grad=True)
    run_several(CombinedMargin(1.0, 0.0, 0.25), x, flow.tensor(ids))[0].backward(flow.tensor(dy))
    np.testing.assert_array_equal(x.grad.numpy(), dy)


def test_large_logits_of_sigmoid() -> None:
    value = laws.run(elementwise_loss.SigmoidCrossEntropy(), [np.array([1000.0, -1000.0]), np.array([0, 0], np.int8)])[0]
    assert value.tolist() == [1000.0, 0.0]
    gradient = ElementwiseGrad(elementwise_loss.SigmoidCrossEntropy(), 0, 2, (0, 1))
    slope = laws.run(gradient, [np.array([1000.0, -1000.0]), np.array([0, 0]), np.ones(2)])[0]
    np.testing.assert_allclose(slope, [1.0, 0.0], rtol=0, atol=1e-300)


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64])
def test_labels_out_of_range_raise(label: int, kind: type) -> None:
    labels, expected = np.array([0, label], kind), rf"label {label} at \[1\] is outside \[0, 3\)"
    for function in (loss.sparse_softmax_cross_entropy, loss.split_sparse_softmax_cross_entropy, loss.sparse_cross_entropy):
        with pytest.raises(ArgumentError, match=expected), scope.using(interpreter=laws.Immediate()):
            function(laws.Result(abs(LOGITS)), laws.Result(labels))


@pytest.mark.parametrize("label", [-1, 3, 1000])
def test_rejected_labels_do_not_stop_the_kernel(label: int) -> None:
    """A rank continues until the ranks synchronize."""
    labels = np.array([0, label])
    for op in (loss.SparseSoftmaxCrossEntropy(), loss.SparseCrossEntropy()):
        laws.run(op, [abs(LOGITS), labels])
    rows = bound(loss.SparseSoftmaxCrossEntropy(), [LOGITS, labels], [np.empty(2) for _ in range(3)])[1:]
    bound(loss.SparseSoftmaxCrossEntropyGrad(), [LOGITS, labels, *rows, np.ones(2)], [np.empty((2, 3))])


def test_mismatched_labels_raise() -> None:
    with pytest.raises(ShapeError, match=r"labels int64\[3\] must have the shape \[2\], one label per row of logits float64\[2,3\]"):
        loss.SparseSoftmaxCrossEntropy().infer(type_of(LOGITS), type_of(np.array([0, 1, 2])))
    with pytest.raises(DtypeError, match=r"labels float64\[2\] are not integers; cast"):
        loss.SparseSoftmaxCrossEntropy().infer(type_of(LOGITS), type_of(np.zeros(2)))
    with pytest.raises(ShapeError, match=r"labels float64\[2\] and logits float64\[2,3\] differ in shape"):
        loss.SoftmaxCrossEntropy().infer(type_of(LOGITS), type_of(np.zeros(2)))


@pytest.mark.parametrize("kind", [np.int8, np.int64])
def test_many_rows_in_blocks(kind: type) -> None:
    random = np.random.default_rng(0)
    logits, labels, dloss = random.standard_normal((3000, 60)), random.integers(0, 60, 3000).astype(kind), random.standard_normal(3000)
    value, *rows = laws.run(loss.SparseSoftmaxCrossEntropy(), [logits, labels])
    ours = bound(loss.SparseSoftmaxCrossEntropy(), [logits, labels], [np.empty(3000) for _ in range(3)])
    for result, expected in zip(ours, (value, *rows), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-10)
    (dx,) = bound(loss.SparseSoftmaxCrossEntropyGrad(), [logits, labels, *rows, dloss], [np.empty((3000, 60))])
    np.testing.assert_allclose(dx, laws.run(loss.SparseSoftmaxCrossEntropyGrad(), [logits, labels, *rows, dloss])[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("shape", "diagonal"), [((3, 5, 100, 100), 0), ((70, 37, 50), 5), ((4, 64, 20), 0), ((2, 1, 8), 3)])
def test_causal_softmax_in_blocks(shape: tuple[int, ...], diagonal: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    (y,) = bound(CausalSoftmax(0.3, diagonal), [x], [np.full(shape, np.nan)])
    visible = np.arange(shape[-1]) - np.arange(shape[-2])[:, None] <= diagonal
    (expected,) = laws.run(Softmax(len(shape) - 1), [np.where(visible, 0.3 * x, -np.inf)])
    np.testing.assert_allclose(y, expected, rtol=1e-10)
    assert not y[..., ~visible].any()


def test_split_classes_give_the_same() -> None:
    """The ops that exchange a maximum and a sum equal the plain loss and its gradient, which the laws cannot check."""
    random = np.random.default_rng(0)
    logits, labels, dloss = 5 * random.standard_normal((4, 9)), np.array([0, 8, 3, 3]), random.standard_normal(4)
    value, *rows = laws.run(loss.SparseSoftmaxCrossEntropy(), [logits, labels])
    with scope.using(interpreter=laws.Immediate()):
        x, z = laws.Result(logits), laws.Result(labels)
        np.testing.assert_allclose(loss.split_sparse_softmax_cross_entropy(x, z).array, value, rtol=1e-12)
        grads = loss.SplitCrossEntropy().grad(x, z, *map(laws.Result, rows), laws.Result(value), laws.Result(dloss))
    assert grads[1:] == (None, None, None)
    np.testing.assert_allclose(grads[0].array, laws.run(loss.SparseSoftmaxCrossEntropyGrad(), [logits, labels, *rows, dloss])[0], rtol=1e-12)
