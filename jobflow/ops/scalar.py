"""Elementwise ops of one tensor and at most one number that are linear or piecewise constant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import ConfigError, DtypeError, called_function, user_line
from jobflow.core.layout import B, P, Rule, Signature
from jobflow.core.types import DType, Tensor, TensorType, bool_, dtype_of, float32, float64, int32
from jobflow.ops.layout_ops import Identity
from jobflow.ops.op import OVER_FIRST, Grads, Precision, Sample, broadcast_rule, sample
from jobflow.ops.pointwise import ANY, FLOATS, NUMBERS, Elementwise, Negate, Unary, call, sample_data, unary_function


class WithNumber(Elementwise):
    """Base class of ops of one tensor and one number, which is converted to the tensor's element type."""

    abstract = True
    number: float
    #: the function's name
    primitive: ClassVar[str]
    kinds = NUMBERS

    def formula(self, f: Any, x: Any) -> Any:
        return getattr(f, self.primitive)(x, f.constant(self.number, x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(-1.5), sample_data(1, 5, 3))
        yield sample(cls(3.0), sample_data(2))
        if "u" in cls.kinds:
            yield sample(cls(-3), np.arange(15, dtype=np.uint8).reshape(5, 3))


class Scale(WithNumber):
    """Product with a number: y = number x."""

    precision = "follows"
    primitive = "multiply"
    linear = ((0,),)
    in_place = OVER_FIRST

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (scale(dy, self.number),)


class Shift(WithNumber):
    """Sum with a number: y = x + number."""

    precision = "follows"
    primitive = "add"
    in_place = OVER_FIRST


class DivideBy(WithNumber):
    """Quotient by a number: y = x / number."""

    precision = "follows"
    primitive = "divide"
    linear = ((0,),)
    kinds = FLOATS
    in_place = OVER_FIRST

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(self, dy),)


class Clip(Elementwise):
    """Clipping: y = min(max(x, minimum), maximum). A bound of None is infinite."""

    precision = "any"
    minimum: float | None
    maximum: float | None
    kinds = NUMBERS

    def formula(self, f: Any, x: Any) -> Any:
        return f.clip(x, _number(self.minimum, x), _number(self.maximum, x))

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        return f.where(f.equal(x, f.clip(x, self.minimum, self.maximum)), dy, 0.0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(-1.0, 0.5), sample_data(1, 5, 3))
        yield sample(cls(None, 0.5), sample_data(2, 7))
        yield sample(cls(0.1, None), sample_data(3, 7))
        yield sample(cls(-3, 900), np.arange(250, 256, dtype=np.uint8))


class Inside(Clip):
    """Clipping as by Clip, but with a gradient of 0 also where x equals a bound."""

    def gradient(self, f: Any, x: Any, y: Any, dy: Any) -> Any:
        return f.where(x > self.minimum, f.where(x < self.maximum, dy, 0.0), 0.0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(-1.0, 0.5), sample_data(1, 5, 3))
        yield sample(cls(-3, 200), np.arange(195, 205, dtype=np.uint8))


def _number(value: float | None, x: Any) -> float | None:
    """Return the bound `value` (None for no bound) for elements of x; bounds of integers are limited to the range of the type."""
    dtype = dtype_of(x.dtype)
    if value is None or not dtype.is_integer:
        return value
    low, high = dtype.span
    return int(min(max(value, low), high))


class Cast(Elementwise):
    """Conversion of x to `dtype`, as NumPy converts on x86; linear if the result is floating point and x is not bool.

    With `through`, conversions that are not linear have a gradient too: the gradient of y.  Gradients of integers are float64.
    """

    precision = "any"
    dtype: DType
    through: bool = False
    kinds = ANY

    def infer(self, *types: TensorType) -> TensorType:
        return types[0].with_dtype(self.dtype)

    def rule(self, *types: TensorType) -> Rule:
        exact = self.dtype.is_float and types[0].dtype is not bool_
        return broadcast_rule(types, linear=((0,),) if exact else ())

    def formula(self, f: Any, x: Any) -> Any:
        return f.cast(x, self.dtype)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        passes = self.through or (self.dtype.is_float and x.tensor_type.dtype is not bool_)
        return (cast(dy, x.tensor_type.dtype.of_gradient) if passes else None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(float64), sample_data(1, 5, 3))
        yield sample(cls(float32), sample_data(1, 5, 3), step=1e-2, tolerance=1e-4)
        yield sample(cls(float64), np.arange(-7, 8).reshape(5, 3))
        yield sample(cls(int32), np.arange(15.0).reshape(5, 3), differentiable=())
        yield sample(cls(int32, through=True), np.arange(15.0).reshape(5, 3), differentiable=())
        yield sample(cls(bool_), np.arange(15).reshape(5, 3) % 3)


class FillLike(Elementwise):
    """Tensor of the shape of x filled with `value`. x may be partial, because its values are not read."""

    precision: ClassVar[Precision] = "any"
    value: float
    dtype: DType | None = None
    kinds = ANY

    def infer(self, *types: TensorType) -> TensorType:
        return types[0].with_dtype(self.dtype or types[0].dtype)

    def rule(self, *types: TensorType) -> Rule:
        return replace(super().rule(*types), also=(Signature((P,), (B,)),))

    def formula(self, f: Any, x: Any) -> Any:
        return f.constant(self.value, self.dtype or x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2.5), sample_data(1, 5, 3))
        yield sample(cls(1, bool_), sample_data(1, 4))


class Detach(Identity):
    """Identity without a gradient."""

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3), differentiable=())


class InHalf(Identity):
    """Identity that runs in half precision in a job with mixed precision."""

    precision = "half"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3))


class _Steps(Unary):
    """Base class of piecewise constant functions, which have gradient 0."""

    precision = "any"
    abstract = True
    kinds = NUMBERS

    def formula(self, f: Any, x: Any) -> Any:
        return x if dtype_of(x.dtype).is_integer and self.ufunc != "sign" else getattr(f, self.ufunc)(x)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (fill_like(dy, 0.0),)


class Sign(_Steps):
    """Sign of x: y = -1, 0 or 1."""

    ufunc = "sign"


class Floor(_Steps):
    """Floor: y = the largest integer <= x."""

    ufunc = "floor"


class Ceil(_Steps):
    """Ceiling: y = the smallest integer >= x."""

    ufunc = "ceil"


class RoundHalfEven(_Steps):
    """Rounding to the nearest integer, half to even."""

    def formula(self, f: Any, x: Any) -> Any:
        return x if dtype_of(x.dtype).is_integer else f.rint(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.arange(-7, 8, dtype=np.int32).reshape(5, 3))


class Truncate(_Steps):
    """Rounding toward zero: y = the integer part of x."""

    ufunc = "trunc"


negate = unary_function(Negate)
sign = unary_function(Sign)
floor = unary_function(Floor)
ceil = unary_function(Ceil)
round_half_even = unary_function(RoundHalfEven)
identity = unary_function(Identity)


def detach(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return a tensor that equals x and through which x gets no gradient."""
    return call(Detach(), x, name=name)


def scale(x: Tensor, factor: float, *, name: str | None = None) -> Tensor:
    """Return factor * x; raise DtypeError if the element type of x cannot represent `factor`."""
    return call(Scale(representable("scale", x, factor)), x, name=name)


def shift(x: Tensor, amount: float, *, name: str | None = None) -> Tensor:
    """Return x + amount. For integers, raise DtypeError unless the type of x represents |amount|."""
    number = -representable("shift", x, -amount) if amount < 0 else representable("shift", x, amount)
    return call(Shift(number), x, name=name)


def clip(x: Tensor, minimum: float | None = None, maximum: float | None = None, *, name: str | None = None) -> Tensor:
    """Return x clipped to [minimum, maximum]; None is no bound. Raise ConfigError if both are None."""
    if minimum is None and maximum is None:
        raise ConfigError(f"clip at {user_line()}: minimum and maximum are both None; pass at least one of them")
    low, high = bounds("clip", x, minimum, maximum)
    return call(Clip(low, high), x, name=name)


def bounds(what: str, x: Tensor, minimum: float | None, maximum: float | None) -> tuple[float | None, float | None]:
    """Return `minimum` and `maximum` as numbers of the element type of x; raise DtypeError if the type cannot represent a bound.

    Bounds of integers are limited to the range of the type. None remains None.
    """
    smallest, largest = x.tensor_type.dtype.span
    if x.tensor_type.dtype.is_integer:
        minimum = smallest if minimum is not None and minimum < smallest else minimum
        maximum = largest if maximum is not None and maximum > largest else maximum
    low, high = (None if bound is None else representable(what, x, bound) for bound in (minimum, maximum))
    return low, high


def fill_like(x: Tensor, value: float, *, dtype: DType | None = None, name: str | None = None) -> Tensor:
    """Return a tensor filled with `value`, with the shape of x and the element type `dtype` (by default, the type of x)."""
    return call(FillLike(value if dtype else representable("fill_like", x, value), dtype), x, name=name)


def cast(x: Tensor, dtype: DType, *, name: str | None = None) -> Tensor:
    """Convert x to another element type; return x itself if it already has this type."""
    return x if x.tensor_type.dtype is dtype else call(Cast(dtype), x, name=name)


def representable(what: str, x: Tensor, number: float) -> float:
    """Return `number` in the element type of x; raise DtypeError if the type cannot represent it."""
    try:
        return x.tensor_type.dtype.number(number)
    except ValueError as error:
        called = called_function()
        if called not in ("", what):
            raise DtypeError(f"{called} at {user_line()}: {x.tensor_type} must contain floating point numbers; cast it with .float()") from None
        raise DtypeError(
            f"{what} at {user_line()}: {error}, but the tensor is {x.tensor_type}; cast it first to a type that represents the number"
        ) from None
