"""Operations on shapes and orders of axes: reshape, transpose, squeeze.

Attributes with sizes refer to logical tensors; `localize` replaces them by the sizes of a rank's shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Box, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.op import LETTERS, Grads, Op, Sample, ViewOp, normal_axis, sample
from jobflow.ops.pointwise import call, sample_data


class Reshape(ViewOp):
    """Reshape in C order: y has the elements of x and the shape `shape`."""

    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if math.prod(self.shape) != x.size:
            raise ShapeError(f"reshape: {x} has {x.size} elements but the shape {list(self.shape)} needs {math.prod(self.shape)}")
        return x.with_shape(self.shape)

    def rule(self, x: TensorType) -> Rule:
        """Return a rule that splits unchanged axes, and the first axes of merged or divided groups.

        [n,c,h,w] -> [n,c*h*w] splits n. [b,t,d] -> [b*t,d] splits d, and b if the number of ranks divides b.
        Without that condition, the balanced shards of b*t would not start at the starts of shards of b.
        """
        left, right = ["1"] * x.ndim, ["1"] * len(self.shape)
        also = []
        for axis, (ours, theirs) in zip(LETTERS, _runs(x.shape, self.shape), strict=False):
            a, b = ours[0], theirs[0]
            if len(ours) == len(theirs) == 1:
                left[a] = right[b] = axis
            else:
                also.append(Signature((S(a),), (S(b),), divides=math.gcd(x.shape[a], self.shape[b])))
        return Rule(f"{''.join(left) or '1'}->{''.join(right)}", linear=((0,),), also=tuple(s for s in also if s.divides > 1))

    def view(self, x: Array) -> Array:
        return x.reshape(self.shape, copy=False)

    def places(self, y: Array, *types: TensorType) -> Sequence[Array | None]:
        try:
            return (y.reshape(types[0].shape, copy=False),)
        except ValueError:
            return (None,)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return Reshape(outputs[0].shape)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (reshape(dy, x.tensor_type.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((5, 6)), sample_data(1, 5, 2, 3))
        yield sample(cls((12, 3)), sample_data(2, 6, 2, 3))
        yield sample(cls((3, 1, 4, 2)), sample_data(3, 12, 2))
        yield sample(cls((1, 5, 1)), sample_data(4, 5))
        yield sample(cls((4, 6)), sample_data(5, 6, 4))
        yield sample(cls((1,)), sample_data(6))
        yield sample(cls((0, 6)), sample_data(7, 0, 2, 3))


def _runs(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield pairs of axis groups: a group of the shape `before` and a group of the shape `after` with an equal product of sizes.

    The groups are in order from the left, as short as possible, and contain no axes of size 1.  If a size is 0, only equal leading axes are paired.
    """
    ours = [i for i, n in enumerate(before) if n != 1]
    theirs = [i for i, n in enumerate(after) if n != 1]
    if 0 in before:  # all products are 0; only equal leading axes certainly correspond
        for a, b in zip(ours, theirs, strict=False):
            if before[a] != after[b]:
                return
            yield [a], [b]
        return
    while ours and theirs:
        i = j = 1
        while (m := math.prod(before[a] for a in ours[:i])) != (n := math.prod(after[b] for b in theirs[:j])):
            i, j = (i + 1, j) if m < n else (i, j + 1)
        yield ours[:i], theirs[:j]
        ours, theirs = ours[i:], theirs[j:]


class Transpose(ViewOp):
    """Permutation of axes: axis k of y is axis perm[k] of x."""

    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if sorted(self.perm) != list(range(x.ndim)):
            raise ShapeError(f"transpose: perm {list(self.perm)} is not a permutation of the {x.ndim} axes of {x}")
        return x.with_shape(tuple(x.shape[i] for i in self.perm))

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{LETTERS[: x.ndim] or '1'}->{''.join(LETTERS[i] for i in self.perm)}", linear=((0,),))

    def view(self, x: Array) -> Array:
        return x.transpose(self.perm)

    def places(self, y: Array, *types: TensorType) -> Sequence[Array | None]:
        return (y.transpose([self.perm.index(i) for i in range(y.ndim)]),)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (transpose(dy, tuple(self.perm.index(i) for i in range(len(self.perm)))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((2, 0, 1)), sample_data(1, 5, 2, 3))
        yield sample(cls((1, 0)), sample_data(2, 4, 3))


class ExpandDims(ViewOp):
    """Insertion of an axis of size 1, which is axis `axis` of y."""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        if not 0 <= self.axis <= x.ndim:
            raise ShapeError(f"expand_dims: axis {self.axis} is out of range for {x}; pass an axis from 0 to {x.ndim}")
        return x.with_shape((*x.shape[: self.axis], 1, *x.shape[self.axis :]))

    def rule(self, x: TensorType) -> Rule:
        letters = LETTERS[: x.ndim]
        return Rule(f"{letters or '1'}->{letters[: self.axis]}1{letters[self.axis :]}", linear=((0,),))

    def view(self, x: Array) -> Array:
        return x[(slice(None),) * self.axis + (None,)]

    def places(self, y: Array, *types: TensorType) -> Sequence[Array | None]:
        return (y.squeeze(self.axis),)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (squeeze(dy, (self.axis,)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 3))
        yield sample(cls(2), sample_data(1, 5, 3))
        yield sample(cls(0), sample_data(1))


class Squeeze(ViewOp):
    """Removal of the axes `axes`, which have size 1."""

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if any(not 0 <= i < x.ndim or x.shape[i] != 1 for i in self.axes):
            raise ShapeError(f"squeeze: axes {list(self.axes)} of {x} must exist and have size 1")
        return x.with_shape(tuple(n for i, n in enumerate(x.shape) if i not in self.axes))

    def rule(self, x: TensorType) -> Rule:
        letters = ["1" if i in self.axes else LETTERS[i] for i in range(x.ndim)]
        return Rule(f"{''.join(letters) or '1'}->{''.join(c for c in letters if c != '1')}", linear=((0,),))

    def view(self, x: Array) -> Array:
        return x.squeeze(self.axes)

    def places(self, y: Array, *types: TensorType) -> Sequence[Array | None]:
        where = [None if i in self.axes else slice(None) for i in range(len(types[0].shape))]
        return (y[tuple(where)],)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (reshape(dy, x.tensor_type.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((1,)), sample_data(1, 5, 1, 3))
        yield sample(cls((0, 2)), sample_data(1, 1, 4, 1))


def reshape(x: Tensor, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Return the elements of x, in C order, in another shape. One size may be -1, which is computed from the number of elements.

    Raises ShapeError if the numbers of elements differ.
    """
    sizes = tuple(int(n) for n in shape)
    if -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        if sizes.count(-1) > 1 or not known or x.tensor_type.size % known:
            raise ShapeError(f"reshape: {x.tensor_type} has {x.tensor_type.size} elements, which do not fill the shape {list(sizes)}")
        sizes = tuple(x.tensor_type.size // known if n == -1 else n for n in sizes)
    return x if sizes == x.tensor_type.shape else call(Reshape(sizes), x, name=name)


def flatten(x: Tensor, start: int = 0, stop: int = -1, *, name: str | None = None) -> Tensor:
    """Merge the axes of x from `start` to `stop`, inclusive, into one."""
    first, last = normal_axis("flatten", start, x.tensor_type.ndim), normal_axis("flatten", stop, x.tensor_type.ndim)
    shape = x.tensor_type.shape
    return reshape(x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]), name=name)


def transpose(x: Tensor, perm: Sequence[int] | None = None, *, name: str | None = None) -> Tensor:
    """Permute the axes of x by `perm`, or reverse them if `perm` is None."""
    ndim = x.tensor_type.ndim
    order = range(ndim)[::-1] if perm is None else [normal_axis("transpose", i, ndim) for i in perm]
    return call(Transpose(tuple(order)), x, name=name)


def expand_dims(x: Tensor, axis: int, *, name: str | None = None) -> Tensor:
    """Insert an axis of size 1 into x, as axis `axis` of the result."""
    return call(ExpandDims(normal_axis("expand_dims", axis, x.tensor_type.ndim + 1)), x, name=name)


def squeeze(x: Tensor, axes: Sequence[int] | None = None, *, name: str | None = None) -> Tensor:
    """Remove the axes `axes` of x, by default all axes of size 1; raise ShapeError if a removed axis has another size."""
    ndim, shape = x.tensor_type.ndim, x.tensor_type.shape
    chosen = [i for i in range(ndim) if shape[i] == 1] if axes is None else sorted({normal_axis("squeeze", i, ndim) for i in axes})
    return call(Squeeze(tuple(chosen)), x, name=name) if chosen else x


def tile(x: Tensor, counts: Sequence[int], *, name: str | None = None) -> Tensor:
    """Repeat x counts[i] times along axis i; raise ShapeError unless `counts` has one entry per axis."""
    shape = x.tensor_type.shape
    if len(counts) != len(shape):
        raise ShapeError(f"tile: counts {list(counts)} must have one entry for each of the {len(shape)} axes of {x.tensor_type}")
    between, repeated, whole = tiled_shapes(shape, counts)
    return reshape(broadcast_to(reshape(x, between), repeated), whole, name=name)


def tiled_shapes(shape: Sequence[int], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the three target shapes of `tile`, which reshapes, broadcasts and reshapes a tensor of `shape`."""
    pairs = list(zip(shape, counts, strict=True))
    return tuple(m for n in shape for m in (1, n)), tuple(m for n, count in pairs for m in (count, n)), tuple(n * count for n, count in pairs)
