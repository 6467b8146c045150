"""Tests that compiled Winograd transforms equal the products that they replace.

The cases have edges, remainders of samples, one dimension, and blocks of samples.
"""

from __future__ import annotations

import numpy as np
import pytest

from jobflow.core.types import Array
from jobflow.kernels.cpu import winograd
from jobflow.kernels.llvm import product_loops, winograd_loops
from jobflow.kernels.llvm.machine_code import compiler
from jobflow.kernels.llvm.winograd_text import TransformForm, print_transform
from jobflow.ops.windows import Window
from jobflow.runtime.device.numpy_device import CpuDevice

#: outputs of a tile, window, padding, samples, channels, filters, height, width
CASES = [
    (4, (5, 5), (2, 2), 70, 8, 9, 14, 14),
    (3, (5, 5), (0, 1), 9, 3, 4, 9, 30),
    (2, (3, 3), (1, 1), 17, 2, 3, 5, 7),
    (4, (1, 3), (0, 2), 20, 3, 2, 1, 21),
]


def innermost(random: np.random.Generator, dtype: str, n: int, *sizes: int) -> Array:
    return np.moveaxis(random.standard_normal((*sizes, n)).astype(dtype), -1, 0)


def results(backend: winograd.WinogradBackend, m: int, window: Window, x: Array, w: Array, dy: Array) -> list[Array]:
    """Return y, dx and dw."""
    outputs = []
    for prepare, a, b, like in ((winograd.forward, x, w, dy), (winograd.grad_input, dy, w, x), (winograd.grad_weight, x, dy, w)):
        outputs.append(np.full_like(like, np.nan))
        for function, arguments in prepare(backend, window, m, CpuDevice(), a, b, outputs[-1]):
            function(*arguments)
    return outputs


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 16), ("float32", 8), ("float64", 4)])
def test_compiled_transforms_equal_products(dtype: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd_loops, "_compiled", lambda dtype, *pair: compiler().function(print_transform(TransformForm(dtype, lanes, *pair))))
    for m, kernel, (down, along), n, c, o, height, width in CASES:
        random, window = np.random.default_rng(n), Window(kernel, (1, 1), ((down, down), (along, along)), (1, 1))
        x, w = innermost(random, dtype, n, c, height, width), random.standard_normal((o, c, *kernel)).astype(dtype)
        dy = innermost(random, dtype, n, o, *window.out_sizes("conv", (height, width)))
        expected = results(winograd.PRODUCTS, m, window, x, w, dy)
        for near in (1 << 18, 1 << 40):
            backend = winograd.WinogradBackend(winograd_loops.transformed, product_loops.added, near)
            for result, other in zip(results(backend, m, window, x, w, dy), expected, strict=True):
                np.testing.assert_allclose(result, other, rtol=0, atol=np.abs(other).max() * (4e-5 if dtype == "float32" else 1e-13))
