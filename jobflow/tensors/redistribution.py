"""Conversions between local and global tensors, and between layouts of a global tensor; all have gradients.

The gradient of a redistributed tensor has the layout of the source.  If a local tensor became a piece of a global tensor, its gradient
depends on the sbp of the global tensor:

    split        this rank's piece of the gradient
    partial      the whole gradient, on every rank
    broadcast    the whole gradient on the first rank, whose values were used, and zeros on the others

If a piece became a local tensor, its gradient is that piece of the global gradient, and the gradients of copies are summed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ShapeError, user_line
from jobflow.core.layout import B, Broadcast, Layout, Placement, Sbp, Split
from jobflow.core.types import DTYPES, TensorType
from jobflow.ops.broadcast import BroadcastTo, SumTo
from jobflow.ops.layout_ops import dual
from jobflow.ops.op import Op, apply
from jobflow.ops.scalar import Scale
from jobflow.tensors.backward import RedistributeGradient, gradient_layout, redistributed_gradient
from jobflow.tensors.collectives import everywhere, stacked
from jobflow.tensors.convert import ELEMENTS, agree, agree_on_values, convert, convert_array, empty
from jobflow.tensors.device_copies import moved
from jobflow.tensors.gpus import duplicate, gpu_of, in_rows, on_device, placed
from jobflow.tensors.run import prepared, recorder
from jobflow.tensors.state import EagerState, mixed
from jobflow.tensors.tape import Gradients, record
from jobflow.tensors.tensor import TensorBase, check_current, shows

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

#: the maximal number of axes of NumPy arrays
AXES = 64


T = TypeVar("T", bound=TensorBase)


def redistribute(here: EagerState, x: T, target: Layout, back: Sequence[Sbp] | None = None) -> T:
    """Return the global tensor x in the layout `target`.

    If `back` is set, the gradient is first redistributed to this sbp on the new placement, and then to the layout of x.
    """
    if x.traced is not None or here.building is not None:
        return recorder(here, "to_global").change(x, target, back)
    check_current(x)
    if x.layout == target and back is None:
        return x
    output = TensorBase.new(x.tensor_type, target, convert(here, x, target, "to_global"))
    output._provenance = x._provenance
    if x.layout == target:
        x.shares(output)
    if here.grad_enabled and x._needs_gradient:
        assert x.layout is not None
        requested = None if back is None else Layout(target.placement, tuple(back))
        record("to_global", (x,), (output,), RedistributeGradient(here, gradient_layout(x.layout), requested))
    return output


def as_read(here: EagerState, op: Op, x: T) -> T:
    """Return x in the layout in which `op` reads it; several operations can then share one redistribution."""
    if x.traced is not None or x.layout is None:
        return x
    input_layouts = prepared(here, op, (x,)).input_layouts
    return x if not input_layouts or input_layouts[0] is None else redistribute(here, x, input_layouts[0])


def local_to_global(here: EagerState, x: T, target: Layout, *, check: bool = True, copy: bool = False) -> T:
    """Return the global tensor in the layout `target` whose pieces are the local tensors x of the ranks.

    With `check`, the ranks compare the types of their tensors; without it, x must have the same type on all ranks.
    The piece is a copy of x if `copy` is True; otherwise it may share the memory of x.
    """
    with scope.lock():
        return _local_to_global(here, x, target, check, copy)


def _local_to_global(here: EagerState, x: T, target: Layout, check: bool, copy: bool) -> T:
    type = logical_type(here, x, target) if check else _assumed_type(x, target)
    inside = here.rank.index in target.placement.ranks
    array = placed(here, in_rows(duplicate(x.array) if copy else x.array), target) if inside else empty(type)
    if any(isinstance(sbp, Broadcast) for sbp in target.sbp) and target.placement.size > 1:
        array = _first_copy(here, array, type, target)
        array = placed(here, array, target) if inside else array
    output = TensorBase.new(type, target, array)
    if array is x.array:
        shows(x, output)
    here.entered += 1
    output._provenance = mixed(here.entered, zlib.crc32(f"{type} {target}".encode()))
    here.collective_log(target.placement).add(output._provenance, f"to_global of a local tensor: {type} {target}")
    if here.grad_enabled and x._needs_gradient:
        record("to_global", (x,), (output,), _ToGlobalGradient(here, target, x.tensor_type, gpu_of(x.array)))
    return output


def equal_to_global(here: EagerState, x: T, target: Layout, what: str) -> T:
    """Return the global tensor in the layout `target`, B on all mesh dimensions, with the elements of the local tensor x.

    The piece may share the memory of x.  The gradient of x is the whole gradient, on every rank.  All ranks must call this function.
    Raises: DivergedError on all ranks if their elements differ.  `what` names the caller.
    """
    if x.traced is not None or here.building is not None:
        return recorder(here, what).replicate(x, target, what)
    provenance = agree_on_equal(here, x, target, what)
    array = placed(here, in_rows(x.array), target) if here.rank.index in target.placement.ranks else empty(x.tensor_type)
    output = TensorBase.new(x.tensor_type, target, array)
    output._provenance = provenance
    if array is x.array:
        shows(x, output)
    if here.grad_enabled and x._needs_gradient:
        record("to_global", (x,), (output,), _EqualGradient(here, target, gpu_of(x.array)))
    return output


def agree_on_equal(here: EagerState, x: TensorBase, target: Layout, what: str) -> int:
    """Compare the elements of the local tensors x of all ranks, and return their digest; raise DivergedError if they differ."""
    line = user_line()
    advice = "the elements must be equal on all ranks: create the tensor with device=x.device, or use to_global(placement, sbp)"
    return agree_on_values(
        here, x.array, x.tensor_type, target, lambda: f"{what} of the local tensor {ELEMENTS}, {x.tensor_type}, to {target} at {line}; {advice}"
    )


@dataclass(frozen=True, slots=True)
class _EqualGradient:
    """The gradient of `equal_to_global`: the whole gradient as a local tensor, on every rank."""

    here: EagerState
    layout: Layout
    #: the GPU of the local tensor, or None
    gpu: EagerGpu | None

    def __call__(self, saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        assert gradient is not None
        array = on_device(self.gpu, convert(self.here, gradient, everywhere(self.here, B), "a gradient"))
        result = TensorBase.new(gradient.tensor_type, None, duplicate(array) if array is gradient.array else array)
        if self.here.grad_enabled and gradient._needs_gradient:
            record("to_local", (gradient,), (result,), _EqualLocalGradient(self.here, self.layout))
        return (result,)


@dataclass(frozen=True, slots=True)
class _EqualLocalGradient:
    """The gradient of local copies, which are equal on all ranks, of a global tensor."""

    here: EagerState
    layout: Layout

    def __call__(self, saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        assert gradient is not None
        return (equal_to_global(self.here, gradient, self.layout, "a gradient"),)


def logical_type(here: EagerState, x: TensorBase, target: Layout) -> TensorType:
    """Return the type of the global tensor that the local tensors of all ranks form.

    Raises: ShapeError, on all ranks, if element types or numbers of axes differ, or if a local tensor has another shape than its piece.
    """
    ranks = target.placement.ranks
    what = f"to_global at {user_line()}"
    if here.rank.size > 1:
        digest = zlib.crc32(f"to_global {target}".encode())
        agree(here, here.rank.host_comm, digest, lambda: f"to_global of a local tensor to {target} at {user_line()}")
        all_types = _types(here, x.tensor_type)
    else:
        all_types = [x.tensor_type]
    types = {rank: all_types[rank] for rank in ranks}
    first = types[ranks[0]]
    for rank, type in types.items():
        if type.ndim != first.ndim or type.dtype is not first.dtype:
            raise ShapeError(
                f"{what}: rank {ranks[0]} has {first} and rank {rank} has {type}; "
                f"pass local tensors with the same dtype and number of axes on all ranks"
            )
    shape = list(first.shape)
    for axis in range(first.ndim):
        cutting = [d for d, sbp in enumerate(target.sbp) if sbp == Split(axis)]
        line = [rank for rank in ranks if all(i == 0 for d, i in enumerate(target.placement.coordinates(rank)) if d not in cutting)]
        shape[axis] = sum(types[rank].shape[axis] for rank in line)
    for rank, type in types.items():
        expected = target.box(shape, rank).shape
        if type.shape != expected:
            raise ShapeError(
                f"{what}: with {', '.join(map(repr, target.sbp))} the local tensors form {first.dtype.name}{shape}, whose piece on rank {rank} "
                f"has shape {list(expected)}, but the local tensor has {list(type.shape)}; "
                f"balance the pieces, with the longer ones on the first ranks"
            )
    return first.with_shape(tuple(shape))


def _types(here: EagerState, type: TensorType) -> list[TensorType]:
    """Return the types of all ranks, gathered as rows of integers: element type, number of axes, sizes."""
    row = np.zeros((1, 2 + AXES), np.int64)
    row[0, : 2 + type.ndim] = DTYPES.index(type.dtype), type.ndim, *type.shape
    rows = stacked(here, row, "the types of local tensors for to_global").tolist()
    return [TensorType(tuple(sizes[:ndim]), DTYPES[dtype]) for dtype, ndim, *sizes in rows]


def _assumed_type(x: TensorBase, target: Layout) -> TensorType:
    """Return the type of the global tensor in the layout `target`, assuming that the local tensors of all ranks have the type of x."""
    shape = list(x.tensor_type.shape)
    for sbp, n in zip(target.sbp, target.placement.mesh, strict=True):
        if isinstance(sbp, Split):
            shape[sbp.axis] *= n
    return x.tensor_type.with_shape(tuple(shape))


def _first_copy(here: EagerState, array: np.ndarray, type: TensorType, target: Layout) -> np.ndarray:
    """Return the piece of the first rank along every mesh dimension with sbp B; the values of the other ranks are ignored."""
    for dimension, sbp in enumerate(target.sbp):
        if not isinstance(sbp, Broadcast):
            continue
        for group in target.placement.along([dimension]):
            if here.rank.index in group and len(group) > 1:
                piece = type.with_shape(tuple(array.shape))
                one, all_ranks = (Layout(Placement(target.placement.tag, ranks), (sbp,)) for ranks in (group[:1], group))
                array = convert_array(here, array, piece, one, all_ranks, "to_global of a local tensor")
    return array


@dataclass(frozen=True, slots=True)
class _ToGlobalGradient:
    here: EagerState
    layout: Layout
    local: TensorType
    #: the GPU of the local tensor, or None
    gpu: EagerGpu | None

    def __call__(self, saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        assert gradient is not None
        piece = to_local(self.here, redistributed_gradient(self.here, gradient, gradient_layout(self.layout)))
        if self.here.gpus and gpu_of(piece.array) is not self.gpu:
            piece = moved(self.here, piece, self.gpu, None)
        rank, placement = self.here.rank.index, self.layout.placement
        if rank not in placement.ranks:  # zeros computed from the piece, so that all ranks record the same second gradients
            zeros: TensorBase = apply(BroadcastTo(self.local.shape), apply(SumTo(()), piece))
            return (zeros,)
        first = all(i == 0 for sbp, i in zip(self.layout.sbp, placement.coordinates(rank), strict=True) if isinstance(sbp, Broadcast))
        counted: TensorBase = piece if first else apply(Scale(0.0), piece)
        return (counted,)


def to_local(here: EagerState, x: T, *, copy: bool = False) -> T:
    """Return this rank's piece of a global tensor as a local tensor, which shares the memory of the piece unless `copy` is True."""
    check_current(x)
    piece = duplicate(x.array) if copy else x.array
    output = TensorBase.new(x.tensor_type.with_shape(tuple(piece.shape)), None, piece)
    if not copy:
        x.shares(output)
    if here.grad_enabled and x._needs_gradient:
        assert x.layout is not None
        record("to_local", (x,), (output,), _ToLocalGradient(here, x.layout, x.tensor_type))
    return output


@dataclass(frozen=True, slots=True)
class _ToLocalGradient:
    here: EagerState
    layout: Layout
    type: TensorType

    def __call__(self, saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        assert gradient is not None
        back = Layout(self.layout.placement, tuple(map(dual, self.layout.sbp)))
        array = placed(self.here, gradient.array, back) if self.here.rank.index in back.placement.ranks else empty(self.type)
        result = TensorBase.new(self.type, back, array)
        if self.here.grad_enabled and gradient._needs_gradient:
            record("to_global", (gradient,), (result,), _ToGlobalGradient(self.here, back, gradient.tensor_type, gpu_of(gradient.array)))
        return (result,)
