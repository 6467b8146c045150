"""Prediction of the memory that a rank allocates for a program.

    memory_of(Program(physical, storage, target), rank, ranks).total

The rank's executor is bound as usual, with a device and a communicator that reserve addresses instead of memory and count the requested
bytes.  So the numbers come from the code that allocates: variables, buffers of the plan, staging buffers of collectives, and scratch of
kernels.  The interpreter, BLAS and MPI are not counted.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.plan.footprint import Footprint, footprint
from jobflow.plan.plan import Plan, aligned
from jobflow.plan.storage import is_common
from jobflow.program.program import Program
from jobflow.program.shared_buffers import IO_BUFFERS, io_buffers_of
from jobflow.runtime.comm.communicator import Communicator, Waited
from jobflow.runtime.comm.record import BindingMessage, MemoryRange, Record, Recorder, Regions
from jobflow.runtime.comm.shared import Barrier, Channel, SharedOperations
from jobflow.runtime.comm.shared_windows import bytes_of_windows
from jobflow.runtime.device.numpy_device import ALIGNMENT, CpuDevice
from jobflow.runtime.executor import Executor
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.command_queue import command_queue_bytes

#: flags of pages whose memory is allocated at the first write
_RESERVE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
#: the error of methods that only ranks that run may call
RESERVES = "a rank that only reserves memory does not run"


@dataclass(frozen=True)
class Allocation:
    """Bytes that one rank allocates for a program."""

    #: parameters, optimizer state and other variables, of this rank alone
    variables: int
    #: variables, arguments and results that all ranks of a machine share; one rank allocates them
    common: int
    #: the buffers of the plan
    buffers: int
    #: copies of sources that peers cannot read directly
    staging: int
    #: temporary memory of kernels
    scratch: int
    #: free bytes of shared windows for later requests, if ranks are processes
    windows: int = 0

    @property
    def total(self) -> int:
        """The bytes of a rank, including memory shared with other ranks."""
        return self.variables + self.common + self.buffers + self.staging + self.scratch + self.windows


def allocation(program: Program, rank: int, ranks: int, processes: bool = False) -> Allocation | None:
    """Return the allocation of rank `rank` of `ranks` on one machine; None for a GPU, because its kernels cannot be bound without the GPU.

    With `processes`, ranks share memory in windows, which also contain the command queue of the world.
    """
    if program.target.kind != "cpu":
        return None
    plan = program.plan(rank, ranks)
    variables = _buffer_sizes(plan)
    io_buffers = io_buffers_of(program.physical) if program.storage.io_buffers else None
    exchanged = io_buffers.nbytes if io_buffers is not None and ranks > 1 else 0
    device = ReservingDevice()
    comm = ReservingCommunicator(rank, ranks)
    state = State(rank, device, comm)
    state.buffers = {name: _reserved(nbytes) for name, nbytes in {**variables, IO_BUFFERS: exchanged}.items()}
    Executor(plan, device, comm, state, None, program.target)
    own, common = (sum(_padded(n) for name, n in variables.items() if is_common(name) is shared) for shared in (False, True))
    spare = _room(variables, comm.requests, rank, ranks) if processes and ranks > 1 else 0
    return Allocation(own, common + _padded(exchanged), device.allocated - device.scratched + comm.allocated, comm.staged, device.scratched, spare)


def _room(variables: dict[str, int], requests: Sequence[int], rank: int, ranks: int) -> int:
    """Return the bytes of this rank's windows that are not variables or requests: the command queue and unused space."""
    shared = [nbytes for name, nbytes in variables.items() if is_common(name) and rank == 0]
    return bytes_of_windows([command_queue_bytes(rank, ranks), *shared, *requests]) - sum(shared) - sum(requests)


def memory_of(program: Program, rank: int, ranks: int, processes: bool = False) -> Footprint:
    """Return the memory of rank `rank` of `ranks` on one machine: the peak by use, and for a CPU the total allocation."""
    plan = footprint(program.plan(rank, ranks))
    allocated = allocation(program, rank, ranks, processes)
    if allocated is None:
        return plan
    at_peak = {**plan.at_peak, "staging": allocated.staging, "scratch": allocated.scratch}
    return replace(plan, at_peak=at_peak, allocated=allocated.total - at_peak["variables"] - at_peak["optimizer state"])


def _buffer_sizes(plan: Plan) -> dict[str, int]:
    """Return the sizes in bytes of the buffers that contain variables, by name of the buffer."""
    sizes: dict[str, int] = {}
    for slot in plan.variables.values():
        sizes[slot.buffer] = max(sizes.get(slot.buffer, 0), aligned(slot.stop))
    return sizes


def _padded(nbytes: int) -> int:
    """Return the number of bytes that an aligned allocation of `nbytes` bytes reserves."""
    return nbytes + ALIGNMENT


def _reserved(nbytes: int) -> Array:
    """Return an array of `nbytes` reserved addresses without memory."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1), flags=_RESERVE), np.uint8)[:nbytes]


class ReservingDevice(CpuDevice):
    """A CPU device that reserves addresses instead of memory, and counts the requested bytes."""

    def __init__(self) -> None:
        self.allocated = self.scratched = 0
        super().__init__()

    def allocate(self, nbytes: int) -> Array:
        self.allocated += _padded(nbytes)
        return _reserved(nbytes)

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Array:
        before = self.allocated
        array = super().scratch(shape, dtype)
        self.scratched += self.allocated - before
        return array


class ReservingCommunicator(Recorder):
    """The communicator of one of several ranks of a machine; bound operations get staging offsets and never run."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__(tuple(range(ranks)), rank, _reserved)
        self._regions = Regions()
        self.allocated = self.staged = 0
        self.requests: list[int] = []

    def allocate(self, nbytes: int) -> Array:
        self.allocated += _padded(nbytes)
        self.requests.append(nbytes)
        array = _reserved(nbytes)
        if nbytes:
            self._regions.add(MemoryRange(0, 0, nbytes), array)
        return array

    def locate(self, array: Array) -> MemoryRange | None:
        return self._regions.locate(array)

    def exchange(self, item: Any) -> list[Any]:
        """Return `item` once per rank; real ranks would all send equal items."""
        return [item] * self.size

    def seal(self) -> None:
        before = self.allocated
        SharedOperations(self, self.rank).write(self._records)
        self.staged = self.allocated - before
        self.allocated = before

    def barrier(self) -> None:
        """Return immediately, because there are no other ranks."""

    # The other methods of the interface are for ranks that run.

    def compare_digests(self, digest: int, what: Callable[[], str]) -> None:
        raise AssertionError(RESERVES)

    def allocate_common(self, nbytes: int) -> Array | None:
        raise AssertionError(RESERVES)

    def peer_view(self, rank: int, location: MemoryRange) -> Array:
        raise AssertionError(RESERVES)

    def barriers(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Barrier]:
        raise AssertionError(RESERVES)

    def channels(self, pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Channel]:
        raise AssertionError(RESERVES)

    def check(self) -> None:
        raise AssertionError(RESERVES)

    def observe(self, waited: Waited | None) -> None:
        raise AssertionError(RESERVES)

    def abort(self, reason: str) -> None:
        raise AssertionError(RESERVES)

    def reset(self) -> None:
        raise AssertionError(RESERVES)

    def close(self) -> None:
        raise AssertionError(RESERVES)

    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        raise AssertionError(RESERVES)

    def _complete(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        raise AssertionError(RESERVES)
