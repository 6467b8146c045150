"""Tests that compiled segment sums have the bits of NumPy's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from jobflow.core.types import type_of
from jobflow.kernels import registry
from jobflow.kernels.target import CPU, target_of
from jobflow.ops.index import BatchSegmentSum, DimScatterAdd, UnsortedSegmentSum
from jobflow.runtime.device.numpy_device import CpuDevice

#: an operation, and the shapes of its data and of its ids
CASES = [
    *(
        (UnsortedSegmentSum(0, size, offset), shape, shape[:1])
        for shape, size in (((64, 17), 9), ((200,), 70), ((64, 4, 4), 300))
        for offset in (0, 2)
    ),
    *((DimScatterAdd(axis, 40, offset), shape, shape) for axis, shape in ((0, (50, 7)), (1, (30, 50, 7)), (2, (4, 5, 50))) for offset in (0, 3)),
    *((BatchSegmentSum(batch, 20), shape, shape[: batch + 1]) for batch, shape in ((1, (6, 30, 17)), (2, (6, 3, 30)), (1, (6, 30, 4, 8)))),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_of_rows_have_the_bits_of_numpy(dtype: str) -> None:
    random = np.random.default_rng(0)
    for (op, shape, id_shape), id_type in product(CASES, ("int32", "int64")):
        data, ids = random.uniform(-9, 9, shape).astype(dtype), random.integers(-3, op.size + 3, id_shape).astype(id_type)
        results = []
        for target in (CPU, target_of("cpu", "llvm")):
            y = np.full(op.infer(type_of(data), type_of(ids)).shape, 7, dtype)
            chosen = registry.choose(op, target, [data, ids], [y])
            for function, arguments in chosen.implementation.bind(op, CpuDevice(), [data, ids], [y]):
                function(*arguments)
            results.append(y)
        assert chosen.implementation.name == "sequential row sums"
        np.testing.assert_array_equal(*results, err_msg=str(op))
