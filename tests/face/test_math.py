"""Scalars, shapes, element types and keywords of flow.math in jobs; tests/laws/function_table.py has the values of its functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jobflow import math
from jobflow.core.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("word", ["add", "subtract", "multiply", "divide", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_take_the_element_type_of_the_tensor(word: str, dtype: Any, run: Any) -> None:
    x = np.array([1.0, 2.0, 4.0], dtype)
    left, right = run(lambda t: (getattr(math, word)(3, t), getattr(math, word)(t, np.float64(0.5))), x)
    assert left.dtype == right.dtype == dtype
    np.testing.assert_allclose(left, getattr(np, word)(3, x), rtol=1e-6)
    np.testing.assert_allclose(right, getattr(np, word)(x, 0.5), rtol=1e-6)


def test_integers_with_python_scalars(run: Any) -> None:
    y = run(lambda t: math.subtract(math.multiply(t, 3), 1), np.array([1, 2], np.int32))
    assert y.dtype == np.int32 and y.tolist() == [2, 5]
    with pytest.raises(TypeError, match=r"0\.5"):
        run(lambda t: math.add(t, 0.5), np.array([1, 2], np.int32))


def test_division_by_zero_and_of_a_number(run: Any) -> None:
    assert run(lambda t: math.divide(t, 0), [3.0, -1.0]).tolist() == [0, 0]
    assert run(lambda t: math.divide(6, t), [3.0, 0.0]).tolist() == [2, 0]


def test_two_scalars_raise_with_both_values(run: Any) -> None:
    with pytest.raises(ArgumentError, match=r"add at test_math\.py:\d+.*1 and 2"):
        run(lambda: math.add(1, 2))


def test_add_n(run: Any) -> None:
    y = run(lambda a, b, c: math.add_n([a, b, c], name="sum"), [1.0, 2.0], [3.0, 4.0], [5.0, 6.0])
    assert y.tolist() == [9, 12] and run.job.names == ["sum"]
    with pytest.raises(ShapeError, match=r"float64\[2\], float64\[3\]"):
        run(lambda a, b: math.add_n([a, b]), [1.0, 2.0], [1.0, 2.0, 3.0])


def test_polyval(run: Any) -> None:
    x = np.array([0.5, 2.0])
    np.testing.assert_allclose(run(lambda t: math.polyval([2, -3.0, 1], t), x), np.polyval([2, -3, 1], x))


def test_logical_and(run: Any) -> None:
    z = run(math.logical_and, np.array([0, 1, 3], np.int8), np.array([1, 0, 2], np.int8))
    assert z.dtype == np.int8 and z.tolist() == [0, 0, 1]


@pytest.mark.parametrize("word", ["clip_by_value", "clip", "clamp", "clip_by_scalar"])
def test_clip(word: str, run: Any) -> None:
    clip = getattr(math, word)
    x = [-2.0, 0.5, 3.0]
    assert run(lambda t: clip(t, min_value=0), x).tolist() == [0, 0.5, 3]
    assert run(lambda t: clip(t, max_value=0), x).tolist() == [-2, 0, 0]
    with pytest.raises(ValueError, match="min_value"):
        run(clip, x)


@pytest.mark.parametrize("word", ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
def test_reductions_over_no_axes_return_the_tensor(word: str, run: Any) -> None:
    assert run(lambda t: getattr(math, word)(t, []) is t, [1.0, 2.0])


def test_any_and_all_return_int8(run: Any) -> None:
    x = np.array([[0, 3, 0], [1, 2, 3], [0, 0, 0]], np.int8)
    some, every = run(lambda t: (math.reduce_any(t, 1), math.reduce_all(t, 1)), x)
    assert some.dtype == every.dtype == np.int8
    assert some.tolist() == [1, 1, 0] and every.tolist() == [0, 1, 0]
    assert run(math.reduce_any, x).tolist() == [1] and run(math.reduce_all, x).shape == (1,)
    assert run(lambda t: math.reduce_any(t, []), x).tolist() == (x != 0).tolist()
    assert run(lambda t: math.reduce_any(t, np.int64(0)), x).tolist() == (x != 0).any(0).tolist()


def test_argmax(run: Any, rng: Any) -> None:
    x = rng.standard_normal((3, 4))
    y = run(math.argmax, x)
    assert y.dtype == np.int32 and (y == x.argmax(-1)).all()
    assert (run(lambda t: math.argmax(t, 0), x) == x.argmax(0)).all()
    assert run(lambda t: math.argmax(t, "position"), x).shape == (3,) and run.job.names == ["position"]


def test_l2_normalize(run: Any, rng: Any) -> None:
    x = np.vstack([rng.standard_normal((2, 3)), np.zeros((1, 3))])
    norm = np.sqrt(np.maximum((x * x).sum(1, keepdims=True), 1e-12))
    np.testing.assert_allclose(run(lambda t: math.l2_normalize(t, 1), x), x / norm, rtol=1e-12)
    with pytest.raises(AssertionError, match="axis"):
        run(math.l2_normalize, x)


def test_segment_sums(run: Any) -> None:
    data, ids = np.arange(6.0).reshape(3, 2), np.array([1, 1, -1], np.int32)
    assert run(lambda d, i: math.unsorted_segment_sum(d, i, 3), data, ids).tolist() == [[0, 0], [2, 4], [0, 0]]
    assert run(lambda d, i, like: math.unsorted_segment_sum_like(d, i, like), data, ids, np.zeros((3, 2))).shape == (3, 2)
    rows = run(lambda d, i: math.unsorted_batch_segment_sum(d, i, 2), data, np.array([[0, 0], [1, 0], [1, 1]], np.int32))
    assert rows.tolist() == [[1, 0], [3, 2], [0, 9]]


def test_lower_triangle(run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 3, 3))
    lower = np.tril(np.ones((3, 3), bool), 1)
    np.testing.assert_allclose(run(lambda t: math.tril(t, 1, 7), x), np.where(lower, x, 7))
    np.testing.assert_allclose(run(lambda t: math.fused_scale_tril(t, 1, -1, 0.5), x), np.where(lower, x / 2, -1))


def test_broadcast_to_compatible_with(run: Any) -> None:
    x, a, b = np.array([[1.0], [2.0]]), np.zeros((1, 3)), np.zeros((4, 1, 1))
    assert run(lambda x, a, b: math.broadcast_to_compatible_with(x, [a, b]), x, a, b).shape == (4, 2, 3)
    with pytest.raises(ShapeError, match="no common broadcast shape"):
        run(lambda x, a: math.broadcast_to_compatible_with(x, [a]), x, np.zeros((3, 3)))


def test_in_top_k(run: Any) -> None:
    scores = np.array([[0.1, 0.5, 0.4], [0.9, 0.05, 0.05], [0.2, 0.3, 0.5]])
    y = run(lambda t, p: math.in_top_k(t, p, 2), np.array([2, 1, 0], np.int32), scores)
    assert y.dtype == np.int8 and y.tolist() == [1, 1, 0]


def test_count_not_finite(run: Any) -> None:
    x, y = [1.0, np.inf, np.nan, -np.inf], [np.nan]
    count = run(math.count_not_finite, x)
    assert count.dtype == np.int64 and count.tolist() == [3]
    assert run(lambda a, b: math.multi_count_not_finite([a, b]), x, y).tolist() == [4]


def test_reduced_element_count(run: Any) -> None:
    count = run(lambda t: math.reduced_shape_elem_cnt(t, [0, -1]), np.zeros((2, 3, 4)))
    assert count.dtype == np.int32 and count.tolist() == [8]
