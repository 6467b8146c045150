"""One NCCL communicator of some ranks, and its parts: the communicators of groups of these ranks, which share its resources.

All of them are created, aborted and destroyed here.  Creation and destruction wait for the other ranks, and are abandoned if one of them fails.

NCCL destroys a communicator only together with the other ranks, also when its Python object is deleted.  A communicator that `close` has not
destroyed is therefore aborted, which does not wait for other ranks.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from jobflow.core.errors import JobError, JobflowError
from jobflow.core.notices import notice
from jobflow.runtime.comm.blocking_calls import BlockingCall, ends_within
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.comm.nccl_order import note_start

#: seconds after which an abort or a destruction is abandoned
LIMIT = 10.0
#: the color of ranks outside of a part
NO_COLOR = -1


class NcclFamily:
    """The NCCL communicators of the ranks of `comm`, a communicator of the hosts."""

    def __init__(self, nccl: Any, comm: Communicator, device: Any) -> None:
        self._nccl, self._comm, self._device = nccl, comm, device
        self._root: list[Any] = []
        self._parts: dict[tuple[int, ...], Any] = {}
        self._known: set[tuple[int, ...]] = set()
        #: held during every use of the communicators except the launches, which may block until an abort
        self._lock = threading.Lock()
        #: the reason of the abort
        self.ended: str | None = None
        self._finalizer = weakref.finalize(self, _abort, self._root, self._parts)

    @property
    def root(self) -> Any:
        """The communicator of all ranks, in their order."""
        return self._root[0]

    def of(self, ranks: tuple[int, ...]) -> Any:
        """Return the communicator of some ranks of the world; `prepare` has created it."""
        return self.root if ranks == self._comm.members else self._parts[ranks]

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Create the communicators of groups; all ranks call this with the same groups."""
        if not self._root:
            self._create()
        new = sorted(set(groups) - self._known - {self._comm.members})
        self._known.update(new)
        if new:
            self._device.synchronize_all()  # a split requires that no operation is in progress
        for ranks in new:
            mine = self._comm.members[self._comm.rank]
            color, key = (0, ranks.index(mine)) if mine in ranks else (NO_COLOR, 0)
            part = self._blocking(f"the communicator of ranks {list(ranks)}", partial(self.root.commSplit, color, key))
            if part is not None:
                self._parts[ranks] = part

    def _create(self) -> None:
        note_start()
        identity: bytes | None = None
        error = ""
        if self._comm.rank == 0:
            try:
                identity = self._nccl.get_unique_id()
            except Exception as failure:  # noqa: BLE001 - all ranks raise it
                error = f"{type(failure).__name__}: {failure}"
        identity, error = self._comm.exchange((identity, error))[0]
        if error:
            raise JobError(f"start of NCCL: rank {self._comm.members[0]} cannot create the id of a communicator ({error}); {ADVICE}")
        config = self._nccl.NcclConfig(split_share=1)
        create = self._nccl.NcclCommunicator
        what = f"the communicator of ranks {list(self._comm.members)}"
        self._root.append(self._blocking(what, lambda: create(self._comm.size, identity, self._comm.rank, config)))

    def _blocking(self, what: str, create: Callable[[], Any]) -> Any:
        """Return the communicator from `create`; raise the error of a failed rank, which `create` would wait for forever."""

        def on_device() -> Any:
            self._device.activate()
            return create()

        try:
            return BlockingCall(on_device, _abandoned).result(self._comm.check)
        except JobflowError as error:
            self.end(str(error))
            raise
        except Exception as error:
            self.end(str(error))
            rank = self._comm.members[self._comm.rank]
            raise JobError(f"start of NCCL: rank {rank} cannot create {what} ({type(error).__name__}: {error}); {ADVICE}") from error

    def check_errors(self) -> None:
        """Raise the error of a communicator that NCCL has detected outside of a call, such as a lost connection."""
        with self._lock:
            if self.ended is not None:
                return
            for comm in (*self._root, *self._parts.values()):
                try:
                    comm.check_async_error()
                except Exception as error:
                    rank = self._comm.members[self._comm.rank]
                    text = f"NCCL failed on rank {rank}: {type(error).__name__}: {error}"
                    raise JobError(f"communication: {text}; {ADVICE}") from error

    def end(self, reason: str) -> None:
        """Abort all communicators, so that the device stops waiting for peers; any thread may call this."""
        with self._lock:
            if self.ended is not None or not self._root:
                return
            self.ended = reason
            if not ends_within(LIMIT, lambda: _abort(self._root, self._parts)):
                notice(f"NCCL did not abort its communicators within {LIMIT:g} s")

    def close(self) -> None:
        """Destroy the communicators; all ranks call this together."""
        if self._root and self.ended is None and self._finalizer.alive:
            try:
                self._comm.barrier()  # no rank destroys a communicator that another rank still uses
            except JobflowError as error:
                self.end(str(error))
                raise
            call = BlockingCall(self._destroy)
            if not call.wait(LIMIT):
                notice(f"NCCL did not destroy its communicators within {LIMIT:g} s")
            else:
                call.result(self._comm.check)
        self._finalizer.detach()
        self._parts.clear()
        self._root.clear()

    def _destroy(self) -> None:
        self._device.activate()
        for _, part in sorted(self._parts.items()):
            part.destroy()
        self.root.destroy()


#: advice for users
ADVICE = "set NCCL_DEBUG=WARN to print its messages, and start a new session with clear_default_session()"


def _abandoned(comm: Any) -> None:
    if comm is not None:
        comm.abort()


def _abort(root: Sequence[Any], parts: dict[tuple[int, ...], Any]) -> None:
    for comm in (*parts.values(), *root):
        comm.abort()
