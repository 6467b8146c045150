"""Formulas of functions that NumPy does not vectorize on some CPUs, tested on all CPUs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from test_llvm_accuracy import arguments, errors

from jobflow.core.types import float32, float64
from jobflow.expressions import language as f
from jobflow.kernels.cpu import numpy_formulas
from jobflow.kernels.cpu.numpy_calls import block_calls, compiled
from jobflow.runtime.device.numpy_device import CpuDevice

#: units of the last place
ALLOWED = 6.0
OF_ONE = ("expm1", "log1p", "tan", "sinh", "cosh", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulate a CPU for which NumPy vectorizes few functions."""
    monkeypatch.setattr(numpy_formulas, "is_vectorized", lambda name: name in ("exp", "log", "sin", "cos"))


def computed(name: str, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of the formula, and the exact results."""
    program = compiled([getattr(f, name)(*(f.element(i, float32) for i in range(len(inputs))))], len(inputs), 0, {})
    assert program is not None and len(program.steps) > 2, "it is one call"
    y = np.empty_like(inputs[0])
    with np.errstate(all="ignore"):
        for function, operands in block_calls(program, CpuDevice(), inputs, (), [y]):
            function(*operands)
        return y, getattr(np, name)(*(x.astype(np.float64) for x in inputs))


def check(name: str, y: np.ndarray, true: np.ndarray, *inputs: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        error = errors(y, true)
    worst = int(np.argmax(error))
    assert error[worst] <= ALLOWED, f"{name}({', '.join(repr(x[worst]) for x in inputs)}) = {y[worst]!r}, not {true[worst]!r}"
    zero = (y == 0) & (true == 0)
    assert np.array_equal(np.signbit(y[zero]), np.signbit(true[zero])), f"{name}: signs of zero"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", OF_ONE)
def test_errors_of_formulas_are_within_their_bounds(name: str) -> None:
    x = arguments(float32, 50_000)
    check(name, *computed(name, x), x)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", OF_ONE)
def test_formulas_warn_only_if_numpy_does(name: str) -> None:
    program = compiled([getattr(f, name)(f.element(0, float32))], 1, 0, {})
    assert program is not None
    far = () if name in ("arcsin", "arccos", "arctanh") else (30.0, -30.0, 1e5, -1e5)
    for x in (0.0, -0.0, 1e-40, 1e-9, -1e-9, 0.5, -0.5, 0.999, *far):
        values, y = np.full(4, x, np.float32), np.empty(4, np.float32)
        with warnings.catch_warnings(record=True) as theirs:
            warnings.simplefilter("always")
            getattr(np, name)(values)
        if not theirs:
            for function, arguments in block_calls(program, CpuDevice(), [values], (), [y]):
                function(*arguments)


@pytest.mark.usefixtures("few")
def test_errors_of_arctan2_are_within_their_bounds() -> None:
    some = np.array([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e30, -1e30, 3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)
    pairs = np.array(np.meshgrid(some, some), np.float32).reshape(2, -1)
    drawn = np.random.default_rng(0).choice(arguments(float32, 5_000), (2, 20_000))
    y, x = np.concatenate([pairs, drawn], axis=1)
    check("arctan2", *computed("arctan2", y, x), y, x)


def test_functions_that_numpy_vectorizes_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    element = f.element(0, float32)
    for names in (("expm1",), ("exp", "log", "sin", "cos", "expm1"), ()):
        monkeypatch.setattr(numpy_formulas, "is_vectorized", lambda name, names=names: name in names)
        program = compiled([f.expm1(element)], 1, 0, {})
        assert program is not None and len(program.steps) == 1, names
    monkeypatch.setattr(numpy_formulas, "is_vectorized", lambda name: name != "expm1")
    program = compiled([f.expm1(f.element(0, float64))], 1, 0, {})
    assert program is not None and len(program.steps) == 1, "float64 is left to NumPy"
