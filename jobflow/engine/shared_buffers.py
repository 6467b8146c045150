"""Shared memory in which the client passes arguments to the ranks and receives results (the buffer `io`).

Where the ranks of a world share memory, each job has a place in it for every argument, whole, and for every output.  A call is then
one copy of the arguments, a command that names the job and nothing else, and one copy of the results; each rank reads its part of
the arguments where the client has put them, and writes its part of the outputs.  So nothing is pickled, and no message carries
arrays.  Calls end before the next begins, so one set of places is enough.

Ranks whose shapes differ, multiple clients, and devices with memory of their own do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Layout, Local
from jobflow.core.types import Array, TensorType, contiguous_strides, dtype_of
from jobflow.graph.ir import Physical, Value
from jobflow.ops.source import Input
from jobflow.plan.plan import Slot, aligned

#: the buffer's name in plans
IO_BUFFERS = "io"


@dataclass(frozen=True)
class BufferRange:
    """Where a tensor lies in the shared I/O buffers: whole, or with `local` the ranks' tensors one after another."""

    offset: int
    type: TensorType
    local: bool

    def view(self, memory: Array) -> Array:
        return memory[self.offset :][: self.type.nbytes].view(self.type.dtype.numpy).reshape(self.type.shape)


@dataclass(frozen=True)
class IoBuffers:
    """What lies where, for one job; the same on all ranks."""

    arguments: Mapping[str, BufferRange]
    outputs: tuple[BufferRange, ...]
    nbytes: int

    def feeds(self, physical: Physical, rank: int, memory: Array) -> dict[str, Array]:
        """The rank's parts of the arguments, by key."""
        found: dict[str, Array] = {}
        for value in physical.graph.inputs:
            op = value.node.op
            assert isinstance(op, Input)
            part = _part(self.arguments[op.argument], value, physical, rank, memory, ... if op.part is None else slice(*op.part[1:]))
            if part is not None:
                found[op.key] = part
        return found

    def results(self, physical: Physical, rank: int, memory: Array) -> dict[int, Array]:
        """The rank's parts of the outputs, by position."""
        parts = [_part(place, value, physical, rank, memory) for place, value in zip(self.outputs, physical.graph.outputs, strict=True)]
        return {position: part for position, part in enumerate(parts) if part is not None}


class Opening:
    """The client's side of shared I/O buffers."""

    def __init__(self, io_buffers: IoBuffers, memory: Array) -> None:
        self._arguments = [(name, place.view(memory)) for name, place in io_buffers.arguments.items()]
        self._outputs = [(place.view(memory), place.local) for place in io_buffers.outputs]

    def put(self, values: Mapping[str, Any]) -> None:
        """Lay down the arguments of a call: arrays, lists with one for each rank, numbers."""
        for name, place in self._arguments:
            np.copyto(place, values[name], casting="unsafe")

    def take(self) -> list[Any]:
        """Copies of the outputs; of those that are each rank's own, lists."""
        return [list(place.copy()) if local else place.copy() for place, local in self._outputs]


def _part(place: BufferRange, value: Value, physical: Physical, rank: int, memory: Array, rows: slice | EllipsisType = ...) -> Array | None:
    """A rank's part of what lies at a place, as a view; None if it has none."""
    layout, whole = physical.layouts[value], place.view(memory)
    if rank not in layout.placement.ranks:
        return None
    if not isinstance(layout, Layout):
        return whole[layout.placement.ranks.index(rank), ...][rows]
    return whole[rows][(*layout.box(value.shape, rank).slices, ...)]  # views, also of what has no axes


def io_buffers_of(physical: Physical) -> IoBuffers | None:
    """Places for what a job takes and gives; None where one is a sum that nobody has formed, or the ranks' arguments differ in shape."""
    graph = physical.graph
    own = [layout for value in graph.inputs if isinstance(layout := physical.layouts[value], Local)]
    if graph.rows or any(layout.placement.ranks != graph.placement.ranks for layout in own):
        return None
    layouts = [physical.layouts[value] for value in graph.outputs]
    if any(isinstance(layout, Layout) and layout.is_partial for layout in [*layouts, *(physical.layouts[value] for value in graph.inputs)]):
        return None
    wanted: dict[str, TensorType] = {}
    local: dict[str, bool] = {}
    for value in graph.inputs:
        op = value.node.op
        assert isinstance(op, Input)
        shape = value.shape if op.part is None else (op.part[2], *value.shape[1:])
        known = wanted.get(op.argument)
        if known is None or shape > known.shape:  # the parts of an argument end where the last one does
            wanted[op.argument] = value.tensor_type.with_shape(shape)
        local[op.argument] = not isinstance(physical.layouts[value], Layout)
    size = 0

    def place(type: TensorType, own: bool, ranks: int) -> BufferRange:
        nonlocal size
        found = BufferRange(size, type.with_shape((ranks, *type.shape)) if own else type, own)
        size += aligned(found.type.nbytes)
        return found

    n = graph.placement.size
    arguments = {name: place(type, local[name], n) for name, type in wanted.items()}
    outputs = [place(v.tensor_type, not isinstance(layout, Layout), layout.placement.size) for v, layout in zip(graph.outputs, layouts, strict=True)]
    return IoBuffers(arguments, tuple(outputs), size)


def slots_of(feeds: Mapping[str, Array], memory: Array) -> dict[str, Slot]:
    """Slots of the parts that lie dense in the shared I/O buffers, so that a plan can read them there."""
    found: dict[str, Slot] = {}
    for key, part in feeds.items():
        type = TensorType(part.shape, dtype_of(part.dtype))
        if part.flags.c_contiguous and part.size:
            found[key] = Slot(IO_BUFFERS, part.ctypes.data - memory.ctypes.data, type, contiguous_strides(type.shape, type.dtype.itemsize))
    return found


def planned_places(physical: Physical, rank: int) -> dict[str, Slot]:
    """The same for buffers that nobody has opened: where the rank's parts of the arguments will lie."""
    io_buffers = io_buffers_of(physical)
    if io_buffers is None or physical.graph.placement.size == 1:
        return {}
    memory = np.empty(io_buffers.nbytes, np.uint8)
    return slots_of(io_buffers.feeds(physical, rank, memory), memory)
