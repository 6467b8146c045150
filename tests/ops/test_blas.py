"""Matrix products that accumulate into a matrix by BLAS, and weighted sums."""

from __future__ import annotations

from typing import Any

import laws
import numpy as np
import pytest

from jobflow.kernels import blas, registry
from jobflow.kernels.cpu.product_ops import ProductSum, SgdProduct
from jobflow.kernels.target import CPU

Array = Any


def whole(*shape: int) -> Array:
    """Return small integers, whose products are exact in any order of summation."""
    return (np.arange(np.prod(shape)).reshape(shape) % 7 - 3.0).astype(np.float32)


def subtracted(a: Array, b: Array, rate: float) -> Array | None:
    y, lr = whole(a.shape[0], b.shape[1]), np.array([rate], np.float32)
    call = blas.subtracting_product(a, b, y, lr)
    if call is None:
        return None
    function, arguments = call
    function(*arguments)
    return y


def test_the_blas_of_numpy_wheels_passes_its_test() -> None:
    if not blas.openblas_files():
        pytest.skip("this NumPy was not built with a bundled OpenBLAS")
    assert subtracted(whole(3, 4), whole(4, 5), 2.0) is not None


@pytest.mark.skipif(not blas.openblas_files(), reason="this NumPy was not built with a bundled OpenBLAS")
@pytest.mark.parametrize("first", [laws.plain, laws.innermost], ids=["rows", "columns"])
@pytest.mark.parametrize("second", [laws.plain, laws.innermost], ids=["rows", "columns"])
def test_operands_in_c_and_fortran_order(first: Any, second: Any) -> None:
    a, b = first(whole(6, 5)), second(whole(5, 4))
    ours = subtracted(a, b, 0.5)
    assert ours is not None
    assert np.array_equal(ours, whole(6, 4) - 0.5 * (a @ b))


def test_the_rate_is_read_at_run_time() -> None:
    a, b, y, rate = whole(2, 3), whole(3, 2), np.zeros((2, 2), np.float32), np.array([1.0], np.float32)
    call = blas.subtracting_product(a, b, y, rate)
    if call is None:
        pytest.skip("no library")
    rate[0] = 4.0
    call[0](*call[1])
    assert np.array_equal(y, -4 * (a @ b))


def test_numpy_computes_operands_that_blas_cannot_read() -> None:
    assert subtracted(laws.strided(whole(4, 3)), whole(3, 5), 1.0) is None
    assert blas.adding_product(whole(2, 3), whole(3, 2).astype(np.float64), whole(2, 2)) is None
    assert blas.adding_product(whole(2, 3), whole(3, 2), laws.strided(whole(2, 2))) is None


@pytest.mark.parametrize("there", [True, False], ids=["with the library", "without"])
def test_descent_along_a_product(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there:
        monkeypatch.setattr(blas, "_gemm", lambda kind: None)
    w, a, b, lr = whole(6, 4), whole(5, 6), whole(5, 4), np.array([0.25], np.float32)
    expected = w - 0.25 * (a.T @ b)
    for function, arguments in registry.bind(SgdProduct(transpose_a=True), CPU, laws.Bench(), [w, a, b, lr], [w]):
        function(*arguments)
    assert np.array_equal(w, expected)


@pytest.mark.skipif(not blas.openblas_files(), reason="this NumPy was not built with a bundled OpenBLAS")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_weighted_sums_read_their_factors_at_run_time(kind: Any) -> None:
    alpha, beta = np.array(0.0, kind), np.array(1.0, kind)
    x, y = np.arange(5, dtype=kind), np.ones(5, kind)
    call = blas.weighted_sum(alpha, x, beta, y)
    assert call is not None
    alpha[()], beta[()] = 2.0, -3.0
    call[0](*call[1])
    assert np.array_equal(y, 2 * np.arange(5) - 3)


def test_weighted_sums_of_operands_without_blas() -> None:
    one, x = np.array(1.0, np.float32), np.ones(6, np.float32)
    fixed = x.copy()
    fixed.flags.writeable = False
    for a, y in ((x, x.astype(np.float64)), (x[::2], x[:3]), (x[:0], x[:0]), (fixed, x), (x[:3], x)):
        assert blas.weighted_sum(one, a, one, y) is None
    half = np.ones(3, np.float16)
    assert blas.weighted_sum(half[:1], half, half[:1], half) is None


@pytest.mark.parametrize("there", [True, False], ids=["with the library", "without"])
@pytest.mark.parametrize("order", [laws.plain, laws.innermost, laws.strided], ids=["rows", "columns", "gaps"])
def test_products_accumulate_into_the_output(there: bool, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there:
        monkeypatch.setattr(blas, "_gemm", lambda kind: None)
    a, b, bias, rest, y = whole(6, 5), whole(5, 4), whole(4), whole(6, 4), order(np.full((6, 4), np.nan, np.float32))
    for function, arguments in registry.bind(ProductSum(at=1), CPU, laws.Bench(), [rest, a, b, bias], [y]):
        function(*arguments)
    assert np.array_equal(y, rest + a @ b + bias)
