"""Synchronisation of processes by flags in shared memory: each writes its own cache line and polls those of the others.

That relies on stores becoming visible in the order in which they were made, as on x86.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.runtime.comm.post import Control
from jobflow.runtime.comm.waits import Need, What

#: machines on which another core sees stores in the order in which they were made
ORDERED = ("x86_64", "AMD64", "i686", "i386")


class FlagBarrier:
    """Meets by flags: `flags[rank]` counts the meetings that another rank has come to."""

    def __init__(self, control: Control, name: str, mine: memoryview, flags: Mapping[int, memoryview]) -> None:
        self._control = control
        self.name = name
        self._mine = mine
        self._flags = tuple(flags.values())
        self._ranks = tuple(flags)
        self.done = 0

    def meet(self, what: What) -> None:
        self.done = count = self.done + 1
        self._mine[0] = count
        for flag in self._flags:
            if flag[0] < count:
                self._control.wait(lambda flag=flag: flag[0] >= count, what, self._missing)  # type: ignore[misc]

    def _missing(self) -> list[Need]:
        return [Need(rank, self.name, self.done) for rank, flag in zip(self._ranks, self._flags, strict=True) if flag[0] < self.done]


class FlagLine:
    """One end of the way between two ranks: each has a count in a cache line of its own."""

    def __init__(self, control: Control, name: str, mine: memoryview, theirs: memoryview, peer: int) -> None:
        self._control = control
        self.name = name
        self._mine = mine
        self._theirs = theirs
        self._peer = peer
        self.done = 0

    def tell(self) -> int:
        self.done = self._mine[0] = self.done + 1
        return self.done

    def hear(self, count: int, what: str) -> None:
        theirs = self._theirs
        if theirs[0] < count:
            self._control.wait(lambda: theirs[0] >= count, what, lambda: (Need(self._peer, self.name, count),))


class Accord:
    """Ranks meet and compare a number: `theirs[rank]` is what that rank came with, and for which time.

    Each has two places, used in turn: who has come to the next meeting has seen all of this one, but others may still look at it.
    """

    def __init__(self, control: Control, name: str, mine: Sequence[memoryview], theirs: Mapping[int, Sequence[memoryview]]) -> None:
        self._control = control
        self.name = name
        self._mine = mine
        self._ranks = tuple(theirs)
        #: the others' places for even and for odd meetings
        self._theirs = [tuple(places[odd] for places in theirs.values()) for odd in (0, 1)]
        self.done = 0

    def agree(self, digest: int, what: What) -> bool:
        """True if all ranks come with the same digest, 0 <= digest < 2**64."""
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

    def _missing(self) -> list[Need]:
        count = self.done
        places = zip(self._ranks, self._theirs[count & 1], strict=True)
        return [Need(rank, self.name, count) for rank, theirs in places if theirs[0] < count]


class Ballot:
    """The same by an MPI reduction, for ranks without flags."""

    def __init__(self, control: Control, name: str, comm: Any, maximum: Any, others: Sequence[int]) -> None:
        self._control = control
        self.name = name
        self._comm = comm
        self._maximum = maximum
        self._others = others
        self._mine = np.zeros(2, np.uint64)
        self._largest = np.zeros(2, np.uint64)
        self.done = 0

    def agree(self, digest: int, what: What) -> bool:
        self._mine[0] = digest
        self._mine[1] = ~self._mine[0]
        request = self._comm.Iallreduce(self._mine, self._largest, self._maximum)
        self.done = count = self.done + 1
        self._control.wait(request.Test, what, lambda: [Need(rank, self.name, count) for rank in self._others])
        return bool((self._largest == self._mine).all())  # the largest is the smallest
