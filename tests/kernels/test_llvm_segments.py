"""Sums of rows by their numbers, as a compiled loop, have the bits of NumPy's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from jobflow.kernels import registry
from jobflow.kernels.target import CPU, target_of
from jobflow.ops.index import UnsortedSegmentSum
from jobflow.runtime.device.numpy_device import CpuDevice


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_of_rows_have_the_bits_of_numpy(dtype: str) -> None:
    random = np.random.default_rng(0)
    for (shape, size), numbers, offset in product([((64, 17), 9), ((200,), 70), ((64, 4, 4), 300)], ("int32", "int64"), (0, 2)):
        data, ids = random.uniform(-9, 9, shape).astype(dtype), random.integers(-3, size + 3, shape[0]).astype(numbers)
        made = []
        for target in (CPU, target_of("cpu", "llvm")):
            y = np.zeros((size, *shape[1:]), dtype)
            chosen = registry.choose(UnsortedSegmentSum(0, size, offset), target, [data, ids], [y])
            for function, arguments in chosen.implementation.bind(UnsortedSegmentSum(0, size, offset), CpuDevice(), [data, ids], [y]):
                function(*arguments)
            made.append(y)
        assert chosen.implementation.name == "sums of rows in turn"
        np.testing.assert_array_equal(*made)
