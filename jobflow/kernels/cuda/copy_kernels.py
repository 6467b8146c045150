"""Copies on GPUs: operations that only move elements, as one printed kernel per part.

    concat([a, b], 1)          y[:, :m] = a;  y[:, m:] = b
    slice_update(x, v, ...)    y = x, unless y is x;  y[window] = v
    a view that the strides do not allow, such as the transpose in dense memory

A part is written in its own layout, so no operand needs a dense copy.  Constant tensors are sent to the GPU once, when the plan is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.expressions.language import Expression, constant, element
from jobflow.kernels.cuda import fused
from jobflow.kernels.registry import kernel_call, register
from jobflow.ops.axes import Reshape
from jobflow.ops.layout_ops import Assemble, Copy, PackColumns, PackPieces, UnpackPieces
from jobflow.ops.move import Roll
from jobflow.ops.op import Binder, Call, Op, ViewOp
from jobflow.ops.slice_update import SliceUpdate
from jobflow.ops.slices import Concat, CopyInto, Flip, Pad, SliceGrad, same_memory
from jobflow.ops.source import Literal

#: a part of the output, and the elements of an input or the number that fill it
Part: TypeAlias = tuple[Array, Array | float]


def parts(op: Op, inputs: Sequence[Array], y: Array) -> list[Part]:
    """Return the parts whose copies compute the output y; raise ValueError if the strides of an operand do not allow a view of a part."""
    return [part for part in _PARTS[_class_of(op)](op, inputs, y) if part[0].size]


def _class_of(op: Op) -> type[Op]:
    return next(cls for cls in type(op).__mro__ if cls in _PARTS)


def _view(op: ViewOp, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    yield y, op.view(*inputs)


def _reshaped(op: Reshape, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    (x,) = inputs
    try:
        yield y, op.view(x)
    except ValueError:  # elements have the same order in both
        yield y.reshape(x.shape, copy=False), x


def _columns(op: PackColumns, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    (x,) = inputs
    yield y.reshape(x.shape[::-1], copy=False), x.T


def _pieces(op: Any, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    copies: Iterator[Part] = op.copies(*inputs, y)
    return copies


def _concatenated(op: Concat, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    return (pair for pair in op.parts(inputs, y) if not same_memory(*pair))


def _into_zeros(op: CopyInto, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    yield y, 0
    yield y[(*op.target.at, ...)], inputs[0][(*op.source.at, ...)]


def _slice_gradient(op: SliceGrad, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    yield y, 0
    yield y[(*op.window.at, ...)], inputs[0]


def _padded(op: Pad, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    yield y, op.value
    yield op.inside(y), inputs[0]


def _updated(op: SliceUpdate, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    x, v = inputs
    if not same_memory(x, y):
        yield y, x
    yield y[(*op.window.at, ...)], op.new_values(v)


def _rolled(op: Roll, inputs: Sequence[Array], y: Array) -> Iterator[Part]:
    (x,) = inputs
    spans = [_halves(n, shift % n if n else 0) for n, shift in zip(x.shape, op.shifts, strict=True)]
    for pairs in product(*spans):
        yield y[(*(to for to, _ in pairs), ...)], x[(*(at for _, at in pairs), ...)]


def _halves(n: int, shift: int) -> list[tuple[slice, slice]]:
    """Return the slices of y and of x of each part of an axis of n elements that is rolled by `shift`."""
    return [(slice(shift, n), slice(0, n - shift)), (slice(0, shift), slice(n - shift, n))]


_PARTS: dict[type[Op], Callable[[Any, Sequence[Array], Array], Iterator[Part]]] = {
    ViewOp: _view,
    Reshape: _reshaped,
    PackColumns: _columns,
    PackPieces: _pieces,
    UnpackPieces: _pieces,
    Assemble: _pieces,
    Concat: _concatenated,
    Copy: lambda op, inputs, y: iter([(y, inputs[0])]),
    CopyInto: _into_zeros,
    Flip: lambda op, inputs, y: iter([(y, op.turned(inputs[0]))]),
    Pad: _padded,
    Roll: _rolled,
    SliceGrad: _slice_gradient,
    SliceUpdate: _updated,
}


def kernel_of(part: Part) -> tuple[tuple[Expression, ...], list[Array], list[Array]]:
    """Return the formula, the inputs and the outputs of the kernel that writes a part."""
    y, source = part
    dtype = dtype_of(y.dtype)
    if isinstance(source, int | float):
        return (constant(source, dtype),), [], [y]
    return (element(0, dtype),), [source], [y]


@dataclass(frozen=True)
class CopyKernels:
    """An implementation by one kernel launch per part."""

    name: str = "copies"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        try:
            several = parts(op, fused.placeholders(inputs), fused.placeholders(outputs)[0])
        except ValueError:
            return "the strides of an operand allow no view of its parts"
        return next(filter(None, (fused.refuses(*kernel_of(part)) for part in several)), None)

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        arrays, index = (*inputs, *outputs), int(outputs[0].device.id)
        several = parts(op, fused.placeholders(inputs), fused.placeholders(outputs)[0])
        return [call for part in several for call in fused.bind(device, index, *kernel_of(part), arrays=arrays)]


@dataclass(frozen=True)
class ConstantOnDevice:
    """An implementation of literals by a copy of an array that is sent to the GPU when the plan is bound.

    Without memory of a plan, as for operations that run eagerly, each run sends the array.
    """

    name: str = "copy of a constant"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, Literal)
        (y,) = outputs
        send = getattr(device, "constant", None)
        if send is None or not y.size:
            return kernel_call(op, device, inputs, outputs)
        array = send(op.array)
        source, target = fused.placeholders([array, y])
        return fused.bind(device, int(y.device.id), *kernel_of((target, source)), arrays=(array, y))


for _op in _PARTS:
    # a formula copies in one launch, so it comes first
    register(_op, "cuda", "nvrtc", CopyKernels(), rank=-1 if _op in (CopyInto, Pad, Roll, SliceGrad) else 0)
register(Literal, "cuda", "nvrtc", ConstantOnDevice())
