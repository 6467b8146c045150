"""Updates against the formulas of the legacy API, in place, over many blocks."""

from __future__ import annotations

import math
from typing import Any

import laws
import numpy as np
import pytest

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.types import float64, type_of
from jobflow.expressions import language
from jobflow.expressions.on_arrays import functions
from jobflow.kernels import registry
from jobflow.kernels.cpu.numpy_calls import block_calls, compiled
from jobflow.kernels.cpu.updates import update_program
from jobflow.kernels.target import CPU
from jobflow.ops import optimizer_updates as formula
from jobflow.ops import update
from jobflow.ops.op import Op

Array = np.ndarray[Any, Any]
LR = 0.1


def state(*shape: int) -> tuple[Array, Array, Array, Array]:
    random = np.random.default_rng(0)
    w, m, g = map(np.asarray, random.standard_normal((3, *shape)))
    return w, m, m * m + random.uniform(1.0, 2.0, shape), g


def in_place(op: Op, inputs: list[Array]) -> list[Array]:
    """Run the bound calls with every output in the memory of its input, as in a plan."""
    arrays = [np.array(a) for a in inputs]
    outputs = [arrays[op.alias[k]] for k in range(len(op.alias))]
    for function, arguments in registry.bind(op, CPU, laws.Bench(), arrays, outputs):
        function(*arguments)
    for index in range(len(outputs), len(arrays)):
        np.testing.assert_array_equal(arrays[index], inputs[index])
    return outputs


def formulas(shape: tuple[int, ...], wd: float) -> list[tuple[Op, list[Array], list[Array]]]:
    w, m, v, g = state(*shape)
    lr, step = np.array([LR]), np.array([4])
    new_v = 0.9 * m - LR * g
    adam_m, adam_v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
    corrected = LR * math.sqrt(1 - 0.95**5) / (1 - 0.8**5)
    spread = 0.9 * v + 0.1 * g * g
    slope = 0.9 * m / 2 + 0.1 * g
    local = LR * 0.01 * np.linalg.norm(w) / (1e-9 + np.linalg.norm(g) + wd * np.linalg.norm(w))
    move = (adam_m / (1 - 0.8**2)) / (np.sqrt(adam_v / (1 - 0.95**2)) + 1e-6)
    ratio = np.linalg.norm(w) / np.linalg.norm(move)
    return [
        (formula.SgdUpdate(wd), [w, g, lr], [w - LR * (g + wd * w)]),
        (formula.MomentumUpdate(0.9, wd), [w, m, g, lr], [w + new_v - LR * wd * w, new_v]),
        (
            formula.AdamUpdate(0.8, 0.95, 1e-8, wd),
            [w, m, v, g, lr, step],
            [w - LR * (adam_m / (np.sqrt(adam_v) + 1e-8) + wd * w), adam_m, adam_v],
        ),
        (
            formula.AdamUpdate(0.8, 0.95, 1e-8, wd, bias_correction=True),
            [w, m, v, g, lr, step],
            [w - corrected * (adam_m / (np.sqrt(adam_v) + 1e-8) + wd * w), adam_m, adam_v],
        ),
        (formula.RmsPropUpdate(0.9, 1e-8), [w, v, g, lr], [w - LR * g / np.sqrt(spread + 1e-8), spread]),
        (
            formula.RmsPropUpdate(0.9, 1e-8, centered=True),
            [w, v, m / 2, g, lr],
            [w - LR * g / np.sqrt(spread - slope**2 + 1e-8), spread, slope],
        ),
        (
            formula.LarsUpdate(0.9, 1e-9, 0.01, wd),
            [w, m, g, lr],
            [w + (0.9 * m - local * g) - local * wd * w, 0.9 * m - local * g],
        ),
        (
            formula.LambUpdate(0.8, 0.95, 1e-6, wd),
            [w, m, v, np.array([0.8]), np.array([0.95]), g, lr],
            [w - LR * ratio * (move + wd * w), adam_m, adam_v, np.array([0.64]), np.array([0.95**2])],
        ),
    ]


@pytest.mark.parametrize("wd", [0.0, 0.05])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (300, 500)], ids=str)
def test_formulas_in_place(shape: tuple[int, ...], wd: float) -> None:
    for op, inputs, expected in formulas(shape, wd):
        for ours, theirs in zip(in_place(op, inputs), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=str(op))


def test_formulas_run_in_place_if_all_reads_precede_the_write() -> None:
    """Elements change their positions; values that are read later go through scratch memory."""

    def turned(f: Any, x: Any, y: Any, z: Any, unchanged: Any, factor: Any) -> tuple[Any, ...]:
        return y, f.weighted_sum(factor, x * x, 0.5, y - x), x, unchanged

    arrays = list(np.random.default_rng(1).standard_normal((4, 100_000)))
    expected = [a.copy() for a in turned(functions(np), *arrays, 2.0)]
    elements = [*(language.element(i, float64) for i in range(4)), language.number(4, float64)]
    program = compiled(turned(language, *elements), 4, 1, {k: (k,) for k in range(4)})
    assert program is not None
    for function, arguments in block_calls(program, laws.Bench(), arrays, [np.array(2.0)], arrays):
        function(*arguments)
    for ours, theirs in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)
    flat = [op for op, *_ in formulas((2,), 0.1) if op.flat]
    rows = [update_program(op, float64).rows for op in flat]
    assert rows == [1, 1, 1, 1, 2, 2], "an update in place takes no more scratch than this"


def test_learning_rate_is_read_at_run_time() -> None:
    w, _, _, g = state(40)
    lr = np.array([0.0])
    out = np.empty_like(w)
    calls = registry.bind(formula.SgdUpdate(), CPU, laws.Bench(), [w, g, lr], [out])
    for rate in (0.5, 0.25):
        lr[0] = rate
        for function, arguments in calls:
            function(*arguments)
        np.testing.assert_allclose(out, w - rate * g, rtol=1e-12)


def test_float32_variables_with_a_float32_rate() -> None:
    for op, inputs, expected in formulas((50,), 0.05):
        narrow = [a if a.dtype.kind == "i" else a.astype(np.float32) for a in inputs]
        for ours, theirs in zip(in_place(op, narrow), expected, strict=True):
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6, err_msg=str(op))


def test_counters_and_averages() -> None:
    assert in_place(update.Increment(3), [np.array([41])])[0].tolist() == [44]
    np.testing.assert_allclose(in_place(update.MovingAverage(0.9), [np.array([1.0, 2.0]), np.array([3.0, 0.0])])[0], [1.2, 1.8])
    assert in_place(update.Assign(), [np.zeros(2), np.array([3.0, 4.0])])[0].tolist() == [3, 4]


def test_mismatched_operands_raise() -> None:
    w, g, lr = (type_of(np.zeros(n, np.float32)) for n in (4, 5, 1))
    with pytest.raises(ShapeError, match=r"sgdupdate: variable float32\[4\] and float32\[5\] differ in shape"):
        formula.SgdUpdate().infer(w, g, lr)
    with pytest.raises(DtypeError, match=r"float32\[4\] and float64\[4\] differ in element type"):
        formula.SgdUpdate().infer(w, type_of(np.zeros(4)), lr)
    with pytest.raises(ShapeError, match=r"float32\[4\] must have shape \(1,\)"):
        formula.SgdUpdate().infer(w, w, w)
