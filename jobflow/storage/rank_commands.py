"""What each rank does for a checkpoint of a session, as commands that the session sends to the ranks.

Commands answer with what went wrong instead of raising it, so that all clients raise the same and the ranks can go on.  The threads
that write touch files and memory of their own only: nothing is sent between ranks there.
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
#: what a rank keeps in its memory: the task in flight, and tensors that were read but not yet taken
TASK, _STAGED = "saving", "loading"
#: seconds between two looks whether rank 0 has given up
_LOOK = 1.0


def attempted(what: Callable[[], T], why: str = "") -> T | CheckpointError:
    """What `what` gives, or what goes wrong with its files; `why` begins the text of what is no CheckpointError yet."""
    try:
        return what()
    except CheckpointError as error:
        return error
    except (OSError, MemoryError) as error:
        return CheckpointError(f"{why}{error}")


# ---- saving --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """Rank 0 looks whether the target is free, removes leftovers, and makes the draft that all write into; answers with that or what went wrong."""

    target: AnyPath
    replace: bool

    def __call__(self, rank: Rank, _: Any) -> drafts.Draft | CheckpointError | None:
        why = f"checkpoint {self.target} could not be saved, and nothing was changed: "
        return attempted(lambda: drafts.begin(self.target, self.replace, files_of(0)), why) if rank.index == 0 else None


@dataclass(frozen=True)
class Publication:
    """What rank 0 makes of the ranks' parts."""

    #: shape and element type by name
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    extra: Mapping[str, Any]
    #: those that write, in order
    ranks: Sequence[int]
    limit: float
    #: called once the checkpoint has its name
    then: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Order:
    """What one rank writes: a box per name; rank 0 publishes, too."""

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
            pieces = {name: Piece(box, _numbers(state_of(rank), name, copied=self.asynchronous)) for name, box in order.boxes.items()}
        except Exception as error:  # noqa: BLE001 - such as too little memory: raised where the others hear of it
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


def _numbers(state: State, name: str, copied: bool) -> Array:
    found = state.read(name) if copied or state.device.tag != "cpu" else state.array(name)
    return safetensors.storable(name, found)


@dataclass(frozen=True)
class Outcome:
    """How a rank's writing ended: what went wrong before the checkpoint had its name, and after."""

    failure: str | None = None
    warning: str | None = None
    #: the failure is that of another rank
    of_another: bool = False
    #: it may be no failure at all
    unsure: bool = False

    @property
    def problem(self) -> str | None:
        return self.failure or self.warning


@dataclass(eq=False)
class Task:
    """One rank's writing: in the thread that calls `run`, or in one of its own, which a program does not end before."""

    work: Callable[[], str | None]
    outcome: Outcome | None = None
    thread: threading.Thread | None = field(default=None, repr=False)

    def start(self, name: str) -> None:
        self.thread = start_thread(self.run, name, daemon=False)

    def run(self) -> None:
        outcome = Outcome("its writing was interrupted")
        try:
            outcome = Outcome(warning=self.work())
        except Exception as error:  # noqa: BLE001 - kept, and raised by who waits for the task
            known = isinstance(error, CheckpointError | JobError | OSError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            outcome = Outcome(text, of_another=isinstance(error, parts.OfAnother), unsure=isinstance(error, UnsureError))
        finally:
            del self.work  # and with it the copies
            self.outcome = outcome

    def join(self, limit: float | None) -> Outcome | None:
        """How it ended, if it has; waits at most `limit` seconds."""
        if self.thread is not None:
            self.thread.join(limit)
        return self.outcome


def _write_part(draft: drafts.Draft, rank: int, pieces: Mapping[str, Piece] | Exception, order: Order, files: Files) -> str | None:
    try:
        if isinstance(pieces, Exception):
            raise pieces
        if order.publication is None and not pieces:
            return None  # rank 0, which does not wait for this one, may be giving the directory its name
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
    """After that: what went wrong then, which is no failure to save."""
    try:
        draft.settle(files)
    except CheckpointError as error:
        return str(error)
    try:
        if what.then is not None:
            what.then()
    except (CheckpointError, OSError) as error:
        return f"checkpoint {draft.target} is complete, but not what should come after it: {error}"
    return None


@dataclass(frozen=True)
class Collect:
    """Wait for the rank's writing; not for what hangs, once rank 0, which has a time limit, has given up."""

    draft: drafts.Draft

    def __call__(self, rank: Rank, _: Any) -> Outcome:
        task: Task = rank.memory[TASK]
        while (outcome := task.join(None if rank.index == 0 else _LOOK)) is None:
            if parts.has_failed(self.draft, 0) and task.join(_LOOK) is None:
                return Outcome("it is still writing")
        return outcome


@dataclass(frozen=True)
class Discard:
    """Rank 0 removes what will not be completed."""

    draft: drafts.Draft

    def __call__(self, rank: Rank, _: Any) -> None:
        if rank.index == 0:
            self.draft.discard(files_of(0))


# ---- loading -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contents:
    """What a checkpoint has, as rank 0 sees it."""

    #: None of a legacy tensor that does not say its type, and that nobody asked for
    types: Mapping[str, TensorType | None]
    extra: Mapping[str, Any]
    digest: str


@dataclass(frozen=True)
class Look:
    """Rank 0 reads what is in a checkpoint; `types` are those of legacy tensors that do not say theirs."""

    path: AnyPath
    types: Mapping[str, TensorType]

    def __call__(self, rank: Rank, _: Any) -> Contents | CheckpointError | None:
        return attempted(self._look) if rank.index == 0 else None

    def _look(self) -> Contents:
        found = reading.load(self.path, self.types, check=False)
        types = {name: stored.type if name in self.types or stored.says_type else None for name, stored in found.stored.items()}
        return Contents(types, found.extra, found.digest)


@dataclass(frozen=True)
class Stage:
    """Read the rank's boxes of tensors, by name with their types, and keep them beside the variables; answers with what went wrong.

    What ranks have in common memory, one of them reads.
    """

    path: AnyPath
    digest: str
    types: Mapping[str, TensorType]

    def __call__(self, rank: Rank, _: Any) -> CheckpointError | None:
        return attempted(lambda: self._stage(rank))

    def _stage(self, rank: Rank) -> None:
        state, staged = state_of(rank), dict[str, Array]()
        found = reading.load(self.path, self.types, check=False)
        if found.digest != self.digest:
            raise ReplacedError(f"checkpoint {self.path} was replaced by another one while it was being read; load it again")
        for i, (name, type) in enumerate(self.types.items()):
            if name in state.slots and (i % rank.size == rank.index or not is_common(state.slots[name].buffer)):
                staged[name] = found.stored[name].read(state.variables[name].layout.box(type.shape, rank.index))
        rank.memory[_STAGED] = staged


@dataclass(frozen=True)
class Take:
    """Give variables the values that were staged, or forget these."""

    really: bool

    def __call__(self, rank: Rank, _: Any) -> None:
        staged: dict[str, Array] = rank.memory.pop(_STAGED, {})
        if self.really:
            state = state_of(rank)
            for name in list(staged):
                state.write(name, staged.pop(name))


@dataclass(frozen=True)
class OnFirst:
    """Rank 0 calls what it is given, which knows only files; answers with its result, or with what went wrong."""

    def __call__(self, rank: Rank, what: Callable[[], Any] | None) -> Any:
        return None if what is None or rank.index != 0 else attempted(what)
