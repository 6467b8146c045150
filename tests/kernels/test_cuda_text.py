"""Tests that printed CUDA C, run on the host, equals the expressions on arrays, and that NVRTC compiles it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import laws
import numpy as np
import pytest
from host_cuda import COMPILER, HostKernels
from on_device import OPS, TOLERANCE, cases, single
from test_llvm_loops import SIZES, TYPES, operand, random_expression, same

from jobflow.core.types import DType, bfloat16, float16, float32, float64, int64, type_of
from jobflow.expressions import language as f
from jobflow.expressions.on_arrays import evaluate
from jobflow.kernels.cuda import kernel_form, kernel_stages
from jobflow.kernels.cuda.fused import prepared, refuses
from jobflow.kernels.loop_operands import expression_of, views_in_space
from jobflow.ops import loss
from jobflow.ops.op import types_tuple

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (g++)")


def random_cases(seeds: range) -> Iterator[tuple[int, list[f.Expression], list[np.ndarray], list[np.ndarray]]]:
    for seed in seeds:
        draw = random.Random(seed)
        shape = tuple(draw.choice(SIZES) for _ in range(draw.randint(0, 3)))
        types = [draw.choice(TYPES) for _ in range(draw.randint(1, 4))]
        inputs = [operand(draw, shape, dtype) for dtype in types]
        expressions = random_expression(draw, [f.element(k, dtype) for k, dtype in enumerate(types)], draw.randint(1, 12))
        outputs = [draw.choice(expressions) for _ in range(draw.randint(1, 3))]
        yield seed, outputs, inputs, [operand(draw, shape, y.dtype, writable=True) for y in outputs]


def check_random(folder: Path, seeds: range) -> None:
    kernels, expected = HostKernels(folder), []
    for seed, outputs, inputs, targets in random_cases(seeds):
        if any(target.size == 0 for target in targets):
            continue
        assert refuses(outputs, inputs, targets) is None, outputs
        kernels.add(outputs, inputs, targets)
        with np.errstate(all="ignore"):
            expected.append((seed, outputs, targets, [np.broadcast_to(y, targets[0].shape) for y in evaluate(outputs, inputs, np)]))
    kernels.run()
    for seed, outputs, targets, values in expected:
        for y, target, value in zip(outputs, targets, values, strict=True):
            assert same(target, value), f"seed {seed}: {y}"


def test_random_kernels_equal_their_expressions(tmp_path: Path) -> None:
    check_random(tmp_path, range(60))


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_sums_of_rows_and_columns_equal_their_expressions(dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute a layer norm with its gradients: bit-equal if 16 threads share a row, else within the error of another order of additions."""
    monkeypatch.setattr(kernel_form, "MOST_WALKS", 4)
    x, w, dy = (f.element(k, dtype) for k in range(3))
    columns = f.cast(f.columns(), dtype)
    scale = f.rsqrt(f.row_sum(x * x) / columns + 1e-5)
    normal = x * scale
    back = (dy * w - normal * (f.row_sum(dy * w * normal) / columns)) * scale
    outputs = [normal * w, back, f.row_sum(x), f.row_max(dy), f.column_sum(dy * normal), f.column_sum(dy) * 0.5]
    kernels, expected = HostKernels(tmp_path), []
    for shape in ((1, 5), (64, 16), (3, 50, 33), (200, 1), (70, 704), (9, 4096), (3, 2100)):
        rng = np.random.default_rng(shape[-1])
        arrays = [rng.standard_normal(s).astype(dtype.numpy) for s in (shape, shape[-1:], shape)]
        one, column = np.empty((*shape[:-1], 1), dtype.numpy), np.empty(shape[-1], dtype.numpy)
        targets = [np.empty(shape, dtype.numpy), np.empty(shape, dtype.numpy), one, one.copy(), column, np.empty(2 * shape[-1], dtype.numpy)[::2]]
        for part in (slice(0, 6), slice(0, 4)):
            copies = [t.copy() if t.strides[-1] == t.itemsize else t for t in targets[part]]
            assert refuses(outputs[part], arrays, copies) is None
            first = prepared(outputs[part], arrays, copies, lambda shape, dtype: np.empty(shape, dtype.numpy))[0]
            assert (first.form.kind == "walks") == (part.stop == 6 and shape[-1] in (704, 4096))
            kernels.add(outputs[part], arrays, copies)
            expected.append((shape, copies, evaluate(outputs[part], arrays, np)))
    kernels.run()
    for shape, copies, values in expected:
        for target, value in zip(copies, values, strict=True):
            if shape[-1] <= 512:
                assert np.array_equal(target.reshape(value.shape), value), shape
            else:
                np.testing.assert_allclose(target.reshape(value.shape), value, rtol=1e-3 if dtype is float32 else 1e-10, atol=1e-5)


def test_vectors_and_their_tails_equal_expressions(tmp_path: Path) -> None:
    """Compute products and sums in place, with a broadcast row, and at an address that is not aligned."""
    kernels, expected = HostKernels(tmp_path), []
    shapes = (((1003,), (1003,)), ((8,), (8,)), ((7, 48), (48,)), ((7, 48), (7, 1)), ((3, 4, 32), (4, 1)), ((7, 50), (50,)))
    for (shape, other), offset, dtype in product(shapes, (0, 1), (bfloat16, float32, float64)):
        x, y = f.element(0, dtype), f.element(1, dtype)
        rng = np.random.default_rng(len(expected))
        arrays = [rng.standard_normal(int(np.prod(s)) + offset)[offset:].reshape(s).astype(dtype.numpy) for s in (shape, other)]
        target = arrays[0] if offset else np.empty(shape, dtype.numpy)
        values = evaluate([x * y + x], arrays, np)
        kernels.add([x * y + x], arrays, [target])
        expected.append((shape, offset, target, values[0]))
    kernels.run()
    for shape, offset, target, value in expected:
        assert same(target, value), (shape, offset)


def test_rows_that_stay_in_registers_equal_their_expressions(tmp_path: Path) -> None:
    x, weight = f.element(0, bfloat16), f.element(1, float32)
    wide = f.cast(x, float32)
    mean = f.row_sum(wide) / f.cast(f.columns(), float32)
    away = wide - mean
    outputs = [f.cast(away * f.rsqrt(f.row_sum(away * away)) * weight, bfloat16), mean, f.column_sum(away)]
    kernels, expected = HostKernels(tmp_path), []
    for width in (520, 1000, 1024, 2048, 4096, 5000, 8192):
        arrays = [np.random.default_rng(width).standard_normal((5, width)).astype(bfloat16.numpy), np.ones(width, np.float32)]
        targets = [np.empty((5, width), bfloat16.numpy), np.empty((5, 1), np.float32), np.empty(width, np.float32)]
        kernels.add(outputs, arrays, targets)
        expected.append((width, targets, evaluate(outputs, arrays, np)))
    kernels.run()
    for width, targets, values in expected:
        for target, value in zip(targets, values, strict=True):
            np.testing.assert_allclose(single(target), single(value.reshape(target.shape)), rtol=1e-2, atol=1e-5, err_msg=str(width))


def test_gradients_overwrite_padded_logits_by_vectors(tmp_path: Path) -> None:
    """Rows of 5,003 words start at multiples of 64 elements; the last three words of a row are no whole vector."""
    words, rows = 5003, 5
    padded = np.random.default_rng(0).standard_normal((rows, 5056)).astype(bfloat16.numpy)
    logits, labels, dloss = padded[:, :words], np.array([0, 5002, 7, 5001, 2500]), np.arange(1, rows + 1, dtype=np.float32)
    wide = logits.astype(np.float64)
    top = wide.max(1)
    total = np.exp(wide - top[:, None]).sum(1)
    expected = np.exp(wide - top[:, None]) / total[:, None]
    losses = -np.log(expected[range(rows), labels])
    expected[range(rows), labels] -= 1
    kernels = HostKernels(tmp_path)
    results = [np.empty(rows, np.float32) for _ in range(3)]
    statistics = [top.astype(np.float32), total.astype(np.float32)]
    for op, inputs, outputs in (
        (loss.SparseSoftmaxCrossEntropy(), [logits, labels], results),
        (loss.SparseSoftmaxCrossEntropyGrad(), [logits, labels, *statistics, dloss], [logits]),
    ):
        expressions, views = expression_of(op, inputs), views_in_space(op, inputs, outputs)
        assert expressions is not None and views is not None
        assert prepared(expressions, *views, lambda shape, dtype: np.empty(shape, dtype.numpy))[0].form.rest
        kernels.add(expressions, *views)
    kernels.run()
    for ours, theirs in zip(results, (losses, top, total), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    np.testing.assert_allclose(logits.astype(np.float64), expected * dloss[:, None], rtol=1.01 / 256, atol=1e-6)


def test_sums_of_columns_of_many_rows_equal_their_expressions(tmp_path: Path) -> None:
    """Add more than 4,096 rows in groups, more than four sums in several kernels, and columns whose elements are adjacent in memory."""
    x = f.element(0, float32)
    kernels, expected = HostKernels(tmp_path), []
    for shape, order in (((5000, 40), "C"), ((40000, 3), "C"), ((130, 33), "F"), ((130, 64), "F"), ((4500, 35), "F")):
        array = np.asarray(np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32), order=order)
        outputs = [x * 3.0, *(f.column_sum(x * float(k)) for k in range(1, 7))]
        in_place = array.copy(order="K")
        targets = [in_place, *(np.empty(shape[1], np.float32) for _ in outputs[1:])]
        kernels.add(outputs, [in_place], targets)
        expected.append((shape, targets, evaluate(outputs, [array], np)))
    kernels.run()
    for (rows, _), targets, values in expected:
        for target, value in zip(targets, values, strict=True):
            if rows <= 4096:
                assert np.array_equal(target, value)
            np.testing.assert_allclose(target, value, rtol=1e-5, atol=1e-3)


def test_sums_of_columns_of_images_equal_their_expressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum images [n, h, w, c] whose rows have another order in memory, with values per channel and per row, and a result per element."""
    monkeypatch.setattr(kernel_stages, "MOST_SUMS", 8)
    kernels, expected, groups = HostKernels(tmp_path), [], set()
    for shape, dtype in (
        ((3, 5, 7, 64), bfloat16),
        ((6, 40, 20, 64), bfloat16),
        ((6, 40, 20, 24), float32),
        ((6, 41, 21, 100), float64),
        ((70, 71, 3), bfloat16),
        ((6, 90, 50, 40), float32),
    ):
        draw = np.random.default_rng(shape[-1])
        *lead, n, w, channels = shape
        images = draw.standard_normal((*lead, w, n, channels)).astype(dtype.numpy).swapaxes(-3, -2)
        wide = dtype.arithmetic
        x, mean, variance = f.cast(f.element(0, dtype), wide), f.element(1, wide), f.element(2, wide)
        normal = (x - mean) * f.rsqrt(variance + 1e-5) * f.element(3, wide)
        outputs = [f.cast(normal, dtype), f.column_sum(normal), f.column_sum(x)]
        channel, row = draw.standard_normal(channels).astype(wide.numpy), draw.standard_normal((*shape[:-1], 1)).astype(wide.numpy)
        arrays = [images, channel, np.abs(channel) + 1, row]
        values = evaluate(outputs, arrays, np)
        copy = images.swapaxes(-3, -2).copy().swapaxes(-3, -2)
        targets = [copy, *(np.empty(channels, wide.numpy) for _ in range(2))]
        tiles = prepared(outputs, [copy, *arrays[1:]], targets, lambda shape, dtype: np.empty(shape, dtype.numpy))[0]
        assert tiles.form.fixed == (1, 2) or tiles.form.vector == 1
        groups.add(tiles.form.group // tiles.form.walkers)
        kernels.add(outputs, [copy, *arrays[1:]], targets)
        expected.append((shape, targets, values))
    assert groups >= {0, 1, 2}
    kernels.run()
    for shape, targets, values in expected:
        assert same(targets[0], values[0]), shape
        for target, value in zip(targets[1:], values[1:], strict=True):
            np.testing.assert_allclose(target, value, rtol=2e-5, atol=1e-3, err_msg=str(shape))
            assert target.dtype != np.float64 or np.allclose(target, value, rtol=1e-12, atol=1e-10)


def test_long_rows_equal_their_expressions(tmp_path: Path) -> None:
    """Reduce a row of 70,001 elements in parts: its sum of squares, its norm, a softmax, and a sum with indices."""
    x = f.element(0, float32)
    e = f.exp(x - f.row_max(x))
    position = f.cast(f.index(-1), float32)
    kernels, expected = HostKernels(tmp_path), []
    for shape in ((70001,), (2, 70000)):
        array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        for outputs in ([f.row_sum(x * x)], [f.sqrt(f.row_sum(x * x) / f.cast(f.columns(), float32))], [e / f.row_sum(e)], [f.row_sum(x * position)]):
            target = np.empty(shape if outputs[0].primitive == "divide" else (*shape[:-1], 1), np.float32)
            assert refuses(outputs, [array], [target]) is None
            kernels.add(outputs, [array], [target])
            expected.append((target, evaluate(outputs, [array.astype(np.float64)], np)[0]))
    kernels.run()
    for target, value in expected:
        np.testing.assert_allclose(target, value, rtol=1e-4)


def test_one_pass_computes_the_maximum_and_the_sum_of_exponentials(tmp_path: Path) -> None:
    """Compute rows with a growing maximum, infinities and NaN, and elements at indices, some of them outside the row."""
    kernels, expected = HostKernels(tmp_path), []
    for dtype, width, memory in ((bfloat16, 9003, 9024), (float32, 9000, 9000), (float64, 2051, 2051), (float32, 2050, 2051), (float32, 1000, 1000)):
        x, label = f.cast(f.element(0, dtype), dtype.arithmetic), f.element(1, int64)
        top = f.row_max(x)
        outputs = [top, f.row_sum(f.exp(x - top)), f.row_element(x, label)]
        rows = np.random.default_rng(width).standard_normal((7, memory)).astype(dtype.numpy)
        rows[1], rows[2], rows[3] = np.sort(rows[1]) * 30, -np.inf, -np.inf
        rows[3, 900], rows[4, [5, 700]], rows[5, [9, 20]], rows[6, 3] = -5, np.inf, [np.nan, np.inf], np.nan
        logits, labels = rows[:, :width], np.array([[0], [width - 1], [7], [900], [-1], [9], [width]])
        targets = [np.empty((7, 1), dtype.arithmetic.numpy) for _ in outputs]
        kernels.add(outputs, [logits, labels], targets)
        with np.errstate(invalid="ignore"):
            expected.append((targets, evaluate(outputs, [logits.astype(np.float64 if dtype is float64 else np.float32), labels], np)))
    texts = [ready.text() for case in kernels.cases for ready in prepared(case.outputs, case.inputs, case.targets, lambda *_: rows)]
    assert ["from +" in text for text in texts] == [True, True, True, True, False]  # the last rows stay in registers
    kernels.run()
    for targets, values in expected:
        for target, value in zip(targets, values, strict=True):
            np.testing.assert_allclose(target, value, rtol=1e-5)
        assert not np.signbit(targets[2][[4, 6]]).any(), "rows without the index"


def test_row_max_propagates_nan(tmp_path: Path) -> None:
    x = f.element(0, float32)
    array = np.random.default_rng(0).standard_normal((5, 600)).astype(np.float32)
    array[1, 77], array[2], array[3, 5], array[4, 3:9] = np.nan, -np.inf, np.inf, [np.inf, -np.inf, np.nan, 1, 2, 3]
    target = np.empty((5, 1), np.float32)
    kernels = HostKernels(tmp_path)
    kernels.add([f.row_max(x)], [array], [target])
    kernels.run()
    assert same(target, array.max(axis=1, keepdims=True))


def test_unsupported_operands_have_a_reason() -> None:
    x, half = f.element(0, float32), f.element(0, float16)
    a = np.zeros(8, np.float32)
    assert (
        refuses([f.cast(f.element(0, float64), bfloat16)], [np.zeros(8)], [a.astype(bfloat16.numpy)])
        == "cast from float64 to bfloat16 would be rounded twice"
    )
    assert (
        refuses([f.reinterpret(half, bfloat16)], [a.astype(np.float16)], [a.astype(bfloat16.numpy)])
        == "a reinterpretation of float16 as bfloat16 cannot be printed as CUDA C"
    )
    assert refuses([f.row_sum(x)], [np.zeros((2, 1 << 17), np.float32)], [np.zeros((2, 1), np.float32)]) is None
    step, next_step = f.number(1, float32), f.element(1, float32) + 1.0
    one = np.zeros(1, np.float32)
    assert refuses([x * step, next_step], [a, one], [a, one]) == "output 1 shares memory with an input that other threads read"
    assert refuses([x * step], [np.zeros(999, np.float32), one], [np.zeros(999, np.float32)]) is None
    assert refuses([x, next_step], [np.zeros(999, np.float32), one], [np.zeros(999, np.float32), one.copy()]) == (
        "1 rows of 999 elements would leave most of a GPU idle"
    )
    assert refuses([x], [a[:4]], [a[1:5]]) == "output 0 shares memory with another operand, but not element by element"


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
def test_every_op_equals_its_expression(every: int, tmp_path: Path) -> None:
    """Run every sample in all four types, or in one of them by turns."""
    kernels, expected, alone = HostKernels(tmp_path), [], []
    for case, arrays in (case_and_arrays for cls in OPS.values() for k, case_and_arrays in enumerate(cases(cls)) if (k + k // 4) % every == 0):
        op, types = case.op, [type_of(a) for a in arrays]
        expressions = expression_of(op, arrays)
        outputs = laws.empties(types_tuple(op.infer(*types)), fill=0)
        views = None if expressions is None else views_in_space(op, arrays, outputs)
        if expressions is None or views is None or any(target.size == 0 for target in outputs):
            continue
        why = refuses(expressions, *views)
        if why is not None:
            alone.append(why)
            continue
        kernels.add(expressions, *views)
        space = op.index_space(*types)
        with np.errstate(all="ignore"):
            values = evaluate(expressions, views[0], np, space.shape if space else outputs[0].shape)
        expected.append((f"{case} {outputs[0].dtype}", views[1], values))
    kernels.run()
    for what, targets, values in expected:
        for target, value in zip(targets, values, strict=True):
            want = np.broadcast_to(value, target.shape).astype(target.dtype)
            laws.close(single(target), single(want), TOLERANCE[target.dtype.name], laws.magnitude(single(want)), what)
    assert len(expected) > 600 // every
    assert {why.partition(" of ")[0] for why in alone} <= {"row_sum", "column_sum", "cast from float64 to float16 would be rounded twice"}, set(alone)
