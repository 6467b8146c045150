"""flow.math: arithmetic with the legacy face's conventions, over the ops.

A number beside a tensor takes the tensor's element type.  Comparisons and logic give int8.  Reductions over all axes give shape (1,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.types import DType, Tensor, bool_, int8, int32
from jobflow.eager.faces import all_of, of_jobs
from jobflow.legacy.random import fused_scale_tril_softmax_dropout as fused_scale_tril_softmax_dropout
from jobflow.ops import activation as ac
from jobflow.ops import broadcast as bc
from jobflow.ops import elementwise as ew
from jobflow.ops import index as ix
from jobflow.ops import norm as nm
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops import skipped_steps as loss_scale
from jobflow.ops import source
from jobflow.ops.op import normal_axis
from jobflow.ops.pointwise import call
from jobflow.ops.rounding import rounded_once

Operand: TypeAlias = Tensor | float
Axes: TypeAlias = int | Sequence[int] | None
_Unary: TypeAlias = Callable[..., Tensor]


def _unary(word: str, op: _Unary, formula: str) -> Callable[..., Tensor]:
    """The face `word(x, name=None)` of an op of one tensor."""

    def function(x: Tensor, name: str | None = None) -> Tensor:
        return op(x, name=name)

    function.__name__ = function.__qualname__ = word
    function.__doc__ = formula
    return function


abs = _unary("abs", ew.absolute, "|x|.")
acos = _unary("acos", ew.acos, "Inverse cosine.")
acosh = _unary("acosh", ew.acosh, "Inverse hyperbolic cosine.")
asin = _unary("asin", ew.asin, "Inverse sine.")
asinh = _unary("asinh", ew.asinh, "Inverse hyperbolic sine.")
atan = _unary("atan", ew.atan, "Inverse tangent.")
atanh = _unary("atanh", ew.atanh, "Inverse hyperbolic tangent.")
ceil = _unary("ceil", ew.ceil, "The next integer above; gradient zero.")
cos = _unary("cos", ew.cos, "Cosine.")
cosh = _unary("cosh", ew.cosh, "Hyperbolic cosine.")
erf = _unary("erf", ew.erf, "Error function.")
erfc = _unary("erfc", ew.erfc, "1 - erf(x).")
exp = _unary("exp", ew.exp, "e^x.")
expm1 = _unary("expm1", ew.expm1, "e^x - 1.")
floor = _unary("floor", ew.floor, "The next integer below; gradient zero.")
gelu = _unary("gelu", ac.gelu, "x Phi(x), with the exact normal distribution function.")
log = _unary("log", ew.log, "Natural logarithm.")
log1p = _unary("log1p", ew.log1p, "log(1 + x).")
log_sigmoid = _unary("log_sigmoid", ac.log_sigmoid, "-log(1 + exp(-x)).")
negative = _unary("negative", ew.negate, "-x.")
reciprocal = _unary("reciprocal", ew.reciprocal, "1 / x.")
reciprocal_no_nan = _unary("reciprocal_no_nan", ew.reciprocal_no_nan, "1 / x, and 0 where x is 0.")
relu = _unary("relu", ac.relu, "max(x, 0).")
rint = _unary("rint", ew.round_half_even, "The nearest integer, half to even; gradient zero.")
round = _unary("round", ew.round_half_even, "The nearest integer, half to even; gradient zero.")
rsqrt = _unary("rsqrt", ew.rsqrt, "1 / sqrt(x).")
sigmoid = _unary("sigmoid", ac.sigmoid, "1 / (1 + exp(-x)).")
sigmoid_v2 = _unary("sigmoid_v2", ac.sigmoid, "1 / (1 + exp(-x)).")
sign = _unary("sign", ew.sign, "-1, 0 or 1; gradient zero.")
sin = _unary("sin", ew.sin, "Sine.")
sinh = _unary("sinh", ew.sinh, "Hyperbolic sine.")
softplus = _unary("softplus", ac.softplus, "log(1 + exp(x)).")
sqrt = _unary("sqrt", ew.sqrt, "Square root.")
square = _unary("square", ew.square, "x^2.")
tan = _unary("tan", ew.tan, "Tangent.")
tanh = _unary("tanh", ac.tanh, "Hyperbolic tangent.")
tanh_v2 = _unary("tanh_v2", ac.tanh, "Hyperbolic tangent.")


# Two operands -------------------------------------------------------------------------------------------------------


def fitting(what: str, number: float, dtype: DType) -> float:
    """The number as one of `dtype`; DtypeError where it would lose its fraction, or is beyond the type."""
    try:
        return dtype.number(number)
    except TypeError:
        raise ArgumentError(f"{what} at {user_line()}: {number!r} is not a number; arrays are arguments of the job") from None
    except ValueError as error:
        raise DtypeError(f"{what} at {user_line()}: {error} but the tensor is {dtype.name}; cast it first, to a type that has the number") from None


def _tensor_of(what: str, x: Operand, y: Operand) -> Tensor:
    """The operand that is a tensor."""
    for operand in (x, y):
        if isinstance(operand, Tensor):
            return operand
    raise ArgumentError(f"{what} at {user_line()}: neither operand is a tensor: {x!r} and {y!r}")


def _number_of(x: Operand, y: Operand) -> float:
    """The operand that is a number."""
    return x if not isinstance(x, Tensor) else cast(float, y)


def tensors(what: str, x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """Both operands as tensors; a number becomes one of shape (1,)."""
    dtype = _tensor_of(what, x, y).type.dtype

    def one(operand: Operand) -> Tensor:
        return operand if isinstance(operand, Tensor) else source.constant(fitting(what, operand, dtype), (1,), dtype)

    return one(x), one(y)


def add(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """x + y, broadcast; either may be a number."""
    t = _tensor_of("add", x, y)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return ew.add(x, y, name=name)
    return ew.shift(t, _number_of(x, y), name=name)


def subtract(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """x - y, broadcast; either may be a number."""
    t = _tensor_of("subtract", x, y)
    if not isinstance(y, Tensor):
        return ew.shift(t, -y, name=name)
    if not isinstance(x, Tensor):
        return ew.shift(ew.negate(y), x, name=name)
    return ew.subtract(x, y, name=name)


def multiply(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """x y, broadcast; either may be a number."""
    t = _tensor_of("multiply", x, y)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return ew.multiply(x, y, name=name)
    return ew.scale(t, _number_of(x, y), name=name)


def divide(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """x / y, broadcast.  A number y multiplies by 1 / y, and 0 by 0; a number x gives 0 where y is 0."""
    t = _tensor_of("divide", x, y)
    if not isinstance(y, Tensor):
        return ew.scale(t, 1.0 / y if y else 0.0, name=name)
    if not isinstance(x, Tensor):
        return ew.scale(ew.reciprocal_no_nan(y), x, name=name)
    return ew.divide(x, y, name=name)


def mod(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """x - y floor(x / y): the sign of the divisor."""
    return ew.floor_mod(*tensors("mod", x, y), name=name)


floor_mod = mod


def floordiv(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """floor(x / y); gradient zero."""
    return ew.floor_divide(*tensors("floordiv", x, y), name=name)


def pow(x: Tensor, y: Operand, name: str | None = None) -> Tensor:
    """x^y; y is a tensor or a number.  A negative base with a fractional exponent gives nan."""
    if isinstance(y, Tensor):
        return ew.power(x, y, name=name)
    return ew.scalar_power(x, y, name=name)


def atan2(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """The angle of the point (y, x)."""
    return ew.atan2(x, y, name=name)


def maximum(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """The larger of the two, broadcast; at a tie the gradient goes to y."""
    return ew.maximum(*tensors("maximum", x, y), name=name)


def minimum(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """The smaller of the two, broadcast; at a tie the gradient goes to y."""
    return ew.minimum(*tensors("minimum", x, y), name=name)


def squared_difference(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """(x - y)^2, broadcast."""
    return ew.squared_difference(x, y, name=name)


def xdivy(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """x / y, and 0 where x is 0."""
    return ew.divide(x, _one_where_zero(x, y), name=name)


def xlogy(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """x log(y), and 0 where x is 0."""
    return ew.multiply(x, ew.log(_one_where_zero(x, y)), name=name)


def _one_where_zero(x: Tensor, y: Tensor) -> Tensor:
    """y, but 1 where x is 0: so that neither value nor gradient there is infinite."""
    zero, one = (source.constant(number, (1,), x.type.dtype) for number in (0, 1))
    return ew.where(ew.equal(x, zero), one, y)


def add_n(inputs: Sequence[Tensor], name: str | None = None) -> Tensor:
    """The sum of a list of tensors of one type."""
    terms = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not terms or any(t.type != terms[0].type for t in terms):
        raise ShapeError(f"add_n at {user_line()}: {', '.join(str(t.type) for t in terms) or 'no tensors'}; it adds one or more tensors of one type")
    total: Tensor = terms[0]
    for i, term in enumerate(terms[1:], 2):
        total = ew.add(total, term, name=name if i == len(terms) else None)
    return total


def polyval(coeffs: Sequence[Operand], x: Tensor, name: str | None = None) -> Tensor:
    """coeffs[0] x^(n-1) + ... + coeffs[n-1], by Horner's scheme."""
    if not isinstance(coeffs, list) or not coeffs:
        raise ArgumentError(f"polyval at {user_line()}: coeffs must be a non-empty list, not {coeffs!r}")
    total = add(multiply(x, 0.0), coeffs[0])
    for i, coefficient in enumerate(coeffs[1:], 2):
        total = add(ew.multiply(total, x), coefficient, name if i == len(coeffs) else None)
    return total


# Comparisons and logic ----------------------------------------------------------------------------------------------


def _compared(op: ew.Comparison, what: str, x: Operand, y: Operand, name: str | None) -> Tensor:
    if not isinstance(x, Tensor) and isinstance(y, Tensor):
        return _compared(op.exchanged(), what, y, x, name)
    tensor = _tensor_of(what, x, y)
    exact = (op, y) if isinstance(y, Tensor) else ew.with_number(op, tensor.type.dtype, y)
    if isinstance(exact, bool):
        return ew.fill_like(tensor, exact, dtype=int8, name=name)
    return ew.cast(call(exact[0], *tensors(what, x, exact[1])), int8, name=name)


def equal(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """int8: x == y, broadcast."""
    return _compared(ew.Equal(), "equal", x, y, name)


def not_equal(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """int8: x != y, broadcast."""
    return _compared(ew.NotEqual(), "not_equal", x, y, name)


def greater(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """int8: x > y, broadcast."""
    return _compared(ew.Greater(), "greater", x, y, name)


def greater_equal(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """int8: x >= y, broadcast."""
    return _compared(ew.GreaterEqual(), "greater_equal", x, y, name)


def less(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """int8: x < y, broadcast."""
    return _compared(ew.Less(), "less", x, y, name)


def less_equal(x: Operand, y: Operand, name: str | None = None) -> Tensor:
    """int8: x <= y, broadcast."""
    return _compared(ew.LessEqual(), "less_equal", x, y, name)


def truth(x: Tensor) -> Tensor:
    """bool: x != 0."""
    return x if x.type.dtype is bool_ else ew.cast(x, bool_)


def logical_and(x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
    """int8: x != 0 and y != 0, broadcast."""
    return ew.cast(ew.logical_and(truth(x), truth(y)), int8, name=name)


# Bounds -------------------------------------------------------------------------------------------------------------


def clip_by_value(values: Tensor, min_value: float | None = None, max_value: float | None = None, name: str | None = None) -> Tensor:
    """min(max(x, min_value), max_value); a bound that is None does not hold, but one must be given."""
    if min_value is None and max_value is None:
        raise ArgumentError(f"clip_by_value at {user_line()}: give min_value, max_value or both")
    return ew.clip(values, min_value, max_value, name=name)


clip = clip_by_scalar = clamp = clip_by_value


# Reductions ---------------------------------------------------------------------------------------------------------


def axes_of(what: str, axis: Axes, ndim: int) -> tuple[int, ...]:
    """The axes to reduce, ascending; None means all."""
    if axis is None:
        return tuple(range(ndim))
    given = [axis] if isinstance(axis, int) else list(axis)
    return tuple(sorted({normal_axis(f"{what} at {user_line()}", int(a), ndim) for a in given}))


def _extreme(op: _Unary, what: str, x: Tensor, axis: Axes, keepdims: bool, name: str | None) -> Tensor:
    """The same of an extreme, which needs an element; an empty list of axes leaves x as it is."""
    rd.check_filled(what, x.type, axes_of(what, axis, x.type.ndim))
    return _reduced(op, what, x, axis, keepdims, name)


def _reduced(op: _Unary, what: str, x: Tensor, axis: Axes, keepdims: bool, name: str | None) -> Tensor:
    """The reduction in the legacy shapes: no axes at all leave x as it is, and no axes left over give (1,)."""
    axes = axes_of(what, axis, x.type.ndim)
    if not axes:
        return x
    if keepdims or len(axes) < x.type.ndim:
        return op(x, axes, bool(keepdims), name=name)
    return sh.reshape(op(x, axes, False), (1,), name=name)


def reduce_sum(input_tensor: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Sum over `axis`: an int, a list, or None for all."""
    return _reduced(rd.reduce_sum, "reduce_sum", input_tensor, axis, keepdims, name)


def reduce_mean(input_blob: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Mean over `axis`."""
    return _reduced(rd.reduce_mean, "reduce_mean", input_blob, axis, keepdims, name)


def reduce_min(x: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Minimum over `axis`; ties share the gradient."""
    return _extreme(rd.reduce_min, "reduce_min", x, axis, keepdims, name)


def reduce_max(x: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Maximum over `axis`; ties share the gradient."""
    return _extreme(rd.reduce_max, "reduce_max", x, axis, keepdims, name)


def reduce_prod(x: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Product over `axis`."""
    return _reduced(rd.reduce_prod, "reduce_prod", x, axis, keepdims, name)


two_stage_reduce_max = reduce_max
two_stage_reduce_min = reduce_min


def reduce_any(x: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """int8: is any element over `axis` not zero."""
    return ew.cast(_reduced(rd.reduce_any, "reduce_any", truth(x), axis, keepdims, None), int8, name=name)


def reduce_all(x: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """int8: are all elements over `axis` not zero."""
    return ew.cast(_reduced(rd.reduce_all, "reduce_all", truth(x), axis, keepdims, None), int8, name=name)


@rounded_once
def reduce_euclidean_norm(input_tensor: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """sqrt(sum of x^2 over `axis`)."""
    return ew.sqrt(reduce_sum(ew.square(input_tensor), axis, keepdims), name=name)


def reduce_logsumexp(input_tensor: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """log(sum of e^x over `axis`)."""
    return _reduced(rd.logsumexp, "reduce_logsumexp", input_tensor, axis, keepdims, name)


def reduce_variance(input_tensor: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """E[(x - E[x])^2] over `axis`: biased."""
    return _reduced(rd.reduce_variance, "reduce_variance", input_tensor, axis, keepdims, name)


@rounded_once
def reduce_std(input_tensor: Tensor, axis: Axes = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """sqrt(E[(x - E[x])^2]) over `axis`."""
    return ew.sqrt(reduce_variance(input_tensor, axis, keepdims), name=name)


def argmax(input: Tensor, axis: int = -1, name: str | None = None) -> Tensor:
    """int32: the place of the largest element along `axis`, the first of several."""
    if isinstance(axis, str):  # v0.2 had no axis: argmax(input, name)
        axis, name = -1, axis
    return rd.argmax(input, axis, name=name)


def l2_normalize(input: Tensor, axis: int | None = None, epsilon: float = 1e-12, name: str | None = None) -> Tensor:
    """x / sqrt(max(sum of x^2 over `axis`, epsilon))."""
    if not isinstance(axis, int):
        raise ArgumentError(f"l2_normalize at {user_line()}: axis must be an int, not {axis!r}")
    return nm.l2_normalize(input, normal_axis(f"l2_normalize at {user_line()}", axis, input.type.ndim), epsilon, name=name)


# Others -------------------------------------------------------------------------------------------------------------


def unsorted_segment_sum(data: Tensor, segment_ids: Tensor, num_segments: int, axis: int = 0, name: str | None = None) -> Tensor:
    """y[.., ids[i], ..] = sum of data[.., i, ..]; the axes of segment_ids take the place of `axis`; ids out of range are dropped."""
    return ix.unsorted_segment_sum(data, segment_ids, num_segments, axis, name=name)


def unsorted_segment_sum_like(data: Tensor, segment_ids: Tensor, like: Tensor, axis: int = 0, name: str | None = None) -> Tensor:
    """unsorted_segment_sum with as many segments as `like` has on `axis`."""
    return ix.unsorted_segment_sum(data, segment_ids, like.type.shape[axis], axis, name=name)


def unsorted_batch_segment_sum(data: Tensor, segment_ids: Tensor, num_segments: int, name: str | None = None) -> Tensor:
    """unsorted_segment_sum along the last axis of segment_ids, whose other axes are those of data."""
    return ix.batch_segment_sum(data, segment_ids, num_segments, name=name)


def tril(x: Tensor, diagonal: int = 0, fill_value: float = 0, name: str | None = None) -> Tensor:
    """x where column - row <= diagonal on the last two axes, fill_value elsewhere."""
    return ix.tril(x, diagonal, fill_value, name=name)


def fused_scale_tril(x: Tensor, diagonal: int = 0, fill_value: float = 0, scale: float = 1, name: str | None = None) -> Tensor:
    """scale x where column - row <= diagonal on the last two axes, fill_value elsewhere."""
    return ix.tril(ew.scale(x, scale), diagonal, fill_value, name=name)


def broadcast_to_compatible_with(x: Tensor, compatible: Sequence[Tensor], name: str | None = None) -> Tensor:
    """x broadcast to the common shape of x and the tensors of the list."""
    if not isinstance(compatible, list | tuple) or not compatible:
        raise ArgumentError(f"broadcast_to_compatible_with at {user_line()}: compatible must be a list of tensors, not {compatible!r}")
    try:
        shape = np.broadcast_shapes(x.type.shape, *(t.type.shape for t in compatible))
    except ValueError:
        listed = ", ".join(str(t.type) for t in (x, *compatible))
        raise ShapeError(f"broadcast_to_compatible_with at {user_line()}: {listed} do not broadcast together") from None
    return bc.broadcast_to(x, shape, name=name)


def sigmoid_grad(y: Tensor, dy: Tensor, name: str | None = None) -> Tensor:
    """dy y (1 - y)."""
    return ew.multiply(dy, ew.multiply(y, subtract(1.0, y)), name=name)


def gelu_grad(x: Tensor, dy: Tensor, name: str | None = None) -> Tensor:
    """dy (Phi(x) + x phi(x)), with the normal distribution function and density."""
    below = ew.scale(ew.shift(ew.erf(ew.scale(x, 0.5**0.5)), 1.0), 0.5)
    density = ew.scale(ew.exp(ew.scale(ew.square(x), -0.5)), (2.0 * np.pi) ** -0.5)
    return ew.multiply(dy, ew.add(below, ew.multiply(x, density)), name=name)


def reduced_shape_elem_cnt(input_blob: Tensor, axis: Axes = None, dtype: DType | None = None, name: str | None = None) -> Tensor:
    """How many elements a reduction over `axis` takes together, shape (1,); int32 unless dtype is given."""
    axes = axes_of("reduced_shape_elem_cnt", axis, input_blob.type.ndim)
    return source.constant(int(np.prod([input_blob.type.shape[i] for i in axes], dtype=np.int64)), (1,), dtype or int32, name=name)


def count_not_finite(x: Tensor, name: str | None = None) -> Tensor:
    """int64 (1,): how many elements are infinite or nan."""
    return loss_scale.count_not_finite(x, name=name)


def multi_count_not_finite(x: Sequence[Tensor] | None = None, name: str | None = None) -> Tensor:
    """count_not_finite over a list of tensors."""
    if not isinstance(x, list | tuple) or not x:
        raise ArgumentError(f"multi_count_not_finite at {user_line()}: x must be a non-empty list of tensors, not {x!r}")
    return count_not_finite(x[0], name) if len(x) == 1 else add_n([count_not_finite(each) for each in x], name)


def in_top_k(targets: Tensor, predictions: Tensor, k: int, name: str | None = None) -> Tensor:
    """int8: is predictions[i, targets[i]] one of the k largest of row i (ties count)."""
    own = ix.batch_gather(predictions, sh.expand_dims(targets, 1), 1)
    larger = ew.cast(ew.greater(predictions, own), int32)
    return less(reduce_sum(larger, 1), k, name)


globals().update(all_of(__name__, globals(), __name__, of_jobs))
