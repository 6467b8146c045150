"""Ops that roll elements along axes, or pad a tensor with copies of its elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.op import LETTERS, Grads, Op, Sample, adds, normal_axis, sample
from jobflow.ops.pointwise import call, sample_data

#: the elements beyond an edge: reflect: a b c | b a;  edge: a b c | c c;  wrap: a b c | a b
Mode = Literal["reflect", "edge", "wrap"]


def _rule(moved: Sequence[bool], x: TensorType) -> Rule:
    """Return a rule that splits only the axes i of x for which moved[i] is False."""
    word = "".join(LETTERS[i].upper() if yes else LETTERS[i] for i, yes in enumerate(moved))
    return Rule(f"{word or '1'}->{word}", linear=((0,),) if adds(x) else ())


class Roll(Op):
    """Cyclic shift: y[..., (i + shift) mod n, ...] = x[..., i, ...], with one shift per axis."""

    precision = "any"
    shifts: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if len(self.shifts) != x.ndim:
            raise ShapeError(f"roll: shifts {list(self.shifts)} must have one entry for each axis of {x}")
        return x

    def rule(self, x: TensorType) -> Rule:
        return _rule([shift != 0 for shift in self.shifts], x)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = xp.roll(x, self.shifts, tuple(range(x.ndim))) if x.size else x

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
