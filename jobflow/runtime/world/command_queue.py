"""Short messages between the client and serving ranks, through shared memory.

Every rank has a slot for each rank that it writes to: a count and a length in a cache line, followed by the message.  The reader polls the count,
so a message costs a copy and no MPI call.  A slot holds one message: the client writes a command only after it has read the results of the
previous one.

Long messages, and messages to ranks without common shared memory, use `MessageQueue`; readers poll both.
The count must become visible after the message, which requires ordered stores, as on x86; other machines have no slots.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.runtime.comm.flags import ORDERED
from jobflow.runtime.comm.message_queue import Control, MessageQueue, read, write
from jobflow.runtime.comm.mpi_communicator import MpiCommunicator
from jobflow.runtime.comm.record import MemoryRange
from jobflow.runtime.comm.waits import Counter, PlainCounter, WaitEdge
from jobflow.runtime.device.numpy_device import ALIGNMENT
from jobflow.runtime.world.world import Command

#: maximum bytes of a message in a slot
LONGEST = 16 * 1024
#: the rank that sends commands
CLIENT = 0
#: the message for an empty list, the usual result of a run
EMPTY: bytes = write([])[0]


class Direction:
    """The slot for messages from one rank to another, as used by one of its ends: the writer or the reader."""

    def __init__(self, memory: Array) -> None:
        self._head = memoryview(memory[:ALIGNMENT].view(np.int64))
        self._body = memoryview(memory[ALIGNMENT:])
        self._known = 0

    def put(self, message: bytes) -> None:
        """Write a message; the previous one must have been read."""
        self._body[: len(message)] = message
        self._head[1] = len(message)
        self._known += 1
        self._head[0] = self._known

    def full(self) -> bool:
        """Return True if there is an unread message."""
        return bool(self._head[0] != self._known)

    def take(self) -> bytes:
        self._known += 1
        return bytes(self._body[: self._head[1]])


class CommandQueue:
    """The command messages of one rank.  The constructor is collective over a world; `name` is the same on all ranks."""

    def __init__(self, comm: MpiCommunicator, control: Control, queue: MessageQueue, name: str) -> None:
        self._control = control
        self._queue = queue
        peers = [rank for rank in range(comm.size) if rank != comm.rank] if comm.rank == CLIENT else [CLIENT]
        #: the slots to and from each peer
        self._slots: dict[int, tuple[Direction, Direction]] = {}
        self._sent = {peer: PlainCounter(f"{name} {comm.rank}>{peer}") for peer in peers}
        self._received = {peer: PlainCounter(f"{name} {peer}>{comm.rank}") for peer in peers}
        self._counters: list[Counter] = list(self._sent.values())
        control.counters.append(self._counters)
        self._serves = comm.rank != CLIENT
        #: the last command without arguments and its message; the last such message received and its item
        self._bare: tuple[Any, list[Any]] = None, []
        self._known: tuple[bytes, Any] = b"", None
        mine = comm.allocate(command_queue_bytes(comm.rank, comm.size))
        self._memory = mine  # keeps the memory alive for peers
        locations: list[MemoryRange | None] = comm.exchange(comm.locate(mine) if platform.machine() in ORDERED else None)
        for number, peer in enumerate(peers):
            to, back = _slot(locations[comm.rank], number), _slot(locations[peer], comm.rank - 1 if peer == CLIENT else 0)
            if to is not None and back is not None and comm.can_read(peer):
                self._slots[peer] = Direction(comm.peer_view(comm.rank, to)), Direction(comm.peer_view(peer, back))

    def send(self, messages: dict[int, list[Any]], what: str) -> None:
        """Send `messages[rank]`, an output of `write`, to each rank; return when the memory of the messages may be used again."""
        long: dict[int, list[Any]] = {}
        for rank, parts in messages.items():
            self._sent[rank].done += 1
            if len(parts) == 1 and len(parts[0]) <= LONGEST and rank in self._slots:
                self._slots[rank][0].put(parts[0])
            else:
                long[rank] = parts
        if long:
            self._queue.hand_over(long, what)

    def bare(self, command: Command) -> list[Any]:
        """Return the message for a command without arguments, cached for repeated calls."""
        if command != self._bare[0]:
            self._bare = command, write(("call", command, None))
        return self._bare[1]

    def answer(self, item: Any, what: str) -> None:
        """Send `item` to the client."""
        self.send({CLIENT: [EMPTY] if type(item) is list and not item else write(item)}, what)

    def receive(self, rank: int, what: str, patient: bool = False) -> Any:
        """Wait for the next item from `rank`, in its slot or the message queue, and return it.

        `what` and `patient` have the meaning of `Control.wait`.
        """
        counter = self._received[rank]
        counter.done += 1
        if rank not in self._slots:
            return self._queue.receive(rank, what, patient)
        slot = self._slots[rank][1]
        if not slot.full():
            needs = (WaitEdge(rank, counter.name, counter.done),)
            self._control.wait(lambda: slot.full() or self._queue.waiting(rank), what, lambda: needs, patient)
        return self._read(slot.take()) if slot.full() else self._queue.receive(rank, what, patient)

    def _read(self, message: bytes) -> Any:
        if message == EMPTY:
            return []
        if message != self._known[0]:
            item = read(message)
            if not self._serves or item[0] != "call" or item[2] is not None:
                return item
            self._known = message, item  # a message without arguments always means the same command
        return self._known[1]

    def close(self) -> None:
        """Release all views of the memory of other ranks."""
        self._slots.clear()
        self._control.counters.remove(self._counters)


def command_queue_bytes(rank: int, ranks: int) -> int:
    """Return the bytes that a rank allocates for its slots: the client has one for each other rank, and other ranks have one."""
    return (ranks - 1 if rank == CLIENT else 1) * (ALIGNMENT + LONGEST)


def _slot(location: MemoryRange | None, number: int) -> MemoryRange | None:
    """Return the memory range of the slot with this number in a rank's allocation at `location`; None without a location."""
    size = ALIGNMENT + LONGEST
    return None if location is None else MemoryRange(location.region, location.offset + number * size, size)
