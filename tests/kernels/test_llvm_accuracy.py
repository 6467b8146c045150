"""Tests that errors of decomposed functions are within their table, at arguments of every exponent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jobflow.core.types import DType, float32, float64
from jobflow.expressions import language as f
from jobflow.expressions.on_arrays import evaluate, exponent_limit
from jobflow.kernels.decompositions import MAXIMAL_ERROR, lowered
from jobflow.kernels.llvm import bind

WIDEST = np.longdouble
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 5e-324, -5e-324, 1e-45, -1e-45, 88.5, -87.5, -103.9, 709.5, -744.9, 200.0, -200.0]
TRUE: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
}


def arguments(dtype: DType, count: int) -> np.ndarray:
    """Return numbers of every exponent and sign, and as many numbers of ordinary size."""
    bits = np.linspace(0, 2.0 ** (8 * dtype.itemsize) - 2.0**12, count).astype(np.uint64).astype(f"u{dtype.itemsize}")
    ordinary = np.random.default_rng(1).uniform(-20, 20, count)
    with np.errstate(over="ignore"):
        return np.concatenate([bits.view(dtype.numpy), np.asarray(ordinary, dtype.numpy), np.asarray(SPECIAL, dtype.numpy)])


def errors(got: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return distances in units of the last place; infinity if only one of two values is NaN or infinite."""
    form = np.finfo(got.dtype)
    true = true.astype(WIDEST)
    exponent = np.clip(np.floor(np.log2(np.abs(true))), form.minexp, form.maxexp - 1)
    distance = np.abs(got.astype(WIDEST) - true) / np.exp2(exponent - form.nmant)
    beyond = np.abs(true) > WIDEST(form.max)
    distance = np.where(beyond, np.where(np.abs(got) >= form.max, 0.0, np.inf), distance)
    distance = np.where(got == true, 0.0, distance)
    return np.where(np.isnan(got) & np.isnan(true), 0.0, np.where(np.isnan(distance), np.inf, distance))


#: functions of two arguments
OF_TWO = {"arctan2", "fmod", "power"}


def run(name: str, x: np.ndarray, dtype: DType) -> np.ndarray:
    y = np.empty_like(x)
    for function, operands in bind([getattr(f, name)(f.element(0, dtype))], [x], [y]):
        function(*operands)
    return y


@pytest.mark.parametrize("name", sorted(MAXIMAL_ERROR.keys() - OF_TWO))
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("count", [10_000, pytest.param(2_000_000, marks=pytest.mark.full)])
def test_errors_of_functions_are_within_the_table(name: str, dtype: DType, count: int) -> None:
    x = arguments(dtype, count)
    y = run(name, x, dtype)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if dtype is float32 or name.startswith("erf") else WIDEST)
        if name == "sigmoid":  # never 0, as in the reference
            wide = np.maximum(wide, -exponent_limit(dtype.numpy))
        true = TRUE.get(name, getattr(np, name, None))(wide)  # type: ignore[misc]
        error = errors(y, true)
    # without a wider type, the compared value has an error too
    allowed = MAXIMAL_ERROR[name][dtype is float64] + (dtype is float64 and np.finfo(WIDEST).nmant == 52)
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{name}({x[worst]!r}) = {y[worst]!r}, not {true[worst]!r}"
    zero = (y == 0) & (true == 0)
    assert np.array_equal(np.signbit(y[zero]), np.signbit(true[zero])), f"{name}: signs of zero"


@pytest.mark.parametrize("name", sorted(OF_TWO))
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_errors_of_functions_of_two_arguments_are_within_the_table(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    some = np.array([0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -2.0, -3.0, 0.5, -0.5, 1e30, -1e30, 3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)
    wide = rng.standard_normal((2, 20000)) * 10 ** rng.uniform(-3, 3, (2, 20000))
    first, second = (np.concatenate([g.ravel(), w]).astype(dtype.numpy) for g, w in zip(np.meshgrid(some, some), wide, strict=True))
    y = np.empty_like(first)
    for function, operands in bind([getattr(f, name)(f.element(0, dtype), f.element(1, dtype))], [first, second], [y]):
        function(*operands)
    with np.errstate(all="ignore"):
        true = getattr(np, name)(*(a.astype(np.float64 if dtype is float32 else WIDEST) for a in (first, second)))
        error = errors(y, true)
    worst = int(np.argmax(error))
    allowed = MAXIMAL_ERROR[name][dtype is float64] + (dtype is float64 and np.finfo(WIDEST).nmant == 52)
    assert error[worst] <= allowed, f"{name}({first[worst]}, {second[worst]}) = {y[worst]}, not {true[worst]}"
    zero = (y == 0) & (true == 0)
    assert np.array_equal(np.signbit(y[zero]), np.signbit(true[zero])), f"{name}: signs of zero"


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_errors_of_squares_and_cubes_are_within_the_table(dtype: DType) -> None:
    x = arguments(dtype, 2000)
    for exponent in (2.0, 3.0, 4.0):
        y = np.empty_like(x)
        for function, operands in bind([f.power(f.element(0, dtype), exponent)], [x], [y]):
            function(*operands)
        with np.errstate(all="ignore"):
            error = errors(y, np.power(x.astype(np.float64 if dtype is float32 else WIDEST), exponent))
        assert error.max() <= MAXIMAL_ERROR["power"][dtype is float64], f"{x[error.argmax()]!r}^{exponent}"


@pytest.mark.parametrize("name", sorted(MAXIMAL_ERROR.keys() - OF_TWO))
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_the_reference_evaluates_decompositions(name: str, dtype: DType) -> None:
    """Evaluate decompositions on arrays; only fused multiply-adds of float64 differ, because NumPy rounds them twice."""
    expanded, expensive = lowered([getattr(f, name)(f.element(0, dtype))])
    assert expensive
    x = arguments(dtype, 2000)
    with np.errstate(all="ignore"):
        (y,) = evaluate(expanded, [x], np)
        loop = run(name, x, dtype)
        error = errors(y, loop)
    assert error.max() <= (1.0 if dtype is float32 else 8.0), f"{name}({x[np.argmax(error)]})"
