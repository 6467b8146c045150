"""Programs: a physical graph, the storage of its tensors and the target that computes it.

    Program(physical, storage, target).bind(rank)         plan, compare with the other ranks, allocate, prepare the calls; collective
    Program(physical, storage, target).plan(rank, ranks)  the same plan for a rank that does not exist

All ranks bind a program together; each rank binds only its part.  They exchange summaries of their plans before any rank reserves shared memory.
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
from jobflow.graph.ir import Graph, Physical
from jobflow.kernels.target import Target
from jobflow.ops.source import Input
from jobflow.plan.plan import Plan, Slot
from jobflow.plan.plan_checks import compare_plans, summary
from jobflow.plan.storage import ARGUMENT, RankMemory, is_common, place_variables, private_copies
from jobflow.program.shared_buffers import IO_BUFFERS, ClientBuffers, io_buffers_of, planned_slots, slots_of
from jobflow.runtime.collection import collection_paused
from jobflow.runtime.comm.nccl_order import fix_order
from jobflow.runtime.concurrency import concurrently
from jobflow.runtime.device.device import memory_of
from jobflow.runtime.executor import Executor, Through
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.world import Rank

if TYPE_CHECKING:
    from jobflow.compiler.rank.local import RankProgram
    from jobflow.compiler.rank.order import Ordered

#: bytes of an argument from which a copy takes longer than preparing the calls that read the argument
LARGE = 1 << 21


@dataclass(frozen=True)
class StorageChoice:
    """Options for the storage of a program's tensors; the same on all ranks.

    share       store variables that are whole on all ranks once, in memory that the ranks share
    io_buffers  pass arguments and results of a single client in shared memory, if there is any
    copies      fetch outputs that are whole on all ranks from all of them, not only from the first
    in_place    read large arguments of each rank at their addresses, which may differ between runs
    """

    share: bool = False
    io_buffers: bool = False
    copies: bool = False
    in_place: bool = False


#: separate storage on each rank
ALONE = StorageChoice()


@dataclass(frozen=True)
class BoundProgram:
    """A program that a rank can run; with `buffers`, the client passes arguments in shared memory."""

    executor: Executor
    buffers: ClientBuffers | None = None

    @property
    def plan(self) -> Plan:
        return self.executor.plan


@dataclass(frozen=True)
class Program:
    """A program with layouts, the storage of its tensors, and its target."""

    physical: Physical
    storage: StorageChoice
    target: Target

    @collection_paused()
    def bind(self, rank: Rank) -> BoundProgram:
        """Allocate variables, plan the rank's part and prepare its calls; return the program of this rank.

        Collective over the ranks of `rank.comm`.
        """
        state = state_of(rank)
        if self.target.kind == "cuda" and self.target.products.deterministic and rank.size > 1:
            fix_order()
        with state.forgetting_on_error():
            return self._with_variables(rank, state)

    def _with_variables(self, rank: Rank, state: State) -> BoundProgram:
        graph = self.physical.graph
        separate = private_copies(graph)
        _check_separate(state, separate, graph)
        with memory_of(f"job {graph.name}"):
            new = state.declare(graph.variables.values(), self.storage.share, separate)
        is_host = rank.device.tag == "cpu"  # others have a current device for each thread
        with concurrently(partial(state.initialize, new, self.target)) if is_host else nullcontext():
            bound = self._bound(rank, state)
        if not is_host:
            state.initialize(new, self.target)
        if self.storage.share:
            rank.comm.exchange(None)  # other ranks read the initial values that this rank writes
        return bound

    def _bound(self, rank: Rank, state: State) -> BoundProgram:
        io_buffers = io_buffers_of(self.physical) if self.storage.io_buffers and state.on_hosts() else None
        memory = None if io_buffers is None else rank.comm.allocate_common(io_buffers.nbytes)
        if io_buffers is None or memory is None:
            return BoundProgram(self._executor(rank, state, {}, None))
        feeds = io_buffers.feeds(self.physical, rank.index, memory)
        through = Through({IO_BUFFERS: memory}, feeds, io_buffers.results(self.physical, rank.index, memory))
        return BoundProgram(self._executor(rank, state, slots_of(feeds, memory), through), ClientBuffers(io_buffers, memory))

    def _executor(self, rank: Rank, state: State, feeds: dict[str, Slot], through: Through | None) -> Executor:
        arguments = _argument_slots(self.physical, rank.index) if self.storage.in_place and rank.device.tag == "cpu" else {}
        from jobflow.compiler.compile import plan_rank  # tensors alone need no compiler

        plan = plan_rank(self.physical, RankMemory(rank.index, state.slots, feeds, arguments, self.storage.copies, through is not None), self.target)
        compare_plans(plan.job, rank.comm.exchange(summary(plan)))
        return Executor(plan, rank.device, rank.comm, state, through, self.target)

    def plan(self, rank: int, ranks: int) -> Plan:
        """Return the plan of one of `ranks` ranks on one machine."""
        from jobflow.compiler.compile import plan_rank

        return plan_rank(self.physical, self._memory(rank, ranks), self.target)

    def rank_program(self, rank: int, ranks: int) -> RankProgram:
        """Return the rank's program without addresses."""
        from jobflow.compiler.compile import rank_program

        return rank_program(self.physical, self._memory(rank, ranks), self.target)

    def ordered(self, rank: int, ranks: int) -> Ordered:
        """Return the rank's program in execution order."""
        from jobflow.compiler.compile import ordered_program

        return ordered_program(self.physical, self._memory(rank, ranks), self.target)

    def _memory(self, rank: int, ranks: int) -> RankMemory:
        """Return the memory that a rank would have for its variables and for arguments in shared I/O buffers."""
        graph = self.physical.graph
        sharing = tuple(range(ranks)) if self.storage.share else ()
        slots, _ = place_variables(graph.variables.values(), rank, sharing=sharing, own=private_copies(graph))
        io_buffers = self.storage.io_buffers and io_buffers_of(self.physical) is not None
        feeds = planned_slots(self.physical, rank) if io_buffers else {}
        return RankMemory(rank, slots, feeds, copies=self.storage.copies, io_buffers=io_buffers)


def _argument_slots(physical: Physical, rank: int) -> dict[str, Slot]:
    """Return slots for the rank's large arguments, which may have another address in each run."""
    slots: dict[str, Slot] = {}
    for value in physical.graph.inputs:
        op, layout = value.node.op, physical.layouts[value]
        assert isinstance(op, Input)
        if isinstance(layout, Layout) and rank in layout.placement.ranks:
            type = layout.local_type(value.tensor_type, rank)
            if type.nbytes >= LARGE:
                slots[op.key] = Slot(f"{ARGUMENT}{op.key}", 0, type, contiguous_strides(type.shape, type.dtype.itemsize))
    return slots


def state_of(rank: Rank) -> State:
    """Return the state of a rank, which has its variables; the first call creates the state."""
    state: State = rank.memory.setdefault("state", None) or State(rank.index, rank.device, rank.comm)
    rank.memory["state"] = state
    return state


def _check_separate(state: State, separate: Collection[str], graph: Graph) -> None:
    """Raise JobError if ranks would write different values to a variable that an earlier job stores once."""
    for name in sorted(separate):
        if name in state.slots and is_common(state.slots[name].buffer):
            where = graph.updates[name].node.where
            raise JobError(
                f"job {graph.name} at {where}: each device assigns its own tensor to variable {name!r}, but an earlier job stores one copy "
                f"for all devices; declare this job before that job, or call config.share_variables(False) before any job runs"
            )
