"""Memory that the processes of a node share (MPI shared windows), allocated in parts."""

from __future__ import annotations

import ctypes
import errno
import gc
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.runtime.comm import shared_memory
from jobflow.runtime.comm.post import Control
from jobflow.runtime.comm.record import MemoryRange, Regions, address
from jobflow.runtime.comm.waits import Need, WayCount
from jobflow.runtime.device.numpy_device import ALIGNMENT, aligned_zeros

#: bytes of a window for small requests, of a world and of a group
WINDOW = 1 << 20
SMALL_WINDOW = 1 << 16
PAGE = 4096
#: of madvise on Linux: write to all pages, and fail instead of a SIGBUS where there are too few
_POPULATE_WRITE = 23


class SharedWindow:
    """One shared window, and all that this rank has lent of it: arrays of their own, which views of them keep alive."""

    def __init__(self, memory: Any, parts: dict[int, Array]) -> None:
        self.memory = memory
        #: by rank, its part
        self._parts = parts
        self._lent: list[weakref.ref[Array]] = []
        self._many = 64

    def lend(self, rank: int, start: int, nbytes: int) -> Array:
        """Some bytes of a rank's part; nothing else of this class leads into the memory."""
        array = np.frombuffer(memoryview(self._parts[rank])[start : start + nbytes], np.uint8)
        if len(self._lent) >= self._many:
            self._lent = [lent for lent in self._lent if lent() is not None]
            self._many = max(64, 2 * len(self._lent))
        self._lent.append(weakref.ref(array))
        return array

    @property
    def is_lent(self) -> bool:
        """True while anything of it is in use."""
        return any(lent() is not None for lent in self._lent)


class FreeStretches:
    """Free bytes of windows, as (window, start, stop), handed out first fit."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int, int]] = []

    def fits(self, nbytes: int) -> bool:
        return nbytes == 0 or any(stop - start >= nbytes for _, start, stop in self.free)

    def take(self, nbytes: int) -> tuple[int, int]:
        """The window and the offset of so many bytes, which fit."""
        i = next(i for i, (_, start, stop) in enumerate(self.free) if stop - start >= nbytes)
        window, start, stop = self.free.pop(i)
        if stop - start > nbytes:
            self.free.append((window, start + nbytes, stop))
        return window, start

    def add(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Add stretches, and join neighbours."""
        self.free = _merged([*self.free, *stretches])


def part_of_window(wanted: int, first: int) -> int:
    """The bytes of a rank's part of a new window, if it has no room for `wanted` bytes: a part for a small request has room for later ones."""
    return _pages(first if 0 < wanted <= first else wanted)


def rounded(nbytes: int) -> int:
    """The bytes that a request for `nbytes` takes of a window."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def bytes_of_windows(requests: Sequence[int], first: int = WINDOW) -> int:
    """The bytes of a rank's parts of all windows after these requests."""
    free, windows = FreeStretches(), 0
    total = 0
    for nbytes in requests:
        wanted = rounded(nbytes)
        if not free.fits(wanted):
            size = part_of_window(wanted, first)
            free.add([(windows, 0, size)])
            windows, total = windows + 1, total + size
        if wanted:
            free.take(wanted)
    return total


class Windows:
    """This rank's part of the shared windows of its node, handed out first fit; what nobody points into is handed out again."""

    def __init__(self, mpi: Any, node: Any, members: Sequence[int], control: Control, way: WayCount, first: int = WINDOW) -> None:
        self._mpi = mpi
        self._node = node
        self._members = members
        self._control = control
        #: counts what the node has agreed on
        self._way = way
        self._windows: list[SharedWindow] = []
        self._regions = Regions()
        #: in this rank's parts
        self._free = FreeStretches()
        self._returned: list[tuple[int, int, int]] = []
        #: bytes of this rank's parts of all windows
        self.total = 0
        #: bytes of each window, of all ranks
        self._needed: list[int] = []
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
        wanted = rounded(nbytes)
        # after this the peers have finished all earlier operations, so that what was returned may be used again
        lacking = 0 if self._fits(wanted) else wanted
        if self.agree(lacking, self._mpi.MAX) and not self._open(lacking):
            return None
        return self._take(nbytes, wanted) if nbytes else aligned_zeros(0)

    def _fits(self, wanted: int) -> bool:
        if self._returned:
            returned, self._returned[:] = [*self._returned], []
            self._free.add(returned)
        return self._free.fits(wanted)

    def _take(self, nbytes: int, wanted: int) -> Array:
        window, start = self._free.take(wanted)
        array = self._windows[window].lend(self._control.rank, start, nbytes)
        array[:] = 0
        self._regions.add(MemoryRange(window, start, nbytes), array, partial(self._returned.append, (window, start, start + wanted)))
        return array

    def _open(self, wanted: int) -> bool:
        """Open a window, larger than the request if there is room."""
        for size in (part_of_window(wanted, self._first), _pages(wanted)):
            needed = self.agree(size, self._mpi.SUM)
            if self.agree(shared_memory.free(_reserved[0]), self._mpi.MIN) >= needed and self._create(size):
                self._needed.append(needed)
                _reserved[0] += needed
                return True
        return False

    def _create(self, size: int) -> bool:
        """Open a window and reserve its pages; False on all ranks if the system has too few.

        Pages without a reservation count as free until a rank writes to them, and SIGBUS ends a rank that finds none.
        """
        window = self._mpi.Win.Allocate_shared(size + ALIGNMENT, 1, comm=self._node)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        bases = [np.frombuffer(window.Shared_query(i)[0], np.uint8) for i in range(len(self._members))]
        # pages are mapped whole, so that all processes skip the same number of bytes; sizes differ by rank
        parts = {rank: base[-address(base) % ALIGNMENT :] for rank, base in zip(self._members, bases, strict=True)}
        reserved = populate(parts[self._control.rank])
        if not self.agree(int(reserved), self._mpi.MIN):
            del bases, parts
            _free_window(window)
            return False
        self._free.add([(len(self._windows), 0, size)])
        self._windows.append(SharedWindow(window, parts))
        self.total += size
        return True

    def locate(self, array: Array) -> MemoryRange | None:
        return self._regions.locate(array)

    def look(self, rank: int, place: MemoryRange) -> Array:
        return self._windows[place.region].lend(rank, place.offset, place.nbytes)

    def sync(self) -> None:
        """Order memory accesses, where the machine does not."""
        for window in self._windows:
            window.memory.Sync()

    def close(self) -> None:
        """Free the windows of which no rank uses anything any more; the others last as long as the process."""
        gc.collect()  # what only cycles hold is not used
        self._regions.clear()
        self._free.free.clear()
        while self._windows:
            window, needed = self._windows.pop(), self._needed.pop()
            if self.agree(int(window.is_lent), self._mpi.MAX):
                _kept.append(window)
            else:
                memory = window.memory
                del window
                _free_window(memory)
                _reserved[0] -= needed


def _merged(stretches: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """In order, neighbours joined."""
    merged: list[tuple[int, int, int]] = []
    for window, start, stop in sorted(stretches):
        if merged and merged[-1][0] == window and merged[-1][2] == start:
            merged[-1] = window, merged[-1][1], stop
        else:
            merged.append((window, start, stop))
    return merged


#: windows that cannot be freed, since some of their memory is still lent
_kept: list[SharedWindow] = []
#: bytes of all windows of this process and its peers
_reserved = [0]


def _free_window(window: Any) -> None:
    window.Unlock_all()
    window.Free()


def populate(memory: Array) -> bool:
    """Reserve the pages of shared memory that nothing has written to; False if the system has too few."""
    start = address(memory) // PAGE * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address(memory) + memory.nbytes - start), _POPULATE_WRITE) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS):  # Linux before 5.14 reserves a page when it is written to
        memory[::PAGE] = 0
        return True
    return False
