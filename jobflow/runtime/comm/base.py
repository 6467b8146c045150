"""Move contiguous bytes between ranks, and nothing else: no tensor, no axis, no gradient is known here.

A communicator belongs to one rank of a world.  Arrays are flat and contiguous.  `bind_*` prepares one operation on fixed
arrays once and returns the calls that perform it at every step; every rank of `ranks` binds and calls the operations in the
same order.  An operation that cannot finish because another rank failed raises AbortedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jobflow.layout import Reduction
from jobflow.ops.base import Call
from jobflow.types import Array


class Communicator(Protocol):
    """The ranks' post: collectives among some of them, and letters between two."""

    rank: int
    size: int

    def allocate(self, nbytes: int) -> Array:
        """A zeroed uint8 array of this rank that its peers in the node can read directly.

        Collective: every rank of the world calls it in the same order, each with its own size.
        """
        ...

    def bind_all_reduce(self, ranks: Sequence[int], source: Array, target: Array, reduce: Reduction) -> list[Call]:
        """target = reduction of every rank's source, combined in rank order (so all ranks get identical bits)."""
        ...

    def bind_all_gather(self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int]) -> list[Call]:
        """target = the ranks' sources, one after another; counts in elements."""
        ...

    def bind_reduce_scatter(self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], reduce: Reduction) -> list[Call]:
        """target = this rank's piece (counts[i] elements) of the reduction of all sources."""
        ...

    def bind_all_to_all(self, ranks: Sequence[int], source: Array, target: Array, counts: Sequence[int], receives: Sequence[int]) -> list[Call]:
        """Piece i of source (counts[i] elements) goes to rank i; piece i of target (receives[i]) comes from it."""
        ...

    def bind_send(self, peer: int, source: Array) -> list[Call]:
        """Hand `source` to `peer`; when the call returns, source may be overwritten."""
        ...

    def bind_receive(self, peer: int, target: Array) -> list[Call]:
        """Fill `target` with what `peer` sends."""
        ...

    def barrier(self) -> None:
        """Wait until every rank of the world is here."""
        ...

    def exchange(self, item: Any) -> list[Any]:
        """Every rank's small picklable item, in rank order."""
        ...

    def abort(self, reason: str) -> None:
        """Make every rank that waits, now or later, raise AbortedError(reason)."""
        ...

    def close(self) -> None:
        """Give shared memory back.  Collective unless aborted."""
        ...
