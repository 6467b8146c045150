"""Synchronisation of processes by flags in shared memory: each process writes its own cache line and polls the others.

This requires that stores become visible in program order, as on x86.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.runtime.comm.message_queue import Control
from jobflow.runtime.comm.waits import WaitEdge, What

#: machines on which stores become visible to other cores in program order
ORDERED = ("x86_64", "AMD64", "i686", "i386")


class FlagBarrier:
    """A barrier over flags: `flags[rank]` counts the barriers that another rank has reached."""

    def __init__(self, control: Control, name: str, mine: memoryview, flags: Mapping[int, memoryview]) -> None:
        self._control = control
        self.name = name
        self._mine = mine
        self._flags = tuple(flags.values())
        self._ranks = tuple(flags)
        self.done = 0

    def wait(self, what: What) -> None:
        self.done = count = self.done + 1
        self._mine[0] = count
        for flag in self._flags:
            if flag[0] < count:
                self._control.wait(lambda flag=flag: flag[0] >= count, what, self._missing)  # type: ignore[misc]

    def _missing(self) -> list[WaitEdge]:
        return [WaitEdge(rank, self.name, self.done) for rank, flag in zip(self._ranks, self._flags, strict=True) if flag[0] < self.done]


class FlagChannel:
    """One end of a channel between two ranks: each end counts its operations in its own cache line, which the other end polls."""

    def __init__(self, control: Control, name: str, mine: memoryview, theirs: memoryview, peer: int) -> None:
        self._control = control
        self.name = name
        self._mine = mine
        self._theirs = theirs
        self._peer = peer
        self.done = 0

    def advance(self) -> int:
        self.done = self._mine[0] = self.done + 1
        return self.done

    def wait_for(self, count: int, what: str) -> None:
        theirs = self._theirs
        if theirs[0] < count:
            self._control.wait(lambda: theirs[0] >= count, what, lambda: (WaitEdge(self._peer, self.name, count),))


class FlagComparison:
    """A barrier at which ranks compare digests; `theirs[rank]` are another rank's slots, each with a comparison number and a digest.

    Each rank uses one slot for even and one for odd comparisons.  A rank at the next comparison has read all slots of this one, but other ranks
    may still read its slot.
    """

    def __init__(self, control: Control, name: str, mine: Sequence[memoryview], theirs: Mapping[int, Sequence[memoryview]]) -> None:
        self._control = control
        self.name = name
        self._mine = mine
        self._ranks = tuple(theirs)
        #: the slots of the other ranks for even and for odd comparisons
        self._theirs = [tuple(places[odd] for places in theirs.values()) for odd in (0, 1)]
        self.done = 0

    def compare(self, digest: int, what: What) -> bool:
        """Wait for the digests of all ranks, and return True if all are equal; 0 <= digest < 2**64.

        `what` describes the next operation of this rank.
        """
        self.done = count = self.done + 1
        odd = count & 1
        mine = self._mine[odd]
        mine[1] = digest
        mine[0] = count
        same = True
        for theirs in self._theirs[odd]:
            if theirs[0] < count:
                self._control.wait(lambda theirs=theirs: theirs[0] >= count, what, self._missing)  # type: ignore[misc]
            if theirs[1] != digest:
                same = False
        return same

    def _missing(self) -> list[WaitEdge]:
        count = self.done
        places = zip(self._ranks, self._theirs[count & 1], strict=True)
        return [WaitEdge(rank, self.name, count) for rank, theirs in places if theirs[0] < count]


class MpiComparison:
    """A digest comparison by an MPI reduction, for ranks without flags."""

    def __init__(self, control: Control, name: str, comm: Any, maximum: Any, others: Sequence[int]) -> None:
        self._control = control
        self.name = name
        self._comm = comm
        self._maximum = maximum
        self._others = others
        self._mine = np.zeros(2, np.uint64)
        self._largest = np.zeros(2, np.uint64)
        self.done = 0

    def compare(self, digest: int, what: What) -> bool:
        self._mine[0] = digest
        self._mine[1] = ~self._mine[0]
        request = self._comm.Iallreduce(self._mine, self._largest, self._maximum)
        self.done = count = self.done + 1
        self._control.wait(request.Test, what, lambda: [WaitEdge(rank, self.name, count) for rank in self._others])
        return bool((self._largest == self._mine).all())  # the maximum equals the minimum, which the complement of the digest provides
