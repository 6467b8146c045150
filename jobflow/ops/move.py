"""Ops that roll elements along axes, or pad a tensor with copies of its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, int64
from jobflow.expressions import language as f
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression
from jobflow.expressions.moved_elements import element_at, space_of_copies
from jobflow.ops.op import LETTERS, Grads, Op, Sample, adds, normal_axis, sample
from jobflow.ops.pointwise import call, sample_data

#: most copies of one element for which the formula of a gradient lists all
MOST_COPIES = 32
#: the elements beyond an edge: reflect: a b c | b a;  edge: a b c | c c;  wrap: a b c | a b
Mode = Literal["reflect", "edge", "wrap"]


def _rule(moved: Sequence[bool], x: TensorType) -> Rule:
    """Return a rule that splits only the axes i of x for which moved[i] is False."""
    word = "".join(LETTERS[i].upper() if yes else LETTERS[i] for i, yes in enumerate(moved))
    return Rule(f"{word or '1'}->{word}", linear=((0,),) if adds(x) else ())


class Roll(Op):
    """Cyclic shift: y[..., (i + shift) mod n, ...] = x[..., i, ...], with one shift per axis."""

    precision = "any"
    loops_on = ("cuda",)
    shifts: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if len(self.shifts) != x.ndim:
            raise ShapeError(f"roll: shifts {list(self.shifts)} must have one entry for each axis of {x}")
        return x

    def rule(self, x: TensorType) -> Rule:
        return _rule([shift != 0 for shift in self.shifts], x)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = xp.roll(x, self.shifts, tuple(range(x.ndim))) if x.size else x

    def index_space(self, *types: TensorType) -> IndexSpace:
        return space_of_copies(self.infer(*types), [shift != 0 for shift in self.shifts])

    def expression(self, x: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        if not x.size:
            return None
        at = {}
        for axis, (n, shift) in enumerate(zip(x.shape, self.shifts, strict=True)):
            if shift:
                source = f.index(axis - x.ndim) - shift % n
                at[axis] = f.where(source < 0, source + n, source)
        return (element_at(0, x, at),)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(Roll(tuple(-shift for shift in self.shifts)), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((2, 0)), sample_data(1, 5, 4))
        yield sample(cls((0, -1, 7)), sample_data(2, 4, 3, 5))
        yield sample(cls((1,)), sample_data(3, 4) > 0)
        yield sample(cls((1, 0)), sample_data(4, 0, 3))


class _Edges(Op):
    """Base class of padding with elements of x; pairs[i] = (before, after) is the number of elements added along axis i."""

    abstract = True
    precision = "any"
    loops_on = ("cuda",)
    pairs: tuple[tuple[int, int], ...]
    mode: Mode

    def _larger(self, x: TensorType) -> TensorType:
        what = f"pad with {self.mode}"
        if len(self.pairs) != x.ndim or any(n < 0 for pair in self.pairs for n in pair):
            raise ShapeError(f"{what}: padding {list(self.pairs)} must have a pair of sizes >= 0 for each axis of {x}")
        for axis, (n, pair) in enumerate(zip(x.shape, self.pairs, strict=True)):
            there = {"reflect": max(n - 1, 0), "wrap": n, "edge": max(pair) if n else 0}[self.mode]
            if max(pair) > there:
                raise ShapeError(f"{what}: the padding {pair} of axis {axis} of {x} exceeds the maximum {there}")
        return x.with_shape(tuple(a + n + b for n, (a, b) in zip(x.shape, self.pairs, strict=True)))

    def sources(self, shape: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (axis, indices) for each padded axis: element i of y along the axis is element indices[i] of x, for an x of this `shape`."""
        for axis, (n, pair) in enumerate(zip(shape, self.pairs, strict=True)):
            if pair != (0, 0):
                yield axis, np.pad(np.arange(n), pair, self.mode)


class PadEdges(_Edges):
    """Padding with elements of x, as in numpy.pad: "reflect" (mirrored without the edge), "edge" (repeated) or "wrap" (periodic)."""

    def infer(self, x: TensorType) -> TensorType:
        return self._larger(x)

    def rule(self, x: TensorType) -> Rule:
        return _rule([pair != (0, 0) for pair in self.pairs], x)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        value = x
        for axis, at in self.sources(x.shape):
            value = xp.take(value, xp.asarray(at), axis=axis)
        y[...] = value

    def index_space(self, *types: TensorType) -> IndexSpace:
        return space_of_copies(self.infer(*types), [pair != (0, 0) for pair in self.pairs])

    def expression(self, x: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        if not x.size:
            return None
        sizes = zip(x.shape, self.pairs, strict=True)
        at = {i: self._source(f.index(i - x.ndim) - before, n) for i, (n, (before, after)) in enumerate(sizes) if before or after}
        return (element_at(0, x, at),)

    def _source(self, i: Expression, n: int) -> Expression:
        """Return the index in an axis of n elements from which an element at index i, relative to the axis, is copied."""
        if self.mode == "edge":
            return f.clip(i, 0, n - 1)
        if self.mode == "wrap":
            return f.where(i < 0, i + n, f.where(i < n, i, i - n))
        return (n - 1) - f.absolute((n - 1) - f.absolute(i))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(PadEdgesGrad(self.pairs, self.mode), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for mode in ("reflect", "edge", "wrap"):
            yield sample(cls(((0, 0), (2, 1)), mode), sample_data(1, 5, 4))
            yield sample(cls(((1, 0), (0, 0), (2, 3)), mode), sample_data(2, 3, 2, 5))
        yield sample(cls(((2, 0),), "edge"), sample_data(3, 4) > 0)
        yield sample(cls(((0, 0), (1, 1)), "wrap"), sample_data(4, 0, 3))


class PadEdgesGrad(_Edges):
    """Adjoint of PadEdges: the inner part of dy plus the padding elements, each added to its source."""

    def infer(self, dy: TensorType) -> TensorType:
        inner = tuple(n - a - b for n, (a, b) in zip(dy.shape, self.pairs, strict=False))
        if len(self.pairs) != dy.ndim or min(inner, default=0) < 0:
            raise ShapeError(f"pad with {self.mode}: dy {dy} does not have the shape of a tensor padded by {list(self.pairs)} elements")
        dx = dy.with_shape(inner)
        self._larger(dx)
        return dx

    def rule(self, dy: TensorType) -> Rule:
        return _rule([pair != (0, 0) for pair in self.pairs], dy)

    def kernel(self, xp: Xp, dy: Array, dx: Array) -> None:
        value = dy
        for axis, at in self.sources(dx.shape):
            a, n = self.pairs[axis][0], dx.shape[axis]
            value = xp.moveaxis(value, axis, 0)
            total = value[a : a + n].copy()
            for i, k in enumerate(at):
                if not a <= i < a + n:
                    total[int(k)] += value[i]
            value = xp.moveaxis(total, 0, axis)
        dx[...] = value

    def index_space(self, *types: TensorType) -> IndexSpace:
        return space_of_copies(self.infer(*types), [pair != (0, 0) for pair in self.pairs])

    def expression(self, dy: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        shape = self.infer(dy).shape
        axes = [axis for axis, pair in enumerate(self.pairs) if pair != (0, 0)]
        copies = {axis: self._copies(f.index(axis - dy.ndim), shape[axis], *self.pairs[axis]) for axis in axes}
        if not math.prod(shape) or math.prod(1 + len(several) for several in copies.values()) > MOST_COPIES:
            return None

        def total(axes: Sequence[int], at: dict[int, Expression]) -> Expression:
            if not axes:
                return f.cast(element_at(0, dy, at), dy.dtype.arithmetic)
            *earlier, axis = axes
            result = total(earlier, {**at, axis: f.index(axis - dy.ndim) + self.pairs[axis][0]})
            for condition, i in copies[axis]:
                copy = total(earlier, {**at, axis: f.clip(i, 0, dy.shape[axis] - 1)})
                result = f.where(condition, result + copy, result)
            return result

        return (f.cast(total(axes, {}), dy.dtype),)

    def _copies(self, k: Expression, n: int, before: int, after: int) -> list[tuple[Expression, Expression]]:
        """Return the copies of element k of an axis of n elements.

        A copy is a condition under which dy contains it, and its index in dy.
        """
        if self.mode == "edge":
            first, last = f.equal(k, 0), f.equal(k, n - 1)
            added = [(first, i) for i in range(before)] + [(last, before + n + i) for i in range(after)]
            return [(condition, f.constant(i, int64)) for condition, i in added]
        if self.mode == "wrap":
            return [(f.greater_equal(k, n - before), k - (n - before)), (k < after, k + (before + n))]
        left = f.logical_and(f.less_equal(1, k), f.less_equal(k, before))
        right = f.logical_and(f.less_equal(n - 1 - after, k), f.less_equal(k, n - 2))
        return [(left, before - k), (right, (before + 2 * (n - 1)) - k)]

    def grad(self, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return (call(PadEdges(self.pairs, self.mode), ddx),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for mode in ("reflect", "edge", "wrap"):
            yield sample(cls(((0, 0), (2, 1)), mode), sample_data(1, 5, 6))
            yield sample(cls(((1, 0), (0, 0), (2, 2)), mode), sample_data(2, 3, 3, 7))


def roll(x: Tensor, shifts: Sequence[int], axes: Sequence[int], *, name: str | None = None) -> Tensor:
    """Shift the elements of x cyclically by shifts[i] along axes[i]; shifts along the same axis are added."""
    each = [0] * x.tensor_type.ndim
    for shift, axis in zip(shifts, axes, strict=True):
        each[normal_axis("roll", axis, len(each))] += shift
    return call(Roll(tuple(each)), x, name=name) if any(each) else x


def pad_edges(x: Tensor, pairs: Sequence[tuple[int, int]], mode: Mode, *, name: str | None = None) -> Tensor:
    """Pad x with copies of its elements: pairs[i] = (before, after) is the number of copies along axis i.

    `mode` is "reflect", "edge" or "wrap", as in numpy.pad. Raises ShapeError if a padding exceeds the size of the axis for "wrap", or size - 1 for
    "reflect". A padded axis must not be empty.
    """
    return call(PadEdges(tuple((int(a), int(b)) for a, b in pairs), mode), x, name=name)
