"""Communicators of ranks whose GPUs read each other's memory directly: ranks of one machine that share a GPU, or lack NCCL.

Each rank has a window in the memory of its GPU, which its peers open by a handle.  In a collective, a rank copies a piece of its array to its window,
and copies the pieces of its peers from their windows.  The host waits for the GPU and for the other ranks after both steps, so a window is
never read while it is written.  Transfers between two ranks, and arrays that cannot be divided, use the memory of the hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from jobflow.core.errors import PlanError
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.plan.traffic import Traffic, handed, total
from jobflow.runtime.comm.communicator import Binding, Communicator
from jobflow.runtime.comm.record import Record, flat, match
from jobflow.runtime.comm.solo_communicator import copying
from jobflow.runtime.comm.staged_communicator import Piece, StagedCommunicator, pieces_of
from jobflow.runtime.device.cuda_windows import OwnWindow, PeerWindow

#: bytes of a window, and bytes of the exchange that tests it
WINDOW, PROBE = 16 << 20, 16


class PeerCommunicator(StagedCommunicator):
    """A communicator of ranks on GPUs of one machine, which uses windows after a successful test of all ranks."""

    def __init__(self, inner: Communicator, device: Any, world: PeerCommunicator | None = None) -> None:
        super().__init__(inner, device, world)
        self._own: Any = None
        #: the windows of all ranks of the world; empty before the test, and after a failed one
        self.windows: dict[int, Any] = {}
        self._tested = False
        self._peer_records: list[Record] = []
        self._sent: dict[str, Traffic] = {}

    def _make_group(self, inner: Communicator) -> StagedCommunicator:
        world = self._world
        assert isinstance(world, PeerCommunicator)
        return PeerCommunicator(inner, self._device, world)

    def allocate(self, nbytes: int) -> Array:
        if self._world is self and not self._tested:
            self._tested = True
            trouble = self._open()
            if trouble:
                self._close_windows()
                if self.rank == 0:
                    notice(f"GPUs exchange tensors through the host, because they cannot open each other's memory: {trouble}")
        return super().allocate(nbytes)

    def _open(self) -> str:
        """Open the windows of all ranks, and exchange a few bytes; return the first error of any rank, or "".  Collective."""
        expected = [np.full(PROBE, rank + 1, np.uint8) for rank in range(self.size)]

        def make() -> None:
            self._own = OwnWindow(self._device.xp, self._device.index, WINDOW)
            self._device.upload(self._own.array[:PROBE], expected[self.rank])
            self._device.synchronize()

        def connect() -> None:
            for rank, handle in enumerate(handles):
                self.windows[self.members[rank]] = self._own if rank == self.rank else PeerWindow(self._device.xp, self._device.index, handle)

        def compare() -> None:
            for rank, member in enumerate(self.members):
                if not np.array_equal(self._device.to_host(self.windows[member].array[:PROBE]), expected[rank]):
                    raise ValueError(f"rank {self.rank} reads wrong bytes from rank {rank}")

        trouble = self._attempt(make)
        handles = self.exchange(None if self._own is None else self._own.handle)
        return trouble or self._attempt(connect) or self._attempt(compare)

    def _attempt(self, step: Callable[[], None]) -> str:
        """Perform a step on all ranks; return the first error of any rank, or ""."""
        trouble = ""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - reported in a notice; the ranks use the memory of the hosts instead
            trouble = f"rank {self.rank}: {error} ({type(error).__name__})"
        return next(filter(None, self.exchange(trouble)), "")

    def bind(self, what: Binding) -> list[Call]:
        world = self._world
        assert isinstance(world, PeerCommunicator)
        half = what.reduce is not None and what.source.itemsize == 2 and what.source.dtype.kind in "fV"
        if not world.windows or what.kind == "all_to_all" or half:  # halves are added in float32 on the host
            return super().bind(what)
        if len(what.ranks) == 1:
            return copying(flat(what.source), flat(what.target))
        ranks = tuple(self.members[rank] for rank in what.ranks)
        record = Record(what.kind, ranks, flat(what.source), flat(what.target), tuple(what.counts), (), what.reduce, what.name)
        self._peer_records.append(record)
        return [(PeerCollective(record, list(what.ranks).index(self.rank), self, what, world.windows), ())]

    def seal(self) -> None:
        records, self._peer_records = self._peer_records, []
        match(self.exchange([record.message() for record in records]), self.members)  # raises PlanError if the ranks bound different operations
        super().seal()

    def note(self, kind: str, nbytes: int) -> None:
        """Count a run of a collective."""
        operations, before = self._sent.get(kind, (0, 0))
        self._sent[kind] = Traffic(operations + 1, before + nbytes)

    def sent(self) -> dict[str, Traffic]:
        groups = [group for group in self._groups.values() if isinstance(group, PeerCommunicator)] if self._world is self else [self]
        return total([*super().sent().items(), *(entry for group in groups for entry in group._sent.items())])

    def gather_point(self, ranks: Sequence[int]) -> Callable[[], None]:
        """Return a barrier of these ranks of the communicator."""
        return self._inner.group(ranks).barrier if len(ranks) < self.size else self._inner.barrier

    def finish(self) -> None:
        """Wait for the copies of this rank."""
        self._device.synchronize()

    def _close_windows(self) -> None:
        for window in self.windows.values():
            if window is not self._own:
                window.close()
        self.windows = {}
        self._own = None

    def close(self) -> None:
        if self.windows:
            self._device.synchronize()
            for window in self.windows.values():
                if window is not self._own:
                    window.close()
            self._inner.barrier()  # a rank frees its window after its peers have closed it
            self._close_windows()
        super().close()


class PeerCollective:
    """The call of one collective through windows."""

    def __init__(self, record: Record, me: int, comm: PeerCommunicator, what: Binding, windows: dict[int, Any]) -> None:
        self._record, self._me, self._comm = record, me, comm
        self._meet = comm.gather_point(what.ranks)
        self._parts = [windows[rank].array.view(record.source.dtype) for rank in record.ranks]
        self._xp = comm._device.xp
        self._pieces = pieces_of(what, me, WINDOW)
        if not all(max(piece.sizes) * record.source.itemsize <= WINDOW for piece in self._pieces):
            raise PlanError(f"{record.label}: a piece is larger than a window")
        self._nbytes = handed(record.kind, record.counts, me, len(record.ranks)) * record.source.itemsize
        #: the contribution of a peer to a reduction, in memory of this rank
        width = max(stop - start for piece in self._pieces for start, stop, _ in piece.targets)
        self._contribution = None if record.reduce is None else comm._device.allocate(width * record.source.itemsize).view(record.source.dtype)

    def __call__(self) -> None:
        for piece in self._pieces:
            for start, stop, at in piece.sources:
                self._copy(self._parts[self._me][at : at + stop - start], self._record.source[start:stop])
            self._comm.finish()
            self._meet()
            if self._record.reduce is None:
                for part, (start, stop, _) in zip(self._parts, piece.targets, strict=True):
                    self._copy(self._record.target[start:stop], part[: stop - start])
            else:
                self._reduce(piece)
            self._comm.finish()
            self._meet()  # the windows may be written again
        self._comm.note(self._record.kind, self._nbytes)

    def _copy(self, target: Array, source: Array) -> None:
        if target.size:
            self._xp.copyto(target, source)

    def _reduce(self, piece: Piece) -> None:
        """Combine the contributions in the order of the ranks, so that all ranks get the same bits."""
        ((start, stop, _),) = piece.targets
        if start == stop:
            return
        first = 0 if self._record.kind == "all_reduce" else list(accumulate(piece.counts, initial=0))[self._me]
        target, contribution = self._record.target[start:stop], self._contribution
        assert self._record.reduce is not None and contribution is not None
        combine = getattr(self._xp, self._record.reduce.ufunc.__name__)
        for number, part in enumerate(self._parts):
            if number == 0:
                self._copy(target, part[first : first + stop - start])
            else:
                self._copy(contribution[: stop - start], part[first : first + stop - start])
                combine(target, contribution[: stop - start], out=target)
