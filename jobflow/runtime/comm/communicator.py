"""The interface of communicators: they move contiguous bytes, and know nothing about tensors.

A communicator belongs to one rank of a world.  Arrays are contiguous.  `bind_*` takes down one operation on fixed arrays and
returns the calls that perform it at every step; a rank binds only the operations it takes part in, and all ranks bind and call
them in one global order.  `seal` ends a series of binds: it is collective over the world, compares what the ranks bound, and
makes the calls ready to run.  So a plan is bound as

    allocate ... bind_* ... seal()        and a step is        for function, arguments in calls: function(*arguments)

A transfer between two ranks is posted and waited for: posting returns at once, and what the ranks compute until they wait goes on
beside it.  Between two ranks, transfers of one direction are posted in one order by both; all else about their posts is free.

Arrays inside memory from `allocate` are read by the peers where they lie; others are copied to such memory first.  An operation
that cannot finish because another rank failed raises AbortedError.  `name` is what messages call an operation.

`group` makes a communicator of some ranks alone.  All of the contract holds inside it, with "the world" read as "the group" and
ranks counted from 0; only messages name ranks by their numbers in the world.

Where every rank runs a program of its own, any operation may find that the ranks have parted: `agree` compares what they are
about to do, and ranks that wait for each other in different places, so that none can ever go on, all raise DivergedError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from jobflow.core.layout import Reduction
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.plan.traffic import Traffic

#: Called after each wait of a rank for others, with when it began and ended, in seconds of time.perf_counter().
Waited: TypeAlias = Callable[[float, float], None]


class Transfers(NamedTuple):
    """The calls of one end of a transfer."""

    post: list[Call]
    wait: list[Call]


class Binding(NamedTuple):
    """An operation as one rank binds it: `ranks` are numbers in the communicator, `counts` and `receives` of elements."""

    kind: str
    ranks: Sequence[int]
    source: Array
    target: Array
    counts: Sequence[int]
    receives: Sequence[int] = ()
    reduce: Reduction | None = None
    name: str = ""


class Communicator(Protocol):
    """The ranks' post: collectives among some of them, and letters between two."""

    rank: int
    size: int
    #: the numbers of its ranks in the world: rank i of this communicator is rank members[i] there
    members: tuple[int, ...]

    def group(self, ranks: Sequence[int]) -> Communicator:
        """The communicator of these ranks alone: ranks[i] of this one is its rank i.  The same object every time for the same ranks.

        Asked for by its ranks only, and at no cost: they meet in its first operation.  It is closed with the world.  PlacementError if
        this rank is not one of them, or one does not exist.
        """

    def agree(self, digest: int, what: Callable[[], str]) -> None:
        """Collective; DivergedError on every rank unless all call it with the same 64-bit digest, each for the same time.

        `what()` says what this rank is about to do; it is asked only when ranks differ, or one has waited for long.
        """

    def allocate(self, nbytes: int) -> Array:
        """A zeroed uint8 array of this rank that its peers in the node can read directly.

        Collective: every rank of the world calls it in the same order, each with its own size.
        """

    def allocate_common(self, nbytes: int) -> Array | None:
        """A zeroed uint8 array that all ranks of the world read and write; None, on all of them, where they have no memory in common.

        Collective: every rank of the world calls it in the same order, with the same size.  Who writes when is the callers' affair.
        """

    def bind(self, what: Binding) -> list[Call]:
        """The collective `what`, whose kind is one of the four that follow."""

    def bind_all_reduce(self, ranks: Sequence[int], source: Array, target: Array, reduce: Reduction, name: str = "") -> list[Call]:
        """target = reduction of every rank's source (target may be source); all ranks get identical bits.

        Inside a node the sources are combined in the order of `ranks`; between nodes in MPI's order.
        """
        return self.bind(Binding("all_reduce", ranks, source, target, (source.size,), (), reduce, name))

    def bind_all_gather(self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], name: str = "") -> list[Call]:
        """target = the ranks' sources, one after another; counts in elements."""
        return self.bind(Binding("all_gather", ranks, source, target, counts, (), None, name))

    def bind_reduce_scatter(
        self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], reduce: Reduction, name: str = ""
    ) -> list[Call]:
        """target = this rank's piece (counts[i] elements) of the reduction of all sources."""
        return self.bind(Binding("reduce_scatter", ranks, source, target, counts, (), reduce, name))

    def bind_all_to_all(
        self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], receives: Sequence[int], name: str = ""
    ) -> list[Call]:
        """Piece i of source (counts[i] elements) goes to rank i; piece i of target (receives[i]) comes from it."""
        return self.bind(Binding("all_to_all", ranks, source, target, counts, receives, None, name))

    def bind_send(self, peer: int, source: Array, name: str = "") -> Transfers:
        """Hand `source` to `peer`; once it has been waited for, source may be overwritten."""

    def bind_receive(self, peer: int, target: Array, name: str = "") -> Transfers:
        """Fill `target`, which is not touched from the post to the wait, with what `peer` sends."""

    def seal(self) -> None:
        """Make the calls bound since the last seal ready to run.  Collective; PlanError if the ranks bound different things."""

    def sent(self) -> dict[str, Traffic]:
        """By kind of communication, how many this rank took part in so far and the bytes it handed to others, counted as `plan.traffic` does.

        What runs in groups counts in the world too.
        """

    def barrier(self) -> None:
        """Wait until every rank of the world is here."""

    def exchange(self, item: Any) -> list[Any]:
        """Every rank's small picklable item, in rank order."""

    def check(self) -> None:
        """Raise AbortedError or RankError if the others cannot be waited for any more: for a rank that waits for its device."""

    def observe(self, waited: Waited | None) -> None:
        """From now on tell `waited` of this rank's waits for others, or nobody any more; waits that nobody observes cost nothing for it.

        What MPI or NCCL carry is not split into waiting and moving, and not observed.
        """

    def abort(self, reason: str) -> None:
        """Make every rank that waits, now or later, raise AbortedError(reason)."""

    def reset(self) -> None:
        """Forget an abort, once no rank is inside a call any more."""

    def close(self) -> None:
        """Give shared memory back.  Collective unless aborted."""
