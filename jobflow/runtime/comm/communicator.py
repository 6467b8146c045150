"""The interface of communicators, which transfer contiguous bytes between ranks.

A communicator belongs to one rank of a world.  Arrays are contiguous.  `bind_*` records one operation on fixed arrays and returns the calls that
perform it at every step.  A rank binds only the operations in which it takes part, and all ranks bind and call them in one global order.
`seal` ends a series of binds.  It is collective over the world, compares the bound operations of the ranks, and prepares the calls.

    allocate ... bind_* ... seal()        and a step is        for function, arguments in calls: function(*arguments)

A transfer between two ranks has two parts: `start` returns immediately, so it overlaps with computation until `wait`.  Between two ranks, both start
the transfers of one direction in the same order; otherwise the order is free.

Peers read arrays inside memory from `allocate` directly; other arrays are copied to such memory first.  An operation that cannot finish because
another rank failed raises AbortedError.  `name` is the name of an operation in messages.

`group` returns a communicator of some ranks.  The whole contract applies inside it, with "the world" read as "the group" and ranks counted from 0.
Only messages use the rank numbers of the world.

If every rank runs its own program, ranks may diverge.  `compare_digests` compares the next operation of all ranks.  In a deadlock of ranks in
different operations, all of them raise DivergedError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from jobflow.core.layout import Reduction
from jobflow.core.types import Array
from jobflow.ops.op import Call

if TYPE_CHECKING:
    from jobflow.plan.traffic import Traffic

#: Called after each wait of a rank for others with its begin and end in seconds of time.perf_counter().
Waited: TypeAlias = Callable[[float, float], None]


class Transfers(NamedTuple):
    """The calls of one end of a transfer."""

    start: list[Call]
    wait: list[Call]


class Binding(NamedTuple):
    """An operation bound by one rank: `ranks` are numbers in the communicator, `counts` and `receives` are numbers of elements."""

    kind: str
    ranks: Sequence[int]
    source: Array
    target: Array
    counts: Sequence[int]
    receives: Sequence[int] = ()
    reduce: Reduction | None = None
    name: str = ""


class Communicator(Protocol):
    """Collectives among ranks, and transfers between two ranks."""

    rank: int
    size: int
    #: numbers of the ranks in the world: rank i of this communicator is rank members[i] of the world
    members: tuple[int, ...]
    #: True if operations must start in the order in which they are bound; then a bound order that is equal on all ranks has no deadlock
    in_schedule_order: bool = False
    #: True if operations are only enqueued on the devices: their calls return at once, and do not wait for other ranks
    enqueues: bool = False

    @property
    def host(self) -> Communicator:
        """The communicator of the same ranks for arrays in the memory of the host."""
        return self

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return the communicator of these ranks, whose rank i is rank ranks[i] of this communicator.  The same ranks always get the same object.

        Only members call this, without communication: the first operation of the group is collective.  The group is closed with the world.

        Raises: PlacementError if this rank is not a member, or if a rank does not exist.
        """

    def compare_digests(self, digest: int, what: Callable[[], str]) -> None:
        """Raise DivergedError on every rank unless all pass the same 64-bit digest to their n-th call; collective.

        `what()` describes the next operation of this rank.  It is called only if ranks differ, or after a long wait.
        """

    def allocate(self, nbytes: int) -> Array:
        """Return a zeroed uint8 array of this rank that its peers in the node can read directly.

        Collective: every rank of the world calls it in the same order, each with its own size.
        """

    def allocate_common(self, nbytes: int) -> Array | None:
        """Return a zeroed uint8 array that all ranks of the world read and write; None on all of them without shared memory.

        Collective: every rank of the world calls it in the same order, with the same size.  Callers synchronize their writes.
        """

    def bind(self, what: Binding) -> list[Call]:
        """Bind a collective of one of the four kinds below, and return its calls."""

    def bind_concurrent(self, what: Binding) -> Transfers:
        """Bind a collective that overlaps with computation until its wait, if the communicator can; otherwise its start is the whole operation."""
        return Transfers(self.bind(what), [])

    def bind_all_reduce(self, ranks: Sequence[int], source: Array, target: Array, reduce: Reduction, name: str = "") -> list[Call]:
        """Bind an all-reduce: `target` receives the reduction of all sources, with the same bits on all ranks.

        `target` may be `source`.  Inside a node the sources are combined in the order of `ranks`; between nodes in MPI's order.
        """
        return self.bind(Binding("all_reduce", ranks, source, target, (source.size,), (), reduce, name))

    def bind_all_gather(self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], name: str = "") -> list[Call]:
        """Bind an all-gather: `target` receives the concatenation of the sources, which have counts[i] elements on rank i."""
        return self.bind(Binding("all_gather", ranks, source, target, counts, (), None, name))

    def bind_reduce_scatter(
        self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], reduce: Reduction, name: str = ""
    ) -> list[Call]:
        """Bind a reduce-scatter: `target` receives this rank's piece of the reduction of all sources; rank i has counts[i] elements."""
        return self.bind(Binding("reduce_scatter", ranks, source, target, counts, (), reduce, name))

    def bind_all_to_all(
        self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], receives: Sequence[int], name: str = ""
    ) -> list[Call]:
        """Bind an all-to-all: rank i receives counts[i] elements of `source`, and sends receives[i] elements to `target`."""
        return self.bind(Binding("all_to_all", ranks, source, target, counts, receives, None, name))

    def together(self, calls: Sequence[Call]) -> list[Call]:
        """Return calls that start several transfers as one operation, if that is faster; `calls` are consecutive starts, after `seal`."""
        return list(calls)

    def bind_send(self, peer: int, source: Array, name: str = "") -> Transfers:
        """Bind a send of `source` to `peer`; after the wait, source may be overwritten."""

    def bind_receive(self, peer: int, target: Array, name: str = "") -> Transfers:
        """Bind a receive from `peer` into `target`, which must not be accessed between start and wait."""

    def seal(self) -> None:
        """Prepare the calls bound since the last seal; collective.  Raise PlanError if the ranks bound different operations."""

    def sent(self) -> dict[str, Traffic]:
        """Return the traffic of this rank by kind: the number of operations and the bytes sent, counted as in `plan.traffic`.

        Operations of groups count in the world too.
        """

    def barrier(self) -> None:
        """Wait until every rank of the world reaches the barrier."""

    def exchange(self, item: Any) -> list[Any]:
        """Gather a small picklable item of every rank, and return the items in rank order; collective."""

    def check(self) -> None:
        """Raise AbortedError or RankError if another rank has failed; a rank that waits for its device calls this."""

    def observe(self, waited: Waited | None) -> None:
        """Report this rank's waits for other ranks to `waited` from now on; None stops the reports.  Without reports, waits have no overhead.

        Operations of MPI and NCCL are not reported, because waiting and transfer cannot be separated.
        """

    def abort(self, reason: str) -> None:
        """Make every rank that waits, now or later, raise AbortedError(reason)."""

    def reset(self) -> None:
        """Clear an abort, after all ranks have left their calls."""

    def close(self) -> None:
        """Free shared memory.  Collective unless aborted."""
