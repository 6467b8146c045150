"""Memory of a node that its processes share: MPI's shared windows, handed out in parts."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.runtime.comm.post import Control
from jobflow.runtime.comm.record import Place, Regions, address
from jobflow.runtime.comm.waits import Count, Need
from jobflow.runtime.device.cpu import ALIGNMENT, aligned_zeros
from jobflow.types import Array

#: bytes of the first window of a world, and of a group; each further one is at least as large as all before it, so that there are few
WINDOW = 1 << 20
SMALL_WINDOW = 1 << 16
PAGE = 4096
#: bytes of /dev/shm that are left to others
SPARE = 1 << 20


class Windows:
    """This rank's part of the shared windows of its node, handed out first fit; what nobody points into is handed out again."""

    def __init__(self, mpi: Any, node: Any, members: Sequence[int], control: Control, way: Count, first: int = WINDOW) -> None:
        self._mpi = mpi
        self._node = node
        self._members = members
        self._control = control
        #: counts what the node has agreed on
        self._way = way
        self._windows: list[Any] = []
        #: by window and rank: its part, and the array whose references tell whether anything points into it
        self._parts: list[dict[int, Array]] = []
        self._bases: list[list[Array]] = []
        self._regions = Regions()
        #: (window, start, stop) in this rank's parts
        self._free: list[tuple[int, int, int]] = []
        self._returned: list[tuple[int, int, int]] = []
        self._total = 0
        self._first = first

    def agree(self, value: int, operation: Any) -> int:
        """The reduction of the node's values."""
        mine, all_of_them = np.array([value]), np.zeros(1, np.int64)
        request = self._node.Iallreduce(mine, all_of_them, operation)
        self._way.done = count = self._way.done + 1
        needs = [Need(rank, self._way.name, count) for rank in self._members if rank != self._control.rank]
        self._control.wait(request.Test, f"an allocation of memory shared by ranks {list(self._members)}", lambda: needs)
        return int(all_of_them[0])

    def allocate(self, nbytes: int) -> Array | None:
        """`nbytes` of this rank, zeroed; None if the node has too little shared memory.  Collective over the node."""
        wanted = -(-nbytes // ALIGNMENT) * ALIGNMENT
        # after this the peers have finished all earlier operations, so that what was returned may be used again
        largest = self.agree(wanted if self._fit(wanted) is None else 0, self._mpi.MAX)
        if largest > 0 and not self._open(wanted, largest):
            return None
        return self._take(nbytes, wanted) if nbytes else aligned_zeros(0)

    def _fit(self, wanted: int) -> int | None:
        """Which of the free stretches is long enough."""
        if self._returned:
            self._free = _merged([*self._free, *self._returned])
            self._returned.clear()
        return next((i for i, (_, start, stop) in enumerate(self._free) if stop - start >= wanted), None if wanted else -1)

    def _take(self, nbytes: int, wanted: int) -> Array:
        i = self._fit(wanted)
        assert i is not None
        window, start, stop = self._free.pop(i)
        if stop - start > wanted:
            self._free.append((window, start + wanted, stop))
        mine = memoryview(self._parts[window][self._control.rank])
        array = np.frombuffer(mine[start : start + nbytes], np.uint8)  # an array of its own, which its views keep alive
        array[:] = 0
        self._regions.add(Place(window, start, nbytes), array, partial(self._returned.append, (window, start, start + wanted)))
        return array

    def _open(self, wanted: int, largest: int) -> bool:
        """A new window; a generous one if there is room."""
        generous = max(largest, self._total, self._first)
        for size in (generous, wanted):
            size = -(-size // PAGE) * PAGE
            needed = self.agree(size, self._mpi.SUM)
            if self.agree(_free_shared_memory(), self._mpi.MIN) >= needed + SPARE:
                self._create(size)
                return True
        return False

    def _create(self, size: int) -> None:
        window = self._mpi.Win.Allocate_shared(size + ALIGNMENT, 1, comm=self._node)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        bases = [np.frombuffer(window.Shared_query(i)[0], np.uint8) for i in range(len(self._members))]
        # pages are mapped whole, so that all processes skip the same number of bytes
        parts = {rank: base[-address(base) % ALIGNMENT :][:size] for rank, base in zip(self._members, bases, strict=True)}
        self._free.append((len(self._parts), 0, size))
        self._windows.append(window)
        self._parts.append(parts)
        self._bases.append(bases)
        self._total += size

    def locate(self, array: Array) -> Place | None:
        return self._regions.locate(array)

    def look(self, rank: int, place: Place) -> Array:
        return self._parts[place.region][rank][place.offset : place.offset + place.nbytes]

    def sync(self) -> None:
        """Order memory accesses, where the machine does not."""
        for window in self._windows:
            window.Sync()

    def close(self) -> None:
        """Free the windows into which no array of any rank points any more; the others last as long as the process."""
        gc.collect()
        self._regions.clear()
        self._parts.clear()
        self._free.clear()
        while self._windows:
            window, bases = self._windows.pop(), self._bases.pop()
            used = any(sys.getrefcount(base) > 3 for base in bases)  # the list, the loop, the call
            if self.agree(int(used), self._mpi.MAX):
                _kept.append(window)
            else:
                bases.clear()
                window.Unlock_all()
                window.Free()


def _merged(stretches: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """In order, neighbours joined."""
    merged: list[tuple[int, int, int]] = []
    for window, start, stop in sorted(stretches):
        if merged and merged[-1][0] == window and merged[-1][2] == start:
            merged[-1] = window, merged[-1][1], stop
        else:
            merged.append((window, start, stop))
    return merged


#: windows that cannot be freed since arrays still point into them
_kept: list[Any] = []


def _free_shared_memory() -> int:
    """Bytes; where there is no /dev/shm, MPI puts windows elsewhere and nothing is known."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return sys.maxsize
    return found.f_bavail * found.f_frsize
