"""Large arrays that a GPU receives from the host while kernels of earlier operations run."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from jobflow.core.types import Array
from jobflow.runtime.device.cuda_copies import Uploads

#: bytes from which an array is received on the stream of copies
LEAST = 1 << 20
#: unused blocks for later arrays: some are filled while kernels read others
SPARE = 4


class ArrivalMemory:
    """Memory of one array at a time."""

    def __init__(self, memory: Array, new_event: Callable[[], Any]) -> None:
        self.memory = memory
        #: the end of the kernels that may read or write the memory; recorded when the last array is released
        self.used = new_event()
        #: False if the event could not be recorded at the release
        self.is_marked = True
        self.arrived = new_event()


class Loan:
    """The owner of the memory of an array and its views; the memory is released with this object."""

    __slots__ = ("__weakref__",)


class Arrivals:
    """New arrays with values of the host, which a separate stream copies; kernels of the compute stream wait for the copy.

    CuPy's pool orders the reuse of memory by one stream only.  So this class keeps blocks of its own, and a copy waits for the kernels of the
    array that had its block before.
    """

    def __init__(self, device: Any, copying: Any, allocate: Callable[[int], Array]) -> None:
        """`allocate(nbytes)` returns memory of the pool of the compute stream; the GPU is active then."""
        self._device, self._copying, self._allocate = device, copying, allocate
        self._uploads = Uploads(copying, device.new_event, device.host_array, device.wait, nullcontext())  # no graph captures `copying`
        self._spare: list[ArrivalMemory] = []
        self._released: deque[ArrivalMemory] = deque()
        self._lock = threading.RLock()  # `allocate` may call `clear`

    def receive(self, value: Array, direct: bool = False) -> Array:
        """Return a new array with the elements of a NumPy array, which may be changed after return.

        With `direct`, `value` is page-locked and contiguous, and the GPU reads it until the event `device.new_event` of the caller.
        """
        cupy, index = self._device.xp, self._device.index
        with self._lock:
            block = self._take(value.nbytes)
            target = cupy.ndarray(value.shape, value.dtype, memptr=block.memory.data)
            try:
                if direct:
                    target.set(value, stream=self._copying)
                else:
                    self._uploads.copy(target, value)
            finally:  # an error of a wait, too, leaves copies under way
                block.arrived.record(self._copying)
                with self._device.lock:
                    self._device.stream.wait_event(block.arrived)
        loan = Loan()
        weakref.finalize(loan, self._release, block).atexit = False
        memory = cupy.cuda.UnownedMemory(block.memory.data.ptr, value.nbytes, loan, index)
        array: Array = cupy.ndarray(value.shape, value.dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))
        return array

    def clear(self) -> None:
        """Return the memory of blocks without an array to the pool."""
        with self._lock:
            self._collect()
            self._spare.clear()

    def _release(self, block: ArrivalMemory) -> None:
        """Keep the block for a later array; any thread may call this method, also inside another one."""
        block.is_marked = False
        lock = self._device.lock
        if lock.acquire(blocking=False):  # the thread may hold a lock for which the owner of this one waits
            try:
                if not self._device.captures:  # the event would become a part of the graph
                    block.used.record(self._device.stream)
                    block.is_marked = True
            finally:
                lock.release()
        self._released.append(block)

    def _collect(self) -> None:
        while self._released:
            self._spare.append(self._released.popleft())
        del self._spare[:-SPARE]  # copies to these have ended on the compute stream, so the pool may reuse them

    def _take(self, nbytes: int) -> ArrivalMemory:
        """Return a block that the stream of copies may write."""
        self._collect()
        suitable = [block for block in self._spare if block.memory.nbytes == nbytes]
        if suitable:
            block = suitable[0]
            self._spare.remove(block)
        else:
            block = ArrivalMemory(self._allocate(nbytes), self._device.new_event)
            block.is_marked = False  # kernels may have had the memory of the pool before
        if not block.is_marked:
            with self._device.lock:
                block.used.record(self._device.stream)
        self._copying.wait_event(block.used)
        return block
