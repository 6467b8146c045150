"""Tests that compiled loops equal the expressions on arrays."""

from __future__ import annotations

import platform
import random
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from jobflow.core.types import DType, TensorType, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import evaluate
from jobflow.kernels import loop_space
from jobflow.kernels.llvm import bind, loops, machine_code, refuses
from jobflow.kernels.registry import unsupported_reason
from jobflow.kernels.target import target_of
from jobflow.ops.random_tensors import DropoutMask

SIZES = (0, 1, 2, 15, 16, 17, 33, 64)
TYPES = (float32, float32, float64, int32, int64, int8, uint8, bool_, float16, bfloat16)
ONE = ["negative", "absolute", "sign", "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "rint", "trunc"]
FLOATS = [*ONE, "add", "subtract", "multiply", "divide", "maximum", "minimum", "copysign", "fmod", "weighted_sum"]
WHOLE = ["add", "subtract", "multiply", "maximum", "minimum", "negative", "absolute", "bitwise_and", "bitwise_or", "bitwise_xor", "invert"]
TRUTHS = ["logical_and", "logical_or", "logical_xor", "logical_not"]
COMPARISONS = (f.less, f.less_equal, f.equal, f.not_equal)
OPERANDS = dict.fromkeys([*ONE, "invert", "logical_not"], 1) | {"weighted_sum": 4}


def random_array(draw: random.Random, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(draw.randrange(2**32))
    if dtype is bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return np.asarray(rng.integers(0 if dtype is uint8 else -100, 100, shape), dtype.numpy)
    values = rng.standard_normal(shape) * 10.0 ** draw.choice((-3, 0, 1))
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1.5], shape)
    return np.asarray(np.where(rng.random(shape) < 0.03, special, values), dtype.numpy)


def operand(draw: random.Random, shape: tuple[int, ...], dtype: DType, writable: bool = False) -> np.ndarray:
    """Return an array of a random memory layout that broadcasts to the shape; a writable array has this shape."""
    layout = draw.choice(("dense", "dense", "transposed", "apart", "backwards") + (() if writable else ("broadcast", "one")))
    if layout == "broadcast":
        small = tuple(draw.choice((1, n)) for n in shape)[draw.randint(0, len(shape)) :]
        return random_array(draw, small, dtype)
    if layout == "one":
        return random_array(draw, (), dtype)
    if layout == "transposed":
        return random_array(draw, shape[::-1], dtype).T
    if layout == "apart":
        return random_array(draw, tuple(2 * n for n in shape), dtype)[(..., *(slice(None, None, 2) for _ in shape))]
    array = random_array(draw, shape, dtype)
    return array[..., ::-1] if layout == "backwards" and shape else array


def random_expression(draw: random.Random, elements: Sequence[Expression], steps: int) -> list[Expression]:
    expressions = list(elements)
    for _ in range(steps):
        x = draw.choice(expressions)
        alike = [y for y in expressions if y.dtype is x.dtype]
        table = TRUTHS if x.dtype is bool_ else FLOATS if x.dtype.is_float else WHOLE
        match draw.randrange(8):
            case 0:
                target = draw.choice((float32, bool_, x.dtype) if x.dtype.is_float else (int32, float32, uint8, int64, float64, bool_))
                expressions.append(x if x.dtype is float64 and target.is_half else f.cast(x, target))
            case 1:
                expressions.append(draw.choice(COMPARISONS)(x, draw.choice(alike)))
            case 2:
                conditions = [y for y in expressions if y.dtype is bool_]
                expressions.append(f.where(draw.choice(conditions), x, draw.choice(alike)) if conditions else x)
            case _:
                # for half precision the reference also rounds inside these, or keeps the sign of zero
                name = draw.choice([name for name in table if not (x.dtype.is_half and name in ("rsqrt", "sign", "weighted_sum"))])
                others = [draw.choice(alike) for _ in range(OPERANDS.get(name, 2) - 1)]
                if name == "copysign":  # the sign of a computed NaN depends on the machine
                    others = [f.where(f.equal(y, y), y, 1.0) for y in others]
                expressions.append(getattr(f, name)(x, *others))
    return [y for y in expressions if y not in elements] or expressions


def run(outputs: Sequence[Expression], inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
    assert refuses(outputs, inputs, targets) is None
    for function, arguments in bind(outputs, inputs, targets):
        function(*arguments)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Compare values; NaN equals NaN, and 0.0 equals -0.0."""
    if a.dtype.kind in "fV":
        a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def check_random_loop(seed: int) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.choice(SIZES) for _ in range(draw.randint(0, 3)))
    types = [draw.choice(TYPES) for _ in range(draw.randint(1, 4))]
    inputs = [operand(draw, shape, dtype) for dtype in types]
    elements = [f.element(k, dtype) for k, dtype in enumerate(types)]
    expressions = random_expression(draw, elements, draw.randint(1, 12))
    outputs = [draw.choice(expressions) for _ in range(draw.randint(1, 3))]
    targets = [operand(draw, shape, y.dtype, writable=True) for y in outputs]
    with np.errstate(all="ignore"):
        expected = [np.broadcast_to(y, shape) for y in evaluate(outputs, inputs, np)]
        if draw.random() < 0.3:  # writes over an input of the same shape
            for k, y in enumerate(outputs[:1]):
                for a in inputs:
                    if a.shape == shape and a.dtype == y.dtype.numpy:
                        targets[k] = a
        run(outputs, inputs, targets)
    for y, target, value in zip(outputs, targets, expected, strict=True):
        assert same(target, value), f"seed {seed}: {y}"


def test_random_loops_equal_their_expressions() -> None:
    for seed in range(60):
        check_random_loop(seed)


def test_random_loops_in_tiles_equal_their_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the loops of the test above on operands in transposed order, which are tiled."""
    monkeypatch.setattr(loop_space, "COLUMNS_AT_A_TIME", 7)
    for seed in range(60):
        check_random_loop(seed)
    transposed = loop_space.Space((3, 20), ((80, 4), (4, 12)))
    assert [(first, tile.sizes) for first, tile in transposed.tiles()] == [(0, (3, 7)), (7, (3, 7)), (14, (3, 6))]
    assert list(loop_space.Space((3, 20), ((80, 4), (80, 4))).tiles()) == [(0, loop_space.Space((3, 20), ((80, 4), (80, 4))))]


@pytest.mark.full
def test_many_random_loops_equal_their_expressions() -> None:
    for seed in range(60, 2000):
        check_random_loop(seed)


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("width", [1, 15, 16, 17, 33, 100])
def test_sums_of_rows_have_the_bits_of_the_reference(dtype: DType, width: int) -> None:
    x, w = f.element(0, dtype), f.element(1, dtype)
    centred = x - f.row_sum(x) / f.cast(f.columns(), dtype)
    normal = centred * f.rsqrt(f.row_sum(centred * centred) / f.cast(f.columns(), dtype) + 1e-5) * w
    outputs = [normal, f.row_sum(x * w), f.row_max(x), f.maximum(x, f.row_max(w))]
    rng = np.random.default_rng(width)
    array, weight = (
        rng.standard_normal((2, 5, width)).astype(dtype.numpy)[:, ::-1],
        rng.standard_normal(width).astype(dtype.numpy),
    )
    inputs = [array, weight]
    expected = evaluate(outputs, inputs, np)
    targets = [np.empty(array.shape, array.dtype), np.empty((2, 5, 1), array.dtype), np.empty((2, 5, 1), array.dtype), np.empty_like(array)]
    run(outputs, inputs, targets)
    for target, value in zip(targets, expected, strict=True):
        assert np.array_equal(target, value)
    run(outputs[:1], inputs, [array])
    assert np.array_equal(array, expected[0])


@pytest.mark.parametrize("shape", [(1, 5), (64, 16), (65, 17), (3, 50, 33), (200, 1)])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_sums_of_columns_have_the_bits_of_the_reference(shape: tuple[int, ...], dtype: DType) -> None:
    """Compute gradients of a layer norm: one output per element, two per column."""
    dy, x, w = (f.element(k, dtype) for k in range(3))
    scale = f.rsqrt(f.row_sum(x * x) / f.cast(f.columns(), dtype) + 1e-5)
    normal = x * scale
    mean = f.row_sum(dy * w * normal) / f.cast(f.columns(), dtype)
    outputs = [
        (dy * w - normal * mean) * scale,
        f.column_sum(dy * normal),
        f.cast(f.column_sum(dy), bfloat16) if dtype is float32 else f.column_sum(dy),
    ]
    rng = np.random.default_rng(shape[-1])
    inputs = [rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2)] + [rng.standard_normal(shape[-1:]).astype(dtype.numpy)]
    expected = evaluate(outputs, inputs, np)
    targets = [
        np.empty(shape, dtype.numpy),
        np.empty(2 * shape[-1], dtype.numpy)[::2],
        np.empty((1,) * (len(shape) - 1) + shape[-1:], outputs[2].dtype.numpy),
    ]
    for _ in range(2):
        run(outputs, inputs, targets)
        for target, value in zip(targets, expected, strict=True):
            assert np.array_equal(target.reshape(value.shape), value)


def test_sums_of_many_rows_are_exact_and_keep_infinities() -> None:
    x = np.full((30_000, 3), 0.1, np.float32)
    x[77, 1], x[[5, 20_000], 2] = np.inf, (np.inf, -np.inf)
    (outputs, target) = ([f.column_sum(f.element(0, float32))], np.empty(3, np.float32))
    run(outputs, [x], [target])
    np.testing.assert_allclose(target, [30_000 * np.float64(np.float32(0.1)), np.inf, np.nan], rtol=1e-6)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(target, evaluate(outputs, [x], np)[0])


@pytest.mark.parametrize("stored", [(3, 1, 2, 0), (3, 2, 1, 0), (0, 1, 2, 3)])
def test_sums_of_columns_in_transposed_memory_equal_the_reference(stored: tuple[int, ...]) -> None:
    """Compute gradients of a bias and of relu, for images stored with their channels outermost."""
    shape = (6, 5, 7, 9)
    dy, y, b = f.element(0, float32), f.element(1, float32), f.element(2, float32)
    masked = f.where(y + b > 0.0, dy, 0.0)
    rng = np.random.default_rng(3)
    back = tuple(np.argsort(stored))
    images = [np.ascontiguousarray(rng.standard_normal(shape).astype(np.float32).transpose(stored)).transpose(back) for _ in range(3)]
    inputs = [*images[:2], rng.standard_normal(shape[-1:]).astype(np.float32)]
    outputs, targets = [masked, f.column_sum(masked) * 2.0], [images[2], np.empty(shape[-1:], np.float32)]
    run(outputs, inputs, targets)
    first, second = evaluate(outputs, inputs, np)
    assert np.array_equal(targets[0], first)
    np.testing.assert_allclose(targets[1], second, rtol=1e-5, atol=1e-5)
    strided = [inputs[0][:, ::2], inputs[1][:, ::2], inputs[2]]
    reason = refuses(outputs[1:], strided, targets[1:])
    assert reason == (None if stored[-1] == 3 else "it sums columns that are not contiguous in memory")


@pytest.mark.parametrize(("cpu", "features"), [("haswell", "+avx2,+fma,+f16c"), ("x86-64", "+avx,+fma,+f16c")])
def test_older_cpus_compute_the_same_bits(cpu: str, features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine_code.compiler()
    if not here.triple.startswith("x86_64") or "+avx2" not in here.features:
        pytest.skip("another kind of machine")
    x = f.element(0, float32)
    shifted = f.exp(x - f.row_max(x))
    functions = [getattr(f, name)(x) for name in ("tanh", "expm1", "log", "erf", "exp2", "softplus")]
    outputs = [shifted / f.row_sum(shifted), f.column_sum(f.sigmoid(x)), *functions, f.cast(f.exp(f.cast(x, float64)), float32)]
    array = (np.random.default_rng(0).standard_normal((9, 77)) * 40).astype(np.float32)
    results = []
    for compiler in (here, machine_code.Compiler(here.cache, cpu, features)):
        monkeypatch.setattr(loops, "compiler", lambda compiler=compiler: compiler)
        monkeypatch.setattr(loops, "_loops", {})
        targets = [np.empty(array.shape[1:] if y.primitive == "column_sum" else array.shape, np.float32) for y in outputs]
        run(outputs, [array], targets)
        results.append(targets)
    for y, one, other in zip(outputs, *results, strict=True):
        assert np.array_equal(one, other, equal_nan=True), y


def test_unsupported_operands_have_a_reason() -> None:
    x = f.element(0, float32)
    a = np.zeros(8, np.float32)
    k = f.element(1, int32)
    assert refuses([f.power(k, k)], [a, a.view(np.int32)], [a.view(np.int32)]) == "a power of integers needs a constant exponent of at least 0"
    assert refuses([x], [a], [np.zeros(8)]) == "output 0 is float64, not float32"
    assert refuses([x], [a.astype(">f4")], [a]) == "input 0 is >f4, not float32"
    assert refuses([x], [a[:4]], [a[1:5]]) == "output 0 shares memory with another operand, but not element by element"
    assert refuses([x], [a], [np.zeros(1, np.float32)]) == "output 0 of shape (1,) does not cover (8,)"
    assert refuses([x + f.number(1, float32)], [a, a], [a]) == "input 1 has 8 elements, not one"
    assert refuses([f.row_max(x)], [a[:0]], [np.zeros(1, np.float32)]) == "rows have no elements"
    assert refuses([f.column_sum(x)], [np.zeros((0, 3), np.float32)], [np.zeros(3, np.float32)]) == "rows have no elements"
    assert (
        refuses([f.column_sum(x) * x], [np.zeros((2, 3), np.float32)], [np.zeros(3, np.float32)])
        == "element is combined with a sum of columns, which is complete only after the last row"
    )
    assert refuses([x], [np.zeros((2,) * 7, np.float32)[..., ::-1].T[::-1]], [np.zeros((2,) * 7, np.float32)]) == "7 axes, more than 6"


@pytest.mark.parametrize("dtype", [int8, uint8, int32, int64], ids=str)
def test_quotients_and_powers_of_integers_equal_the_reference(dtype: DType) -> None:
    x, y = f.element(0, dtype), f.element(1, dtype)
    low, high = map(int, dtype.span)
    some = np.array(sorted({low, low + 1, max(low, -7), max(low, -1), 0, 1, 2, 3, 7, high - 1, high}), dtype.numpy)
    a, b = (g.ravel().copy() for g in np.meshgrid(some, some))
    outputs = [f.floor_divide(x, y), f.remainder(x, y), f.power(x, 5), f.power(x, 0), f.floor_divide(x, 3), f.remainder(x, 16)]
    with np.errstate(all="ignore"):
        expected = evaluate(outputs, [a, b], np)
    targets = [np.empty_like(a) for _ in outputs]
    run(outputs, [a, b], targets)
    for z, target, value in zip(outputs, targets, expected, strict=True):
        assert np.array_equal(target, np.broadcast_to(value, a.shape)), z


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 17), (40, 32), (4, 1, 6)])
def test_indices_and_random_words_equal_the_reference(shape: tuple[int, ...]) -> None:
    """Use index arithmetic that merges several axes, that does not, and that has one axis only; and sums of rows with it."""
    x, stream = f.element(0, float32), f.number(1, int64)
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    dense = f.constant(5, int64)
    for axis, stride in enumerate(strides):
        dense = f.index(axis - len(shape)) * stride + dense
    cut = f.index(-1) * 3 + f.index(-2) * 1000
    drawn = f.philox(dense, stream, (0xDEADBEEF, 77), 2)
    chosen = f.row_element(x, f.cast(f.index(-2), int32))
    outputs = [
        dense,
        cut,
        drawn,
        f.philox(cut, stream, (1, 2)),
        f.where(f.equal(f.index(-1), f.index(-2)), x, 0.0),
        chosen,
        x + f.cast(cut - 7, float32),
    ]
    inputs = [random_array(random.Random(1), shape, float32), np.array([(3 << 40) + 9])]
    targets = [np.empty((*shape[:-1], 1) if y is chosen else shape, y.dtype.numpy) for y in outputs]
    for group in (slice(0, 5), slice(5, None)):
        run(outputs[group], inputs, targets[group])
    for y, target, value in zip(outputs, targets, evaluate(outputs, inputs, np, shape), strict=True):
        assert same(target, np.broadcast_to(value, target.shape)), y


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="on other machines NumPy converts values out of range differently")
@pytest.mark.parametrize("source", [float32, float64])
@pytest.mark.parametrize("target", [int8, uint8, int32, int64])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_floats_out_of_range_convert_to_integers_as_in_numpy(source: DType, target: DType) -> None:
    ends = [sign * 2.0**bits for bits in (7, 8, 31, 32, 63, 64) for sign in (1, -1)]
    x = np.array([-1.2, 0.7, 300, -300.5, 1e6, 3e9, -3e9, 1e20, np.nan, np.inf, -np.inf, *ends], source.numpy)
    for values in (x, np.nextafter(x, source.numpy.type(0)), x[:1]):
        y = np.empty(values.shape, target.numpy)
        ((function, arguments),) = bind([f.cast(f.element(0, source), target)], [values], [y])
        function(*arguments)
        np.testing.assert_array_equal(y, values.astype(target.numpy))


def test_operands_are_checked_without_reading_memory() -> None:
    """Use the run counter of a dropout, a view of an address without memory, which must not be read."""
    op = DropoutMask(0.5, "mask")
    types = TensorType((8, 32), float32), TensorType((1,), int64)
    assert unsupported_reason(op, target_of("cpu", "llvm"), types, [types[0]]) is None


def test_a_scalar_is_read_when_the_loop_runs() -> None:
    x, rate = f.element(0, float32), f.number(1, float64)
    a, r, y = np.arange(20, dtype=np.float32), np.zeros(()), np.empty(20, np.float32)
    ((function, arguments),) = bind([x * f.cast(rate, float32)], [a, r], [y])
    for value in (2.0, 3.0):
        r[()] = value
        function(*arguments)
        assert np.array_equal(y, a * np.float32(value))


def test_concurrent_threads_share_one_compiler() -> None:
    """Compile in several threads; machine code is freed with its compiler, so a second compiler would leave dangling loops."""
    program = (
        "import threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from jobflow.kernels.llvm.machine_code import compiler\n"
        "begin = threading.Barrier(8)\n"
        "with ThreadPoolExecutor(8) as threads:\n"
        "    made = list(threads.map(lambda _: (begin.wait(), compiler())[1], range(8)))\n"
        "assert len(set(map(id, made))) == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_loops_do_not_change_floating_point_modes() -> None:
    """Expect that subnormal numbers are not flushed to zero, in a loop or after one, and that rounding is to nearest."""
    x, y = (f.element(i, float32) for i in range(2))
    small = np.full(100, 3e-40, np.float32)
    large = np.full(100, 1e38, np.float32)
    product, quotient, overflown = (np.empty_like(small) for _ in range(3))
    with np.errstate(all="ignore"):
        run([x * 0.5, x / y, f.exp(y)], [small, large], [product, quotient, overflown])
    assert np.isinf(overflown).all() and not quotient.any()
    for a in (product, small * np.float32(0.5)):
        assert np.array_equal(a, np.full(100, 1.5e-40, np.float32))
    assert np.float32(1) + np.float32(2**-24) == 1 and np.float32(1) + np.float32(2**-24 + 2**-30) > 1
