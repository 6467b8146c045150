"""Sorts and cumulative products beyond the laws: NaN, equal values, zeros, empty axes."""

from __future__ import annotations

from itertools import product

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import ShapeError
from jobflow.core.types import type_of
from jobflow.kernels import registry
from jobflow.kernels.target import CPU, target_of
from jobflow.ops.scan import cumprod, cumsum
from jobflow.ops.sort import Sort, TopK, sort, topk
from jobflow.runtime.device.numpy_device import CpuDevice


def ordered(op: Sort | TopK, x: np.ndarray) -> tuple[list[object], list[object]]:
    values, indices = laws.run(op, [x])
    return values.tolist(), indices.tolist()


def test_nan_sorts_last() -> None:
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


def test_top_k_of_many_equals_a_sort() -> None:
    """With NaN, infinities, zeros of both signs, equal values, and along any axis; k = 4 selects one by one, k = 9 does not."""
    random = np.random.default_rng(0)
    for kind, (axis, k), largest in product(("float32", "float16", "int32", "uint8", "bool"), ((0, 4), (1, 4), (2, 4), (2, 9)), (True, False)):
        ends = {"f": [np.nan, np.inf, -np.inf], "i": [np.iinfo("int32").min, np.iinfo("int32").max], "u": [255.0]}
        x = random.choice([0.0, -0.0, 1.0, 3.0, *ends.get(np.dtype(kind).kind, [])], (17, 19, 40)).astype(kind)
        x[:, :, 3:6] = np.arange(3)
        op = TopK(axis, k, largest)
        for target in (CPU, target_of("cpu", "llvm")):
            outputs = [np.empty(type.shape, type.dtype.numpy) for type in op.infer(type_of(x))]
            chosen = registry.choose(op, target, [x], outputs)
            assert chosen.implementation.name == "selected and sorted"
            for function, arguments in chosen.implementation.bind(op, CpuDevice(), [x], outputs):
                function(*arguments)
            assert [a.tobytes() for a in outputs] == [a.tobytes() for a in laws.run(op, [x])]


def test_too_large_k_raises() -> None:
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
