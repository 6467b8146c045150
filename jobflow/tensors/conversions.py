"""Plans of eager redistributions, prepared for one rank; see `convert`.  Programs with local tensors only do not import this module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.layouts.paths import path
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Layout, Local
from jobflow.core.types import Array, TensorType
from jobflow.graph.ir import Graph, Node, Physical, Value
from jobflow.kernels.target import CPU
from jobflow.ops.source import Input
from jobflow.plan.plan import Plan, Slot
from jobflow.program.program import Program, StorageChoice
from jobflow.program.rank_group import RankGroup
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.executor import Executor
from jobflow.runtime.variable_buffers import window
from jobflow.runtime.world.world import Rank
from jobflow.tensors.convert import empty
from jobflow.tensors.state import EagerState

#: the name of every program that converts a layout
CONVERSION = "convert"


@dataclass
class Conversion:
    """A change of layout, prepared for this rank; the call maps this rank's piece in the old layout to its piece in the new layout."""

    run: Callable[[Array], Array | None]
    communicates: bool
    #: True if this rank has a piece of the result
    takes: bool

    def __call__(self, array: Array, type: TensorType) -> Array:
        piece = self.run(array)
        return piece if self.takes else empty(type)


@dataclass(frozen=True)
class Planned:
    """The execution of a change of layout by a plan with its own memory."""

    executor: Executor
    #: True if this rank has a piece of the source
    gives: bool

    def __call__(self, array: Array) -> Array | None:
        outputs = self.executor.run({"x": array} if self.gives else {})
        return outputs[0][1] if outputs else None


@dataclass(frozen=True)
class Part:
    """The execution of a change of layout without communication: a copy of this rank's piece of the source, or of a part of the piece."""

    #: the part, in bytes of the source
    slot: Slot

    def __call__(self, array: Array) -> Array:
        return np.array(window(np, np.ascontiguousarray(array).reshape(-1).view(np.uint8), self.slot))


def bound(here: EagerState, comm: Communicator, ranks: tuple[int, ...], type: TensorType, source: Layout, target: Layout) -> Conversion:
    """Return the conversion from the layout `source` to `target`, prepared for this rank; all ranks of the group must call this function.

    The conversion runs a plan bound to memory, or only copies a part of the piece if no data move between ranks.
    """
    index, group = ranks.index(here.rank.index), RankGroup((source.placement, target.placement))
    at = [group.layout(source), group.layout(target)]
    ready = Program(physical(type, *at), StorageChoice(copies=True), CPU).bind(Rank(index, len(ranks), here.device, comm))
    gives, takes = (index in layout.placement.ranks for layout in at)
    # without a schedule no rank waits for another, so a rank may copy a part instead of running the plan
    return Conversion(_part(ready.plan) or Planned(ready.executor, gives), bool(ready.plan.schedule), takes)


def _part(plan: Plan) -> Part | None:
    """Return the conversion that `plan` describes as a copy of a part of this rank's piece.

    The result is None if data move between ranks or are computed, or if this rank lacks a piece of the source or result.
    """
    if plan.schedule or plan.body or not plan.feeds or not plan.fetches:
        return None
    (feed,), ((_, slot),) = plan.feeds, plan.fetches
    return Part(replace(slot, offset=slot.offset - feed.slot.offset))


def physical(type: TensorType, source: Layout, target: Layout) -> Physical:
    """Return a program that converts a tensor of this type from the layout `source` to the layout `target`."""
    nodes = [Node(Input(type.shape, type.dtype, "x"), (), ((type, "x", False),), "x", source.placement)]
    first = here = nodes[0].outputs[0]
    layouts: dict[Value, Layout | Local] = {here: source}
    before = source
    for hop in path(source, target, type):
        name = f"x:{hop.target}"
        nodes.append(Node(Reroute(before, hop.target, hop.name), (here,), ((type, name, False),), name, hop.target.placement))
        here, before = nodes[-1].outputs[0], hop.target
        layouts[here] = before
    return Physical(Graph(CONVERSION, source.placement, tuple(nodes), (first,), (here,)), layouts)
