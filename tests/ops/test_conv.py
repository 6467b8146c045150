"""Convolution against a padded reference that visits every window, and bound calls against the kernel for every memory order."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from bound_ops import ORDERS, CpuDevice, batch_innermost, run_bound, spaced

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import whole_box
from jobflow.core.types import TensorType, dtype_of, float32, float64, int32
from jobflow.kernels import registry
from jobflow.kernels.cpu import images
from jobflow.kernels.llvm import convolution_loops
from jobflow.kernels.target import CPU, target_of
from jobflow.ops import conv as conv_module
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, conv_op, same_padding

_CASES = [
    # strides, padding, dilations, groups, x, w
    ((1,), ((2, 1),), (1,), 1, (3, 2, 7), (4, 2, 3)),
    ((1, 1), ((2, 2), (2, 2)), (1, 1), 1, (3, 1, 6, 7), (4, 1, 5, 5)),
    ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, (3, 4, 5, 6), (7, 4, 1, 1)),
    ((2, 2), ((0, 0), (0, 0)), (1, 1), 1, (3, 4, 5, 6), (7, 4, 1, 1)),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (5, 3, 9, 8), (4, 3, 3, 3)),
    ((2, 3), ((1, 0), (0, 2)), (1, 1), 1, (3, 2, 9, 10), (3, 2, 3, 4)),
    ((1, 2), ((3, 1), (2, 2)), (2, 3), 1, (3, 2, 9, 12), (3, 2, 3, 2)),
    ((2, 1), ((1, 1), (1, 1)), (1, 1), 2, (3, 4, 7, 6), (6, 2, 3, 3)),
    ((1, 1), ((4, 4), (0, 4)), (1, 1), 1, (2, 2, 3, 3), (2, 2, 3, 3)),
    ((1, 2, 1), ((1, 0), (0, 1), (1, 1)), (1, 1, 2), 1, (2, 2, 4, 5, 6), (3, 2, 2, 3, 3)),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (0, 3, 4, 4), (4, 3, 3, 3)),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (2, 0, 4, 4), (4, 0, 3, 3)),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (2, 3, 4, 4), (0, 3, 3, 3)),
]


def windows(op: Conv, x: Any, kernel: tuple[int, ...]) -> Any:
    """Return the windows of the zero-padded x: [n, c, *out, *kernel]."""
    padded = np.pad(x, ((0, 0), (0, 0), *op.padding))
    axes = tuple(range(2, x.ndim))
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, op.dilations, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(padded, extent, axes)
    return views[(slice(None), slice(None), *(slice(None, None, s) for s in op.strides), *(slice(None, None, d) for d in op.dilations))]


def reference(op: Conv, x: Any, w: Any) -> Any:
    """Convolve by one einsum over windows per group."""
    o, c = w.shape[0] // op.groups, w.shape[1]
    parts = []
    for g in range(op.groups):
        windows_of_group = windows(op, x[:, g * c : (g + 1) * c], w.shape[2:])
        parts.append(np.tensordot(windows_of_group, w[g * o : (g + 1) * o], ((1, *range(x.ndim, windows_of_group.ndim)), tuple(range(1, w.ndim)))))
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def operands(x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: Any = np.float64) -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    return rng.standard_normal(x_shape).astype(dtype), rng.standard_normal(w_shape).astype(dtype)


def typed(array: Any) -> TensorType:
    return TensorType(array.shape, dtype_of(array.dtype))


def close(actual: Any, expected: Any, tolerance: float) -> None:
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert float(np.abs(actual - expected).max(initial=0.0)) <= tolerance * scale


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_kernel_equals_the_sum_over_windows(case: Any) -> None:
    strides, padding, dilations, groups, x_shape, w_shape = case
    op = Conv(strides, padding, dilations, groups)
    x, w = operands(x_shape, w_shape)
    y = np.full(op.infer(typed(x), typed(w)).shape, np.nan)
    op.kernel(np, x, w, y)
    close(y, reference(op, x, w), 1e-12)


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_gradients_are_the_adjoints(case: Any) -> None:
    """<dy, conv(x, w)> == <dx, x> == <dw, w> for the dx and dw of the gradient ops."""
    strides, padding, dilations, groups, x_shape, w_shape = case
    op = Conv(strides, padding, dilations, groups)
    x, w = operands(x_shape, w_shape)
    y = reference(op, x, w)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    to_x, to_w = op._input_gradient(x.shape[2:]), op._weight_gradient(w.shape[2:])
    assert to_x.infer(typed(dy), typed(w)) == typed(x) and to_w.infer(typed(x), typed(dy)) == typed(w)
    dx, dw = np.full_like(x, np.nan), np.full_like(w, np.nan)
    to_x.kernel(np, dy, w, dx)
    to_w.kernel(np, x, dy, dw)
    for probe, gradient in ((np.random.default_rng(2).standard_normal(x.shape), dx), (np.random.default_rng(3).standard_normal(w.shape), dw)):
        moved = reference(op, probe, w) if gradient is dx else reference(op, x, probe)
        assert np.isclose(np.sum(moved * dy), np.sum(probe * gradient), rtol=1e-10, atol=1e-10)


def all_three(op: Conv, x: Any, w: Any) -> list[tuple[Any, tuple[Any, ...], Any]]:
    """Return (op, inputs, an array like its output) for the convolution and its gradients."""
    y = np.empty(op.infer(typed(x), typed(w)).shape, x.dtype)
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(x.dtype)
    return [(op, (x, w), y), (op._input_gradient(x.shape[2:]), (dy, w), x), (op._weight_gradient(w.shape[2:]), (x, dy), w)]


_BIND_CASES = [
    *_CASES,
    ((1, 1), ((2, 2), (2, 2)), (1, 1), 1, (25, 3, 14, 14), (8, 3, 5, 5)),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (8, 5, 17, 13), (6, 5, 3, 3)),
    ((2, 2), ((3, 3), (3, 3)), (1, 1), 1, (8, 3, 30, 30), (6, 3, 7, 7)),
    ((1, 1), ((1, 1), (1, 1)), (1, 1), 4, (8, 4, 10, 10), (8, 1, 3, 3)),
    ((2, 1), ((1, 1), (0, 1)), (1, 1), 5, (8, 5, 10, 9), (5, 1, 3, 3)),
]


@pytest.mark.parametrize("case", _BIND_CASES, ids=str)
@pytest.mark.parametrize("order", list(itertools.product(ORDERS, ORDERS)), ids="-".join)
def test_bound_calls_equal_kernel(case: Any, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SMALL", 0)
    strides, padding, dilations, groups, x_shape, w_shape = case
    for op, inputs, output in all_three(Conv(strides, padding, dilations, groups), *operands(x_shape, w_shape)):
        expected = np.empty(output.shape)
        op.kernel(np, *inputs, expected)
        actual = run_bound(op, *(ORDERS[order[0]](a) for a in inputs), output=ORDERS[order[1]](np.zeros(output.shape)))
        close(actual, expected, 1e-12)


@pytest.mark.parametrize("case", [case for case in _BIND_CASES if 0 not in (*case[4], *case[5])], ids=str)
@pytest.mark.parametrize(
    "order", [("plain", "plain"), ("batch_innermost", "batch_innermost"), ("spaced", "plain"), ("plain", "spaced")], ids="-".join
)
def test_compiled_loops_equal_kernel(case: Any, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SMALL", 0)
    monkeypatch.setattr(convolution_loops, "_NEAR", 2 * max(map(math.prod, case[4:])) // max(case[3], 2))  # two groups at a time
    strides, padding, dilations, groups, x_shape, w_shape = case
    for op, inputs, output in all_three(Conv(strides, padding, dilations, groups), *operands(x_shape, w_shape)):
        expected = np.empty(output.shape)
        op.kernel(np, *inputs, expected)
        (loop,) = (one for one in registry.candidates(type(op), target_of("cpu", "llvm")) if one.name.startswith("direct"))
        for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 2e-6)):
            actual = ORDERS[order[1]](np.full(output.shape, np.nan, dtype))
            for function, arguments in loop.bind(op, CpuDevice(), [ORDERS[order[0]](a.astype(dtype)) for a in inputs], (actual,)):
                function(*arguments)
            close(actual, expected, tolerance)


def test_weights_may_be_strided_while_images_are_batch_innermost() -> None:
    x, w = operands((6, 3, 8, 8), (4, 3, 5, 5))
    for op, (a, b), output in all_three(Conv((1, 1), ((2, 2), (2, 2)), (1, 1)), x, w):
        expected = np.empty(output.shape)
        op.kernel(np, a, b, expected)
        for way in registry.candidates(type(op), CPU):
            actual = batch_innermost(np.zeros(output.shape)) if output is not w else spaced(np.zeros(output.shape))
            for function, arguments in way.bind(op, CpuDevice(), (batch_innermost(a), spaced(b) if b is w else batch_innermost(b)), (actual,)):
                function(*arguments)
            close(actual, expected, 1e-11)


def test_half_precision_is_summed_in_float32() -> None:
    op = Conv((1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w = operands((4, 16, 6, 6), (8, 16, 3, 3), np.float16)
    for one, inputs, output in all_three(op, x, w):
        exact = np.empty(output.shape)
        one.kernel(np, *(a.astype(np.float64) for a in inputs), exact)
        actual = run_bound(one, *inputs, output=np.empty(output.shape, np.float16))
        close(actual.astype(np.float64), exact, 6e-4)  # one rounding to 11 bits; a sum in half precision would have several times this error


def test_same_padding_puts_the_odd_element_before_or_after() -> None:
    assert same_padding(28, 5, 1, 1, True) == (2, 2)
    assert same_padding(28, 2, 1, 1, lower=True) == (1, 0)
    assert same_padding(28, 2, 1, 1, lower=False) == (0, 1)
    assert same_padding(7, 3, 2, 1, True) == (1, 1)
    assert same_padding(8, 3, 2, 1, True) == (1, 0)
    assert same_padding(10, 3, 1, 2, True) == (2, 2)
    assert same_padding(6, 1, 3, 1, True) == (0, 0)


def test_named_paddings() -> None:
    x, w = TensorType((2, 3, 8, 8), float32), TensorType((4, 3, 3, 2), float32)
    assert conv_op(x, w, padding="SAME").padding == ((1, 1), (1, 0)) == conv_op(x, w, padding="same_lower").padding
    assert conv_op(x, w, padding="Same_Upper").padding == ((1, 1), (0, 1))
    assert conv_op(x, w, padding="valid").padding == ((0, 0), (0, 0))
    assert conv_op(x, w, 2, "same").infer(x, w).shape == (2, 4, 4, 4)


def chosen(
    algorithm: Any, x: tuple[int, ...], w: tuple[int, ...], dtype: Any = float32, batch: int | None = None, target: Any = CPU, **options: int
) -> tuple[str, str]:
    """Return the implementation of a convolution with `batch` samples per rank, and the reason against Winograd's largest tiles."""
    types = TensorType(x, dtype), TensorType(w, dtype)
    op = conv_op(*types, padding="same", algorithm=algorithm, **options)
    boxes = tuple(whole_box(shape) for shape in (x, w)), (whole_box(op.infer(*types).shape),)
    images = [np.empty((batch or shape[0], *shape[1:]), dtype.numpy) for shape in (x, boxes[1][0].whole)]
    choice = registry.choose(op.localize(*boxes), target, (images[0], np.empty(w, dtype.numpy)), (images[1],))
    return choice.implementation.name, dict(choice.refused).get("Winograd, 4 outputs", "")


def test_a_compiled_loop_replaces_expensive_gathering() -> None:
    llvm = target_of("cpu", "llvm")
    assert chosen("auto", (16, 32, 32, 32), (32, 1, 3, 3), groups=32, target=llvm)[0] == "direct sums"
    assert chosen("auto", (8, 64, 28, 28), (256, 64, 1, 1), target=llvm)[0] == "im2col"
    assert chosen("auto", (32, 32, 14, 14), (64, 32, 5, 5), target=llvm)[0] == "Winograd, 3 outputs"


def test_the_algorithm_is_chosen_by_cost_and_error_from_logical_sizes() -> None:
    image, wide = (32, 32, 14, 14), (64, 32, 5, 5)
    assert chosen("auto", image, wide) == ("Winograd, 3 outputs", 'its error is 14 times that of PyTorch; the setting "winograd" allows it')
    assert chosen("winograd", image, wide) == ("Winograd, 4 outputs", "")
    assert chosen("auto", image, wide, batch=1) == chosen("auto", image, wide), "on many ranks as on one"
    assert chosen("auto", (8, 64, 28, 28), (64, 64, 3, 3))[0] == "Winograd, 4 outputs"
    assert chosen("direct", image, wide) == ("im2col", 'the setting "direct" excludes it')
    assert chosen("auto", (1, 32, 32, 32), (32, 32, 3, 3))[0] == "im2col", "rows of one image are too narrow"
    assert chosen("winograd", (8, 3, 14, 14), (4, 3, 3, 3))[1].startswith("estimated at 0.")
    assert chosen("auto", image, wide, float64) == ("im2col", 'float64 requires small errors; the setting "winograd" allows it')
    assert chosen("winograd", image, wide, float64)[0] == "Winograd, 4 outputs"
    assert chosen("auto", image, (64, 32, 7, 7)) == ("im2col", "there are no tiles of 4 outputs for a window of (7, 7)")
    assert chosen("auto", image, wide, strides=2)[1] == "groups 1, strides (2, 2) and dilations (1, 1) must all be 1"
    assert chosen("auto", image, wide, dilations=2)[0] == chosen("auto", image, (64, 16, 3, 3), groups=2)[0] == "im2col"
    with pytest.raises(ShapeError, match='"fft"'):
        chosen("fft", image, wide)


@pytest.mark.parametrize(
    ("x", "w", "options", "text"),
    [
        ((2, 3, 8, 8), (4, 5, 3, 3), {}, r"has 3 channels, but w .* expects 5"),
        ((2, 4, 8, 8), (4, 3, 3, 3), {"groups": 2}, r"has 4 channels, but w .* expects 3 \* 2 groups"),
        ((2, 4, 8, 8), (5, 2, 3, 3), {"groups": 2}, "multiples of groups=2"),
        ((2, 3, 2, 8), (4, 3, 3, 3), {}, r"spans 3 elements, but spatial axis 0 has 2 elements and padding \(0, 0\)"),
        ((2, 3, 8, 8), (4, 3, 3), {}, r"w float32\[4,3,3\]"),
        ((2, 3, 8, 8), (4, 3, 3, 3), {"padding": "some"}, '"some" must be'),
        ((2, 3, 8, 8), (4, 3, 3, 3), {"padding": ((1, 1),)}, "each of the 2 spatial axes"),
        ((2, 3, 8, 8), (4, 3, 3, 3), {"strides": (1, 0)}, "strides"),
        ((2, 3, 8, 8), (4, 3, 3, 3), {"groups": 0}, "groups 0"),
    ],
)
def test_errors_name_the_operands(x: Any, w: Any, options: Any, text: str) -> None:
    a, b = TensorType(x, float32), TensorType(w, float32)
    with pytest.raises(ShapeError, match=text):
        conv_op(a, b, **options).infer(a, b)


def test_element_types_must_be_floating_and_equal() -> None:
    op = Conv((1, 1), ((0, 0), (0, 0)), (1, 1))
    x, w = TensorType((2, 3, 8, 8), float32), TensorType((4, 3, 3, 3), float64)
    with pytest.raises(DtypeError, match=r"x float32\[2,3,8,8\] and w float64\[4,3,3,3\]"):
        op.infer(x, w)
    with pytest.raises(DtypeError, match="floating"):
        op.infer(x.with_dtype(int32), w.with_dtype(int32))


def test_gradient_ops_reject_operands_of_no_convolution() -> None:
    to_x = ConvGradInput((2, 2), ((1, 1), (1, 1)), (1, 1), 1, "direct", (9, 9))
    with pytest.raises(ShapeError, match=r"an image of \[9, 9\] requires dy of \[5, 5\]"):
        to_x.infer(TensorType((2, 4, 4, 4), float32), TensorType((4, 3, 3, 3), float32))
    with pytest.raises(ShapeError, match=r"has 5 channels, but w .* has 4 filters"):
        to_x.infer(TensorType((2, 5, 5, 5), float32), TensorType((4, 3, 3, 3), float32))
    to_w = ConvGradWeight((2, 2), ((1, 1), (1, 1)), (1, 1), 1, "direct", (3, 3))
    with pytest.raises(ShapeError, match="differ in batch size, 3 and 2"):
        to_w.infer(TensorType((3, 4, 9, 9), float32), TensorType((2, 3, 5, 5), float32))


class Recorder:
    """An interpreter that only infers types."""

    def __init__(self) -> None:
        self.ops: list[Any] = []

    def apply(self, op: Any, inputs: Any, name: str | None) -> tuple[Any, ...]:
        self.ops.append(op)
        return (Typed(op.infer(*(i.tensor_type for i in inputs))),)


class Typed:
    def __init__(self, type: TensorType) -> None:
        self.tensor_type = type


def test_transposed_convolution_is_the_input_gradient() -> None:
    from jobflow import scope

    recorder = Recorder()
    x, w = Typed(TensorType((2, 4, 5, 5), float32)), Typed(TensorType((4, 3, 3, 3), float32))
    with scope.using(interpreter=recorder):
        y = conv_module.conv_transpose(x, w, spatial=(10, 10), strides=2, padding="same_upper")
        with pytest.raises(ShapeError, match="an image of"):
            conv_module.conv_transpose(x, w, spatial=(12, 12), strides=2, padding="same_upper")
    assert y.tensor_type.shape == (2, 3, 10, 10)
    assert recorder.ops[0] == ConvGradInput((2, 2), ((0, 1), (0, 1)), (1, 1), 1, "auto", (10, 10))
