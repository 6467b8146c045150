"""The argument `out=`: the result is in the tensors of `out`, which are returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import with_ranks

import jobflow as flow
from jobflow.core.errors import ArgumentError, DtypeError, JobError, JobflowError, ShapeError
from jobflow.functional.out_arguments import NAMES

A = np.arange(1.0, 7.0).reshape(2, 3)
#: name -> a call of the function with options
CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda x, **out: flow.add(x, x, **out),
    "exp": lambda x, **out: flow.exp(x, **out),
    "clamp": lambda x, **out: flow.clamp(x, 2, 3, **out),
    "where": lambda x, **out: flow.where(x > 2, x, -x, **out),
    "sum": lambda x, **out: flow.sum(x, 1, **out),
    "mean": lambda x, **out: flow.mean(x, dim=0, **out),
    "argument names": lambda x, **out: flow.amax(input=x, axis=1, **out),
    "matmul": lambda x, **out: flow.matmul(x, x.T, **out),
    "cat": lambda x, **out: flow.cat([x, x], 0, **out),
    "stack": lambda x, **out: flow.stack([x, x], **out),
    "cumsum": lambda x, **out: flow.cumsum(x, 1, **out),
    "transposed": lambda x, **out: flow.mul(x.T, 2, **out),
}


@pytest.mark.parametrize("name", CALLS)
def test_out_receives_the_result(name: str) -> None:
    call, x = CALLS[name], flow.tensor(A)
    expected = call(x)
    same, empty, wide = flow.zeros_like(expected), flow.empty(0, dtype=flow.float64), flow.zeros(*expected.shape, dtype=flow.float32)
    assert call(x, out=same) is same and call(x, out=empty) is empty and call(x, out=None) is not same
    call(x, out=wide)
    assert empty.shape == expected.shape and wide.dtype is flow.float32
    for result in (same, empty, wide):
        np.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=1e-6)

    def compiled(x: Any, out: Any) -> Any:
        return call(x, out=out) + 1

    again = flow.zeros_like(expected)
    for _ in range(2):
        np.testing.assert_allclose(flow.compile(compiled)(x, again).numpy(), expected.numpy() + 1, rtol=1e-6)
        np.testing.assert_allclose(again.numpy(), expected.numpy(), rtol=1e-6)


def test_out_of_several_results_is_a_tuple() -> None:
    x, values, indices = flow.tensor(A), flow.zeros(2, dtype=flow.float64), flow.zeros(2, dtype=flow.int64)
    result = flow.max(x, 1, out=(values, indices))
    assert result.values is values and result.indices is indices
    assert values.tolist() == [3, 6] and indices.tolist() == [2, 2]


def test_out_of_new_tensors_selects_the_element_type() -> None:
    x = flow.zeros(3, dtype=flow.float64)
    assert flow.ones(3, out=x) is x and x.tolist() == [1, 1, 1]
    flow.arange(3, out=x)
    assert x.tolist() == [0, 1, 2] and x.dtype is flow.float64
    flow.randn(3, out=x)
    assert (x != 0).all()


def test_out_may_be_an_operand_or_a_view() -> None:
    x = flow.tensor(A)
    assert flow.add(x, x, out=x) is x
    np.testing.assert_array_equal(x.numpy(), 2 * A)
    y = flow.zeros(2, 6, dtype=flow.float64)
    flow.neg(x, out=y[:, ::2])
    np.testing.assert_array_equal(y.numpy()[:, ::2], -2 * A)


@with_ranks(2)
def test_out_keeps_its_layout(rank: int) -> None:
    placement = flow.placement("cpu", [0, 1])
    x = flow.tensor(A, placement=placement, sbp=flow.sbp.split(0))
    out = flow.zeros(2, 3, dtype=flow.float64, placement=placement, sbp=flow.sbp.broadcast)
    flow.exp(x, out=out)
    assert out.sbp == (flow.sbp.broadcast,)
    np.testing.assert_allclose(out.numpy(), np.exp(A), rtol=1e-12)


X, NEEDS = flow.tensor(A), flow.tensor(A, requires_grad=True)
WRONG: dict[str, tuple[type[JobflowError], str, Callable[[], Any]]] = {
    "no tensor": (ArgumentError, "out must be a tensor", lambda: flow.add(X, X, out=3)),
    "an array": (ArgumentError, "NumPy array", lambda: flow.add(X, X, out=A)),
    "a tuple": (ArgumentError, "got a tuple of 1 tensor", lambda: flow.add(X, X, out=(X,))),
    "one of two": (ArgumentError, "a tuple of 2 tensors", lambda: flow.max(X, 1, out=X)),
    "shape": (ShapeError, "float64\\[2\\]", lambda: flow.add(X, X, out=flow.zeros(2, dtype=flow.float64))),
    "element type": (DtypeError, "int64", lambda: flow.exp(X, out=flow.zeros(2, 3, dtype=flow.int64))),
    "gradient": (JobError, "no_grad", lambda: flow.add(NEEDS, X, out=flow.zeros(2, 3, dtype=flow.float64))),
    "gradient of out": (JobError, "no_grad", lambda: flow.add(X, X, out=NEEDS)),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_out_raises(name: str) -> None:
    kind, words, call = WRONG[name]
    with pytest.raises(kind, match=words):
        call()


def test_functions_without_out_refuse_it() -> None:
    for call in (lambda: flow.reshape(X, (3, 2), out=X), lambda: flow.nn.functional.relu(X, out=X)):
        with pytest.raises(TypeError, match="out"):
            call()


def test_every_function_of_the_list_accepts_out() -> None:
    """A function that `dispatch` does not wrap raises an error for the argument."""
    for name in sorted(NAMES & set(flow.functional.__all__)):
        function = getattr(flow.functional, name)
        with pytest.raises((ArgumentError, TypeError)) as caught:
            function(X, out="x")
        assert "unexpected" not in str(caught.value), name
