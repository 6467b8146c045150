"""Slices of tensors, and ops that join and split tensors: slice, pad, flip, concat, stack, split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp, type_of
from jobflow.expressions import language as f
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression
from jobflow.expressions.moved_elements import all_of, element_at, index_in_window, space_of_copies
from jobflow.ops.axes import expand_dims, squeeze
from jobflow.ops.op import LETTERS, Grads, Op, Sample, ViewOp, adds, normal_axis, sample
from jobflow.ops.pointwise import call, sample_data


def _marks(free: Sequence[bool]) -> str:
    """Return a rule letter per axis: lower-case if free[i] is True, so that axis i may be split, else upper-case."""
    return "".join(LETTERS[i] if ok else LETTERS[i].upper() for i, ok in enumerate(free))


def _same(free: Sequence[bool], linear: tuple[tuple[int, ...], ...] = ((0,),)) -> Rule:
    return Rule(f"{_marks(free) or '1'}->{_marks(free)}", linear=linear)


class Slice(ViewOp):
    """Slice y[i, j, ...] = x[starts[0] + i steps[0], starts[1] + j steps[1], ...]; `stops` are exclusive ends, and steps are positive."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def at(self) -> tuple[slice, ...]:
        return tuple(map(slice, self.starts, self.stops, self.steps))

    def infer(self, x: TensorType) -> TensorType:
        if len(self.starts) != x.ndim or any(not 0 <= a <= b <= n for a, b, n in zip(self.starts, self.stops, x.shape, strict=True)):
            raise ShapeError(f"slice: starts {list(self.starts)} and stops {list(self.stops)} are out of range for {x}")
        return x.with_shape(tuple(len(range(*at.indices(n))) for at, n in zip(self.at, x.shape, strict=True)))

    def rule(self, x: TensorType) -> Rule:
        return _same(self.full(x.shape), linear=((0,),) if adds(x) else ())

    def full(self, shape: Sequence[int]) -> list[bool]:
        return [(a, b, s) == (0, n, 1) for a, b, s, n in zip(self.starts, self.stops, self.steps, shape, strict=True)]

    def takes_all(self, shape: Sequence[int]) -> bool:
        """Return True if the slice selects a whole tensor of this shape."""
        return all(self.full(shape))

    def met(self, x: Box, y: Box) -> tuple[Slice, Slice]:
        """Return two slices that contain the same elements: of box x of the tensor, and of box y of the result.

        These are the elements of the result in box y that are copies of elements in box x.
        """
        inside, outside = [], []
        for start, stop, step, (p, q), (u, v) in zip(self.starts, self.stops, self.steps, x.spans, y.spans, strict=True):
            first = max(u, -((start - p) // step))
            count = max(0, min(v, -((start - min(stop, q)) // step)) - first)
            at = start + first * step - p if count else 0
            inside.append((at, at + (count - 1) * step + 1 if count else at, step))
            outside.append((first - u, first - u + count, 1) if count else (0, 0, 1))
        one, other = (Slice(*(tuple(edges[i] for edges in part) for i in range(3))) for part in (inside, outside))
        return one, other

    def view(self, x: Array) -> Array:
        return x[(*self.at, ...)]

    def indices(self, shape: Sequence[int], changed: Sequence[bool]) -> tuple[dict[int, Expression], Expression]:
        """Return the index in the slice along each axis i with changed[i], for an index of a tensor of this `shape`.

        The second result is a truth value: False outside of the slice, where the indices are those of its nearest element.
        """
        at, inside = dict[int, Expression](), []
        for axis, (start, step, n) in enumerate(zip(self.starts, self.steps, shape, strict=True)):
            if changed[axis]:
                count = len(range(*self.at[axis].indices(n)))
                at[axis], there = index_in_window(f.index(axis - len(shape)), start, step, count)
                inside.append(there)
        return at, all_of(inside)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        box = inputs[0]
        stops = [n if full else stop for n, full, stop in zip(box.shape, self.full(box.whole), self.stops, strict=True)]
        return Slice(self.starts, tuple(stops), self.steps)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(SliceGrad(x.tensor_type.shape, self), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((0, 1), (5, 3), (1, 1)), sample_data(1, 5, 4))
        yield sample(cls((1, 0, 0), (6, 3, 2), (2, 1, 1)), sample_data(2, 7, 3, 2))
        yield sample(cls((2, 0), (2, 3), (1, 1)), sample_data(2, 7, 3))


class CopyInto(Op):
    """Copy into zeros of `shape`: y[target] = x[source], for a rank whose shard contains a part of the elements of a slice."""

    loops_on = ("cuda",)
    shape: tuple[int, ...]
    source: Slice
    target: Slice

    def infer(self, x: TensorType) -> TensorType:
        y = x.with_shape(self.shape)
        if self.source.infer(x) != self.target.infer(y):
            raise ShapeError(f"copyinto: {self.source} of {x} and {self.target} of {y} differ in shape")
        return y

    def rule(self, x: TensorType) -> Rule:
        return _same([False] * x.ndim)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y.fill(0)
        y[(*self.target.at, ...)] = x[self.source.at]

    def _changed(self, x: TensorType) -> list[bool]:
        return [not (a and b) for a, b in zip(self.source.full(x.shape), self.target.full(self.shape), strict=True)]

    def index_space(self, *types: TensorType) -> IndexSpace:
        return space_of_copies(self.infer(*types), self._changed(*types))

    def expression(self, x: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        if not self.source.infer(x).size:
            return None
        at, inside = self.target.indices(self.shape, self._changed(x))
        source = {axis: i * self.source.steps[axis] + self.source.starts[axis] for axis, i in at.items()}
        return (f.where(inside, element_at(0, x, source), 0),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((4, 3), Slice((1, 0), (4, 3), (2, 1)), Slice((2, 0), (4, 3), (1, 1))), sample_data(1, 5, 3), differentiable=())


class SliceGrad(Op):
    """Adjoint of Slice: zeros of `shape` with dx[window] = dy."""

    loops_on = ("cuda",)
    shape: tuple[int, ...]
    window: Slice

    def infer(self, dy: TensorType) -> TensorType:
        dx = dy.with_shape(self.shape)
        if self.window.infer(dx) != dy:
            raise ShapeError(f"slicegrad: dy {dy} does not have the type of the slice of dx {dx}")
        return dx

    def rule(self, dy: TensorType) -> Rule:
        """Return a rule that splits full axes of dy and dx, or a sliced axis of dx, whose shards are computed from a replicated dy."""
        full = self.window.full(self.shape)
        return replace(_same(full), also=tuple(Signature((B,), (S(i),)) for i, ok in enumerate(full) if not ok))

    def kernel(self, xp: Xp, dy: Array, dx: Array) -> None:
        dx.fill(0)
        dx[self.window.at] = dy

    def _changed(self) -> list[bool]:
        return [not full for full in self.window.full(self.shape)]

    def index_space(self, *types: TensorType) -> IndexSpace:
        return space_of_copies(self.infer(*types), self._changed())

    def expression(self, dy: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        if not dy.size:
            return None
        at, inside = self.window.indices(self.shape, self._changed())
        return (f.where(inside, element_at(0, dy, at), 0),)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        inside, outside = self.window.met(outputs[0], inputs[0])
        if outside.takes_all(inputs[0].shape):
            return SliceGrad(outputs[0].shape, inside)
        return CopyInto(outputs[0].shape, outside, inside)

    def grad(self, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return (call(self.window, ddx),)

    def span(self, axis: int) -> tuple[int, int] | None:
        """Return (start, stop) of the window along `axis`; None if its step is not 1, or if the window is not complete along the other axes."""
        window = self.window
        others = all(full for i, full in enumerate(window.full(self.shape)) if i != axis)
        return (window.starts[axis], window.stops[axis]) if others and window.steps[axis] == 1 else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((5, 4), Slice((0, 1), (5, 3), (1, 1))), sample_data(1, 5, 2))
        yield sample(cls((7, 3), Slice((1, 0), (6, 3), (2, 1))), sample_data(2, 3, 3))


class Pad(Op):
    """Constant padding of x: pairs[i] = (before, after) elements of `value` along axis i."""

    precision = "any"
    loops_on = ("cuda",)
    pairs: tuple[tuple[int, int], ...]
    value: float = 0.0

    def infer(self, x: TensorType) -> TensorType:
        if len(self.pairs) != x.ndim or any(n < 0 for pair in self.pairs for n in pair):
            raise ShapeError(f"pad: padding {list(self.pairs)} must have a pair of sizes >= 0 for each axis of {x}")
        return x.with_shape(tuple(a + n + b for n, (a, b) in zip(x.shape, self.pairs, strict=True)))

    def rule(self, x: TensorType) -> Rule:
        return _same([pair == (0, 0) for pair in self.pairs], linear=((0,),) if self.value == 0 else ())

    def inside(self, y: Array) -> Array:
        return y[(*(slice(a, n - b) for n, (a, b) in zip(y.shape, self.pairs, strict=True)), ...)]

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y.fill(self.value)
        self.inside(y)[...] = x

    def index_space(self, *types: TensorType) -> IndexSpace:
        return space_of_copies(self.infer(*types), [pair != (0, 0) for pair in self.pairs])

    def expression(self, x: TensorType) -> tuple[Expression, ...] | None:  # type: ignore[override]
        if not x.size:
            return None
        before = tuple(a for a, _ in self.pairs)
        window = Slice(before, tuple(a + n for a, n in zip(before, x.shape, strict=True)), (1,) * x.ndim)
        at, inside = window.indices(self.infer(x).shape, [pair != (0, 0) for pair in self.pairs])
        return (f.where(inside, element_at(0, x, at), self.value),)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        starts = tuple(a for a, _ in self.pairs)
        stops = tuple(a + n for n, (a, _) in zip(x.tensor_type.shape, self.pairs, strict=True))
        return (slice_(dy, starts, stops),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(((0, 0), (1, 2))), sample_data(1, 5, 3))
        yield sample(cls(((2, 0), (0, 0)), 1.5), sample_data(1, 3, 4))


class Flip(Op):
    """Reversal of x along `axes`."""

    precision = "any"
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType) -> Rule:
        return _same([i not in self.axes for i in range(x.ndim)])

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y[...] = self.turned(x)

    def turned(self, x: Array) -> Array:
        return x[tuple(slice(None, None, -1 if i in self.axes else 1) for i in range(x.ndim))]

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (call(self, dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((0,)), sample_data(1, 5, 3))
        yield sample(cls((0, 2)), sample_data(1, 2, 5, 3))
        yield sample(cls((1,)), sample_data(2, 2, 35))


class Concat(Op):
    """Concatenation of the inputs along `axis`."""

    precision = "any"
    axis: int

    def infer(self, *xs: TensorType) -> TensorType:
        listed = ", ".join(map(str, xs))
        shapes = {(*x.shape[: self.axis], *x.shape[self.axis + 1 :]) for x in xs}
        if len(shapes) > 1 or any(not 0 <= self.axis < x.ndim for x in xs):
            raise ShapeError(f"concat along axis {self.axis}: {listed} differ in size along another axis; pad or slice them to equal sizes")
        if any(x.dtype is not xs[0].dtype for x in xs):
            raise DtypeError(f"concat: {listed} differ in element type; cast them to one type with cast(x, dtype)")
        first = xs[0].shape
        return xs[0].with_shape((*first[: self.axis], sum(x.shape[self.axis] for x in xs), *first[self.axis + 1 :]))

    def rule(self, *xs: TensorType) -> Rule:
        word = _marks([i != self.axis for i in range(xs[0].ndim)])
        return Rule(f"{','.join([word] * len(xs))}->{word}", linear=(tuple(range(len(xs))),))

    def places(self, y: Array, *types: TensorType) -> Sequence[Array]:
        stops = [0, *accumulate(x.shape[self.axis] for x in types)]
        return [y[(*(slice(None),) * self.axis, slice(start, stop))] for start, stop in pairwise(stops)]

    def parts(self, xs: Sequence[Array], y: Array) -> Iterator[tuple[Array, Array]]:
        return zip(self.places(y, *map(type_of, xs)), xs, strict=True)

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        for part, x in self.parts(arrays[:-1], arrays[-1]):
            part[...] = x

    def grad(self, *tensors: Tensor) -> Grads:
        *xs, _, dy = tensors
        return split(dy, [x.tensor_type.shape[self.axis] for x in xs], self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 2), sample_data(2, 5, 3), sample_data(3, 5, 1))
        yield sample(cls(0), sample_data(1, 2, 3), sample_data(2, 4, 3))


def same_memory(a: Array, b: Array) -> bool:
    """Return True if two NumPy arrays of one shape have the same address and strides."""
    return bool(a.strides == b.strides and a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


Edges = Sequence[int | None]


def window_of(shape: Sequence[int], starts: Edges, stops: Edges, steps: Edges | None) -> tuple[Slice, tuple[int, ...]]:
    """Return a Slice with positive steps that selects the elements of Python slices, and the axes along which to flip its result."""
    fill = (None,) * (len(shape) - len(starts))
    ranges = []
    for n, start, stop, step in zip(shape, (*starts, *fill), (*stops, *fill), (*(steps or (None,) * len(starts)), *fill), strict=True):
        ranges.append(range(*slice(start, stop, step).indices(n)))
    backwards = tuple(i for i, r in enumerate(ranges) if r.step < 0)
    ranges = [r[::-1] if r.step < 0 else r for r in ranges]
    last = tuple(r[-1] + 1 if r else r.start for r in ranges)
    return Slice(tuple(r.start for r in ranges), last, tuple(r.step if len(r) > 1 else 1 for r in ranges)), backwards


def slice_(x: Tensor, starts: Edges, stops: Edges, steps: Edges | None = None, *, name: str | None = None) -> Tensor:
    """Return x[starts[0]:stops[0]:steps[0], ...] as in Python; axes without an entry in `starts` are selected completely. Steps may be negative."""
    window, backwards = window_of(x.tensor_type.shape, starts, stops, steps)
    y = x if all(window.full(x.tensor_type.shape)) else call(window, x, name=name if not backwards else None)
    return call(Flip(backwards), y, name=name) if backwards else y


def pad(x: Tensor, pairs: Sequence[tuple[int, int]], value: float = 0.0, *, name: str | None = None) -> Tensor:
    """Return x with pairs[i] = (before, after) elements of `value` added along axis i."""
    return call(Pad(tuple((int(a), int(b)) for a, b in pairs), value), x, name=name)


def flip(x: Tensor, axes: Sequence[int], *, name: str | None = None) -> Tensor:
    """Reverse x along `axes`."""
    return call(Flip(tuple(sorted({normal_axis("flip", i, x.tensor_type.ndim) for i in axes}))), x, name=name)


def concat(xs: Sequence[Tensor], axis: int = 0, *, name: str | None = None) -> Tensor:
    """Concatenate the tensors along `axis`; raise ShapeError if `xs` is empty. One tensor is returned unchanged."""
    if not xs:
        raise ShapeError("concat: the list of tensors is empty; pass at least one tensor")
    return xs[0] if len(xs) == 1 else call(Concat(normal_axis("concat", axis, xs[0].tensor_type.ndim)), *xs, name=name)


def stack(xs: Sequence[Tensor], axis: int = 0, *, name: str | None = None) -> Tensor:
    """Stack the tensors along a new axis `axis`; raise ShapeError if `xs` is empty."""
    if not xs:
        raise ShapeError("stack: the list of tensors is empty; pass at least one tensor")
    return concat([expand_dims(x, axis) for x in xs], axis, name=name)


def split(x: Tensor, sizes: Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Split x into consecutive parts of these sizes along `axis`; raise ShapeError if their sum is not the size of the axis."""
    at = normal_axis("split", axis, x.tensor_type.ndim)
    if sum(sizes) != x.tensor_type.shape[at]:
        raise ShapeError(f"split: the sum of the sizes {list(sizes)} must be {x.tensor_type.shape[at]}, the size of axis {at} of {x.tensor_type}")
    stops = np.cumsum(sizes).tolist()
    lead = (None,) * at
    return tuple(slice_(x, (*lead, stop - size), (*lead, stop)) for size, stop in zip(sizes, stops, strict=True))


def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """Split x along `axis` into slices without that axis."""
    at = normal_axis("unstack", axis, x.tensor_type.ndim)
    return tuple(squeeze(part, (at,)) for part in split(x, [1] * x.tensor_type.shape[at], at))
