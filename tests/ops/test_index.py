"""Lookups: indices out of range, split tables, fast paths, errors."""

from __future__ import annotations

from typing import Any

import laws
import numpy as np
import pytest

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, P, S
from jobflow.core.types import TensorType, float32, float64, int32
from jobflow.kernels import registry
from jobflow.kernels.target import CPU
from jobflow.ops import index
from jobflow.ops.op import Op

TABLE = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("at_once")


def bound(op: Op, *inputs: Any) -> Any:
    (y,) = laws.empties([op.infer(*map(laws.type_of, inputs))], fill=0)
    for function, arguments in registry.bind(op, CPU, laws.Bench(), inputs, [y]):
        function(*arguments)
    return y


def test_rows_out_of_range_are_zeros() -> None:
    rows = index.gather(laws.Result(TABLE), laws.Result(np.array([3, -1, 50, 49]))).array
    np.testing.assert_array_equal(rows, [TABLE[3], np.zeros(16), np.zeros(16), TABLE[49]])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("ids", [[0, 49, 7], [0, 60, 7], []], ids=str)
def test_bound_lookup(ids: list[int], dtype: Any) -> None:
    ids_ = np.array(ids, dtype)
    np.testing.assert_array_equal(bound(index.Gather(0), TABLE, ids_), laws.run(index.Gather(0), [TABLE, ids_])[0])
    np.testing.assert_array_equal(bound(index.Gather(0, offset=5), TABLE, ids_), laws.run(index.Gather(0, offset=5), [TABLE, ids_])[0])


def test_a_split_table_gives_partial_results() -> None:
    rule = index.Gather(0).rule(TensorType((50, 16), float32), TensorType((8,), int32))
    assert ((S(0), B), (P,)) in [(s.inputs, s.outputs) for s in rule.signatures()]


def test_rows_of_repeated_indices_are_summed() -> None:
    ids = np.random.default_rng(1).integers(-3, 55, 400)
    data = np.random.default_rng(2).normal(size=(400, 16))
    expected = np.zeros((50, 16))
    for row, k in zip(data, ids, strict=True):
        if 0 <= k < 50:
            expected[k] += row
    op = index.UnsortedSegmentSum(0, 50)
    np.testing.assert_allclose(bound(op, data, ids), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(laws.run(op, [data, ids])[0], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(bound(op, laws.innermost(data), ids), expected, rtol=1e-12, atol=1e-12)


def test_one_hot_rows() -> None:
    hot = index.one_hot(laws.Result(np.array([[0, 2], [5, 1]])), 3, dtype=float64, on=2.0, off=-1.0)
    assert hot.array.tolist() == [[[2, -1, -1], [-1, -1, 2]], [[-1, -1, -1], [-1, 2, -1]]]
    first = index.one_hot(laws.Result(np.array([1, 0])), 2, dtype=int32, axis=0)
    assert first.array.tolist() == [[0, 1], [1, 0]] and first.tensor_type.dtype is int32


def test_lookups_along_an_axis_equal_numpy() -> None:
    x, ids = np.random.default_rng(3).normal(size=(4, 5, 6)), np.random.default_rng(4).integers(0, 5, (4, 2, 6))
    np.testing.assert_array_equal(index.dim_gather(laws.Result(x), laws.Result(ids), 1).array, np.take_along_axis(x, ids, 1))
    rows = np.random.default_rng(5).integers(0, 5, (4, 3))
    np.testing.assert_array_equal(index.batch_gather(laws.Result(x), laws.Result(rows)).array, np.stack([a[i] for a, i in zip(x, rows, strict=True)]))


@pytest.mark.parametrize("diagonal", [-2, 0, 1, 9])
def test_triangles_equal_numpy(diagonal: int) -> None:
    x = np.random.default_rng(6).normal(size=(3, 5, 4))
    np.testing.assert_array_equal(index.tril(laws.Result(x), diagonal).array, np.tril(x, diagonal))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: index.gather(laws.Result(TABLE), laws.Result(np.array([1.0]))), DtypeError, ["gather", "float64[1]", "integers"]),
        (lambda: index.gather(laws.Result(TABLE), laws.Result(np.array([1])), 2), ShapeError, ["gather", "axis 2"]),
        (
            lambda: index.unsorted_segment_sum(laws.Result(TABLE), laws.Result(np.arange(3)), 4),
            ShapeError,
            ["unsorted_segment_sum", "float32[50,16]", "int64[3]"],
        ),
        (lambda: index.dim_gather(laws.Result(TABLE), laws.Result(np.arange(3)), 0), ShapeError, ["dim_gather", "int64[3]"]),
        (lambda: index.batch_gather(laws.Result(TABLE), laws.Result(np.arange(3))), ShapeError, ["batch_gather", "int64[3]"]),
        (lambda: index.tril(laws.Result(np.arange(3.0))), ShapeError, ["tril", "float64[3]"]),
    ],
)
def test_errors_name_the_operands(call: Any, kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)
