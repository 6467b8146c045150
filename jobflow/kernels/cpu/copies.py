"""Windows, padding, concatenation, repetition, triangles and casts in NumPy, as prepared copies of parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from jobflow.core.types import Array
from jobflow.kernels.registry import implements
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.layout_ops import Assemble, PackPieces, UnpackPieces
from jobflow.ops.move import PadEdges, Roll
from jobflow.ops.op import Binder, Call
from jobflow.ops.scalar import Cast
from jobflow.ops.scatter import Scatter
from jobflow.ops.slice_update import SliceUpdate
from jobflow.ops.slices import Concat, CopyInto, Flip, Pad, SliceGrad, same_memory
from jobflow.ops.triangle import Triangle

#: longest run in bytes for which one item of this size is faster than NumPy's loop
_LONG = 128


def _copied(y: Array, x: Array) -> Call:
    """Return the call for y = x, of one type and shape.

    A short contiguous run along the last axis, such as the colors of a pixel, is copied as one item.  Such a copy takes a fifth of the time.
    """
    run = y.shape[-1] * y.itemsize if y.ndim > 1 and y.size else 0
    if y.itemsize < run <= _LONG and x.strides[-1] == y.strides[-1] == y.itemsize and (x.strides[-2], y.strides[-2]) != (run, run):
        return np.copyto, (y.view(f"V{run}"), x.view(f"V{run}"))
    return np.copyto, (y, x)


@implements(PackPieces, UnpackPieces, Assemble)
def copies_of_pieces(op: PackPieces | UnpackPieces | Assemble, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [_copied(to, part) for to, part in op.copies(*inputs, *outputs) if to.size]


@implements(CopyInto)
def copy_of_a_window(op: CopyInto, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    return [(y.fill, (0,)), _copied(y[(*op.target.at, ...)], x[(*op.source.at, ...)])]


@implements(SliceGrad)
def copy_into_zeros(op: SliceGrad, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (dy,), (dx,) = inputs, outputs
    return [(dx.fill, (0,)), _copied(dx[(*op.window.at, ...)], dy)]


@implements(Pad)
def copy_into_borders(op: Pad, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    return [(y.fill, (op.value,)), _copied(op.inside(y), x)]


@implements(Scatter)
def copies_one_after_another(op: Scatter, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    x, ids, v = inputs
    return [(np.copyto, (outputs[0], x)), (_write, (op.axis, op.offset, ids, v, outputs[0]))]


def _write(axis: int, offset: int, ids: Array, v: Array, y: Array) -> None:
    """Write each element of v to y, at its index `ids` - `offset` along `axis`; skip indices out of range.

    If several elements have the same index, the last one takes precedence.
    """
    index = list(np.indices(ids.shape, sparse=True))
    index[axis] = at = ids.astype(np.int64) - offset
    inside = (at >= 0) & (at < y.shape[axis])
    y[tuple(np.broadcast_to(p, ids.shape)[inside] for p in index)] = v[inside]


@implements(Flip)
def copy_backwards(op: Flip, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [_copied(outputs[0], op.turned(inputs[0]))]


@implements(Roll)
def copies_of_rolled_parts(op: Roll, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Prepare the copies of the parts of a roll.

    A roll along one axis of dense memory copies all elements by one offset, then the elements that wrap around.
    """
    (x,), (y,) = inputs, outputs
    axes = [(axis, shift % n) for axis, (shift, n) in enumerate(zip(op.shifts, x.shape, strict=True)) if n and shift % n]
    if len(axes) == 1 and x.size and x.flags.c_contiguous and y.flags.c_contiguous:
        ((axis, shift),) = axes
        n, lead = x.shape[axis], (slice(None),) * axis
        far = math.prod(x.shape[axis + 1 :]) * shift
        flat: tuple[Array, Array] = (y.reshape(-1), x.reshape(-1))
        if 2 * shift <= n:
            return [(np.copyto, (flat[0][far:], flat[1][: x.size - far])), (np.copyto, (y[(*lead, slice(shift))], x[(*lead, slice(n - shift, n))]))]
        far = math.prod(x.shape[axis:]) - far
        return [(np.copyto, (flat[0][: x.size - far], flat[1][far:])), (np.copyto, (y[(*lead, slice(shift, n))], x[(*lead, slice(n - shift))]))]
    parts = [
        ((slice(shift, None), slice(n - shift)), (slice(shift), slice(n - shift, None))) if (shift := dict(axes).get(i, 0)) else ((slice(None),) * 2,)
        for i, n in enumerate(x.shape)
    ]
    return [(np.copyto, (y[tuple(a for a, _ in some)], x[tuple(b for _, b in some)])) for some in product(*parts)]


@implements(Concat)
def copies_of_parts(op: Concat, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [_copied(*pair) for pair in op.parts(inputs, outputs[0]) if not same_memory(*pair)]


@implements(SliceUpdate)
def copy_over_a_window(op: SliceUpdate, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x, v), (y,) = inputs, outputs
    old: list[Call] = [] if same_memory(x, y) else [(np.copyto, (y, x))]
    return [*old, (np.copyto, (y[(*op.window.at, ...)], op.new_values(v)))]


@implements(BroadcastTo)
def copy_along_axes(op: BroadcastTo, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(np.copyto, (outputs[0], inputs[0]))]


@implements(Triangle)
def copy_and_fill_outside(op: Triangle, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    return [(np.copyto, (y, x)), (np.copyto, (y, np.asarray(op.fill, x.dtype), "same_kind", ~op.mask(np, x)))]


@implements(PadEdges)
def copies_of_edges(op: PadEdges, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    (x,), (y,) = inputs, outputs
    inside = tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, op.pairs, strict=True))
    calls: list[Call] = [(np.copyto, (y[(*inside, ...)], x))]
    for axis, at in op.sources(x.shape):  # earlier axes are already filled to their edges, later ones only inside
        lead, rest, before = (slice(None),) * axis, inside[axis + 1 :], inside[axis].start
        beyond = [(i, before + int(k)) for i, k in enumerate(at) if not before <= i < inside[axis].stop]
        calls += [(np.copyto, (y[(*lead, i, *rest, ...)], y[(*lead, k, *rest, ...)])) for i, k in beyond]
    return calls


@implements(Cast)
def copy_as_another_type(op: Cast, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return [(np.copyto, (outputs[0], inputs[0], "unsafe"))]
