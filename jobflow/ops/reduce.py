"""Sums, extremes and other reductions over axes.

A reduction over no elements returns the identity element of the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError, user_line
from jobflow.core.layout import MAX, MIN, SUM, Partial, Reduction, Rule, Signature
from jobflow.core.types import Array, Tensor, TensorType, bool_, float64, int32, uint8
from jobflow.ops.arithmetic import add, divide, multiply, subtract, where
from jobflow.ops.axes import reshape
from jobflow.ops.broadcast import broadcast_to, sum_to
from jobflow.ops.compare import equal
from jobflow.ops.floating import isinf
from jobflow.ops.indexed import AxisReduction, Indexed, wide_sum
from jobflow.ops.op import LETTERS, Grads, Sample, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, NUMBERS, call, check_dtypes, sample_data
from jobflow.ops.rounding import rounded_once
from jobflow.ops.scalar import cast, detach, fill_like, scale
from jobflow.ops.scan import CumProd
from jobflow.ops.transcendental import exp, log, sqrt, square

__all__ = [
    "argmax",
    "argmin",
    "logsumexp",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "square_sum",
    "sum_to",
]


class Reduce(AxisReduction):
    """Base class of reductions over `axes`; with `keepdims`, the reduced axes remain with size 1."""

    abstract = True
    axes: tuple[int, ...]
    keepdims: bool = False

    kinds: ClassVar[str] = NUMBERS

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes(self.word(), self.kinds, x)
        if any(not 0 <= i < x.ndim for i in self.axes):
            raise ShapeError(f"{self.word()}: axes {list(self.axes)} are out of range for {x}")
        shape = tuple(1 if i in self.axes else n for i, n in enumerate(x.shape) if self.keepdims or i not in self.axes)
        return x.with_shape(shape)

    def words(self, x: TensorType, splittable: bool) -> str:
        """Return the rule letters of x and of the result, such as "ab->a".

        With `splittable`, reduced axes may be split, and the reduction combines the results of the shards.
        """
        marks = [LETTERS[i] if splittable or i not in self.axes else LETTERS[i].upper() for i in range(x.ndim)]
        remaining = ["1" if i in self.axes else mark for i, mark in enumerate(marks) if self.keepdims or i not in self.axes]
        return f"{''.join(marks)}->{''.join(remaining)}"

    def rule(self, x: TensorType) -> Rule:
        return Rule(self.words(x, splittable=False))

    def without(self, y: Array) -> Array:
        """Return a view of the result y without the axes of size 1 that `keepdims` retains."""
        return y[(*(0 if i in self.axes else slice(None) for i in range(y.ndim)), ...)] if self.keepdims else y

    def expanded(self, x: Tensor, y: Tensor) -> Tensor:
        """Reshape y, which has the shape of the result, to the number of axes of x: the reduced axes have size 1."""
        return reshape(y, tuple(1 if i in self.axes else n for i, n in enumerate(x.tensor_type.shape)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((0,)), sample_data(1, 5, 3))
        yield sample(cls((1, 2)), sample_data(2, 3, 5, 2))
        yield sample(cls((0, 2), True), sample_data(3, 5, 3, 2))
        yield sample(cls((0,)), sample_data(4, 4))


class ReduceSum(Reduce):
    """Sum of x over `axes`."""

    sums = True

    def rule(self, x: TensorType) -> Rule:
        return Rule(self.words(x, splittable=True), linear=((0,),))

    def formula(self, f: Any, x: Any) -> Any:
        return wide_sum(f, x)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (broadcast_to(self.expanded(x, dy), x.tensor_type.shape),)


class _ReduceExtreme(Reduce):
    """Base class of ReduceMax and ReduceMin. The gradient is divided equally among the extreme elements."""

    abstract = True
    reduction: ClassVar[Reduction]

    def rule(self, x: TensorType) -> Rule:
        partial = Partial(self.reduction)
        return Rule(self.words(x, splittable=True), reduce=self.reduction, also=(Signature((partial,), (partial,)),))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        reached = cast(equal(x, self.expanded(x, y)), x.tensor_type.dtype)
        share = divide(self.expanded(x, dy), reduce_sum(reached, self.axes, keepdims=True))
        return (multiply(reached, share),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        for low in (-3.0, 1.0):  # of one sign, so that the identity is not among them
            yield sample(cls((1,)), sample_data(5, 3, 2, low=low, high=low + 2.0))
        yield sample(cls((1,)), np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), differentiable=(), note=" ties")


class ReduceMax(_ReduceExtreme):
    """Maximum of x over `axes`."""

    reduction = MAX

    def formula(self, f: Any, x: Any) -> Any:
        return f.row_max(x)


class ReduceMin(_ReduceExtreme):
    """Minimum of x over `axes`."""

    reduction = MIN

    def formula(self, f: Any, x: Any) -> Any:
        return f.row_min(x)


class ReduceProd(Reduce):
    """Product of x over `axes`. The gradient, a product of the other elements, is exact for zeros too."""

    def formula(self, f: Any, x: Any) -> Any:
        return f.row_product(x)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        dx, rest = self.expanded(x, dy), x
        for axis in self.axes:
            before, after = (call(CumProd(axis, reverse, exclusive=True), rest) for reverse in (False, True))
            dx = multiply(dx, multiply(before, after))
            rest = reduce_prod(rest, axis, keepdims=True)
        return (broadcast_to(dx, x.tensor_type.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls((0, 1)), np.array([[[2.0, 1.0], [0.0, 2.0]], [[3.0, 0.0], [4.0, 0.0]]]), note=" zeros")


class _ReduceTruth(Reduce):
    abstract = True
    kinds = "b"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((1,)), sample_data(1, 5, 3) > 0)
        yield sample(cls((0, 1), True), sample_data(2, 4, 3) > -1.5)


class ReduceAny(_ReduceTruth):
    """Disjunction over `axes`: y is true if any element of x is true."""

    def formula(self, f: Any, x: Any) -> Any:
        return f.cast(f.row_max(f.cast(x, uint8)), bool_)


class ReduceAll(_ReduceTruth):
    """Conjunction over `axes`: y is true if all elements of x are true."""

    def formula(self, f: Any, x: Any) -> Any:
        return f.cast(f.row_min(f.cast(x, uint8)), bool_)


class ArgExtreme(Indexed):
    """Int32 index of the first maximum along `axis`, or of the first minimum if `largest` is False."""

    axis: int
    largest: bool = True

    def infer(self, x: TensorType) -> TensorType:
        if not 0 <= self.axis < x.ndim:
            raise ShapeError(f"{self.word()}: axis {self.axis} is out of range for {x}")
        return TensorType((*x.shape[: self.axis], *x.shape[self.axis + 1 :]), int32)

    def rule(self, x: TensorType) -> Rule:
        marks = [LETTERS[i].upper() if i == self.axis else LETTERS[i] for i in range(x.ndim)]
        return Rule(f"{''.join(marks)}->{''.join(m for m in marks if m.islower())}")

    def formula(self, f: Any, x: Any) -> Any:
        """Return the index of the first extreme of the row, or of the first NaN if the row contains NaN."""
        x = f.cast(x, uint8) if x.dtype is bool_ else x
        hit = f.equal(x, f.row_max(x) if self.largest else f.row_min(x))
        hit = f.logical_or(hit, f.isnan(x)) if x.dtype.is_float else hit
        return f.cast(f.row_min(f.where(hit, f.index(-1), int32.span[1])), int32)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 3))
        yield sample(cls(0, False), sample_data(2, 4, 3))


class SquareSum(AxisReduction):
    """Sum of x^2 over all elements, of shape ()."""

    def infer(self, x: TensorType) -> TensorType:
        check_dtypes("square_sum", FLOATS, x)
        return x.with_shape(())

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{LETTERS[: x.ndim] or '1'}->", reduce=SUM)

    sums = True

    def formula(self, f: Any, x: Any) -> Any:
        return f.cast(f.row_sum(f.square(f.cast(x, float64))), x.dtype)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (scale(multiply(x, dy), 2.0),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 3))
        yield sample(cls(), sample_data(2, 4))
        yield sample(cls(), sample_data(3, 3 * 4096 + 5), differentiable=(), note=" long")


# Functions ----------------------------------------------------------------------------------------------------------

Axes = Sequence[int] | int | None


def _axes(what: str, x: Tensor, axes: Axes) -> tuple[int, ...]:
    """Return `axes` as sorted non-negative indices of axes of x, all axes for None; raise ShapeError if an axis is out of range."""
    if axes is None:
        return tuple(range(x.tensor_type.ndim))
    chosen = [axes] if isinstance(axes, int) else axes
    return tuple(sorted({normal_axis(what, i, x.tensor_type.ndim) for i in chosen}))


def reduce_sum(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    chosen = _axes("reduce_sum", x, axes)
    return call(ReduceSum(chosen, keepdims), x, name=name) if chosen else x


@rounded_once
def reduce_mean(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    """Return the mean of x over `axes`, by default over all axes; NaN for a mean of no elements.

    The op is a sum scaled by the logical count, so it is linear and splits like a sum.
    """
    count = math.prod(x.tensor_type.shape[i] for i in _axes("reduce_mean", x, axes))
    return scale(reduce_sum(x, axes, keepdims), 1.0 / count if count else math.nan, name=name)


def check_filled(what: str, x: TensorType, axes: Sequence[int]) -> None:
    """Raise ShapeError, with the name `what` of the function, if one of these axes of x is empty and therefore has no maximum or minimum."""
    for axis in axes:
        if not x.shape[axis]:
            raise ShapeError(f"{what} at {user_line()}: axis {axis} of {x} is empty; pass a tensor with elements along this axis")


def reduce_max(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    chosen = _axes("reduce_max", x, axes)
    return call(ReduceMax(chosen, keepdims), x, name=name) if chosen else x


def reduce_min(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    chosen = _axes("reduce_min", x, axes)
    return call(ReduceMin(chosen, keepdims), x, name=name) if chosen else x


def reduce_prod(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    chosen = _axes("reduce_prod", x, axes)
    return call(ReduceProd(chosen, keepdims), x, name=name) if chosen else x


def reduce_any(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    chosen = _axes("reduce_any", x, axes)
    return call(ReduceAny(chosen, keepdims), x, name=name) if chosen else x


def reduce_all(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    chosen = _axes("reduce_all", x, axes)
    return call(ReduceAll(chosen, keepdims), x, name=name) if chosen else x


@rounded_once
def reduce_variance(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    """Return the biased variance of x over `axes` (by default over all axes): the mean of the squared differences from the mean."""
    wide = cast(x, float64) if x.tensor_type.dtype.is_float else x  # in float32, rounding of the mean alone can exceed a small variance
    distance = subtract(wide, reduce_mean(wide, axes, keepdims=True))
    return cast(reduce_mean(square(distance), axes, keepdims, name=name), x.tensor_type.dtype)


@rounded_once
def reduce_std(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    """Return the biased standard deviation of x over `axes`, by default over all axes."""
    return sqrt(reduce_variance(x, axes, keepdims), name=name)


def argmax(x: Tensor, axis: int = -1, *, name: str | None = None) -> Tensor:
    """Return the int32 index of the first maximum along `axis`; raise ShapeError if the axis is empty."""
    return _position("argmax", x, axis, True, name)


def argmin(x: Tensor, axis: int = -1, *, name: str | None = None) -> Tensor:
    """Return the int32 index of the first minimum along `axis`; raise ShapeError if the axis is empty."""
    return _position("argmin", x, axis, False, name)


def _position(what: str, x: Tensor, axis: int, largest: bool, name: str | None) -> Tensor:
    chosen = normal_axis(what, axis, x.tensor_type.ndim)
    check_filled(what, x.tensor_type, (chosen,))
    return call(ArgExtreme(chosen, largest), x, name=name)


def square_sum(x: Tensor, *, name: str | None = None) -> Tensor:
    """Return the sum of the squares of all elements, of shape ()."""
    return call(SquareSum(), x, name=name)


@rounded_once
def logsumexp(x: Tensor, axes: Axes = None, keepdims: bool = False, *, name: str | None = None) -> Tensor:
    """Return log(sum(exp(x))) over `axes` (by default over all axes) without overflow of exp; raise DtypeError unless x is floating point."""
    if not x.tensor_type.dtype.is_float:
        raise DtypeError(f"logsumexp: {x.tensor_type} must contain floating point numbers; cast it with cast(x, dtype)")
    chosen = _axes("logsumexp", x, axes)
    largest = detach(reduce_max(x, chosen, keepdims=True))
    largest = where(isinf(largest), fill_like(largest, 0.0), largest)  # infinite results need no shift
    inside = log(reduce_sum(exp(subtract(x, largest)), chosen, keepdims=True))
    whole = add(inside, largest)
    shape = tuple(n for i, n in enumerate(whole.tensor_type.shape) if keepdims or i not in chosen)
    return reshape(whole, shape, name=name)
