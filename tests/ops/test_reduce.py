"""Reductions: composed functions, fast sums, errors, ties, empty shards."""

from __future__ import annotations

from itertools import chain, combinations, permutations
from typing import Any

import laws
import numpy as np
import pytest

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import MAX, Partial, S
from jobflow.core.types import TensorType, float32, int32
from jobflow.kernels.cpu.sums import sum_calls
from jobflow.ops import reduce

X = np.random.default_rng(0).normal(size=(4, 3, 5))


pytestmark = pytest.mark.usefixtures("at_once")


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [None, 0, -1, (0, 2), (1,)])
def test_functions_equal_numpy(axes: Any, keepdims: bool) -> None:
    pairs = [
        (reduce.reduce_sum, np.sum),
        (reduce.reduce_mean, np.mean),
        (reduce.reduce_max, np.max),
        (reduce.reduce_min, np.min),
        (reduce.reduce_prod, np.prod),
        (reduce.reduce_variance, np.var),
        (reduce.reduce_std, np.std),
        (reduce.logsumexp, lambda x, **options: np.log(np.sum(np.exp(x), **options))),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours(laws.Result(X), axes, keepdims).array, theirs(X, axis=axes, keepdims=keepdims), rtol=1e-12)


def test_any_and_all_over_axes() -> None:
    x = laws.Result(X > 0.5)
    assert np.array_equal(reduce.reduce_any(x, 1).array, (X > 0.5).any(1))
    assert np.array_equal(reduce.reduce_all(x, (0, 2), keepdims=True).array, (X > 0.5).all((0, 2), keepdims=True))


def test_argmax_and_argmin() -> None:
    assert reduce.argmax(laws.Result(X)).tensor_type == TensorType((4, 3), int32)
    assert np.array_equal(reduce.argmax(laws.Result(X), 1).array, X.argmax(1))
    assert np.array_equal(reduce.argmin(laws.Result(X), 0).array, X.argmin(0))


def test_reduction_over_no_axes_is_the_tensor_itself() -> None:
    x = laws.Result(X)
    assert reduce.reduce_sum(x, ()) is x and reduce.reduce_max(x, ()) is x


def test_logsumexp_does_not_overflow() -> None:
    assert reduce.logsumexp(laws.Result(np.array([1000.0, 1000.0]))).array == pytest.approx(1000 + np.log(2))


def test_gradient_of_ties_is_divided_equally() -> None:
    x = laws.Result(np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]))
    op = reduce.ReduceMax((1,))
    (dx,) = op.grad(x, reduce.reduce_max(x, 1), laws.Result(np.array([6.0, 6.0])))
    assert dx.array.tolist() == [[0, 3, 3], [2, 2, 2]]


def test_partial_maxima_combine_by_maximum() -> None:
    signatures = reduce.ReduceMax((1,)).rule(TensorType((4, 3), float32)).signatures()
    assert [s.outputs for s in signatures if s.inputs == (S(1),)] == [(Partial(MAX),)]


@pytest.mark.parametrize("op", [reduce.ReduceSum, reduce.ReduceMax, reduce.ReduceMin, reduce.ReduceProd])
def test_an_empty_shard_gives_the_identity(op: Any) -> None:
    identity = {"ReduceSum": 0, "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceProd": 1}[op.__name__]
    (y,) = laws.run(op((0,)), [np.empty((0, 3))])
    assert y.tolist() == [identity] * 3


def test_errors_name_the_operands() -> None:
    with pytest.raises(DtypeError, match=r"reducesum: bool\[2\]"):
        reduce.reduce_sum(laws.Result(np.array([True, False])))
    with pytest.raises(ShapeError, match="axis 2 is out of range for a tensor of 2 axes"):
        reduce.reduce_sum(laws.Result(np.ones((2, 2))), 2)
    with pytest.raises(DtypeError, match=r"logsumexp: int64\[2\]"):
        reduce.logsumexp(laws.Result(np.arange(2)))


AXES = list(chain.from_iterable(combinations(range(3), k) for k in (1, 2, 3)))


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("shape", [(4, 3, 5), (1, 3, 5), (4, 1, 1), (0, 3, 2)], ids=str)
def test_fast_sums_in_every_memory_order(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape)
    expected = x.sum(axes)
    for order in permutations(range(3)):
        turned = np.array(x.transpose(order), order="C").transpose(np.argsort(order))
        for y in (np.full(expected.shape, np.nan), laws.strided(np.full(expected.shape, np.nan)), np.full(expected.shape, np.nan, order="F")):
            for function, arguments in sum_calls(laws.Bench(), turned, axes, y):
                function(*arguments)
            np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


def test_column_sums_are_matrix_products() -> None:
    x, y = np.ones((100, 20), np.float32), np.empty(20, np.float32)
    assert [function for function, _ in sum_calls(laws.Bench(), x, (0,), y)] == [np.dot]
    channels = laws.innermost(np.ones((8, 3, 4, 4), np.float32))  # stored c, h, w, n
    assert [function for function, _ in sum_calls(laws.Bench(), channels, (0, 2, 3), np.empty(3, np.float32))] == [np.dot]
