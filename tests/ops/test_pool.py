"""Pooling against a reference that visits every window, and bound calls against the kernel for every memory order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from bound_ops import ORDERS, batch_innermost, run_bound

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.types import TensorType, bool_, dtype_of, float32, int32
from jobflow.kernels import registry
from jobflow.kernels.target import target_of
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolPick, _pool_op

_CASES = [
    # ksize, strides, padding, ceil_mode, shape
    ((2,), (2,), ((0, 0),), False, (3, 2, 7)),
    ((2, 2), (2, 2), ((0, 0), (0, 0)), False, (5, 3, 8, 6)),
    ((2, 2), (2, 2), ((0, 0), (0, 0)), False, (5, 3, 7, 5)),
    ((2, 2), (2, 2), ((0, 0), (0, 0)), True, (5, 3, 7, 5)),
    ((2, 2), (2, 2), ((1, 0), (0, 1)), False, (5, 3, 7, 7)),
    ((3, 3), (2, 2), ((1, 1), (1, 1)), False, (4, 3, 8, 9)),
    ((3, 3), (2, 2), ((1, 1), (1, 1)), True, (4, 3, 8, 8)),
    ((3, 2), (1, 3), ((0, 0), (1, 1)), False, (4, 2, 6, 10)),
    ((2, 3), (3, 4), ((0, 0), (0, 0)), True, (4, 2, 9, 10)),
    ((2, 1, 3), (2, 1, 2), ((1, 0), (0, 0), (1, 1)), True, (2, 2, 3, 4, 5)),
    ((2, 2), (2, 2), ((0, 0), (0, 0)), False, (0, 3, 8, 6)),
    ((2, 2), (2, 2), ((0, 0), (0, 0)), False, (3, 0, 8, 6)),
]


def window_spans(op: Any, out: tuple[int, ...], spatial: tuple[int, ...]) -> Any:
    """Yield each output index with the slices of the image in its window."""
    for position in itertools.product(*(range(n) for n in out)):
        starts = [i * s - pad[0] for i, s, pad in zip(position, op.strides, op.padding, strict=True)]
        yield position, tuple(slice(max(0, a), min(n, a + k)) for a, k, n in zip(starts, op.ksize, spatial, strict=True))


def reference(op: Any, x: Any, out: tuple[int, ...], reduce: Any) -> Any:
    y = np.empty((*x.shape[:2], *out))
    for position, span in window_spans(op, out, x.shape[2:]):
        y[:, :, *position] = reduce(x[:, :, *span], axis=tuple(range(2, x.ndim)))
    return y


def typed(array: Any) -> TensorType:
    return TensorType(array.shape, dtype_of(array.dtype))


def image(shape: tuple[int, ...], ties: bool) -> Any:
    rng = np.random.default_rng(3)
    return rng.integers(-2, 2, shape).astype(float) if ties else rng.standard_normal(shape)


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_pooling_ignores_padding(case: Any) -> None:
    *attributes, shape = case
    x = image(shape, ties=False)
    for op, reduce in ((MaxPool(*attributes), np.max), (AvgPool(*attributes), np.mean)):
        y = np.empty(op.infer(typed(x)).shape)
        op.kernel(np, x, y)
        np.testing.assert_allclose(y, reference(op, x, y.shape[2:], reduce), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("case", _CASES, ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_the_first_maximum_receives_the_whole_gradient(case: Any, ties: bool) -> None:
    *attributes, shape = case
    x = image(shape, ties)
    op = MaxPool(*attributes)
    y = np.empty(op.infer(typed(x)).shape)
    op.kernel(np, x, y)
    dy = np.random.default_rng(5).standard_normal(y.shape)
    expected, picked = np.zeros_like(x), np.empty_like(y)
    v = np.random.default_rng(6).standard_normal(x.shape)
    for n, c in np.ndindex(*shape[:2]):
        for position, span in window_spans(op, y.shape[2:], shape[2:]):
            part = x[n, c, *span]
            at = tuple(s.start + i for s, i in zip(span, np.unravel_index(np.argmax(part), part.shape), strict=True))
            expected[n, c, *at] += dy[n, c, *position]
            picked[n, c, *position] = v[n, c, *at]
    dx, z = np.empty_like(x), np.empty_like(y)
    MaxPoolGrad(*attributes).kernel(np, x, y, dy, dx)
    MaxPoolPick(*attributes).kernel(np, x, y, v, z)
    np.testing.assert_allclose(dx, expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(z, picked)


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_average_gradient_is_the_adjoint(case: Any) -> None:
    *attributes, shape = case
    x = image(shape, ties=False)
    op = AvgPool(*attributes)
    y = np.empty(op.infer(typed(x)).shape)
    op.kernel(np, x, y)
    dy, dx = np.random.default_rng(5).standard_normal(y.shape), np.empty_like(x)
    back = AvgPoolGrad(*attributes, shape[2:])
    assert back.infer(typed(dy)) == typed(x)
    back.kernel(np, dy, dx)
    assert np.isclose(np.sum(dy * y), np.sum(dx * x), rtol=1e-12)


@pytest.mark.parametrize("case", _CASES, ids=str)
@pytest.mark.parametrize("order", list(itertools.product(ORDERS, ORDERS)), ids="-".join)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_bound_calls_equal_kernel(case: Any, order: tuple[str, str], dtype: Any, ties: bool) -> None:
    *attributes, shape = case
    x = image(shape, ties).astype(dtype)
    y = np.empty(MaxPool(*attributes).infer(typed(x)).shape, dtype)
    MaxPool(*attributes).kernel(np, x, y)
    dy = np.random.default_rng(5).standard_normal(y.shape).astype(dtype)
    runs: list[tuple[Any, tuple[Any, ...], Any]] = [
        (MaxPool(*attributes), (x,), y),
        (MaxPoolGrad(*attributes), (x, y, dy), x),
        (AvgPool(*attributes), (x,), y),
        (AvgPoolGrad(*attributes, shape[2:]), (dy,), x),
    ]
    for op, inputs, output in runs:
        expected = np.empty_like(output)
        op.kernel(np, *inputs, expected)
        actual = run_bound(op, *(ORDERS[order[0]](a) for a in inputs), output=ORDERS[order[1]](np.zeros_like(output)))
        np.testing.assert_allclose(actual, expected, rtol=1e-6 if dtype is np.float32 else 1e-14, atol=1e-6 if dtype is np.float32 else 1e-14)


def test_integers_and_infinities() -> None:
    op = MaxPool((2, 2), (2, 2), ((1, 1), (1, 1)))
    x = np.full((2, 1, 4, 4), np.iinfo(np.int32).min, np.int32)
    y = np.zeros(op.infer(typed(x)).shape, np.int32)
    op.kernel(np, x, y)
    assert (y == np.iinfo(np.int32).min).all()
    low = np.full((2, 1, 4, 4), -np.inf)
    y, dx = np.zeros((2, 1, 3, 3)), np.zeros_like(low)
    op.kernel(np, low, y)
    assert (y == -np.inf).all()
    run_bound(MaxPoolGrad(*vars(op).values()), low, y, np.ones_like(y), output=dx)
    assert dx.sum() == y.size, "each window still has a first maximum"


def test_an_infinite_gradient_reaches_the_maximum_only() -> None:
    x = batch_innermost(np.arange(64.0, dtype=np.float32).reshape(2, 2, 4, 4))
    attributes = ((2, 2), (2, 2), ((0, 0), (0, 0)))
    y = np.empty((2, 2, 2, 2), np.float32)
    MaxPool(*attributes).kernel(np, x, y)
    dy = np.full_like(y, np.inf)
    dx = run_bound(MaxPoolGrad(*attributes), x, y, dy, output=batch_innermost(np.zeros_like(x)))
    assert np.isinf(dx).sum() == y.size and not np.isnan(dx).any()


@pytest.mark.parametrize(
    "case", [_CASES[1], ((2, 2), (3, 2), ((0, 0), (0, 0)), False, (3, 2, 8, 5)), ((3,), (3,), ((0, 0),), False, (17, 2, 9))], ids=str
)
def test_the_compiled_gradient_of_maxima_equals_the_kernel(case: Any) -> None:
    """With ties, infinities and NaN."""
    *attributes, shape = case
    rng, op = np.random.default_rng(3), MaxPoolGrad(*attributes)
    for dtype in (np.float32, np.float64):
        x = rng.integers(0, 3, shape).astype(dtype)
        x.flat[:2] = np.inf, np.nan
        y = np.empty((*shape[:2], *op.window.out_sizes("pool", shape[2:])), dtype)
        MaxPool(*attributes).kernel(np, x, y)
        dy, expected = np.full_like(y, np.inf), np.empty_like(x)
        op.kernel(np, x, y, dy, expected)
        arrays = [batch_innermost(a) for a in (x, y, dy)]
        assert registry.choose(op, target_of("cpu", "llvm"), arrays, (arrays[0],)).implementation.name == "first maxima by loop"
        np.testing.assert_array_equal(run_bound(op, *arrays, output=batch_innermost(x), target=target_of("cpu", "llvm")), expected)


def test_functions_fill_in_padding_and_strides() -> None:
    x = TensorType((2, 3, 7, 7), float32)
    assert _pool_op(MaxPool, "max_pool", x, 2, None, "valid", True) == MaxPool((2, 2), (2, 2), ((0, 0), (0, 0)), False)
    assert _pool_op(MaxPool, "max_pool", x, 2, 2, "SAME", False).padding == ((1, 0), (1, 0))
    assert _pool_op(AvgPool, "avg_pool", x, (3, 2), (1, 2), ((1, 1), (0, 0)), True) == AvgPool((3, 2), (1, 2), ((1, 1), (0, 0)), True)


def test_errors_name_the_operands() -> None:
    x = TensorType((2, 3, 4, 4), float32)
    with pytest.raises(ShapeError, match=r"maxpool: x float32\[2,3,4,4\]: padding .* must be smaller than ksize"):
        MaxPool((2, 2), (2, 2), ((2, 0), (0, 0))).infer(x)
    with pytest.raises(ShapeError, match="spans 5 elements, but spatial axis 1"):
        AvgPool((2, 5), (2, 2), ((0, 0), (0, 0))).infer(x)
    with pytest.raises(ShapeError, match="must have 3 axes"):
        MaxPool((2,), (2,), ((0, 0),)).infer(x)
    with pytest.raises(ShapeError, match=r"dy float32\[2,3,4,4\] must have the type .* of the pooled tensor"):
        MaxPoolGrad((2, 2), (2, 2), ((0, 0), (0, 0))).infer(x, x.with_shape((2, 3, 2, 2)), x)
    with pytest.raises(DtypeError, match="floating"):
        AvgPool((2, 2), (2, 2), ((0, 0), (0, 0))).infer(x.with_dtype(int32))
    with pytest.raises(DtypeError, match="number"):
        MaxPool((2, 2), (2, 2), ((0, 0), (0, 0))).infer(x.with_dtype(bool_))
