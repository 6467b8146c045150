"""Keyword arguments with the parameter names of PyTorch and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow

X = flow.tensor(np.arange(6.0).reshape(2, 3))
SQUARE, VECTOR = flow.tensor(np.arange(4.0).reshape(2, 2)), flow.tensor(np.array([1.0, 2.0]))
AT = flow.tensor(np.array([[0, 1, 0]]))

#: the call by names, and the same by places
CALLS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "abs": (lambda: flow.abs(input=X), lambda: flow.abs(X)),
    "add": (lambda: flow.add(input=X, other=X), lambda: flow.add(X, X)),
    "eq": (lambda: flow.eq(input=X, other=X), lambda: flow.eq(X, X)),
    "logical_and": (lambda: flow.logical_and(input=X, other=X), lambda: flow.logical_and(X, X)),
    "sum of axis": (lambda: flow.sum(X, axis=0, keepdims=True), lambda: flow.sum(X, 0, True)),
    "sum as a method": (lambda: X.sum(axis=1, keepdims=True), lambda: X.sum(1, True)),
    "argmax": (lambda: X.argmax(axis=1), lambda: X.argmax(1)),
    "cumsum": (lambda: flow.cumsum(input=X, axis=1), lambda: flow.cumsum(X, 1)),
    "permute": (lambda: flow.permute(input=X, dims=(1, 0)), lambda: flow.permute(X, 1, 0)),
    "permute as a method": (lambda: X.permute(dims=(1, 0)), lambda: X.permute(1, 0)),
    "flip": (lambda: flow.flip(X, dims=[0]), lambda: flow.flip(X, 0)),
    "reshape": (lambda: flow.reshape(X, shape=(3, 2)), lambda: X.reshape(3, 2)),
    "reshape of input": (lambda: flow.reshape(input=X, shape=[-1]), lambda: X.reshape(-1)),
    "view": (lambda: X.view(size=(6,)), lambda: X.view(6)),
    "expand": (lambda: X.expand(size=(2, 2, 3)), lambda: X.expand(2, 2, 3)),
    "repeat": (lambda: X.repeat(repeats=(2, 1)), lambda: X.repeat(2, 1)),
    "tile": (lambda: flow.tile(input=X, dims=(2, 1)), lambda: flow.tile(X, (2, 1))),
    "broadcast_to": (lambda: flow.broadcast_to(X, size=(2, 2, 3)), lambda: flow.broadcast_to(X, (2, 2, 3))),
    "squeeze": (lambda: flow.squeeze(input=X[:1], dim=0), lambda: X[:1].squeeze(0)),
    "transpose": (lambda: flow.transpose(input=X, dim0=0, dim1=1), lambda: X.transpose(0, 1)),
    "gather": (lambda: flow.gather(input=X, dim=0, index=AT), lambda: X.gather(0, AT)),
    "where": (lambda: flow.where(condition=X > 2, input=X, other=-X), lambda: flow.where(X > 2, X, -X)),
    "clamp": (lambda: flow.clamp(input=X, min=1, max=3), lambda: X.clamp(1, 3)),
    "masked_fill": (lambda: flow.masked_fill(input=X, mask=X > 2, value=0.0), lambda: X.masked_fill(X > 2, 0.0)),
    "split": (lambda: flow.split(tensor=X, split_size_or_sections=1)[1], lambda: flow.split(X, 1)[1]),
    "split as a method": (lambda: X.split(split_size=2, dim=1)[0], lambda: X.split(2, 1)[0]),
    "concat": (lambda: flow.concat(tensors=[X, X], dim=1), lambda: flow.cat([X, X], 1)),
    "matmul": (lambda: flow.matmul(input=SQUARE, other=X), lambda: SQUARE @ X),
    "mm": (lambda: flow.mm(input=SQUARE, mat2=X), lambda: flow.mm(SQUARE, X)),
    "bmm": (lambda: flow.bmm(SQUARE[None], mat2=X[None]), lambda: flow.bmm(SQUARE[None], X[None])),
    "mv": (lambda: flow.mv(SQUARE, vec=VECTOR), lambda: flow.mv(SQUARE, VECTOR)),
    "dot": (lambda: flow.dot(input=VECTOR, tensor=VECTOR), lambda: flow.dot(VECTOR, VECTOR)),
    "outer": (lambda: flow.outer(VECTOR, vec2=VECTOR), lambda: flow.outer(VECTOR, VECTOR)),
    "addmm": (lambda: flow.addmm(input=X, mat1=SQUARE, mat2=X, beta=2), lambda: flow.addmm(X, SQUARE, X, beta=2)),
    "addcmul": (lambda: X.addcmul(tensor1=X, tensor2=X), lambda: X.addcmul(X, X)),
    "topk": (lambda: flow.topk(input=X, k=1, dim=0)[0], lambda: flow.topk(X, 1, 0)[0]),
    "a module": (lambda: flow.nn.ReLU()(input=-X), lambda: flow.nn.ReLU()(-X)),
}


#: the call in PyTorch's earlier order of arguments, and the same in the present order
EARLIER: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "add": (lambda: flow.add(X, 2, X), lambda: flow.add(X, X, alpha=2)),
    "add_": (lambda: X.clone().add_(-0.5, X), lambda: X.clone().add_(X, alpha=-0.5)),
    "sub": (lambda: X.sub(2, X), lambda: X.sub(X, alpha=2)),
    "addcmul_": (lambda: X.clone().addcmul_(2, X, X), lambda: X.clone().addcmul_(X, X, value=2)),
    "addcdiv_": (lambda: X.clone().addcdiv_(-0.1, X, X + 1), lambda: X.clone().addcdiv_(X, X + 1, value=-0.1)),
    "addmm_": (lambda: X.clone().addmm_(1, -2, SQUARE, X), lambda: X.clone().addmm_(SQUARE, X, alpha=-2)),
    "addmm of beta": (lambda: X.addmm(2, SQUARE, X), lambda: X.addmm(SQUARE, X, beta=2)),
    "addmm": (lambda: flow.addmm(2, X, 3, SQUARE, X), lambda: flow.addmm(X, SQUARE, X, beta=2, alpha=3)),
    "addmv": (lambda: VECTOR.addmv(1, 2, SQUARE, VECTOR), lambda: VECTOR.addmv(SQUARE, VECTOR, alpha=2)),
    "baddbmm": (lambda: X[None].baddbmm(3, 2, SQUARE[None], X[None]), lambda: X[None].baddbmm(SQUARE[None], X[None], beta=3, alpha=2)),
}


@pytest.mark.parametrize("word", EARLIER)
def test_scales_before_tensors_are_accepted(word: str) -> None:
    earlier, present = (call() for call in EARLIER[word])
    np.testing.assert_array_equal(earlier.numpy(), present.numpy())


def test_more_scales_than_parameters_raise() -> None:
    with pytest.raises((flow.JobflowError, TypeError), match="add"):
        X.add(2, 3, X)
    with pytest.raises((flow.JobflowError, TypeError), match="add"):
        X.add(2, X, alpha=3)


@pytest.mark.parametrize("word", CALLS)
def test_pytorch_parameter_names_are_accepted(word: str) -> None:
    named, placed = (call() for call in CALLS[word])
    np.testing.assert_array_equal(named.numpy(), placed.numpy())


def test_in_the_body_of_a_job_and_of_a_graph() -> None:
    @flow.global_function()
    def job(x: flow.typing.Numpy.Placeholder((2, 3), dtype=flow.double)) -> flow.typing.Numpy:
        return flow.permute(flow.cumsum(input=x, axis=1), dims=(1, 0))

    class Graph(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return flow.permute(input=x.cumsum(axis=1), dims=(1, 0))

    for results in (job(X.numpy()), Graph()(X).numpy()):
        np.testing.assert_array_equal(results, X.numpy().cumsum(1).T)


def test_unknown_and_duplicate_parameter_names_raise() -> None:
    with pytest.raises(TypeError, match=r"sum\(\) got an unexpected keyword argument 'axes'"):
        X.sum(axes=0)
    with pytest.raises(TypeError, match=r"abs\(\) got an unexpected keyword argument 'axis'"):
        flow.abs(X, axis=0)
    with pytest.raises(TypeError, match=r"sum\(\) got several names of one parameter among dim, axis; pass it once"):
        X.sum(dim=0, axis=0)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        flow.abs(X, input=X)
