"""The namespace `flow.math`: tensor functions with the names and conventions of the job API.

Numbers are converted to the element type of the tensor operand. Tensor operands have equal element types. Comparisons and logic return int8.
Reductions over all axes have shape (1,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

import jobflow.core.scope as scope
import jobflow.functional as functional
from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import DType, Tensor, bool_, int8, int32
from jobflow.engine.operators import quotient
from jobflow.functional.nn_activations import logsigmoid
from jobflow.legacy.elements import top_k as top_k
from jobflow.legacy.job_dispatch import ALIAS, alias, all_of, traced
from jobflow.legacy.operands import Operand, counts, filling, may_be_empty, operands
from jobflow.legacy.operands import tensors as tensors
from jobflow.legacy.random import fused_scale_tril_softmax_dropout as fused_scale_tril_softmax_dropout
from jobflow.ops import activation as ac
from jobflow.ops import broadcast as bc
from jobflow.ops import elementwise as ew
from jobflow.ops import gamma_functions as gm
from jobflow.ops import guarded_update as loss_scale
from jobflow.ops import index as ix
from jobflow.ops import norm as nm
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops import source
from jobflow.ops.op import apply, normal_axis
from jobflow.ops.rounding import rounded_once
from jobflow.ops.scalar import Detach
from jobflow.ops.slices import Slice
from jobflow.ops.vector_norm import root

Axes: TypeAlias = int | Sequence[int] | None
#: untyped, because its functions are called with tensors of jobs here
_F: Any = functional

abs = alias(_F.abs)
acos = alias(_F.acos)
acosh = alias(_F.acosh)
asin = alias(_F.asin)
asinh = alias(_F.asinh)
atan = alias(_F.atan)
atanh = alias(_F.atanh)
ceil = alias(_F.ceil)
cos = alias(_F.cos)
cosh = alias(_F.cosh)
erf = alias(_F.erf)
erfc = alias(_F.erfc)
exp = alias(_F.exp)
expm1 = alias(_F.expm1)
floor = alias(_F.floor)
gelu = alias(_F.gelu)
lgamma = alias(gm.lgamma)
log = alias(_F.log)
log1p = alias(_F.log1p)
log_sigmoid = alias(logsigmoid)
negative = alias(_F.negative)
reciprocal = alias(_F.reciprocal)
reciprocal_no_nan = alias(ew.reciprocal_no_nan)
relu = alias(_F.relu)
rint = round = alias(_F.round)
rsqrt = alias(_F.rsqrt)
sigmoid = sigmoid_v2 = alias(_F.sigmoid)
sign = alias(_F.sign)
sin = alias(_F.sin)
sinh = alias(_F.sinh)
softplus = alias(ac.softplus)  # unlike the tensor function, without a threshold above which it is x
sqrt = alias(_F.sqrt)
square = alias(_F.square)
tan = alias(_F.tan)
tanh = tanh_v2 = alias(_F.tanh)


# Two operands -------------------------------------------------------------------------------------------------------


def _of_two(word: str, function: Callable[..., Any], doc: str, together: Callable[..., Any] = operands) -> Callable[..., Tensor]:
    """Return the job function `word(x, y, name=None)` of two tensors, or of a tensor and a number."""

    def call(x: Operand, y: Operand, name: str | None = None) -> Tensor:
        return function(*together(word, x, y))

    call.__doc__, call.__module__ = doc, ALIAS
    return call


def _power(x: Operand, y: Operand) -> Tensor:
    """Return x^y; y has no gradient where x <= 0, because the gradient would be NaN."""
    if isinstance(x, Tensor) and isinstance(y, Tensor) and y.tensor_type.dtype.is_float:
        y = ew.where(ew.greater(x, ew.fill_like(x, 0)), y, apply(Detach(), y))
    return _F.pow(x, y)


add = _of_two("add", _F.add, "Return x + y, with broadcasting; either may be a number.")
subtract = _of_two("subtract", _F.sub, "Return x - y, with broadcasting; either may be a number.")
multiply = _of_two("multiply", _F.mul, "Return x y, with broadcasting; either may be a number.")
mod = floor_mod = _of_two("mod", _F.remainder, "Return x - y floor(x / y), which has the sign of y.", tensors)
floordiv = _of_two("floordiv", _F.floor_divide, "Return floor(x / y), with gradient zero.", tensors)
pow = _of_two("pow", _power, "Return x^y; y is a tensor or a number.  A negative base with a fractional exponent yields NaN.")
atan2 = _of_two("atan2", _F.atan2, "Return the angle of the point (x, y) to the x axis.")
maximum = _of_two("maximum", _F.maximum, "Return the larger of x and y, with broadcasting; a tie passes its gradient to y.", tensors)
minimum = _of_two("minimum", _F.minimum, "Return the smaller of x and y, with broadcasting; a tie passes its gradient to y.", tensors)


def divide(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """Return x / y, with broadcasting.

    A number y is applied as the factor 1 / y, and y = 0 as the factor 0. A number x yields 0 where y is 0. Integer quotients drop the fraction.
    """
    return quotient(*operands("divide", x, y))


squared_difference = _of_two("squared_difference", ew.squared_difference, "Return (x - y)^2, with broadcasting; either may be a number.", tensors)


def xdivy(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """Return x / y, and 0 where x is 0."""
    return ew.divide(x, _one_where_zero(x, y))


def xlogy(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """Return x log(y), and 0 where x is 0."""
    return ew.multiply(x, ew.log(_one_where_zero(x, y)))


def _one_where_zero(x: Tensor, y: Tensor) -> Tensor:
    """Return y, with 1 where x is 0, so that x / y, log(y) and their gradients are finite there."""
    zero, one = (source.constant(number, (1,), x.tensor_type.dtype) for number in (0, 1))
    return ew.where(ew.equal(x, zero), one, y)


def add_n(inputs: Sequence[Tensor], name: str | None = None) -> Tensor:
    """Return the sum of the tensors `inputs`, which have equal types."""
    terms = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not terms or any(t.tensor_type != terms[0].tensor_type for t in terms):
        raise ShapeError(
            f"add_n at {user_line()}: the inputs are {', '.join(str(t.tensor_type) for t in terms) or 'no tensors'}; "
            "pass one or more tensors of equal type"
        )
    return reduce(ew.add, terms)


def polyval(coeffs: Sequence[Operand], x: Tensor, name: str | None = None) -> Tensor:
    """Evaluate the polynomial coeffs[0] x^(n-1) + ... + coeffs[n-1], n = len(coeffs), by Horner's scheme."""
    if not isinstance(coeffs, list) or not coeffs:
        raise ArgumentError(f"polyval at {user_line()}: coeffs must be a non-empty list, not {coeffs!r}")
    return reduce(lambda total, coefficient: add(ew.multiply(total, x), coefficient), coeffs[1:], add(multiply(x, 0.0), coeffs[0]))


# Comparisons and logic ----------------------------------------------------------------------------------------------


def _comparison(word: str, op: ew.Comparison, sign: str) -> Callable[..., Tensor]:
    """Return the job function `word(x, y, name=None)` of a comparison, with an int8 result; a number acts as a tensor of shape (1,)."""

    def compared(op: ew.Comparison, x: Operand, y: Operand) -> Tensor:
        if not isinstance(x, Tensor) and isinstance(y, Tensor):
            return compared(op.exchanged(), y, x)
        if not isinstance(y, Tensor | Real | np.generic):
            raise ArgumentError(f"{word} at {user_line()}: {y!r} is neither a tensor nor a number")
        exact = (op, y) if isinstance(y, Tensor) or not isinstance(x, Tensor) else ew.with_number(op, x.tensor_type.dtype, y)
        if isinstance(exact, bool):
            return ew.fill_like(x, exact, dtype=int8)
        return ew.cast(apply(exact[0], *tensors(word, x, exact[1])), int8)

    def call(x: Operand, y: Operand, name: str | None = None) -> Tensor:
        return compared(op, x, y)

    call.__doc__, call.__module__ = f"Return x {sign} y as int8, with broadcasting.", ALIAS
    return call


equal = _comparison("equal", ew.Equal(), "==")
not_equal = _comparison("not_equal", ew.NotEqual(), "!=")
greater = _comparison("greater", ew.Greater(), ">")
greater_equal = _comparison("greater_equal", ew.GreaterEqual(), ">=")
less = _comparison("less", ew.Less(), "<")
less_equal = _comparison("less_equal", ew.LessEqual(), "<=")


def logical_and(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """Return x != 0 and y != 0 as int8, with broadcasting."""
    return ew.cast(_F.logical_and(x, y), int8)


def clip_by_value(values: Tensor, min_value: float | None = None, max_value: float | None = None, name: str | None = None) -> Tensor:
    """Clip elements to [min_value, max_value]; one of the bounds may be None."""
    if min_value is None and max_value is None:
        raise ArgumentError(f"clip_by_value at {user_line()}: pass min_value, max_value or both")
    bounds = [None if bound is None else filling("clip_by_value", bound, values.tensor_type.dtype) for bound in (min_value, max_value)]
    return _F.clamp(values, *bounds)


clip = clip_by_scalar = clamp = clip_by_value


# Reductions ---------------------------------------------------------------------------------------------------------


def axes_of(what: str, axis: Axes, ndim: int) -> tuple[int, ...]:
    """Return `axis`, an int or a list of ints, as non-negative axes in ascending order; None means all `ndim` axes.

    Raises: ArgumentError for other values.
    """
    if axis is None:
        return tuple(range(ndim))
    arguments = (axis,) if isinstance(axis, Integral) or not isinstance(axis, Iterable) else tuple(axis)
    if not all(isinstance(a, Integral) for a in arguments):
        raise ArgumentError(f"{what} at {user_line()}: axis must be an int, a list of ints, or None for all, not {axis!r}")
    return tuple(sorted({normal_axis(f"{what} at {user_line()}", int(a), ndim) for a in arguments}))


def _reduction(
    word: str, function: Callable[..., Tensor], doc: str, x: str = "x", extreme: bool = False, single: Callable[..., Tensor] | None = None
) -> Callable[..., Tensor]:
    """Return a reduction with the shapes of the job API, in which a result without axes has shape (1,).

    Without axes to reduce, the result is x, or `single(x)`. With `extreme`, for maximum and minimum, a reduction of no elements raises an error.
    """

    def call(x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
        axes = axes_of(word, axis, x.tensor_type.ndim)
        if extreme:
            rd.check_filled(word, x.tensor_type, axes)
        if not axes:
            return x if single is None else single(x)
        if keepdims or len(axes) < x.tensor_type.ndim:
            return function(x, axes, bool(keepdims))
        return sh.reshape(function(x, axes, False), (1,))

    call.__doc__ = doc
    return alias(call, x, axis=None, keepdims=False)


# unlike tensor functions, sums have the type of x, and a mean is a sum times 1 / count
reduce_sum = _reduction("reduce_sum", rd.reduce_sum, "Return the sum over `axis`: an int, a list, or None for all.", "input_tensor")
reduce_mean = _reduction("reduce_mean", rd.reduce_mean, "Return the mean over `axis`.", "input_blob")
reduce_min = two_stage_reduce_min = _reduction("reduce_min", rd.reduce_min, "Return the minimum over `axis`; ties share the gradient.", extreme=True)
reduce_max = two_stage_reduce_max = _reduction("reduce_max", rd.reduce_max, "Return the maximum over `axis`; ties share the gradient.", extreme=True)
reduce_prod = _reduction("reduce_prod", rd.reduce_prod, "Return the product over `axis`.")
reduce_logsumexp = _reduction("reduce_logsumexp", rd.logsumexp, "Return log(sum of e^x) over `axis`.", "input_tensor")
reduce_variance = _reduction(
    "reduce_variance",
    rd.reduce_variance,
    "Return the biased variance E[(x - E[x])^2] over `axis`.",
    "input_tensor",
    single=lambda x: ew.subtract(x, x),
)
_reduce_any = _reduction("reduce_any", rd.reduce_any, "Return True where any element is true.")
_reduce_all = _reduction("reduce_all", rd.reduce_all, "Return True where all elements are true.")


def truth(x: Tensor) -> Tensor:
    """Return x != 0 as bool."""
    return ew.cast(x, bool_)


def reduce_any(x: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Return int8 1 where any element over `axis` is not zero, and 0 elsewhere."""
    return ew.cast(_reduce_any(truth(x), axis, keepdims), int8)


def reduce_all(x: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Return int8 1 where all elements over `axis` are not zero, and 0 elsewhere."""
    return ew.cast(_reduce_all(truth(x), axis, keepdims), int8)


@rounded_once
def reduce_euclidean_norm(input_tensor: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Return the Euclidean norm over `axis`: the square root of the sum of squares."""
    return ew.sqrt(reduce_sum(ew.square(input_tensor), axis, keepdims))


@rounded_once
def reduce_std(input_tensor: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Return the biased standard deviation of `input_tensor` over `axis`; the gradient is 0 where the deviation is 0."""
    return root(reduce_variance(input_tensor, axis, keepdims), name=name)


def argmax(input: Tensor, axis: int | str = -1, name: str | None = None) -> Tensor:
    """Return the int32 index of the first largest element along `axis`; argmax(input, name) is the older form."""
    place = rd.argmax(input, -1, name=axis) if isinstance(axis, str) else rd.argmax(input, axis)  # OneFlow 0.2: argmax(input, name)
    return place if place.tensor_type.ndim else sh.reshape(place, (1,))


def l2_normalize(input: Tensor, axis: int | None = None, epsilon: float = 1e-12, name: str | None = None) -> Tensor:
    """Divide the input by its Euclidean norm over `axis`, which is required: x / sqrt(max(sum of x^2, epsilon)), x = input."""
    if not isinstance(axis, int):
        raise ArgumentError(f"l2_normalize at {user_line()}: axis must be an int, not {axis!r}")
    return nm.l2_normalize(input, normal_axis(f"l2_normalize at {user_line()}", axis, input.tensor_type.ndim), epsilon)


# Others -------------------------------------------------------------------------------------------------------------


def unsorted_segment_sum(data: Tensor, segment_ids: Tensor, num_segments: int, axis: int = 0, name: str | None = None) -> Tensor:
    """Sum the slices of `data` with equal segment_ids; the axes of segment_ids are axes of data, from `axis` on.

    In the result, one axis of size `num_segments` replaces these axes. Ids out of range are ignored.
    """
    counts("unsorted_segment_sum", num_segments=num_segments)
    return ix.unsorted_segment_sum(data, segment_ids, num_segments, axis)


def unsorted_segment_sum_like(data: Tensor, segment_ids: Tensor, like: Tensor, axis: int = 0, name: str | None = None) -> Tensor:
    """Return unsorted_segment_sum with the size of `like` along `axis` as the number of segments."""
    at = normal_axis(f"unsorted_segment_sum_like at {user_line()}", axis, like.tensor_type.ndim)
    return ix.unsorted_segment_sum(data, segment_ids, like.tensor_type.shape[at], axis)


def unsorted_batch_segment_sum(data: Tensor, segment_ids: Tensor, num_segments: int, name: str | None = None) -> Tensor:
    """Sum the entries of `data` with equal segment_ids along the last axis of segment_ids, into `num_segments` segments.

    The preceding axes of segment_ids are batch axes of data.
    """
    counts("unsorted_batch_segment_sum", num_segments=num_segments)
    return ix.batch_segment_sum(data, segment_ids, num_segments)


tril = alias(ix.tril, diagonal=0, fill_value=0)


def fused_scale_tril(x: Tensor, diagonal: int = 0, fill_value: float = 0, scale: float = 1, name: str | None = None) -> Tensor:
    """Return scale * x where column - row <= diagonal over the last two axes, and fill_value elsewhere."""
    return ix.tril(ew.scale(x, scale), diagonal, fill_value)


def broadcast_to_compatible_with(x: Tensor, compatible: Sequence[Tensor], name: str | None = None) -> Tensor:
    """Broadcast x to the common shape of x and the tensors in `compatible`."""
    if not isinstance(compatible, list | tuple) or not compatible:
        raise ArgumentError(f"broadcast_to_compatible_with at {user_line()}: compatible must be a list of tensors, not {compatible!r}")
    try:
        shape = np.broadcast_shapes(x.tensor_type.shape, *(t.tensor_type.shape for t in compatible))
    except ValueError:
        listed = ", ".join(str(t.tensor_type) for t in (x, *compatible))
        raise ShapeError(f"broadcast_to_compatible_with at {user_line()}: there is no common broadcast shape of {listed}") from None
    return bc.broadcast_to(x, shape)


def sigmoid_grad(y: Tensor, dy: Tensor, name: str | None = None) -> Tensor:
    """Return the gradient of sigmoid from its result y: dy y (1 - y)."""
    return ew.multiply(dy, ew.multiply(y, subtract(1.0, y)))


def gelu_grad(x: Tensor, dy: Tensor, name: str | None = None) -> Tensor:
    """Return the gradient of gelu: dy (Phi(x) + x phi(x)), with the normal distribution function Phi and density phi."""
    below = ew.scale(ew.shift(ew.erf(ew.scale(x, 0.5**0.5)), 1.0), 0.5)
    density = ew.scale(ew.exp(ew.scale(ew.square(x), -0.5)), (2.0 * np.pi) ** -0.5)
    return ew.multiply(dy, ew.add(below, ew.multiply(x, density)))


def reduced_shape_elem_cnt(input_blob: Tensor, axis: Axes = None, dtype: DType | None = None, name: str | None = None) -> Tensor:
    """Return the number of elements that a reduction over `axis` combines, as a tensor of shape (1,); the default dtype is int32."""
    axes = axes_of("reduced_shape_elem_cnt", axis, input_blob.tensor_type.ndim)
    return source.constant(int(np.prod([input_blob.tensor_type.shape[i] for i in axes], dtype=np.int64)), (1,), dtype or int32)


count_not_finite = alias(loss_scale.count_not_finite)


def multi_count_not_finite(x: Sequence[Tensor] | None = None, name: str | None = None) -> Tensor:
    """Return the number of infinite and NaN elements in all tensors of the list x, as int64 of shape (1,)."""
    if not isinstance(x, list | tuple) or not x:
        raise ArgumentError(f"multi_count_not_finite at {user_line()}: x must be a non-empty list of tensors, not {x!r}")
    return count_not_finite(x[0]) if len(x) == 1 else add_n([count_not_finite(each) for each in x])


def _rows_of_both(what: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and y with equal bounds on their dynamic sizes along axis 0; raise an error in a run in which these sizes differ."""
    shapes = [x.tensor_type.shape, y.tensor_type.shape]
    rows = min(shape[0] if shape else 0 for shape in shapes)
    if any(shape[:1] != (rows,) for shape in shapes):
        recorder: Any = scope.current().interpreter
        recorder.body.refuse(f"{what} at {user_line()}: {x.tensor_type} and {y.tensor_type} must have the same number of rows")
    first, second = (apply(Slice((0,) * len(shape), (rows, *shape[1:]), (1,) * len(shape)), t) for t, shape in zip((x, y), shapes, strict=True))
    return first, second


def in_top_k(targets: Tensor, predictions: Tensor, k: int, name: str | None = None) -> Tensor:
    """Return int8 1 where predictions[i, targets[i]] is one of the k largest elements of row i, including ties, and 0 elsewhere."""
    counts("in_top_k", k=k)
    if may_be_empty(targets) and may_be_empty(predictions):
        targets, predictions = _rows_of_both("in_top_k", targets, predictions)
    if (
        predictions.tensor_type.ndim != 2
        or targets.tensor_type.shape != predictions.tensor_type.shape[:1]
        or not targets.tensor_type.dtype.is_integer
    ):
        raise ShapeError(
            f"in_top_k at {user_line()}: predictions {predictions.tensor_type} must be [n, classes], and targets {targets.tensor_type} n integers"
        )
    own = ix.batch_gather(predictions, sh.expand_dims(targets, 1), 1)
    larger = ew.cast(ew.greater(predictions, own), int32)
    return less(reduce_sum(larger, 1), k)


globals().update(all_of(__name__, globals(), (__name__, ALIAS), traced))
