"""Products of float32 in AMX registers: every form of operands, errors compared with vector products, and values that the unit cannot process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest

from jobflow.core.types import Array, float32
from jobflow.kernels import blas_threads, machine_class
from jobflow.kernels.cpu.product_ops import LowerMatMul, ProductSum
from jobflow.kernels.llvm import amx_product_text, product_loops
from jobflow.kernels.llvm.amx_product_text import print_amx_product
from jobflow.kernels.llvm.machine_code import Compiler, compiler
from jobflow.kernels.llvm.product_text import print_product
from jobflow.runtime.device.numpy_device import CpuDevice

#: rows, summed elements, columns: around halves of 16, tiles and steps of 32, parts of 128 and of 1024
SIZES = [(4, 300, 5), (16, 32, 16), (17, 33, 31), (33, 129, 97), (70, 260, 1100), (130, 128, 64), (100, 784, 48)]


def test_the_text_compiles_for_processors_with_amx() -> None:
    if not compiler().triple.startswith("x86_64"):
        pytest.skip("LLVM prints no x86 code here")
    there = Compiler(cpu="sapphirerapids", features="+avx512f,+avx512vl,+avx512bw,+avx512dq,+fma,+amx-tile,+amx-bf16")
    assert len(there.object_code(print_amx_product(product_loops.form_of(float32)))) > 10_000


@pytest.fixture
def everything_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tiles for all products, even if vectors are faster."""
    if machine_class.own_class() != "amx":
        pytest.skip("this CPU has no AMX, or may not use it")
    monkeypatch.setattr(blas_threads, "threads", lambda: 1)
    monkeypatch.setattr(amx_product_text, "REUSE", 0)
    monkeypatch.setattr(amx_product_text, "FILLED", (0, 1))
    function = compiler().function(print_amx_product(product_loops.form_of(float32)))
    monkeypatch.setattr(product_loops, "_compiled", lambda dtype: function)


def multiplied(a: Array, b: Array, y: Array | None = None, **options: Any) -> Array:
    y = np.full((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.nan, "float32") if y is None else y
    for function, arguments in product_loops._product(a, b, y, **options):
        function(*arguments)
    return y


def random_matrix(random: np.random.Generator, shape: tuple[int, ...], turned: bool = False) -> Array:
    *pairs, rows, columns = shape
    matrix = random.standard_normal((*pairs, columns, rows) if turned else shape).astype("float32")
    return matrix.swapaxes(-1, -2) if turned else matrix


def largest_error(a: Array, b: Array, y: Array) -> float:
    """Return the largest error relative to the sum of the magnitudes."""
    exact, size = a.astype("float64") @ b.astype("float64"), np.abs(a).astype("float64") @ np.abs(b).astype("float64")
    return float((np.abs(y - exact) / size).max())


@pytest.mark.usefixtures("everything_in_tiles")
def test_products_of_every_form_of_operands_equal_numpy() -> None:
    random = np.random.default_rng(0)
    for n, ((rows, depth, columns), turns) in enumerate(product(SIZES, product((False, True), repeat=3))):
        pairs = [(), (3,), (2, 3), (2, 1, 3)][n % 4] if rows < 40 else ()
        a, b = random_matrix(random, (*pairs, rows, depth), turns[0]), random_matrix(random, (*pairs[-1:], depth, columns), turns[1])
        whole = random_matrix(random, (*pairs, rows + 1, columns + 1), turns[2])
        y, border = whole[..., :rows, :columns], [whole[..., rows, :].copy(), whole[..., columns].copy()]
        assert largest_error(a, b, multiplied(a, b, y)) < 4e-7
        for addend, by in ((y.copy("K"), np.array([0.5], "float32")), (np.arange(columns, dtype="float32"), None)):
            c = np.broadcast_to(addend, y.shape)
            if addend.ndim > 1 or not turns[2]:
                multiplied(a, b, y, c=c, by=by)
                expected = c + (1 if by is None else -by) * (a.astype("float64") @ b)
                np.testing.assert_allclose(y, expected, rtol=2e-7, atol=1e-6 * depth)
        np.testing.assert_array_equal(whole[..., rows, :], border[0])
        np.testing.assert_array_equal(whole[..., columns], border[1])


def in_vectors(monkeypatch: pytest.MonkeyPatch, a: Array, b: Array) -> Array:
    vectors = compiler().function(print_product(product_loops.form_of(float32)))
    with monkeypatch.context() as context:
        context.setattr(product_loops, "_compiled", lambda dtype: vectors)
        return multiplied(a, b)


@pytest.mark.usefixtures("everything_in_tiles")
def test_errors_are_smaller_than_those_of_vector_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use operands of one magnitude, operands of magnitudes that differ by 2^40, and sums that nearly cancel."""
    random = np.random.default_rng(1)
    a, b = random_matrix(random, (128, 512)), random_matrix(random, (512, 128))
    wide = np.exp2(random.uniform(-20, 20, (2, 128, 512))).astype("float32")
    for pair in ((a, b), (a * wide[0], b * wide[1].T), (np.hstack([a, a]), np.vstack([b, -b * np.float32(1.0001)]))):
        assert largest_error(*pair, multiplied(*pair)) < largest_error(*pair, in_vectors(monkeypatch, *pair))


@pytest.mark.usefixtures("everything_in_tiles")
def test_values_out_of_range_are_multiplied_in_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use infinite, NaN, very large, and very small operands, whose pieces would be flushed to zero."""
    random = np.random.default_rng(2)
    a, b = np.clip(random_matrix(random, (96, 100)), -1, 1), random_matrix(random, (100, 96))
    for factor, other in ((1e-42, 1), (1e-36, 1e30), (1e-20, 1e-20), (3e38, 1e-3), (0, 1)):
        pair = a * np.float32(factor), b * np.float32(other)
        np.testing.assert_array_equal(multiplied(*pair), in_vectors(monkeypatch, *pair))
    for at, value in ((a, np.nan), (b, np.inf), (a, -np.inf)):
        at[50, 7] = value
        np.testing.assert_allclose(multiplied(a, b), in_vectors(monkeypatch, a, b), rtol=1e-5, atol=1e-4)
    assert np.isfinite(multiplied(a, b)[:50, 8:]).all()


@pytest.mark.usefixtures("everything_in_tiles")
def test_mixed_magnitudes_lose_subnormal_numbers_only() -> None:
    """Expect that numbers below 2^-126 are flushed to zero, without other changes."""
    random = np.random.default_rng(7)
    a, b = random_matrix(random, (64, 90)), random_matrix(random, (90, 50))
    for smallest in (1e-45, 1e-40, 1e-38, 1e-35, 1e-30):
        mixed = np.where(random.random(a.shape) < 0.5, a, np.float32(smallest) * a)
        assert largest_error(mixed, b, multiplied(mixed, b)) < 4e-7


@pytest.mark.usefixtures("everything_in_tiles")
def test_products_of_strided_factors_equal_numpy() -> None:
    random = np.random.default_rng(8)
    a, b = random_matrix(random, (96, 180)), random_matrix(random, (90, 120))
    for left, right in ((a[:, ::2], b), (a[::2, ::2], b), (b.T, a[:, ::2].T), (a[:, :1], b[:1, ::3]), (a[:, 1:2], b[:1]), (b.T[::2, :1], a[:1, ::2])):
        if min(left.shape[0], right.shape[1]) >= product_loops.FEWEST:
            y = np.empty((left.shape[0], right.shape[1]), "float32")
            for result in (y, np.empty_like(y.T).T):
                if product_loops.refuses(left, right, result) is None:
                    assert largest_error(left, right, multiplied(left, right, result)) < 4e-7


@pytest.mark.usefixtures("everything_in_tiles")
def test_products_of_short_operands_are_exact() -> None:
    """Use operands with one piece (bfloat16), two pieces (float16), and one of each."""
    random = np.random.default_rng(6)
    for digits in product((8, 11, 24), repeat=2):
        a, b = (random.integers(-(2 ** (n // 3)), 2 ** (n // 3), shape) for n, shape in zip(digits, ((50, 70), (70, 40)), strict=True))
        scaled = [x.astype("float32") * np.float32(2.0**-9) for x in (a * 2 ** (digits[0] - digits[0] // 3), b)]
        np.testing.assert_array_equal(multiplied(*scaled), scaled[0].astype("float64") @ scaled[1])


@pytest.mark.usefixtures("everything_in_tiles")
def test_products_with_triangles_equal_whole_products() -> None:
    random = np.random.default_rng(3)
    for rows, depth, columns in ((128, 128, 64), (600, 300, 20), (40, 700, 33), (9, 30, 70)):
        a, b = np.tril(random_matrix(random, (2, rows, depth))), random_matrix(random, (2, depth, columns))
        for op, factor in ((LowerMatMul(), b), (LowerMatMul(True), random_matrix(random, (2, rows, columns)))):
            turned = a.swapaxes(1, 2) if op.transpose_a else a
            y = np.full((2, turned.shape[1], columns), np.nan, "float32")
            for function, arguments in product_loops.triangle_in_loops(op, CpuDevice(), (a, factor), (y,)):
                function(*arguments)
            np.testing.assert_allclose(y, turned @ factor, rtol=0, atol=4e-6 * max(rows, depth))


@pytest.mark.usefixtures("everything_in_tiles")
def test_concurrent_threads_compute_equal_products() -> None:
    random = np.random.default_rng(4)
    pairs = [(random_matrix(random, (64 + 8 * n, 96)), random_matrix(random, (96, 80))) for n in range(8)]
    alone = [multiplied(a, b) for a, b in pairs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for expected, y in zip(alone, pool.map(lambda pair: multiplied(*pair), pairs), strict=True):
                np.testing.assert_array_equal(y, expected)


@pytest.mark.usefixtures("everything_in_tiles")
def test_products_with_a_bias_equal_numpy() -> None:
    random = np.random.default_rng(5)
    a, b, bias = random_matrix(random, (70, 90)), random_matrix(random, (90, 50)), random_matrix(random, (1, 50))[0]
    y = np.empty((70, 50), "float32")
    for function, arguments in product_loops.sum_in_loops(ProductSum(), CpuDevice(), (a, b, bias), (y,)):
        function(*arguments)
    np.testing.assert_allclose(y, a @ b + bias, rtol=1e-5, atol=1e-4)
