"""Short messages between the client and serving ranks, through shared memory.

Every rank has a box for each rank that it writes to: a count and a length in a cache line, and behind it the letter.  The reader polls
the count, so a letter costs a copy and no call of MPI.  A box holds one letter: the client writes a command only after it has read
the answers to the one before.

What is long, and what goes to ranks that are on another node or share no memory, goes through `Post`; readers listen to both.
That a count is seen after the letter relies on stores becoming visible in order, as on x86; elsewhere there are no boxes.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.runtime.comm.flags import ORDERED
from jobflow.runtime.comm.mpi_communicator import MpiCommunicator
from jobflow.runtime.comm.post import Control, Post, read, write
from jobflow.runtime.comm.record import MemoryRange
from jobflow.runtime.comm.waits import Need, Way, WayCount
from jobflow.runtime.device.numpy_device import ALIGNMENT
from jobflow.runtime.world.world import Command

#: bytes of the longest letter
LONGEST = 16 * 1024
#: the rank that calls
CLIENT = 0
#: the letter for an empty list, which is what a run answers that gives its outputs elsewhere
EMPTY: bytes = write([])[0]


class Direction:
    """One direction between two ranks, as its reader or its writer sees it."""

    def __init__(self, memory: Array) -> None:
        self._head = memoryview(memory[:ALIGNMENT].view(np.int64))
        self._body = memoryview(memory[ALIGNMENT:])
        self._known = 0

    def put(self, letter: bytes) -> None:
        """The letter before must have been read."""
        self._body[: len(letter)] = letter
        self._head[1] = len(letter)
        self._known += 1
        self._head[0] = self._known

    def full(self) -> bool:
        """True if there is a letter that has not been taken."""
        return bool(self._head[0] != self._known)

    def take(self) -> bytes:
        self._known += 1
        return bytes(self._body[: self._head[1]])


class Mailbox:
    """The letters of one rank.  Made by all ranks of a world together; `name` is the same on all of them."""

    def __init__(self, comm: MpiCommunicator, control: Control, post: Post, name: str) -> None:
        self._control = control
        self._post = post
        peers = [rank for rank in range(comm.size) if rank != comm.rank] if comm.rank == CLIENT else [CLIENT]
        #: to the peer, and from it
        self._boxes: dict[int, tuple[Direction, Direction]] = {}
        self._sent = {peer: WayCount(f"{name} {comm.rank}>{peer}") for peer in peers}
        self._taken = {peer: WayCount(f"{name} {peer}>{comm.rank}") for peer in peers}
        self._ways: list[Way] = list(self._sent.values())
        control.ways.append(self._ways)
        self._serves = comm.rank != CLIENT
        #: the last command that was called without arguments, and the letter that calls it; the last such letter, and its item
        self._bare: tuple[Any, list[Any]] = None, []
        self._known: tuple[bytes, Any] = b"", None
        mine = comm.allocate(mailbox_bytes(comm.rank, comm.size))
        self._kept = mine  # peers read it as long as this lasts
        places: list[MemoryRange | None] = comm.exchange(comm.locate(mine) if platform.machine() in ORDERED else None)
        for number, peer in enumerate(peers):
            to, back = _box(places[comm.rank], number), _box(places[peer], comm.rank - 1 if peer == CLIENT else 0)
            if to is not None and back is not None and comm.near(peer):
                self._boxes[peer] = Direction(comm.look(comm.rank, to)), Direction(comm.look(peer, back))

    def send(self, letters: dict[int, list[Any]], what: str) -> None:
        """Hand each rank what `write` made for it; comes back when the memory may be used again."""
        far: dict[int, list[Any]] = {}
        for rank, parts in letters.items():
            self._sent[rank].done += 1
            if len(parts) == 1 and len(parts[0]) <= LONGEST and rank in self._boxes:
                self._boxes[rank][0].put(parts[0])
            else:
                far[rank] = parts
        if far:
            self._post.hand_over(far, what)

    def bare(self, command: Command) -> list[Any]:
        """The letter that calls a command without arguments; made once for a command that is called again and again."""
        if command != self._bare[0]:
            self._bare = command, write(("call", command, None))
        return self._bare[1]

    def answer(self, item: Any, what: str) -> None:
        """Send `item` to the client."""
        self.send({CLIENT: [EMPTY] if type(item) is list and not item else write(item)}, what)

    def receive(self, rank: int, what: str, patient: bool = False) -> Any:
        """The next item from `rank`, whichever way it comes."""
        way = self._taken[rank]
        way.done += 1
        if rank not in self._boxes:
            return self._post.receive(rank, what, patient)
        box = self._boxes[rank][1]
        if not box.full():
            needs = (Need(rank, way.name, way.done),)
            self._control.wait(lambda: box.full() or self._post.waiting(rank), what, lambda: needs, patient)
        return self._read(box.take()) if box.full() else self._post.receive(rank, what, patient)

    def _read(self, letter: bytes) -> Any:
        if letter == EMPTY:
            return []
        if letter != self._known[0]:
            item = read(letter)
            if not self._serves or item[0] != "call" or item[2] is not None:
                return item
            self._known = letter, item  # of a command and nothing else, it is what it was when the letter comes again
        return self._known[1]

    def close(self) -> None:
        """Look at no memory of others any more."""
        self._boxes.clear()
        self._control.ways.remove(self._ways)


def mailbox_bytes(rank: int, ranks: int) -> int:
    """Return the bytes that a rank allocates for its letters: the client has a box for each other rank, and these have one each."""
    return (ranks - 1 if rank == CLIENT else 1) * (ALIGNMENT + LONGEST)


def _box(place: MemoryRange | None, number: int) -> MemoryRange | None:
    """Where the box of this number lies in what a rank has allocated."""
    size = ALIGNMENT + LONGEST
    return None if place is None else MemoryRange(place.region, place.offset + number * size, size)
