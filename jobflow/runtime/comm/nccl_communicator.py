"""Communicators of ranks with a GPU each, through NCCL.

All operations of a device run on one communication stream, in the order of the plan's schedule, which is the same on all ranks.  So an operation
waits only for earlier operations of the schedule, and the ranks cannot block each other.  NCCL calls return immediately.  Kernels wait for
an operation through events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobflow.core.errors import JobError, JobflowError
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.runtime.comm.communicator import Binding, Communicator, Transfers
from jobflow.runtime.comm.device_communicator import DeviceCommunicator
from jobflow.runtime.comm.nccl_calls import NcclLaunch, NcclOperation, Started, broadcast_call, calls_of, transfer_call
from jobflow.runtime.comm.nccl_family import ADVICE, NcclFamily
from jobflow.runtime.comm.record import BindingMessage, Group, Record, Recorder, flat
from jobflow.runtime.device import cuda_device as cuda


class NcclCommunicator(DeviceCommunicator, Recorder):
    """A communicator of ranks with a GPU each.

    NCCL calls are asynchronous, so a rank cannot detect in the call that a peer never launches its part.  The device calls `_listen` for that
    while it waits.  An aborted communicator cannot be used again.  Kernels behind an aborted operation have run on incomplete data, so waits raise
    from then on, also those for reads of variables.
    """

    enqueues = True
    in_schedule_order = True

    def __init__(self, inner: Communicator, device: Any, world: NcclCommunicator | None = None) -> None:
        Recorder.__init__(self, inner.members, inner.members[inner.rank], device.allocate, world)
        DeviceCommunicator.__init__(self, inner, device)
        self._nccl: Any = cuda.nccl()
        self._family = NcclFamily(self._nccl, inner, device)
        #: the arrays of operations of `start` whose wait has not been called
        self._started: dict[NcclLaunch, tuple[Array, Array]] = {}
        if world is None:
            device.listen = self._listen

    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        return NcclCommunicator(self._inner.group([self.members.index(rank) for rank in members]), self._device, self)

    # ---------------------------------------------------------------- binding

    def bind(self, what: Binding) -> list[Call]:
        return [self._starting(self._recorded(what, False))]

    def bind_concurrent(self, what: Binding) -> Transfers:
        return self._both(self._recorded(what, True))

    def _bind_transfer(self, what: Binding) -> Transfers:
        return self._both(self._recorded(what, True))

    def _recorded(self, what: Binding, concurrent: bool) -> Record:
        record = self._bind(what)
        record.operation, record.wait = NcclOperation(concurrent), NcclOperation(concurrent)
        return record

    def _starting(self, record: Record) -> Call:
        begins = [record.operation] if record.operation.concurrent else []  # type: ignore[attr-defined]
        return Started([record.operation], self._device, self._usable, begins), ()  # type: ignore[list-item]

    def _both(self, record: Record) -> Transfers:
        wait = Started([record.wait], self._device, self._usable, ends=record.operation)  # type: ignore[list-item]
        return Transfers([self._starting(record)], [(wait, ())])

    def together(self, calls: Sequence[Call]) -> list[Call]:
        operations = [operation for function, _ in calls for operation in function.operations]  # type: ignore[attr-defined]
        launches = [operation for operation in operations if operation.launch is not None]
        return [(Started(operations, self._device, self._usable, operations), ())] if len(launches) > 1 else list(calls)

    def _prepare(self, groups: dict[Group, list[list[BindingMessage]]]) -> None:
        self._usable()
        if groups:
            self._family.prepare(group.ranks for group in groups if not group.transfers)

    def _complete(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        stream = self._device.communication.ptr
        if record.kind == "transfer":
            calls = [transfer_call(record, self._me, self.members, self._family.root, self._nccl, stream)]
        else:
            calls = calls_of(record, self._me, self._family.of(record.ranks), self._nccl, stream)
        assert isinstance(record.operation, NcclOperation)
        record.operation.launch = launch = NcclLaunch(self._device, self._nccl, calls, self._usable)
        if record.operation.concurrent:
            record.operation.fill([(launch, ())])
            record.wait.fill([launch.wait])
        else:
            record.operation.fill([(launch, ()), launch.wait])

    # ---------------------------------------------------------------- operations that are not bound

    def prepare(self, groups: Iterable[tuple[int, ...]] = ()) -> None:
        """Create NCCL's communicators of all ranks and of groups of them, which `start` needs.  Collective, with the same groups on all ranks."""
        self._usable()
        self._family.prepare(tuple(self.members[rank] for rank in group) for group in groups)

    def start(self, what: Binding, root: int | None = None) -> Callable[[], None]:
        """Start an operation on contiguous arrays, or with `root` a broadcast from this rank; return the function that makes later kernels wait.

        All ranks of the operation call this with the same operation, which the callers compare.  The arrays are kept until the wait.
        Raises: JobError if NCCL refuses the operation.  Then no rank can communicate any more.
        """
        self._usable()
        kind, ranks, source, target, counts, receives, reduce, name = what
        record = Record(kind, tuple(self.members[rank] for rank in ranks), flat(source), flat(target), tuple(counts), tuple(receives), reduce, name)
        stream, whole = self._device.communication.ptr, self._family.root
        if root is not None:
            calls = [broadcast_call(record, root, whole, self._nccl, stream)]
        elif kind == "transfer":
            calls = [transfer_call(record, self._me, self.members, whole, self._nccl, stream)]
        else:
            calls = calls_of(record, self._me, self._family.of(record.ranks), self._nccl, stream)
        launch = NcclLaunch(self._device, self._nccl, calls, self._usable)
        try:
            launch()
        except RuntimeError as error:
            self._world.end(f"NCCL failed on rank {self._me}: {error}")
            raise JobError(f"communication: NCCL failed on rank {self._me} in {record.label} ({error}); {ADVICE}") from error
        self._started[launch] = source, target

        def wait() -> None:
            function, arguments = launch.wait
            with self._device.lock:
                function(*arguments)
            self._started.pop(launch, None)

        return wait

    # ---------------------------------------------------------------- failure and end

    @property
    def _world(self) -> NcclCommunicator:
        assert isinstance(self._all, NcclCommunicator)
        return self._all

    def _families(self) -> list[NcclFamily]:
        groups = [group for group in list(self._groups.values()) if isinstance(group, NcclCommunicator)]
        return [self._family, *(family for group in groups for family in group._families())]

    def _ended(self) -> str | None:
        """The reason of the abort of a communicator of the world, or None."""
        return next((family.ended for family in self._world._families() if family.ended is not None), None)

    def _usable(self) -> None:
        reason = self._ended()
        if reason is not None:
            raise JobError(
                f"communication: ranks cannot exchange tensors or read variables after a failed step ({reason}), which may be incomplete; "
                f"start a new session with clear_default_session() and load a checkpoint"
            )

    def _listen(self) -> None:
        self._usable()
        try:
            self._inner.check()
            for family in self._families():
                family.check_errors()
        except JobflowError as error:
            self.end(str(error))
            raise

    def end(self, reason: str) -> None:
        """Abort all NCCL communicators, so that the device stops waiting for peers; any thread may call this."""
        for family in self._families():
            family.end(reason)

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)
        self.end(reason)

    def reset(self) -> None:
        self._inner.reset()
        self.rewind()

    def close(self) -> None:
        self._records.clear()
        if self._all is self:
            self._device.release_graphs()  # a graph that contains NCCL calls uses their communicators until its end
        if self._ended() is None:
            self._device.synchronize_all()
        self._started.clear()
        for _, group in sorted(self._groups.items()):
            group.close()
        self._groups.clear()
        self._family.close()
        if self._all is self:
            self._device.listen = None
            self._inner.close()  # also closes the host communicators of the groups
