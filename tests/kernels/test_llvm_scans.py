"""Tests that compiled running sums and products have the bits of NumPy's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from jobflow.kernels import registry
from jobflow.kernels.target import CPU, target_of
from jobflow.ops.scan import CumProd, CumSum
from jobflow.runtime.device.numpy_device import CpuDevice


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_scans_have_the_bits_of_numpy(dtype: str) -> None:
    for shape, cls, reverse, exclusive in product([(7, 37), (3, 5, 11), (2, 64), (130,)], (CumSum, CumProd), (False, True), (False, True)):
        x = np.random.default_rng(len(shape)).uniform(-3 if dtype != "uint8" else 0, 3, shape).astype(dtype)
        if dtype.startswith("float"):
            x[..., :2] = -0.0
        op, results = cls(x.ndim - 1, reverse, exclusive), []
        for target in (CPU, target_of("cpu", "llvm")):
            y = np.zeros_like(x)
            chosen = registry.choose(op, target, [x], [y])
            for function, arguments in chosen.implementation.bind(op, CpuDevice(), [x], [y]):
                function(*arguments)
            results.append((chosen.implementation.name, y))
        (_, expected), (name, ours) = results
        assert name == "running values"
        np.testing.assert_array_equal(ours.view(f"u{x.itemsize}"), expected.view(f"u{x.itemsize}"), err_msg=f"{op} of {shape}")


def test_numpy_computes_scans_of_strided_elements() -> None:
    x = np.zeros((40, 40), np.float32)
    chosen = registry.choose(CumSum(0), target_of("cpu", "llvm"), [x], [x.copy()])
    assert chosen.implementation.name == "kernel"
    assert ("running values", "elements along the axis are not contiguous; NumPy processes many rows at once") in chosen.refused
