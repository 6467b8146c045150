"""The work of each rank for a checkpoint of a session, as commands that the session sends to the ranks.

Commands return errors instead of raising them, so that all clients raise the same error and the ranks can continue. The writing threads use files
and private memory only, and do not communicate with other ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, JobError, ReplacedError
from jobflow.core.types import Array, TensorType
from jobflow.plan.storage import is_common
from jobflow.program.program import state_of
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.variable_buffers import State
from jobflow.runtime.world.world import Rank
from jobflow.storage import checkpoint_reader as reading
from jobflow.storage import drafts, safetensors
from jobflow.storage import rank_files as parts
from jobflow.storage.file_system import Files, files_of
from jobflow.storage.manifest import Spans
from jobflow.storage.rank_files import Piece
from jobflow.storage.remote import AnyPath
from jobflow.storage.remote_drafts import UnsureError

T = TypeVar("T")
#: keys of a rank's memory: the running write, and loaded tensors before their assignment
TASK, _STAGED = "saving", "loading"
#: seconds between polls for a failure of rank 0
_POLL = 1.0
#: seconds within which a network file system shows a new directory on all nodes
_SHOWN = 5.0


def attempted(what: Callable[[], T], why: str = "") -> T | CheckpointError:
    """Return the result of `what()`, or the CheckpointError that it raises.

    An OSError or MemoryError is returned as a CheckpointError with the prefix `why`.
    """
    try:
        return what()
    except CheckpointError as error:
        return error
    except (OSError, MemoryError) as error:
        return CheckpointError(f"{why}{error}")


# ---- saving --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """A command that creates the draft of a checkpoint on rank 0 and returns it, or the error."""

    target: AnyPath
    replace: bool

    def __call__(self, rank: Rank, _: Any) -> drafts.Draft | CheckpointError | None:
        why = f"checkpoint {self.target} could not be saved, and nothing was changed: "
        return attempted(lambda: drafts.begin(self.target, self.replace, files_of(0)), why) if rank.index == 0 else None


@dataclass(frozen=True)
class PathExists:
    """A command that returns True if a path exists on the node of the rank; it waits for network file systems."""

    path: Path

    def __call__(self, rank: Rank, _: Any) -> bool:
        deadline = time.monotonic() + _SHOWN
        while not self.path.exists():
            if time.monotonic() > deadline:
                return False
            with suppress(OSError):
                os.listdir(self.path.parent)  # lets the file system forget that the name was missing
            time.sleep(0.1)
        return True


@dataclass(frozen=True)
class Publication:
    """The data that rank 0 needs to publish the parts of all ranks."""

    #: shape and element type by name
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    extra: Mapping[str, Any]
    #: the ranks that write, in ascending order
    ranks: Sequence[int]
    limit: float
    #: a function that rank 0 calls after publication
    then: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Order:
    """The boxes that one rank writes, by name; `publication` is set on rank 0 only."""

    boxes: Mapping[str, Spans]
    publication: Publication | None = None


@dataclass(frozen=True)
class Write:
    """A command that writes the rank's boxes; if `asynchronous`, it copies them and starts a thread that writes them."""

    draft: drafts.Draft
    asynchronous: bool

    def __call__(self, rank: Rank, order: Order) -> None:
        pieces: dict[str, Piece] | Exception
        try:
            pieces = {name: Piece(box, _array(state_of(rank), name, copied=self.asynchronous)) for name, box in order.boxes.items()}
        except Exception as error:  # noqa: BLE001 - such as MemoryError; the task raises it and so reports it to the other ranks
            pieces = error
        task = self._task(rank, pieces, order)
        if not self.asynchronous:
            task.run()
            return
        try:
            task.start(f"checkpoint of rank {rank.index}")
        except JobError as error:
            self._task(rank, error, order).run()  # reports the failure to the other ranks

    def _task(self, rank: Rank, pieces: dict[str, Piece] | Exception, order: Order) -> Task:
        task = Task(partial(_write_part, self.draft, rank.index, pieces, order, files_of(rank.index)))
        rank.memory[TASK] = task
        return task


def _array(state: State, name: str, copied: bool) -> Array:
    array = state.read(name) if copied or state.device.tag != "cpu" else state.array(name)
    return safetensors.storable(name, array)


@dataclass(frozen=True)
class Outcome:
    """The result of a rank's write: an error before publication (`failure`), an error after it (`warning`), or neither."""

    failure: str | None = None
    warning: str | None = None
    #: True if another rank failed first
    by_other_rank: bool = False
    #: True if the checkpoint may be complete in spite of the failure
    unsure: bool = False

    @property
    def problem(self) -> str | None:
        return self.failure or self.warning


@dataclass(eq=False)
class Task:
    """The write of one rank, in the calling thread (`run`) or in a new non-daemon thread (`start`)."""

    work: Callable[[], str | None]
    outcome: Outcome | None = None
    thread: threading.Thread | None = field(default=None, repr=False)

    def start(self, name: str) -> None:
        self.thread = start_thread(self.run, name, daemon=False)

    def run(self) -> None:
        outcome = Outcome("the write was interrupted")
        try:
            outcome = Outcome(warning=self.work())
        except Exception as error:  # noqa: BLE001 - stored, and raised by the caller of `join`
            known = isinstance(error, CheckpointError | JobError | OSError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            outcome = Outcome(text, by_other_rank=isinstance(error, parts.OtherRankError), unsure=isinstance(error, UnsureError))
        finally:
            del self.work  # releases the copies
            self.outcome = outcome

    def join(self, limit: float | None) -> Outcome | None:
        """Wait at most `limit` seconds; return the outcome, or None if the task is still running."""
        if self.thread is not None:
            self.thread.join(limit)
        return self.outcome


def _write_part(draft: drafts.Draft, rank: int, pieces: Mapping[str, Piece] | Exception, order: Order, files: Files) -> str | None:
    try:
        if isinstance(pieces, Exception):
            raise pieces
        if order.publication is None and not pieces:
            return None  # rank 0 does not wait for this rank and may have published the directory
        part = parts.write(draft, parts.prefix(rank), pieces, files)
        if order.publication is None:
            parts.deliver(draft, rank, part, files)
            return None
        what = order.publication
        others = parts.gather(draft, [rank for rank in what.ranks if rank != 0], what.limit)
        parts.publish(draft, what.tensors, [part, *others], what.extra, files)
    except BaseException as error:
        parts.mark_failure(draft, rank, error, files)
        raise
    return _settle(draft, order.publication, files)


def _settle(draft: drafts.Draft, what: Publication, files: Files) -> str | None:
    """Finish the checkpoint after publication and call `then`; return an error as text, because the checkpoint is already complete."""
    try:
        draft.settle(files)
    except CheckpointError as error:
        return str(error)
    try:
        if what.then is not None:
            what.then()
    except (CheckpointError, OSError) as error:
        return f"checkpoint {draft.target} is complete, but a later step failed: {error}"
    return None


@dataclass(frozen=True)
class Collect:
    """A command that waits for the rank's write and returns its outcome.

    The command stops waiting for a hanging write after rank 0 has failed, for example at its time limit.
    """

    draft: drafts.Draft

    def __call__(self, rank: Rank, _: Any) -> Outcome:
        task: Task = rank.memory[TASK]
        while (outcome := task.join(None if rank.index == 0 else _POLL)) is None:
            if parts.has_failed(self.draft, 0) and task.join(_POLL) is None:
                return Outcome("the rank is still writing")
        return outcome


@dataclass(frozen=True)
class Discard:
    """A command that removes, on rank 0, a draft that will not be completed."""

    draft: drafts.Draft

    def __call__(self, rank: Rank, _: Any) -> None:
        if rank.index == 0:
            self.draft.discard(files_of(0))


# ---- loading -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contents:
    """The types, JSON tree and digest of a checkpoint, as read by rank 0."""

    #: None for a legacy tensor without a recorded type that matches no variable
    types: Mapping[str, TensorType | None]
    extra: Mapping[str, Any]
    digest: str


@dataclass(frozen=True)
class Inspect:
    """A command that reads the contents of a checkpoint on rank 0; `types` applies to legacy tensors without a `meta` file."""

    path: AnyPath
    types: Mapping[str, TensorType]

    def __call__(self, rank: Rank, _: Any) -> Contents | CheckpointError | None:
        return attempted(self._contents) if rank.index == 0 else None

    def _contents(self) -> Contents:
        checkpoint = reading.load(self.path, self.types, check=False)
        types = {name: stored.type if name in self.types or stored.has_type else None for name, stored in checkpoint.stored.items()}
        return Contents(types, checkpoint.extra, checkpoint.digest)


@dataclass(frozen=True)
class Stage:
    """A command that reads the rank's boxes of the tensors in `types` into a staging area, and returns the error, if any.

    One rank reads the variables in memory that ranks share.
    """

    path: AnyPath
    digest: str
    types: Mapping[str, TensorType]

    def __call__(self, rank: Rank, _: Any) -> CheckpointError | None:
        return attempted(lambda: self._stage(rank))

    def _stage(self, rank: Rank) -> None:
        state, staged = state_of(rank), dict[str, Array]()
        checkpoint = reading.load(self.path, self.types, check=False)
        if checkpoint.digest != self.digest:
            raise ReplacedError(f"checkpoint {self.path} was replaced during the read; load it again")
        for i, (name, type) in enumerate(self.types.items()):
            if name in state.slots and (i % rank.size == rank.index or not is_common(state.slots[name].buffer)):
                staged[name] = checkpoint.stored[name].read(state.variables[name].layout.box(type.shape, rank.index))
        rank.memory[_STAGED] = staged


@dataclass(frozen=True)
class Apply:
    """A command that assigns the staged values to the variables, or drops them if `assign` is False."""

    assign: bool

    def __call__(self, rank: Rank, _: Any) -> None:
        staged: dict[str, Array] = rank.memory.pop(_STAGED, {})
        if self.assign:
            state = state_of(rank)
            for name in list(staged):
                state.write(name, staged.pop(name))


@dataclass(frozen=True)
class OnFirst:
    """A command that calls a function on rank 0, and returns its result or its error; the function uses only files."""

    def __call__(self, rank: Rank, what: Callable[[], Any] | None) -> Any:
        return None if what is None or rank.index != 0 else attempted(what)
