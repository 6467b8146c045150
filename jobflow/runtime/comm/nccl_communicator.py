"""Communicators of ranks on GPUs: NCCL if each rank has its own GPU, otherwise through host memory.

Both kinds of communicators exchange everything except tensors through a communicator of the host (`inner`).  NCCL calls are enqueued on the
device's stream and return immediately; calls through host memory wait for the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

from jobflow.core.errors import JobError, JobflowError, PlanError
from jobflow.core.layout import Reduction
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.plan.traffic import Traffic
from jobflow.runtime.comm.communicator import Binding, Communicator, Transfers, Waited
from jobflow.runtime.comm.record import BindingMessage, Group, Record, Recorder, flat
from jobflow.runtime.comm.solo_communicator import SingleRankGroup
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device.device import Device


class StagingDevice(Device, Protocol):
    """A device with the methods for copies through the host."""

    def host_array(self, count: int, dtype: Any) -> Array:
        """Return host memory that the device copies to and from quickly."""

    def fetch(self, source: Array, host: Array) -> None:
        """Copy `source` to `host`; complete on return."""

    def put(self, target: Array, host: Array) -> None:
        """Copy `host` to `target`; the host memory may be overwritten on return."""


def device_communicator(inner: Communicator, device: Device, identities: Sequence[str]) -> Communicator:
    """Return the communicator of a rank on `device`; `identities` name the device of each rank, "" for the host."""
    if device.tag == "cpu":
        return inner
    if not device.identity and inner.rank == 0:
        notice('NCCL is not installed: GPUs exchange tensors through the host; install it with: pip install "nvidia-nccl-cu13>=2.27.7,<3"')
    own = len(set(identities)) == len(identities) and "" not in identities
    return NcclCommunicator(inner, device) if own else StagedCommunicator(inner, device)  # type: ignore[arg-type]


class _DeviceCommunicator(Communicator):
    """A communicator that allocates on the device and delegates everything except tensors to the communicator of the host."""

    def __init__(self, inner: Communicator, device: Any) -> None:
        self.rank = inner.rank
        self.size = inner.size
        self.members = inner.members
        self._inner = inner
        self._device = device

    def allocate(self, nbytes: int) -> Array:
        self._inner.allocate(0)  # collective: ranks without a GPU allocate shared memory
        return self._device.allocate(nbytes)

    def allocate_common(self, nbytes: int) -> Array | None:
        return self._inner.allocate_common(nbytes)  # only CPU devices call this

    def barrier(self) -> None:
        self._inner.barrier()

    def exchange(self, item: Any) -> list[Any]:
        return self._inner.exchange(item)

    def compare_digests(self, digest: int, what: Callable[[], str]) -> None:
        self._inner.compare_digests(digest, what)

    def check(self) -> None:
        self._inner.check()

    def observe(self, waited: Waited | None) -> None:
        self._inner.observe(waited)

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)


class StagedCommunicator(_DeviceCommunicator):
    """A communicator that copies to host memory, calls `inner`, and copies back."""

    def __init__(self, inner: Communicator, device: StagingDevice, groups: dict[tuple[int, ...], Communicator] | None = None) -> None:
        """Create the communicator; a group passes the existing `groups` of its world."""
        super().__init__(inner, device)
        self._groups: dict[tuple[int, ...], Communicator] = {self.members: self} if groups is None else groups

    def group(self, ranks: Sequence[int]) -> Communicator:
        inner = self._inner.group(ranks)
        if inner.members not in self._groups:
            alone = SingleRankGroup(self._device.allocate, inner.members[0], self)
            self._groups[inner.members] = StagedCommunicator(inner, self._device, self._groups) if inner.size > 1 else alone
        return self._groups[inner.members]

    def bind(self, what: Binding) -> list[Call]:
        source, target = (self._device.host_array(array.size, array.dtype) for array in (what.source, what.target))
        calls = self._inner.bind(what._replace(source=source, target=target))
        return [*self._fetching(what.source, source), *calls, *self._putting(what.target, target)]

    def bind_send(self, peer: int, source: Array, name: str = "") -> Transfers:
        host = self._device.host_array(source.size, source.dtype)
        start, wait = self._inner.bind_send(peer, host, name)
        # the wait of the previous step's transfer makes the host array writable again
        return Transfers([*self._fetching(source, host), *start], wait)

    def bind_receive(self, peer: int, target: Array, name: str = "") -> Transfers:
        host = self._device.host_array(target.size, target.dtype)
        start, wait = self._inner.bind_receive(peer, host, name)
        return Transfers(start, [*wait, *self._putting(target, host)])

    def _fetching(self, source: Array, host: Array) -> list[Call]:
        return [(self._device.fetch, (flat(source), host))] if source.size else []

    def _putting(self, target: Array, host: Array) -> list[Call]:
        return [(self._device.put, (flat(target), host))] if target.size else []

    def seal(self) -> None:
        self._inner.seal()

    def sent(self) -> dict[str, Traffic]:
        return self._inner.sent()

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._inner.close()


class NcclCommunicator(_DeviceCommunicator, Recorder):
    """One NCCL communicator per group of ranks, created when the first operation of the group is sealed.

    All collectives of a rank use one communication stream, in the order of their starts, beside the device's kernels.  A start makes this stream
    wait for the kernels before it, and the wait makes the kernels wait for the collective.  Transfers use one stream for each pair of ranks and
    direction.

    NCCL calls are asynchronous, so a rank cannot detect in the call that a peer never launches its part.  The device calls `_listen` for that
    while it waits for the stream.  An aborted communicator cannot be used again.
    """

    def __init__(self, inner: Communicator, device: Any, world: NcclCommunicator | None = None) -> None:
        Recorder.__init__(self, inner.members, inner.members[inner.rank], device.allocate, world)
        _DeviceCommunicator.__init__(self, inner, device)
        self._nccl: Any = cuda.nccl()
        self._comms: dict[Group, Any] = {}
        self._known: set[Group] = set()
        #: the streams of transfers
        self._streams: dict[Group, Any] = {}
        self._ended: str | None = None
        self._guard = threading.Lock()
        if world is None:
            device.listen = self._listen

    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        return NcclCommunicator(self._inner.group([self.members.index(rank) for rank in members]), self._device, self)

    def bind(self, what: Binding) -> list[Call]:
        start, wait = self.bind_concurrent(what)
        return [*start, *wait]

    def bind_concurrent(self, what: Binding) -> Transfers:
        record = self._bind(what)
        return Transfers([(record.operation.run, ())], [(record.wait.run, ())])

    def _prepare(self, groups: dict[Group, list[list[BindingMessage]]]) -> None:
        new = sorted(set(groups) - self._known)
        self._known.update(new)
        # the first rank of each group creates its identity; one exchange sends all identities
        identities = self.exchange({group: self._nccl.get_unique_id() for group in new if group.ranks[0] == self._me})
        self._usable()
        for group in new:
            ranks = group.ranks
            if self._me in ranks:
                identity = identities[self.members.index(ranks[0])][group]
                self._comms[group] = self._nccl.NcclCommunicator(len(ranks), identity, ranks.index(self._me))
                if group.transfers:
                    self._streams[group] = self._device.new_stream()

    def _complete(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        if record.kind == "transfer":
            record.operation.fill([(self._usable, ()), *self._transfer(record)])
            return
        ready, done, kernels, stream = self._device.new_event(), self._device.new_event(), self._device.stream, self._device.communication
        calls = [(ready.record, (kernels,)), (stream.wait_event, (ready,)), *self._calls(record, self._comms[record.group])]
        record.operation.fill([(self._usable, ()), *calls, (done.record, (stream,))])
        record.wait.fill([(kernels.wait_event, (done,))])

    def _transfer(self, record: Record) -> list[Call]:
        """Return the calls that start a transfer on its own stream, concurrent with the device's kernels.

        The wait of the transfer makes the kernels wait for that stream.
        """
        comm, stream, array = self._comms[record.group], self._streams[record.group], record.target
        launch = comm.recv
        if record.ranks[0] == self._me:
            array, launch = record.source, comm.send
        ready, done = self._device.new_event(), self._device.new_event()
        record.wait.fill([(self._device.stream.wait_event, (done,))])
        about = (array.data.ptr, array.nbytes, self._nccl.NCCL_UINT8, int(record.ranks[0] == self._me), stream.ptr)
        return [(ready.record, (self._device.stream,)), (stream.wait_event, (ready,)), (launch, about), (done.record, (stream,))]

    def _calls(self, record: Record, comm: Any) -> list[Call]:
        me = record.ranks.index(self._me)
        stream = self._device.communication.ptr
        source, target = record.source.data.ptr, record.target.data.ptr
        byte = self._nccl.NCCL_UINT8
        width = record.source.itemsize
        if record.kind == "all_reduce":
            return [(comm.allReduce, (source, target, record.source.size, *self._typed(record), stream))]
        even = len(set(record.counts)) == 1
        if record.kind == "reduce_scatter" and even:
            return [(comm.reduceScatter, (source, target, record.counts[0], *self._typed(record), stream))]
        if record.kind == "all_gather" and even:
            return [(comm.allGather, (source, target, record.source.nbytes, byte, stream))]
        if record.kind == "reduce_scatter":
            return self._grouped(
                (comm.reduce, (source + start * width, target, count, *self._typed(record), root, stream))
                for root, (start, count) in enumerate(_pieces(record.counts))
                if count
            )
        gives = _pieces(record.counts) if record.kind == "all_to_all" else [(0, record.counts[me])] * len(record.ranks)
        takes = _pieces(record.receives) if record.kind == "all_to_all" else _pieces(record.counts)
        sends = [(comm.send, (source + start * width, n * width, byte, peer, stream)) for peer, (start, n) in enumerate(gives) if n]
        receives = [(comm.recv, (target + start * width, n * width, byte, peer, stream)) for peer, (start, n) in enumerate(takes) if n]
        return self._grouped([*sends, *receives])

    def _grouped(self, calls: Any) -> list[Call]:
        """Return the calls as one NCCL group, in which their order does not matter."""
        return [(self._nccl.groupStart, ()), *calls, (self._nccl.groupEnd, ())]

    def _typed(self, record: Record) -> tuple[int, int]:
        """Return NCCL's constants for the element type and the reduction of a record; raise PlanError if NCCL lacks the type."""
        assert record.reduce is not None
        kind = str(record.source.dtype)
        names = {name: name.upper() for name in _REDUCED} | {"bool": "UINT8"}
        if kind not in names:
            raise PlanError(f"{record.label}: NCCL cannot reduce {kind}; cast the tensor to float32")
        # the sum of booleans is "or", as in NumPy
        word = "MAX" if kind == "bool" and record.reduce is Reduction.SUM else record.reduce.name
        return getattr(self._nccl, f"NCCL_{names[kind]}"), getattr(self._nccl, f"NCCL_{word}")

    def _usable(self) -> None:
        if self._ended is not None:
            raise JobError(
                f"communication: ranks cannot exchange tensors after a failed step ({self._ended}); start a new session with clear_default_session()"
            )

    def _listen(self) -> None:
        try:
            self._inner.check()
        except JobflowError as error:
            self.end(str(error))
            raise

    def end(self, reason: str) -> None:
        """Abort all NCCL communicators, so that the device stops waiting for peers; any thread may call this."""
        with self._guard:
            if self._ended is None and self._comms:
                self._ended = reason
                for comm in self._comms.values():
                    comm.abort()
        for group in list(self._groups.values()):
            if isinstance(group, NcclCommunicator):
                group.end(reason)

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)
        self.end(reason)

    def reset(self) -> None:
        self._inner.reset()
        self.rewind()

    def close(self) -> None:
        self._records.clear()
        for _, group in sorted(self._groups.items()):
            group.close()
        self._groups.clear()
        if self._all is self:
            self._device.listen = None
        if self._ended is None:
            self._device.synchronize()
            for comm in self._comms.values():
                comm.destroy()
        self._comms.clear()
        if self._all is self:
            self._inner.close()  # also closes the host communicators of the groups


#: element types that NCCL reduces
_REDUCED = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")


def _pieces(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the offset and the number of elements of each rank's part of a concatenated buffer."""
    return list(zip(accumulate(counts, initial=0), counts, strict=False))
