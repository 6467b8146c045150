"""Reads and writes of slices of tensors that are split along the sliced axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, P, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Op, Sample, adds, sample
from jobflow.ops.pointwise import call, sample_data
from jobflow.ops.scalar import fill_like
from jobflow.ops.slices import CopyInto, Edges, Slice, flip, window_of


class Subscript(Slice):
    """Slice of x with partial results if a sliced axis is split: elements of other ranks are zero."""

    def rule(self, x: TensorType) -> Rule:
        parts = tuple(Signature((S(i),), (P,)) for i, full in enumerate(self.full(x.shape)) if not full)
        return replace(super().rule(x), also=parts if adds(x) else ())

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        (x,), (y,) = inputs, outputs
        inside, outside = self.met(x, y)
        cut = any(x.shape[i] != x.whole[i] for i, full in enumerate(self.full(x.whole)) if not full)
        return CopyInto(y.shape, inside, outside) if cut else inside  # the summand of a rank is not a view of x, even if it contains all of x

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls((1, 0), (6, 7), (2, 3)), sample_data(3, 6, 7))
        yield sample(cls((5,), (6,), (1,)), sample_data(4, 7))
        yield sample(cls((1, 0), (3, 3), (1, 1)), sample_data(5, 4, 3) > 0)


class SliceUpdate(Op):
    """Copy of x with y[window] = v. On a rank whose shard contains only a part of the window, `part` selects this part of v."""

    precision = "any"
    in_place = OVER_FIRST
    window: Slice
    part: Slice | None = None

    def infer(self, x: TensorType, v: TensorType) -> TensorType:
        if x.dtype is not v.dtype:
            raise DtypeError(f"slice_update: {x} and the new values {v} differ in element type; cast one of them with cast(x, dtype)")
        needed, provided = self.window.infer(x), v if self.part is None else self.part.infer(v)
        if needed != provided:
            raise ShapeError(f"slice_update: the new values {provided} must have the type of the window {needed} of {x}")
        return x

    def rule(self, x: TensorType, v: TensorType) -> Rule:
        """Return a rule that splits x and v equally along axes that the window covers completely.

        If x is split along another axis, v is replicated and every rank selects the elements for its shard.
        This selection would be wrong along completely covered axes if another mesh dimension splits both tensors.
        """
        full = self.window.full(x.shape)
        word = "".join(LETTERS[i] if ok else LETTERS[i].upper() for i, ok in enumerate(full)) or "1"
        new = "".join(mark if ok else "1" for mark, ok in zip(word, full, strict=False))
        pieces = tuple(Signature((S(i), B), (S(i),)) for i, ok in enumerate(full) if not ok)
        return Rule(f"{word},{new}->{word if full else ''}", linear=((0, 1),) if adds(x) else (), also=pieces)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        x, v = inputs
        inside, outside = self.window.met(x, v)
        return replace(self, window=inside, part=None if outside.takes_all(v.shape) else outside)

    def new_values(self, v: Array) -> Array:
        return v if self.part is None else v[(*self.part.at, ...)]

    def kernel(self, xp: Xp, x: Array, v: Array, y: Array) -> None:
        y[...] = x
        y[(*self.window.at, ...)] = self.new_values(v)

    def grad(self, x: Tensor, v: Tensor, y: Tensor, dy: Tensor) -> Grads:
        window = self.window
        return call(SliceUpdate(window), dy, fill_like(v, 0.0)), call(Subscript(window.starts, window.stops, window.steps), dy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(Slice((0, 1), (5, 3), (1, 1))), sample_data(1, 5, 4), sample_data(2, 5, 2))
        yield sample(cls(Slice((1, 0, 0), (6, 3, 2), (2, 1, 1))), sample_data(3, 7, 3, 2), sample_data(4, 3, 3, 2))
        yield sample(cls(Slice((5,), (6,), (1,))), sample_data(5, 7), sample_data(6, 1))
        yield sample(cls(Slice((2, 0), (2, 3), (1, 1))), sample_data(7, 7, 3), sample_data(8, 0, 3))
        yield sample(cls(Slice((1, 0), (3, 3), (1, 1))), sample_data(9, 4, 3) > 0, sample_data(10, 2, 3) > 0)
        yield sample(cls(Slice((), (), ())), sample_data(11), sample_data(12))


class SliceWrite(SliceUpdate):
    """In-place SliceUpdate, which overwrites x without a change of its layout."""

    alias: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})
    pure = False
    in_place: ClassVar[Mapping[int, tuple[int, ...]]] = MappingProxyType({})


def subscript(x: Tensor, starts: Edges, stops: Edges, steps: Edges | None = None, *, name: str | None = None) -> Tensor:
    """Return x[starts[0]:stops[0]:steps[0], ...] as in Python; axes without an entry in `starts` are selected completely.

    If x is split along a sliced axis, the result is a partial sum, as in `Subscript`.
    """
    window, backwards = window_of(x.tensor_type.shape, starts, stops, steps)
    whole = window.takes_all(x.tensor_type.shape)
    y = x if whole else call(Subscript(window.starts, window.stops, window.steps), x, name=None if backwards else name)
    return flip(y, backwards, name=name) if backwards else y


def slice_update(x: Tensor, v: Tensor, starts: Edges, stops: Edges, steps: Edges | None = None, *, name: str | None = None) -> Tensor:
    """Return a copy of x in which v, a tensor with the shape of the slice, replaces x[starts[0]:stops[0]:steps[0], ...]."""
    window, backwards = window_of(x.tensor_type.shape, starts, stops, steps)
    return call(SliceUpdate(window), x, flip(v, backwards) if backwards else v, name=name)
