"""The work of each rank for a checkpoint of a session, as commands that the session sends to the ranks.

Commands return errors instead of raising them, so that all clients raise the same error and the ranks can continue.  The writing threads
use files and private memory only; they do not communicate with other ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
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
#: keys of a rank's memory: the running task, and tensors that are read but not yet assigned
TASK, _STAGED = "saving", "loading"
#: seconds between polls for a failure of rank 0
_POLL = 1.0


def attempted(what: Callable[[], T], why: str = "") -> T | CheckpointError:
    """Return the result of `what`, or the error of its files; `why` is the prefix for errors that are not CheckpointError."""
    try:
        return what()
    except CheckpointError as error:
        return error
    except (OSError, MemoryError) as error:
        return CheckpointError(f"{why}{error}")


# ---- saving --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """Create the draft for all ranks on rank 0, after checking the target and removing leftovers; return the draft or the error."""

    target: AnyPath
    replace: bool

    def __call__(self, rank: Rank, _: Any) -> drafts.Draft | CheckpointError | None:
        why = f"checkpoint {self.target} could not be saved, and nothing was changed: "
        return attempted(lambda: drafts.begin(self.target, self.replace, files_of(0)), why) if rank.index == 0 else None


@dataclass(frozen=True)
class Publication:
    """The arguments by which rank 0 publishes the parts of all ranks."""

    #: shape and element type by name
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    extra: Mapping[str, Any]
    #: the ranks that write, in order
    ranks: Sequence[int]
    limit: float
    #: called after publication
    then: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Order:
    """The boxes that one rank writes, by name; rank 0 also publishes."""

    boxes: Mapping[str, Spans]
    publication: Publication | None = None


@dataclass(frozen=True)
class Write:
    """Write the rank's boxes; if `asynchronous`, copy them now and write them in a thread."""

    draft: drafts.Draft
    asynchronous: bool

    def __call__(self, rank: Rank, order: Order) -> None:
        pieces: dict[str, Piece] | Exception
        try:
            pieces = {name: Piece(box, _array(state_of(rank), name, copied=self.asynchronous)) for name, box in order.boxes.items()}
        except Exception as error:  # noqa: BLE001 - such as MemoryError: raised by the task, which reports it to the other ranks
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
    """The result of a rank's writing: an error before publication (failure) or after it (warning)."""

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
    """The writing of one rank, in the thread that calls `run` or in a new non-daemon thread, for which the program waits."""

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
            return None  # rank 0 does not wait for this rank and may already publish the directory
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
    """Finish the checkpoint after publication; return the error of this step, which does not fail the save."""
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
    """Wait for the rank's writing, but not for a hanging write after rank 0 has reached its time limit."""

    draft: drafts.Draft

    def __call__(self, rank: Rank, _: Any) -> Outcome:
        task: Task = rank.memory[TASK]
        while (outcome := task.join(None if rank.index == 0 else _POLL)) is None:
            if parts.has_failed(self.draft, 0) and task.join(_POLL) is None:
                return Outcome("the rank is still writing")
        return outcome


@dataclass(frozen=True)
class Discard:
    """Remove a draft that will not be completed, on rank 0."""

    draft: drafts.Draft

    def __call__(self, rank: Rank, _: Any) -> None:
        if rank.index == 0:
            self.draft.discard(files_of(0))


# ---- loading -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint as rank 0 reads them."""

    #: None for a legacy tensor without a recorded type that matches no variable
    types: Mapping[str, TensorType | None]
    extra: Mapping[str, Any]
    digest: str


@dataclass(frozen=True)
class Inspect:
    """Read the contents of a checkpoint on rank 0; `types` are those of legacy tensors without a `meta` file."""

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
    """Read the rank's boxes of the tensors in `types` into a staging area; return the error, if any.

    Variables in memory shared by ranks are read by one rank.
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
            raise ReplacedError(f"checkpoint {self.path} was replaced by another one while it was being read; load it again")
        for i, (name, type) in enumerate(self.types.items()):
            if name in state.slots and (i % rank.size == rank.index or not is_common(state.slots[name].buffer)):
                staged[name] = checkpoint.stored[name].read(state.variables[name].layout.box(type.shape, rank.index))
        rank.memory[_STAGED] = staged


@dataclass(frozen=True)
class Apply:
    """Assign the staged values to the variables, or drop them."""

    assign: bool

    def __call__(self, rank: Rank, _: Any) -> None:
        staged: dict[str, Array] = rank.memory.pop(_STAGED, {})
        if self.assign:
            state = state_of(rank)
            for name in list(staged):
                state.write(name, staged.pop(name))


@dataclass(frozen=True)
class OnFirst:
    """Call a function that uses only files on rank 0; return its result or its error."""

    def __call__(self, rank: Rank, what: Callable[[], Any] | None) -> Any:
        return None if what is None or rank.index != 0 else attempted(what)
