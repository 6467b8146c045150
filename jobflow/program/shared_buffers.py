"""Shared memory in which the client passes arguments to the ranks and receives results (the buffer `io`).

If the ranks of a world share memory, each job has a range there for every whole argument and every whole output.  A call then copies the
arguments, sends a command that only names the job, and copies the results.  Each rank reads its part of the arguments in place, and writes its
part of the outputs.  No array is pickled or sent in a message.  A call ends before the next one begins, so one range per tensor is enough.

There are no such buffers if shapes differ between ranks, for multiple clients, or for devices with separate memory.
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
    """The range of a tensor in the shared I/O buffers; with `local`, the range has the tensors of all ranks, in order."""

    offset: int
    type: TensorType
    local: bool

    def view(self, memory: Array) -> Array:
        return memory[self.offset :][: self.type.nbytes].view(self.type.dtype.numpy).reshape(self.type.shape)


@dataclass(frozen=True)
class IoBuffers:
    """The ranges of the arguments and outputs of one job in the shared I/O buffers; the same on all ranks."""

    arguments: Mapping[str, BufferRange]
    outputs: tuple[BufferRange, ...]
    nbytes: int

    def feeds(self, physical: Physical, rank: int, memory: Array) -> dict[str, Array]:
        """Return views in `memory` of the rank's parts of the arguments, by input key."""
        parts: dict[str, Array] = {}
        for value in physical.graph.inputs:
            op = value.node.op
            assert isinstance(op, Input)
            part = _part(self.arguments[op.argument], value, physical, rank, memory, ... if op.part is None else slice(*op.part[1:]))
            if part is not None:
                parts[op.key] = part
        return parts

    def results(self, physical: Physical, rank: int, memory: Array) -> dict[int, Array]:
        """Return views in `memory` of the rank's parts of the outputs, by position of the output."""
        parts = [_part(output, value, physical, rank, memory) for output, value in zip(self.outputs, physical.graph.outputs, strict=True)]
        return {position: part for position, part in enumerate(parts) if part is not None}


class ClientBuffers:
    """The client's views of a job's arguments and outputs in the shared I/O buffers."""

    def __init__(self, io_buffers: IoBuffers, memory: Array) -> None:
        self._arguments = [(name, argument.view(memory)) for name, argument in io_buffers.arguments.items()]
        self._outputs = [(output.view(memory), output.local) for output in io_buffers.outputs]

    def write(self, values: Mapping[str, Any]) -> None:
        """Copy the arguments of a call into the buffers; each is an array, a number, or a list with one array per rank."""
        for name, view in self._arguments:
            np.copyto(view, values[name], casting="unsafe")

    def read(self) -> list[Any]:
        """Return copies of the outputs; a local output is a list with one array per rank."""
        return [list(view.copy()) if local else view.copy() for view, local in self._outputs]


def _part(whole: BufferRange, value: Value, physical: Physical, rank: int, memory: Array, rows: slice | EllipsisType = ...) -> Array | None:
    """Return a view in `memory` of the rank's part of a tensor, limited to `rows`; None if the rank has no part."""
    layout, view = physical.layouts[value], whole.view(memory)
    if rank not in layout.placement.ranks:
        return None
    if not isinstance(layout, Layout):
        return view[layout.placement.ranks.index(rank), ...][rows]
    return view[rows][(*layout.box(value.shape, rank).slices, ...)]  # views, also of arrays without axes


def io_buffers_of(physical: Physical) -> IoBuffers | None:
    """Return the ranges of a job.

    Return None if an argument or output is partial, if argument shapes differ between ranks, or if a local argument has another placement.
    """
    graph = physical.graph
    own = [layout for value in graph.inputs if isinstance(layout := physical.layouts[value], Local)]
    if graph.rows or any(layout.placement.ranks != graph.placement.ranks for layout in own):
        return None
    layouts = [physical.layouts[value] for value in graph.outputs]
    if any(isinstance(layout, Layout) and layout.is_partial for layout in [*layouts, *(physical.layouts[value] for value in graph.inputs)]):
        return None
    types: dict[str, TensorType] = {}
    local: dict[str, bool] = {}
    for value in graph.inputs:
        op = value.node.op
        assert isinstance(op, Input)
        shape = value.shape if op.part is None else (op.part[2], *value.shape[1:])
        known = types.get(op.argument)
        if known is None or shape > known.shape:  # the parts of an argument end where the last one does
            types[op.argument] = value.tensor_type.with_shape(shape)
        local[op.argument] = not isinstance(physical.layouts[value], Layout)
    size = 0

    def reserve(type: TensorType, own: bool, ranks: int) -> BufferRange:
        nonlocal size
        reserved = BufferRange(size, type.with_shape((ranks, *type.shape)) if own else type, own)
        size += aligned(reserved.type.nbytes)
        return reserved

    n = graph.placement.size
    arguments = {name: reserve(type, local[name], n) for name, type in types.items()}
    outputs = [
        reserve(v.tensor_type, not isinstance(layout, Layout), layout.placement.size) for v, layout in zip(graph.outputs, layouts, strict=True)
    ]
    return IoBuffers(arguments, tuple(outputs), size)


def slots_of(feeds: Mapping[str, Array], memory: Array) -> dict[str, Slot]:
    """Return slots of the contiguous parts in the shared I/O buffers, so that a plan can read them in place."""
    slots: dict[str, Slot] = {}
    for key, part in feeds.items():
        type = TensorType(part.shape, dtype_of(part.dtype))
        if part.flags.c_contiguous and part.size:
            slots[key] = Slot(IO_BUFFERS, part.ctypes.data - memory.ctypes.data, type, contiguous_strides(type.shape, type.dtype.itemsize))
    return slots


def planned_slots(physical: Physical, rank: int) -> dict[str, Slot]:
    """Return the slots in the shared I/O buffers that a plan for `rank` assumes for the arguments; {} for a single rank, and without such buffers."""
    io_buffers = io_buffers_of(physical)
    if io_buffers is None or physical.graph.placement.size == 1:
        return {}
    memory = np.empty(io_buffers.nbytes, np.uint8)
    return slots_of(io_buffers.feeds(physical, rank, memory), memory)
