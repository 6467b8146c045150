"""The calls of NCCL for one operation, and their launch on the communication stream of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from jobflow.core.errors import PlanError
from jobflow.core.layout import Reduction
from jobflow.ops.op import Call
from jobflow.runtime.comm.record import Operation, Record

#: element types that NCCL reduces
REDUCED = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")


def calls_of(record: Record, me: int, comm: Any, nccl: Any, stream: int) -> list[Call]:
    """Return the calls of a collective or a transfer on `stream`; several calls form one group, in which their order does not matter.

    `me` is this rank's number in the world.  Ranks of a transfer are numbers in `comm`.
    """
    source, target = record.source.data.ptr, record.target.data.ptr
    byte, width = nccl.NCCL_UINT8, record.source.itemsize
    me = record.ranks.index(me)
    if record.kind == "all_reduce":
        return [(comm.allReduce, (source, target, record.source.size, *_typed(record, nccl), stream))]
    even = len(set(record.counts)) == 1
    if record.kind == "reduce_scatter" and even:
        return [(comm.reduceScatter, (source, target, record.counts[0], *_typed(record, nccl), stream))]
    if record.kind == "all_gather" and even:
        return [(comm.allGather, (source, target, record.source.nbytes, byte, stream))]
    if record.kind == "reduce_scatter":
        return [
            (comm.reduce, (source + start * width, target, count, *_typed(record, nccl), root, stream))
            for root, (start, count) in enumerate(_pieces(record.counts))
            if count
        ]
    gives = _pieces(record.counts) if record.kind == "all_to_all" else [(0, record.counts[me])] * len(record.ranks)
    takes = _pieces(record.receives) if record.kind == "all_to_all" else _pieces(record.counts)
    sends = [(comm.send, (source + start * width, n * width, byte, peer, stream)) for peer, (start, n) in enumerate(gives) if n]
    receives = [(comm.recv, (target + start * width, n * width, byte, peer, stream)) for peer, (start, n) in enumerate(takes) if n]
    return [*sends, *receives]


def transfer_call(record: Record, me: int, members: Sequence[int], comm: Any, nccl: Any, stream: int) -> Call:
    """Return the send or the receive of a transfer, in the communicator of all `members`."""
    sender, receiver = record.ranks
    if sender == me:
        return comm.send, (record.source.data.ptr, record.source.nbytes, nccl.NCCL_UINT8, members.index(receiver), stream)
    return comm.recv, (record.target.data.ptr, record.target.nbytes, nccl.NCCL_UINT8, members.index(sender), stream)


def broadcast_call(record: Record, root: int, comm: Any, nccl: Any, stream: int) -> Call:
    """Return the call that copies the source of rank `root` of `comm` to the targets of all ranks."""
    return comm.broadcast, (record.source.data.ptr, record.target.data.ptr, record.source.nbytes, nccl.NCCL_UINT8, root, stream)


def reduces(dtype: Any) -> bool:
    """Return True if NCCL can reduce arrays of this element type."""
    return str(dtype) in (*REDUCED, "bool")


def _typed(record: Record, nccl: Any) -> tuple[int, int]:
    """Return NCCL's constants for the element type and the reduction of a record; raise PlanError if NCCL lacks the type."""
    assert record.reduce is not None
    kind = str(record.source.dtype)
    names = {name: name.upper() for name in REDUCED} | {"bool": "UINT8"}
    if not reduces(kind):
        raise PlanError(f"{record.label}: NCCL cannot reduce {kind}; cast the tensor to float32")
    # the sum of booleans is "or", as in NumPy
    word = "MAX" if kind == "bool" and record.reduce is Reduction.SUM else record.reduce.name
    return getattr(nccl, f"NCCL_{names[kind]}"), getattr(nccl, f"NCCL_{word}")


def _pieces(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the offset and the number of elements of each rank's part of a concatenated buffer."""
    return list(zip(accumulate(counts, initial=0), counts, strict=False))


def perform(nccl: Any, calls: Sequence[Call]) -> None:
    """Perform NCCL calls; several calls form one group, which is ended even if a call raises.

    An open group would delay all later calls of the thread without an error.
    """
    if len(calls) == 1:
        ((function, arguments),) = calls
        function(*arguments)
        return
    nccl.groupStart()
    try:
        for function, arguments in calls:
            function(*arguments)
    except BaseException as error:
        try:
            nccl.groupEnd()
        except Exception as second:  # noqa: BLE001 - a consequence of the first error, which is raised
            error.add_note(f"the end of the group of NCCL calls also failed: {second}")
        raise
    nccl.groupEnd()


class NcclLaunch:
    """NCCL calls on the communication stream: they begin after the kernels launched before, and `done` is recorded after them."""

    def __init__(self, device: Any, nccl: Any, calls: Sequence[Call], usable: Callable[[], None]) -> None:
        self.calls = tuple(calls)
        self.done = device.new_event()
        self.usable = usable
        self._ready = device.new_event()
        self._nccl, self._kernels, self._stream, self._enqueuing = nccl, device.stream, device.communication, device.lock

    def __call__(self, others: Sequence[NcclLaunch] = ()) -> None:
        """Launch the calls, and those of `others`, as one group."""
        self.usable()
        with self._enqueuing:
            self._ready.record(self._kernels)
            self._stream.wait_event(self._ready)
            perform(self._nccl, [call for each in (self, *others) for call in each.calls])
            for each in (self, *others):
                each.done.record(self._stream)

    @property
    def wait(self) -> Call:
        """The call that makes later kernels wait for the NCCL calls."""
        return self._kernels.wait_event, (self.done,)


class NcclOperation(Operation):
    """The calls of one operation, with its launch; the launch is None if the operation has no data."""

    __slots__ = ("concurrent", "launch")

    def __init__(self, concurrent: bool) -> None:
        super().__init__()
        self.concurrent = concurrent
        self.launch: NcclLaunch | None = None


class Started:
    """The call that runs one operation, or starts several in one group.

    A captured graph may contain it.  The graph calls `replayed` before each launch.
    """

    capturable = True

    def __init__(
        self, operations: Sequence[NcclOperation], device: Any, usable: Callable[[], None], begins: Sequence[Any] = (), ends: Any = None
    ) -> None:
        """`begins` are keys of the operations whose waits are other calls, and `ends` is the key of the operation for which the call waits."""
        self.operations = tuple(operations)
        self.begins, self.ends = frozenset(begins), frozenset(() if ends is None else [ends])
        self._device, self._usable = device, usable

    def __call__(self) -> None:
        if len(self.operations) == 1:
            self.operations[0].perform()
        else:
            first, *others = [operation.launch for operation in self.operations if operation.launch is not None]
            first(others)
        if not self._device.captures:  # a capture launches nothing
            self._count()

    def replayed(self) -> None:
        self._usable()
        self._count()

    def _count(self) -> None:
        for operation in self.operations:
            operation.tally.runs += 1
