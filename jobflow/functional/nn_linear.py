"""Linear maps, dropout, and norms and distances of vectors."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.layout import B, Layout, Partial, S
from jobflow.core.signatures import variant
from jobflow.core.types import Tensor as Value
from jobflow.core.types import int64
from jobflow.functional.global_tensors import value_of
from jobflow.functional.in_place import check_writable, copy_for_gradient, written
from jobflow.functional.nn_base import composed, draw_for, formula, one_float_type, one_type, real, whole
from jobflow.functional.shapes import axis_of
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.axes import ExpandDims, Squeeze
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.chain import Chain
from jobflow.ops.derivative import DerivativeStep
from jobflow.ops.index import one_hot as rows_of_ones
from jobflow.ops.matmul import BiasAdd, BroadcastMatMul, MatMul, matmul
from jobflow.ops.op import apply, broadcast_shapes
from jobflow.ops.random_tensors import DropoutMask
from jobflow.ops.runtime_assertions import RuntimeAssertion, class_assertion
from jobflow.tensors import redistribution
from jobflow.tensors.run import run, runs_chains
from jobflow.tensors.state import state

__all__ = [
    "bilinear", "cosine_similarity", "dropout", "dropout1d", "dropout2d", "dropout3d", "linear", "normalize", "one_hot",
    "pairwise_distance",
]  # fmt: skip

_PRODUCT, _PRODUCTS = MatMul(transpose_b=True), BroadcastMatMul(transpose_b=True)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return y[..., o] = sum over i of input[..., i] * weight[o, i], plus bias[o].

    Raises: ShapeError unless the weight is [out, in] and the bias [out], where `in` is the size of the last axis of the input.
    """
    x, w = input.tensor_type.shape, weight.tensor_type.shape
    if len(w) != 2 or not x or x[-1] != w[1]:
        raise ShapeError(
            f"linear at {user_line()}: weight {weight.tensor_type} must be [out, in], where in is the size of the last axis of input "
            f"{input.tensor_type}"
        )
    if bias is not None and bias.tensor_type.shape != w[:1]:
        raise ShapeError(
            f"linear at {user_line()}: bias {bias.tensor_type} must have one element for each of the {w[0]} rows of weight {weight.tensor_type}"
        )
    rows = input if len(x) > 1 else run(ExpandDims(0), input)
    y: Tensor
    if bias is not None and runs_chains(rows, weight, bias):
        y = run(_biased_product(max(len(x), 2)), rows, weight, bias)
    else:
        y = run(_PRODUCT if len(x) < 3 else _PRODUCTS, rows, weight)
        if bias is not None:
            y = run(BiasAdd(max(len(x), 2) - 1), y, redistribute_bias(y, bias))
    if len(x) == 1:
        y = run(Squeeze((0,)), y)
    return y


@lru_cache
def _biased_product(ndim: int) -> Chain:
    steps = DerivativeStep(_PRODUCT if ndim < 3 else _PRODUCTS, (0, 1), (3,)), DerivativeStep(BiasAdd(ndim - 1), (3, 2), (4,))
    return Chain("linear", steps, 3, (4,))


def redistribute_bias(y: Tensor, bias: Tensor) -> Tensor:
    """Return a bias of the last axis of y, redistributed to match y.

    The bias is split where y is split along its last axis, and partial where y is partial.  The bias is unchanged if y is traced, if one of the
    tensors is local, or if the placements differ.
    """
    if y.layout is None or bias.layout is None or y.traced is not None:
        return bias
    last = S(y.ndim - 1)
    sbp = tuple(S(0) if mark == last else mark if isinstance(mark, Partial) else B for mark in y.layout.sbp)
    return redistribution.redistribute(state(), bias, Layout(bias.layout.placement, sbp)) if bias.layout.placement == y.layout.placement else bias


@formula
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value:
    """Return y[..., o] = sum over i, j of input1[..., i] * weight[o, i, j] * input2[..., j], plus bias[o].

    Raises: ShapeError unless the weight is [out, in1, in2], the inputs are [..., in1] and [..., in2], and their leading axes are equal.
    """
    x1, x2, w = input1.tensor_type, input2.tensor_type, weight.tensor_type
    if w.ndim != 3 or x1.shape[:-1] != x2.shape[:-1] or (x1.shape[-1], x2.shape[-1]) != w.shape[1:]:
        raise ShapeError(f"bilinear at {user_line()}: weight {w} must be [out, in1, in2] for input1 {x1} [..., in1] and input2 {x2} [..., in2]")
    out, first, second = w.shape
    rows = math.prod(x1.shape[:-1])
    maps = sh.reshape(sh.transpose(weight, (1, 0, 2)), (first, out * second))
    mapped = sh.reshape(matmul(sh.reshape(input1, (rows, first)), maps), (rows, out, second))
    y = rd.reduce_sum(ew.multiply(mapped, sh.reshape(input2, (rows, 1, second))), (2,))
    if bias is not None:
        y = apply(BiasAdd(1), y, bias)
    return sh.reshape(y, (*x1.shape[:-1], out))


def asserted(ids: Tensor, assertion: RuntimeAssertion) -> Tensor:
    """Return indices with a runtime assertion of their range; raise DtypeError for indices that are not integers."""
    if not ids.tensor_type.dtype.is_integer:
        raise DtypeError(f"{assertion.what} at {user_line()}: the indices {ids.tensor_type} must be integers")
    return run(assertion, ids)


@composed
def _ones_at(ids: Tensor, classes: int) -> Value:
    return rows_of_ones(ids, classes, dtype=int64)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Return an int64 tensor with a new last axis of `num_classes` elements: 1 at the indices in `tensor`, and 0 elsewhere.

    `num_classes=-1` selects the largest index plus 1; then all ranks must call this function.
    Raises: ArgumentError for an index outside [0, num_classes), another num_classes < 1, or an empty tensor with `num_classes=-1`; DtypeError for
    indices that are not integers.

    Examples:
        >>> nn.functional.one_hot(flow.tensor([0, 2]), 3)
        tensor([[1, 0, 0],
                [0, 0, 1]], dtype=jobflow.int64)
    """
    if whole("one_hot", "num_classes", num_classes) == -1:
        values = value_of(tensor, "one_hot without num_classes")
        if not values.size:
            raise ArgumentError(f"one_hot at {user_line()}: num_classes cannot be inferred from an empty tensor; pass num_classes")
        num_classes = int(np.max(values)) + 1
    elif num_classes < 1:
        raise ArgumentError(f"one_hot at {user_line()}: num_classes must be at least 1, or -1 to infer it; got {num_classes}")
    return _ones_at(asserted(tensor, class_assertion("one_hot", num_classes)), num_classes)


# -------------------------------------------------------------------- dropout


def _check_rate(what: str, p: float) -> None:
    if not 0.0 <= real(what, "p", p) <= 1.0:
        raise ArgumentError(f"{what} at {user_line()}: p must be in [0, 1]; got {p}")


@composed
def _dropped(x: Tensor, p: float, each: Value | None) -> Value:
    """Return x times a dropout mask with the shape of x, or with the shape of `each`, which broadcasts to x."""
    if p == 1.0:
        return ew.scale(x, 0.0)
    key, seed, counter = draw_for(x)
    mask = apply(DropoutMask(p, key, seed), x if each is None else each, counter)
    return ew.multiply(x, mask)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Set each element of `input` to 0 with probability p, and divide the others by 1 - p; return `input` unless `training`.

    The mask depends on the seed and the number of previous random operations, not on the layout.
    Raises: ArgumentError for p outside [0, 1].
    """
    _check_rate("dropout", p)
    if not training or p == 0.0:
        return input
    if inplace:
        check_writable(input, "dropout_")
        return written(input, "dropout_", _dropped(copy_for_gradient(input), float(p), None))
    return _dropped(input, float(p), None)


@composed
def _one_of_channel(x: Tensor, axis: int) -> Value:
    return sl.slice_(x, (None,) * (axis + 1) + (0,) * (x.tensor_type.ndim - axis - 1), (None,) * (axis + 1) + (1,) * (x.tensor_type.ndim - axis - 1))


def _dropout_channels(spatial: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    what = f"dropout{spatial}d"
    _check_rate(what, p)
    if input.tensor_type.ndim not in (spatial + 1, spatial + 2):
        axes = f"{spatial} spatial {'axis' if spatial == 1 else 'axes'}"
        raise ShapeError(f"{what} at {user_line()}: input {input.tensor_type} must be [n, c, ...] or [c, ...] with {axes}")
    if not training or p == 0.0:
        return input
    y = _dropped(input, float(p), _one_of_channel(input, input.tensor_type.ndim - spatial - 1))
    return written(input, what, y) if inplace else y


dropout1d = variant(_dropout_channels, 1, "dropout1d", "Return `input` with whole channels of [n, c, l] dropped; see `dropout`.")
dropout2d = variant(_dropout_channels, 2, "dropout2d", "Return `input` with whole channels of [n, c, h, w] dropped; see `dropout`.")
dropout3d = variant(_dropout_channels, 3, "dropout3d", "Return `input` with whole channels of [n, c, d, h, w] dropped; see `dropout`.")


# -------------------------------------------------------------------- lengths


def length(x: Value, axes: tuple[int, ...], p: float, keepdims: bool) -> Value:
    """Return the p-norm of x along `axes`; for empty `axes`, the p-norm of each element."""
    if p == 2.0:
        return ew.sqrt(rd.reduce_sum(ew.square(x), axes, keepdims))
    if p == 1.0:
        return rd.reduce_sum(ew.absolute(x), axes, keepdims)
    if abs(p) == math.inf:
        return (rd.reduce_max if p > 0 else rd.reduce_min)(ew.absolute(x), axes, keepdims)
    if p == 0.0:  # the number of nonzero elements
        return rd.reduce_sum(ew.cast(ew.not_equal(x, ew.fill_like(x, 0.0)), x.tensor_type.dtype), axes, keepdims)
    return ew.scalar_power(rd.reduce_sum(ew.scalar_power(ew.absolute(x), p), axes, keepdims), 1.0 / p)


@formula
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Value:
    """Return input / max(|input|, eps), where |input| is the p-norm along `dim`."""
    axes = (axis_of("normalize", dim, input.tensor_type.ndim),) if input.tensor_type.ndim else ()
    if p == 2.0:
        square = rd.reduce_sum(ew.square(input), axes, True)
        return ew.divide(input, ew.sqrt(ew.clip(square, eps * eps, None)))
    return ew.divide(input, ew.clip(length(input, axes, float(p), True), eps, None))


def cosine(x1: Value, x2: Value, dim: int, eps: float) -> Value:
    """Return the cosine similarity of x1 and x2 along axis `dim`, after broadcasting to a common shape."""
    shape = broadcast_shapes("cosine_similarity", x1.tensor_type, x2.tensor_type)
    x1, x2 = (x if x.tensor_type.shape == shape else broadcast_to(x, shape) for x in (x1, x2))
    axes = (axis_of("cosine_similarity", dim, len(shape)),) if shape else ()
    product, one, other = (rd.reduce_sum(ew.multiply(a, b), axes) for a, b in ((x1, x2), (x1, x1), (x2, x2)))
    lengths = (ew.sqrt(ew.clip(square, eps * eps, None)) for square in (one, other))
    return ew.divide(product, ew.multiply(*lengths))


@one_type
@formula
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Value:
    """Return x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)) along `dim`, where |x| is the Euclidean norm."""
    return cosine(x1, x2, dim, eps)


@one_float_type
@formula
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Value:
    """Return the p-norm of x1 - x2 + eps along the last axis."""
    difference = ew.shift(ew.subtract(x1, x2), eps)
    return length(difference, last_axis(difference), float(p), keepdim)


def last_axis(x: Value) -> tuple[int, ...]:
    """Return a tuple of the last axis of x; the tuple is empty for x without axes."""
    return (x.tensor_type.ndim - 1,) if x.tensor_type.ndim else ()
