"""Orders and running products where the laws do not look: NaN, equal values, zeros, axes of no elements."""

from __future__ import annotations

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import ShapeError
from jobflow.ops.scan import cumprod, cumsum
from jobflow.ops.sort import Sort, TopK, sort, topk


def ordered(op: Sort | TopK, x: np.ndarray) -> tuple[list[object], list[object]]:
    values, indices = laws.run(op, [x])
    return values.tolist(), indices.tolist()


def test_nan_is_larger_than_any_number() -> None:
    x = np.array([1.0, np.nan, np.inf, -1.0])
    assert ordered(Sort(0), x)[1] == [3, 0, 2, 1]
    assert ordered(Sort(0, descending=True), x)[1] == [1, 2, 0, 3]
    assert ordered(TopK(0, 2), x)[1] == [1, 2]
    assert ordered(TopK(0, 2, largest=False), x)[1] == [3, 0]


@pytest.mark.parametrize("descending", [False, True])
def test_equal_values_keep_their_order(descending: bool) -> None:
    values, indices = ordered(Sort(0, descending), np.array([2, 1, 2, 1, 2]))
    assert values == ([2, 2, 2, 1, 1] if descending else [1, 1, 2, 2, 2])
    assert indices == ([0, 2, 4, 1, 3] if descending else [1, 3, 0, 2, 4])


def test_too_many_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"k=4.*3 elements"):
        laws.run(TopK(0, 4), [np.zeros(3)])


def test_functions() -> None:
    x = np.array([[3.0, -1.0, 2.0], [0.0, 5.0, 4.0]])
    with scope.using(interpreter=laws.Immediate()):
        np.testing.assert_array_equal(cumsum(laws.Result(x), -1).array, np.cumsum(x, 1))
        np.testing.assert_array_equal(cumprod(laws.Result(x), 0, reverse=True).array, np.cumprod(x[::-1], 0)[::-1])
        np.testing.assert_array_equal(cumsum(laws.Result(x), 1, exclusive=True).array, np.cumsum(x, 1) - x)
        values, indices = sort(laws.Result(x), descending=True)
        np.testing.assert_array_equal(values.array, np.sort(x, 1)[:, ::-1])
        np.testing.assert_array_equal(np.take_along_axis(x, indices.array, 1), values.array)
        values, indices = topk(laws.Result(x), 2)
        assert indices.array.tolist() == [[0, 2], [1, 2]] and values.array.tolist() == [[3.0, 2.0], [5.0, 4.0]]
