"""Memory shared by the processes of a node (MPI shared windows), allocated in parts."""

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
from jobflow.runtime.comm.message_queue import Control
from jobflow.runtime.comm.record import MemoryRange, Regions, address
from jobflow.runtime.comm.waits import PlainCounter, WaitEdge
from jobflow.runtime.device.numpy_device import ALIGNMENT, aligned_zeros

#: bytes of a window for small requests, in a world and in a group
WINDOW = 1 << 20
SMALL_WINDOW = 1 << 16
PAGE = 4096
#: advice for madvise on Linux: write to all pages, and fail instead of a SIGBUS if there are too few
_POPULATE_WRITE = 23


class SharedWindow:
    """One shared window, and the arrays of this rank that use its memory; views keep these arrays alive."""

    def __init__(self, memory: Any, parts: dict[int, Array]) -> None:
        self.memory = memory
        #: the part of each rank
        self._parts = parts
        self._views: list[weakref.ref[Array]] = []
        self._many = 64

    def view(self, rank: int, start: int, nbytes: int) -> Array:
        """Return `nbytes` bytes from `start` on of the part of `rank`, as an array that `in_use` counts.

        The memory is accessed only through these arrays.
        """
        array = np.frombuffer(memoryview(self._parts[rank])[start : start + nbytes], np.uint8)
        if len(self._views) >= self._many:
            self._views = [view for view in self._views if view() is not None]
            self._many = max(64, 2 * len(self._views))
        self._views.append(weakref.ref(array))
        return array

    @property
    def in_use(self) -> bool:
        """True while any array uses the memory."""
        return any(view() is not None for view in self._views)


class FreeStretches:
    """The free ranges of windows, as (window, start, stop), allocated first fit."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int, int]] = []

    def fits(self, nbytes: int) -> bool:
        return nbytes == 0 or any(stop - start >= nbytes for _, start, stop in self.free)

    def take(self, nbytes: int) -> tuple[int, int]:
        """Allocate `nbytes`, which must fit; return the window and the offset."""
        i = next(i for i, (_, start, stop) in enumerate(self.free) if stop - start >= nbytes)
        window, start, stop = self.free.pop(i)
        if stop - start > nbytes:
            self.free.append((window, start + nbytes, stop))
        return window, start

    def add(self, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Add free ranges, and merge neighbours."""
        self.free = _merged([*self.free, *stretches])


def part_of_window(needed: int, first: int) -> int:
    """Return the bytes of a rank's part of a new window, for a request of `needed` bytes.

    If the request is smaller than `first` bytes, the part has `first` bytes, so that there is room for later requests.
    """
    return _pages(first if 0 < needed <= first else needed)


def rounded(nbytes: int) -> int:
    """Return the bytes of a window that a request for `nbytes` occupies."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def bytes_of_windows(requests: Sequence[int], first: int = WINDOW) -> int:
    """Return the bytes of a rank's parts of all windows after these requests."""
    free, windows = FreeStretches(), 0
    total = 0
    for nbytes in requests:
        needed = rounded(nbytes)
        if not free.fits(needed):
            size = part_of_window(needed, first)
            free.add([(windows, 0, size)])
            windows, total = windows + 1, total + size
        if needed:
            free.take(needed)
    return total


class Windows:
    """This rank's part of the shared windows of its node, allocated first fit; memory without references is reused."""

    def __init__(self, mpi: Any, node: Any, members: Sequence[int], control: Control, counter: PlainCounter, first: int = WINDOW) -> None:
        self._mpi = mpi
        self._node = node
        self._members = members
        self._control = control
        #: counts the reductions of the node
        self._counter = counter
        self._windows: list[SharedWindow] = []
        self._regions = Regions()
        #: free ranges in this rank's parts
        self._free = FreeStretches()
        self._returned: list[tuple[int, int, int]] = []
        #: bytes of this rank's parts of all windows
        self.total = 0
        #: bytes of each window over all ranks
        self._needed: list[int] = []
        self._first = first

    def reduce(self, value: int, operation: Any) -> int:
        """Return the reduction of `value` over the ranks of the node by an MPI `operation`; collective over the node."""
        mine, all_of_them = np.array([value]), np.zeros(1, np.int64)
        request = self._node.Iallreduce(mine, all_of_them, operation)
        self._counter.done = count = self._counter.done + 1
        needs = [WaitEdge(rank, self._counter.name, count) for rank in self._members if rank != self._control.rank]
        self._control.wait(request.Test, f"an allocation of memory shared by ranks {list(self._members)}", lambda: needs)
        return int(all_of_them[0])

    def allocate(self, nbytes: int) -> Array | None:
        """Return `nbytes` of zeroed memory of this rank; None if the node has too little shared memory.  Collective over the node."""
        needed = rounded(nbytes)
        # after this reduction the peers have finished all earlier operations, so returned memory may be reused
        lacking = 0 if self._fits(needed) else needed
        if self.reduce(lacking, self._mpi.MAX) and not self._open(lacking):
            return None
        return self._take(nbytes, needed) if nbytes else aligned_zeros(0)

    def _fits(self, needed: int) -> bool:
        if self._returned:
            returned, self._returned[:] = [*self._returned], []
            self._free.add(returned)
        return self._free.fits(needed)

    def _take(self, nbytes: int, needed: int) -> Array:
        window, start = self._free.take(needed)
        array = self._windows[window].view(self._control.rank, start, nbytes)
        array[:] = 0
        self._regions.add(MemoryRange(window, start, nbytes), array, partial(self._returned.append, (window, start, start + needed)))
        return array

    def _open(self, request: int) -> bool:
        """Open a window, larger than `request` if there is room; return False on all ranks if there is too little memory for the request."""
        for size in (part_of_window(request, self._first), _pages(request)):
            needed = self.reduce(size, self._mpi.SUM)
            if self.reduce(shared_memory.free(_reserved[0]), self._mpi.MIN) >= needed and self._create(size):
                self._needed.append(needed)
                _reserved[0] += needed
                return True
        return False

    def _create(self, size: int) -> bool:
        """Open a window and reserve its pages; return False on all ranks if the system has too few.

        Pages without a reservation count as free until a rank writes to them, and SIGBUS ends a rank without a page.
        """
        window = self._mpi.Win.Allocate_shared(size + ALIGNMENT, 1, comm=self._node)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        bases = [np.frombuffer(window.Shared_query(i)[0], np.uint8) for i in range(len(self._members))]
        # mappings start at pages, so all processes skip the same number of bytes
        parts = {rank: base[-address(base) % ALIGNMENT :] for rank, base in zip(self._members, bases, strict=True)}
        reserved = populate(parts[self._control.rank])
        if not self.reduce(int(reserved), self._mpi.MIN):
            del bases, parts
            _free_window(window)
            return False
        self._free.add([(len(self._windows), 0, size)])
        self._windows.append(SharedWindow(window, parts))
        self.total += size
        return True

    def locate(self, array: Array) -> MemoryRange | None:
        return self._regions.locate(array)

    def peer_view(self, rank: int, location: MemoryRange) -> Array:
        return self._windows[location.region].view(rank, location.offset, location.nbytes)

    def sync(self) -> None:
        """Order memory accesses on machines that reorder them."""
        for window in self._windows:
            window.memory.Sync()

    def close(self) -> None:
        """Free the windows that no rank uses; other windows remain until the process ends.  Collective over the node."""
        gc.collect()  # arrays in reference cycles are unused
        self._regions.clear()
        self._free.free.clear()
        while self._windows:
            window, needed = self._windows.pop(), self._needed.pop()
            if self.reduce(int(window.in_use), self._mpi.MAX):
                _unfreed.append(window)
            else:
                memory = window.memory
                del window
                _free_window(memory)
                _reserved[0] -= needed


def _merged(stretches: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the ranges in order, with neighbours merged."""
    merged: list[tuple[int, int, int]] = []
    for window, start, stop in sorted(stretches):
        if merged and merged[-1][0] == window and merged[-1][2] == start:
            merged[-1] = window, merged[-1][1], stop
        else:
            merged.append((window, start, stop))
    return merged


#: windows that cannot be freed, because arrays still use them
_unfreed: list[SharedWindow] = []
#: bytes of all windows of this process and its peers
_reserved = [0]


def _free_window(window: Any) -> None:
    window.Unlock_all()
    window.Free()


def populate(memory: Array) -> bool:
    """Reserve the pages of unwritten shared memory; return False if the system has too few."""
    start = address(memory) // PAGE * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address(memory) + memory.nbytes - start), _POPULATE_WRITE) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS):  # Linux before 5.14 reserves a page at its first write
        memory[::PAGE] = 0
        return True
    return False
