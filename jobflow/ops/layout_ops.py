"""Operations on layouts: requests, conversions between the views, and the local steps of redistribution.

The kernels here only copy.  Layout inference implements `ToLayout`, `ToLocal` and `ToGlobal`.  Readers of `to_layout(x)` receive x in the
requested layout.  `to_local(x)` is each rank's shard of x.  `to_global(x)` is the logical tensor with the ranks' tensors as shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

import numpy as np

from jobflow.core.errors import SbpError, ShapeError
from jobflow.core.layout import MAX, MIN, SUM, B, Box, Broadcast, P, Partial, Reduction, Rule, S, Sbp, Split
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, float32, float64, int32
from jobflow.expressions.language import Expression, constant, element
from jobflow.ops.op import LETTERS, Grads, Op, Sample, ViewOp, apply, broadcast_rule, sample

WHOLE = LETTERS.upper()


class Identity(ViewOp):
    """Identity function: y = x."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType) -> Rule:
        return broadcast_rule([x], linear=((0,),))

    def view(self, x: Array) -> Array:
        return x

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (dy,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        if cls in (Identity, StaticShape):
            yield sample(cls(), np.arange(12.0).reshape(3, 4))
            yield sample(cls(), np.array(3.0))


class StaticShape(Identity):
    """Identity that declares x to have the same shape on all ranks."""


class ToLayout(Identity):
    """Identity whose readers receive x in the layout `sbp`, with one S/B/P per mesh dimension.

    The gradient is requested in the layout `grad_sbp`, or in any layout if `grad_sbp` is None.  In both layouts, None for a mesh dimension requests
    nothing.
    """

    sbp: tuple[Sbp | None, ...]
    grad_sbp: tuple[Sbp | None, ...] | None = None
    #: the name of the called function that requires the layout; "" if the layout is a preference
    requested_by: str = ""

    def infer(self, x: TensorType) -> TensorType:
        for sbp in (*self.sbp, *(self.grad_sbp or ())):
            if isinstance(sbp, Split) and not 0 <= sbp.axis < x.ndim:
                raise SbpError(f"{self.requested_by or 'to_layout'}: x {x} has {_axes_of(x)}, so its layout cannot be {sbp}")
        return x

    def __str__(self) -> str:
        back = "" if self.grad_sbp is None else f"; gradient {_listed(self.grad_sbp)}"
        return f"ToLayout({_listed(self.sbp)}{back})"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (dy if self.grad_sbp is None else apply(ToLayout(self.grad_sbp), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((S(0),)), np.arange(12.0).reshape(3, 4))
        yield sample(cls((B,), (S(1),)), np.arange(12.0).reshape(3, 4))


class GradientLayout(Identity):
    """Identity whose gradient is requested in the layout `sbp`, with one S/B/P per mesh dimension; None requests nothing."""

    sbp: tuple[Sbp | None, ...]

    def __str__(self) -> str:
        return f"GradientLayout({_listed(self.sbp)})"

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (apply(ToLayout(self.sbp), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((S(0),)), np.arange(12.0).reshape(3, 4))


def _axes_of(x: TensorType) -> str:
    if not x.ndim:
        return "no axes"
    return "axis 0 only" if x.ndim == 1 else f"the axes 0 to {x.ndim - 1}"


def _listed(sbp: tuple[Sbp | None, ...]) -> str:
    return ", ".join("any" if one is None else str(one) for one in sbp)


def dual(sbp: Sbp) -> Sbp:
    """Return the layout of the gradient of a tensor that is converted between the logical and the mirrored view in the layout `sbp`.

    The gradient of a replicated tensor is the sum of the ranks' gradients.  The gradient of a partial sum is replicated.
    Raises SbpError for a partial maximum or minimum.
    """
    if isinstance(sbp, Broadcast):
        return P
    if isinstance(sbp, Partial):
        if sbp.reduce is not SUM:
            raise SbpError(f"a tensor that is converted between the views in {sbp} has no gradient; use P, B or S")
        return B
    return sbp


class ViewConversion(Identity):
    """Base class of conversions between a logical tensor in `sbp` and its shards on `ranks` ranks.

    The shards of a split axis have equal sizes.
    """

    abstract: ClassVar[bool] = True
    sbp: tuple[Sbp, ...] = (B,)
    #: number of shards of a split axis, set by the tracer
    ranks: int = 1

    def __str__(self) -> str:
        return f"{type(self).__name__}({_listed(self.sbp)})"

    @property
    def axes(self) -> list[int]:
        """The split axes."""
        return [sbp.axis for sbp in self.sbp if isinstance(sbp, Split)]

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, ranks=1)


class ToLocal(ViewConversion):
    """Conversion of a logical tensor in `sbp` to its shards, which are separate tensors in the mirrored view."""

    def infer(self, x: TensorType) -> TensorType:
        shape = list(x.shape)
        for axis in self.axes:
            if axis >= x.ndim or shape[axis] % self.ranks:
                raise ShapeError(
                    f"tolocal: x {x} must have an axis {axis} whose size is a multiple of {self.ranks}, the number of ranks in the mirrored view"
                )
            shape[axis] //= self.ranks
        return x.with_shape(tuple(shape))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (apply(ToGlobal(tuple(map(dual, self.sbp)), self.ranks), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(12.0).reshape(3, 4))


class ToGlobal(ViewConversion):
    """Conversion of the ranks' tensors of the mirrored view to the logical tensor in `sbp`. The ranks' tensors are its shards."""

    def infer(self, x: TensorType) -> TensorType:
        shape = list(x.shape)
        for axis in self.axes:
            if axis >= x.ndim:
                raise ShapeError(f"toglobal: x {x} has no axis {axis} to concatenate along; the tensors of the ranks need this axis")
            shape[axis] *= self.ranks
        return x.with_shape(tuple(shape))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (apply(ToLocal(tuple(map(dual, self.sbp))), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((P,)), np.arange(12.0).reshape(3, 4))


def to_layout(x: Tensor, *sbp: Sbp, grad: tuple[Sbp, ...] | None = None, requested_by: str = "", name: str | None = None) -> Tensor:
    """Request the layout `sbp`, one S/B/P per mesh dimension, for the readers of x; `requested_by` is the caller's name for messages."""
    result: Tensor = apply(ToLayout(sbp, grad, requested_by), x, name=name)
    return result


def to_local(x: Tensor, *sbp: Sbp, name: str | None = None) -> Tensor:
    """Return each rank's shard of the logical tensor x in the layout `sbp`; without `sbp`, x is replicated."""
    result: Tensor = apply(ToLocal(sbp or (B,)), x, name=name)
    return result


def to_global(x: Tensor, *sbp: Sbp, name: str | None = None) -> Tensor:
    """Return the logical tensor in the layout `sbp` whose shards are the ranks' tensors x."""
    result: Tensor = apply(ToGlobal(sbp), x, name=name)
    return result


class SliceBox(ViewOp):
    """Slice of a rank's shard: y = x[starts:stops] on every axis."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(tuple(b - a for a, b in zip(self.starts, self.stops, strict=True)))

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{WHOLE[: x.ndim]}->{WHOLE[: x.ndim]}")

    def view(self, x: Array) -> Array:
        return x[tuple(map(slice, self.starts, self.stops))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((1, 0), (3, 2)), np.arange(12.0).reshape(4, 3), differentiable=())
        yield sample(cls((1, 2), (3, 2)), np.arange(12.0).reshape(4, 3), differentiable=())


class FillIdentity(Op):
    """Tensor filled with the identity element of `reduce`: the shard of a rank that contributes nothing to a partial tensor."""

    loops_on = ("cuda",)
    shape: tuple[int, ...]
    dtype: DType
    reduce: Reduction = SUM

    def infer(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    def rule(self) -> Rule:
        return Rule(f"->{WHOLE[: len(self.shape)]}")

    def kernel(self, xp: Xp, y: Array) -> None:
        y[...] = self.reduce.identity(self.dtype.numpy)

    def expression(self, *types: TensorType) -> tuple[Expression, ...]:
        return (constant(self.reduce.identity(self.dtype.numpy), self.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((2, 3), float32))
        yield sample(cls((4,), int32, MIN))
        yield sample(cls((4,), float64, MAX))


def pieces(axis: int, counts: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[tuple[slice, tuple[slice, ...]]]:
    """Yield the slice of the flat buffer and the index in the tensor for each piece along `axis`; counts[i] is the size of piece i."""
    rest = math.prod(shape[:axis] + shape[axis + 1 :])
    stops = list(accumulate(counts))
    for count, stop in zip(counts, stops, strict=True):
        yield slice((stop - count) * rest, stop * rest), (slice(None),) * axis + (slice(stop - count, stop),)


def contiguous_pieces(axis: int, counts: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return True if each piece along `axis` is contiguous in a C-ordered array of `shape`; piece i has counts[i] elements along `axis`."""
    return math.prod(shape[:axis]) <= 1 or sum(count > 0 for count in counts) <= 1


def _copied(op: PackPieces | UnpackPieces | Assemble, xp: Xp, *arrays: Array) -> None:
    for to, part in op.copies(*arrays):
        to[...] = part


class PackPieces(ViewOp):
    """Concatenation of the flattened pieces of x along `axis`; piece i has counts[i] elements along it."""

    axis: int
    counts: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape((x.size,))

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{WHOLE[: x.ndim]}->{WHOLE[0]}")

    def view(self, x: Array) -> Array:
        if not contiguous_pieces(self.axis, self.counts, x.shape):
            raise ValueError(
                f"{self.word()}: the pieces of {self.counts} elements along axis {self.axis} of {x.shape} are not contiguous, so x has no flat view"
            )
        flat = x.reshape((x.size,), copy=False)
        if x.size > 1 and flat.strides[0] != x.itemsize:
            raise ValueError(f"{self.word()}: the strides {x.strides} of x leave gaps between elements, so x has no flat view")
        return flat

    def copies(self, x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
        """Yield pairs (view of y, piece of x): the copies that fill y."""
        for flat, box in pieces(self.axis, self.counts, x.shape):
            part = x[box]
            yield y[flat].reshape(part.shape), part

    kernel = _copied

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(30.0).reshape(5, 3, 2)
        yield sample(cls(0, (2, 2, 1)), x, differentiable=())
        yield sample(cls(1, (2, 0, 1)), x, differentiable=())
        yield sample(cls(2, (1, 1)), x, differentiable=())


class PackColumns(ViewOp):
    """Concatenation of the columns of a matrix x; a view if x is in Fortran order."""

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape((x.size,))

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{WHOLE[: x.ndim]}->{WHOLE[0]}")

    def view(self, x: Array) -> Array:
        return PackPieces(0, (x.shape[1],)).view(x.T)

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        y.reshape(x.shape[::-1])[...] = x.T

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(15.0).reshape(5, 3), differentiable=())


class UnpackPieces(ViewOp):
    """Inverse of PackPieces: the tensor of `shape` from the flat buffer of its pieces along `axis`."""

    axis: int
    counts: tuple[int, ...]
    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(self.shape)

    def rule(self, x: TensorType) -> Rule:
        return Rule(f"{WHOLE[0]}->{WHOLE[: len(self.shape)]}")

    def view(self, x: Array) -> Array:
        if not contiguous_pieces(self.axis, self.counts, self.shape):
            raise ValueError(
                f"{self.word()}: the pieces of {self.counts} elements along axis {self.axis} of {self.shape} are not contiguous, so y is not a view"
            )
        return x.reshape(self.shape, copy=False)

    def copies(self, x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
        """Yield pairs (piece of y, view of x): the copies that fill y."""
        for flat, box in pieces(self.axis, self.counts, self.shape):
            to = y[box]
            yield to, x[flat].reshape(to.shape)

    kernel = _copied

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(30.0)
        yield sample(cls(0, (2, 2, 1), (5, 3, 2)), x, differentiable=())
        yield sample(cls(1, (2, 0, 1), (5, 3, 2)), x, differentiable=())
        yield sample(cls(2, (1, 1), (5, 3, 2)), x, differentiable=())


class Assemble(Op):
    """Assembly of a tensor of `shape` from its boxes: y[boxes[i]] = input i."""

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]

    def infer(self, *parts: TensorType) -> TensorType:
        return parts[0].with_shape(self.shape)

    def rule(self, *parts: TensorType) -> Rule:
        whole = WHOLE[: len(self.shape)]
        return Rule(f"{','.join([whole] * len(parts))}->{whole}")

    def copies(self, *arrays: Array) -> Iterator[tuple[Array, Array]]:
        *parts, y = arrays
        return ((y[box.slices], part) for box, part in zip(self.boxes, parts, strict=True))

    kernel = _copied

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        boxes = Box(((0, 2), (0, 3)), (4, 3)), Box(((2, 4), (0, 1)), (4, 3)), Box(((2, 4), (1, 3)), (4, 3))
        yield sample(cls((4, 3), boxes), *(np.arange(math.prod(box.shape), dtype=float).reshape(box.shape) for box in boxes), differentiable=())


class Copy(Op):
    """Copy of x in separate memory."""

    loops_on = ("cuda",)

    def infer(self, x: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType) -> Rule:
        return broadcast_rule([x], linear=((0,),))

    def kernel(self, xp: Xp, x: Array, y: Array) -> None:
        xp.copyto(y, x)

    def expression(self, *types: TensorType) -> tuple[Expression, ...]:
        return (element(0, types[0].dtype),)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return (dy,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), np.arange(12.0).reshape(3, 4))
