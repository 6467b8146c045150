"""Binding a program to ranks; jobs, graphs, immediate boxing, `verify` and `explain` all use it.

    Loaded(physical, storage, target).bind(rank)         plan, compare with the other ranks, allocate, prepare the calls; collective
    Loaded(physical, storage, target).plan(rank, ranks)  the same plan for a rank that nobody has bound

Ranks bind together, each for itself, and tell each other what they have planned before any of them reserves memory that others look at.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError
from jobflow.core.layout import Layout
from jobflow.core.types import contiguous_strides
from jobflow.engine.shared_buffers import IO_BUFFERS, Opening, io_buffers_of, planned_places, slots_of
from jobflow.graph.ir import Graph, Physical
from jobflow.kernels.target import Target
from jobflow.ops.source import Input
from jobflow.plan.plan import Plan, Slot
from jobflow.plan.plan_checks import compare_plans, summary
from jobflow.plan.storage import ARGUMENT, RankMemory, apart, is_common, place_variables
from jobflow.runtime.collection import collection_paused
from jobflow.runtime.concurrency import concurrently
from jobflow.runtime.executor import Executor, Through
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.world import Rank

if TYPE_CHECKING:
    from jobflow.compiler.rank.local import Program
    from jobflow.compiler.rank.order import Ordered

#: bytes of an argument that cost more to copy than preparing the calls anew that read it
LARGE = 1 << 21


@dataclass(frozen=True)
class StorageChoice:
    """What the ranks of a program have in common, and who hands out its results.  The same on all ranks.

    share   variables that all ranks hold whole are stored once where they have memory in common
    io_buffers   one client hands over arguments and takes results in common memory, if there is any
    copies  outputs that all ranks hold whole are handed out by all of them, not by the first alone
    in_place  each rank's large arguments are read where it has them, which may be elsewhere in every run
    """

    share: bool = False
    io_buffers: bool = False
    copies: bool = False
    in_place: bool = False


#: each rank has its own copy of everything
ALONE = StorageChoice()


@dataclass(frozen=True)
class Ready:
    """A program that a rank can run; its arguments come through `opening` if there is one."""

    executor: Executor
    opening: Opening | None = None

    @property
    def plan(self) -> Plan:
        return self.executor.plan


@dataclass(frozen=True)
class Loaded:
    """A program that is laid out, how its tensors are stored, and what computes it."""

    physical: Physical
    storage: StorageChoice
    target: Target

    @collection_paused()
    def bind(self, rank: Rank) -> Ready:
        """Give the program's variables memory, plan what the rank does, and prepare its calls.  Collective over the ranks of `rank.comm`."""
        state, graph = state_of(rank), self.physical.graph
        own = apart(graph)
        _check_apart(state, own, graph)
        new = state.declare(graph.variables.values(), self.storage.share, own)
        on_host = rank.device.tag == "cpu"  # others have a current device for each thread
        with concurrently(partial(state.initialize, new, self.target)) if on_host else nullcontext():
            ready = self._ready(rank, state)
        if not on_host:
            state.initialize(new, self.target)
        if self.storage.share:
            rank.comm.exchange(None)  # what one rank gives a first value, others read
        return ready

    def _ready(self, rank: Rank, state: State) -> Ready:
        io_buffers = io_buffers_of(self.physical) if self.storage.io_buffers and state.on_hosts() else None
        memory = None if io_buffers is None else rank.comm.allocate_common(io_buffers.nbytes)
        if io_buffers is None or memory is None:
            return Ready(self._prepared(rank, state, {}, None))
        feeds = io_buffers.feeds(self.physical, rank.index, memory)
        through = Through({IO_BUFFERS: memory}, feeds, io_buffers.results(self.physical, rank.index, memory))
        return Ready(self._prepared(rank, state, slots_of(feeds, memory), through), Opening(io_buffers, memory))

    def _prepared(self, rank: Rank, state: State, places: dict[str, Slot], through: Through | None) -> Executor:
        own = _own_places(self.physical, rank.index) if self.storage.in_place and rank.device.tag == "cpu" else {}
        from jobflow.compiler.compile import plan_rank  # tensors alone need no compiler

        plan = plan_rank(self.physical, RankMemory(rank.index, state.slots, places, own, self.storage.copies, through is not None), self.target)
        compare_plans(plan.job, rank.comm.exchange(summary(plan)))
        return Executor(plan, rank.device, rank.comm, state, through, self.target)

    def plan(self, rank: int, ranks: int) -> Plan:
        """What one of `ranks` ranks on one machine would do."""
        from jobflow.compiler.compile import plan_rank

        return plan_rank(self.physical, self._imagined(rank, ranks), self.target)

    def program(self, rank: int, ranks: int) -> Program:
        """The same, without addresses."""
        from jobflow.compiler.compile import rank_program

        return rank_program(self.physical, self._imagined(rank, ranks), self.target)

    def ordered(self, rank: int, ranks: int) -> Ordered:
        """The same in the order in which it is done."""
        from jobflow.compiler.compile import ordered_program

        return ordered_program(self.physical, self._imagined(rank, ranks), self.target)

    def _imagined(self, rank: int, ranks: int) -> RankMemory:
        """Where a rank that nobody has bound would have its variables, and arguments that come through shared I/O buffers, if there are any."""
        graph = self.physical.graph
        sharing = tuple(range(ranks)) if self.storage.share else ()
        slots, _ = place_variables(graph.variables.values(), rank, sharing=sharing, own=apart(graph))
        io_buffers = self.storage.io_buffers and io_buffers_of(self.physical) is not None
        places = planned_places(self.physical, rank) if io_buffers else {}
        return RankMemory(rank, slots, places, copies=self.storage.copies, io_buffers=io_buffers)


def _own_places(physical: Physical, rank: int) -> dict[str, Slot]:
    """Places of a rank's large arguments, wherever it will have them."""
    found: dict[str, Slot] = {}
    for value in physical.graph.inputs:
        op, layout = value.node.op, physical.layouts[value]
        assert isinstance(op, Input)
        if isinstance(layout, Layout) and rank in layout.placement.ranks:
            type = layout.local_type(value.tensor_type, rank)
            if type.nbytes >= LARGE:
                found[op.key] = Slot(f"{ARGUMENT}{op.key}", 0, type, contiguous_strides(type.shape, type.dtype.itemsize))
    return found


def state_of(rank: Rank) -> State:
    """The variables of a rank."""
    state: State = rank.memory.setdefault("state", None) or State(rank.index, rank.device, rank.comm)
    rank.memory["state"] = state
    return state


def _check_apart(state: State, own: Collection[str], graph: Graph) -> None:
    """JobError if ranks would write different values to what an earlier job has them store once."""
    for name in sorted(own):
        if name in state.slots and is_common(state.slots[name].buffer):
            where = graph.updates[name].node.where
            raise JobError(
                f"job {graph.name}, {where}: assigns each device's own tensor to variable {name!r}, of which an earlier job has stored one copy "
                f"for all devices; declare this job before that one, or call config.share_variables(False) before any job runs"
            )
