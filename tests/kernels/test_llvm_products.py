"""Compiled products of matrices: every form of operands, sizes around tiles and panels, and equal bits for every split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from jobflow.core.types import Array, float32, float64
from jobflow.kernels import blas, blas_threads
from jobflow.kernels.cpu.product_ops import LowerMatMul, ProductSum
from jobflow.kernels.llvm import calls_in_loops, product_loops
from jobflow.kernels.llvm.machine_code import Compiler
from jobflow.kernels.llvm.product_text import ProductForm, print_product
from jobflow.ops.op import Call
from jobflow.runtime.device.numpy_device import CpuDevice

#: rows, summed elements, columns: around tiles of 6, panels of 64, pieces of 256 and parts of 252 and 504
SIZES = [(4, 300, 5), (7, 65, 20), (33, 129, 97), (13, 300, 260), (520, 40, 70), (260, 260, 140), (64, 512, 64)]
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "threads", lambda: 1)


def run(calls: Sequence[Call]) -> bool:
    """Run the calls; return True if one of them is a loop."""
    for function, arguments in calls:
        function(*arguments)
    return all(type(function).__name__ == "CFunctionType" for function, _ in calls)


def stored(shape: Sequence[int], dtype: str, turned: bool, random: Any) -> Array:
    *pairs, rows, columns = shape
    matrix = random.uniform(-1, 1, (*pairs, columns, rows) if turned else shape).astype(dtype)
    return matrix.swapaxes(-1, -2) if turned else matrix


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_every_form_of_operands_equal_numpy(dtype: str) -> None:
    random = np.random.default_rng(0)
    for n, ((rows, depth, columns), turns) in enumerate(product(SIZES, product((False, True), repeat=3))):
        pairs = [(), (3,), (2, 3), (2, 1, 3)][n % 4] if rows < 100 else ()
        a = stored((*pairs, rows, depth), dtype, turns[0], random)
        b = stored((*pairs[-1:], depth, columns), dtype, turns[1], random)
        whole = stored((*pairs, rows + 1, columns + 1), dtype, turns[2], random)
        y, border = whole[..., :rows, :columns], [whole[..., rows, :].copy(), whole[..., columns].copy()]
        bound = TOLERANCE[dtype] * depth
        assert run(calls_in_loops.in_loops([(np.matmul, (a, b, y))]))
        np.testing.assert_allclose(y, expected := a @ b, rtol=0, atol=bound)
        if not pairs:
            rate = np.array([0.5], dtype)
            add, subtract = blas.adding_product(a, b, y), blas.subtracting_product(a, b, y, rate)
            assert add is not None and subtract is not None
            assert run(calls_in_loops.in_loops([(add, (1.0,)), subtract]))
            np.testing.assert_allclose(y, 1.5 * expected, rtol=0, atol=3 * bound)
            for addend in (np.arange(columns, dtype=dtype), stored(y.shape, dtype, turns[2], random)):
                reason = product_loops.refuses_sum(ProductSum(), (a, b, addend), (y,))
                assert (reason is None) == (addend.ndim == 2 or not turns[2])
                if reason is None:
                    assert run(product_loops.sum_in_loops(ProductSum(), CpuDevice(), (a, b, addend), (y,)))
                    np.testing.assert_allclose(y, expected + addend, rtol=2e-7, atol=bound)
        np.testing.assert_array_equal(whole[..., rows, :], border[0])
        np.testing.assert_array_equal(whole[..., columns], border[1])


def test_parts_of_a_product_have_the_bits_of_the_whole() -> None:
    """Split a batch over ranks, which keeps the bits; non-finite values of a row do not affect other rows."""
    random = np.random.default_rng(1)
    a, b = random.uniform(-1, 1, (100, 700)).astype("float32"), random.uniform(-1, 1, (700, 90)).astype("float32")
    a[17, 3], b[5, 60] = np.nan, np.inf
    whole, parts = np.empty((100, 90), "float32"), np.empty((100, 90), "float32")
    assert run(calls_in_loops.in_loops([(np.matmul, (a, b, whole))]))
    for first, end in ((0, 7), (7, 31), (31, 100)):
        for left, right in ((0, 64), (64, 90)):
            assert run(calls_in_loops.in_loops([(np.matmul, (a[first:end], b[:, left:right], parts[first:end, left:right]))]))
    np.testing.assert_array_equal(whole, parts)
    assert np.isnan(whole[17]).all() and np.isinf(np.delete(whole[:, 60], 17)).all()
    assert np.isfinite(np.delete(np.delete(whole, 17, 0), 60, 1)).all()


def test_products_with_triangles_equal_whole_products() -> None:
    """Use all rows, depths, blocks and tiles, including rows and columns of zeros."""
    random = np.random.default_rng(3)
    for rows, depth, columns in ((128, 128, 64), (600, 300, 20), (40, 700, 33), (9, 30, 70)):
        a, b = np.tril(random.uniform(-1, 1, (2, rows, depth)).astype("float32")), random.uniform(-1, 1, (2, depth, columns)).astype("float32")
        for op, factor in ((LowerMatMul(), b), (LowerMatMul(True), random.uniform(-1, 1, (2, rows, columns)).astype("float32"))):
            turned = a.swapaxes(1, 2) if op.transpose_a else a
            y = np.full((2, turned.shape[1], columns), np.nan, "float32")
            assert run(product_loops.triangle_in_loops(op, CpuDevice(), (a, factor), (y,)))
            np.testing.assert_allclose(y, turned @ factor, rtol=0, atol=2e-6 * max(rows, depth))


def test_unsupported_products_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    a, y = np.ones((64, 64), "float32"), np.zeros((64, 64), "float32")
    cases = {
        "the element types": (a.astype("int32"), a.astype("int32"), y.astype("int32")),
        "fewer than 4 rows": (a[:3], a, y[:3]),
        "multiply-adds": (a[:8, :8], a[:8, :8], y[:8, :8]),
        "of the result are contiguous": (a[:32], a[:, ::2], np.empty((64, 64), "float32")[::2, ::2]),
        "of a factor are contiguous": (a, np.ones((128, 128), "float32")[::2, ::2], y),
        "a negative stride": (a[::-1], a, y),
        "shares memory with an operand": (a, y, y),
        "calls of two axes": (np.ones((65, 1, 1, 64, 64), "float32"), a, np.empty((65, 1, 1, 64, 64), "float32")),
    }
    for why, (left, right, result) in cases.items():
        assert why in str(product_loops.refuses(left, right, result))
        call: Call = (np.matmul, (left, right, result))
        assert calls_in_loops.in_loops([call])[0] is call
    assert product_loops.refuses(a, a, y) is None and run(calls_in_loops.in_loops([(a.dot, (a, y))]))
    monkeypatch.setattr(blas_threads, "threads", lambda: 4)
    assert "several threads" in str(product_loops.refuses(a, a, y)) and product_loops.about().startswith("NumPy")


@pytest.mark.parametrize(("lanes", "rows", "panel"), [(8, (4, 2, 1), 3), (4, (6, 4, 2, 1), 4), (2, (6, 4, 2, 1), 4)])
def test_products_in_shorter_vectors_equal_numpy(lanes: int, rows: tuple[int, ...], panel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the texts for vectors of 32 and 16 bytes, which other machines have, on this machine."""
    for dtype in (float32, float64):
        form = ProductForm(dtype, lanes if dtype is float32 else max(lanes // 2, 2), rows, panel, 64)
        compiler = Compiler()
        function = compiler.function(print_product(form))
        monkeypatch.setattr(product_loops, "_compiled", lambda _, function=function: function)
        random = np.random.default_rng(2)
        for turns in product((False, True), repeat=2):
            a, b = stored((270, 300), dtype.name, turns[0], random), stored((300, 100), dtype.name, turns[1], random)
            y = np.empty((270, 100), dtype.name)
            assert run(calls_in_loops.in_loops([(np.matmul, (a, b, y))]))
            np.testing.assert_allclose(y, a @ b, rtol=0, atol=300 * TOLERANCE[dtype.name])
