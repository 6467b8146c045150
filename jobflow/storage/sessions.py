"""Checkpoints of the variables of a session, saved and loaded by all ranks together, in any layout.

Saving.  Every box of a variable is written by one of the ranks that hold it; copies are taken to be the same, and shared out so that
all ranks write about as many bytes.  Rank 0 makes a directory beside the target, each rank writes its boxes there and then a
manifest of its part, and rank 0, having seen all of them, gives the whole its name by one rename (rank_files, local_drafts).  With
`asynchronous` the ranks copy their boxes and go on; threads write.  No rank ever holds more than its own boxes.

Loading.  Each rank reads the shards that meet its boxes and checks them against their hashes.  Only when all ranks have theirs does
the first variable change.

`save`, `load` and `Saving.wait` are collective: as multi client every rank calls them, and all get the same answer.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import jobflow.core.scope as scope
from jobflow.core.errors import CheckpointError, ReplacedError, did_you_mean, did_you_mean_or, user_line
from jobflow.core.notices import notice
from jobflow.core.types import Array, TensorType
from jobflow.engine.session import Session
from jobflow.graph.ir import Variable
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world.world import World
from jobflow.storage import drafts, safetensors
from jobflow.storage import rank_commands as ranks
from jobflow.storage import rank_files as parts
from jobflow.storage.drafts import Draft
from jobflow.storage.manifest import Spans, check_extra
from jobflow.storage.remote import AnyPath, RemotePath, path_of
from jobflow.storage.store import name_of
from jobflow.storage.store import save as save_arrays
from jobflow.storage.untrusted import whole

T = TypeVar("T")
Where = str | os.PathLike[str] | RemotePath


# ---- saving --------------------------------------------------------------------------------------------------------------------------


class AfterSavingError(CheckpointError):
    """The checkpoint is complete and has its name, but what comes after that went wrong."""


class Saving:
    """A checkpoint on its way to the disk."""

    def __init__(self, session: Session, world: World, path: AnyPath, draft: Draft, where: str) -> None:
        self.path = path
        self._session = session
        self._world = world
        self._draft = draft
        self._where = where
        self._tasks = [rank.memory.get(ranks.TASK) for rank in world.ranks]
        #: what went wrong, once all ranks have been asked, and whether before the checkpoint had its name
        self._answer: list[str] | None = None
        self._failed = False
        self._parted = False

    @property
    def done(self) -> bool:
        """Whether the ranks of this process have written; in the process of rank 0 it then has its name, or has failed."""
        return all(task is None or task.outcome is not None for task in self._tasks)

    @property
    def error(self) -> CheckpointError | None:
        """What is known to have gone wrong, in this process until `wait` has asked all."""
        known = [task.outcome.problem for task in self._tasks if task is not None and task.outcome is not None]
        found = next(filter(None, known if self._answer is None else self._answer), None)
        return CheckpointError(found) if found else None

    def wait(self) -> None:
        """Until all ranks are done; collective.  CheckpointError if it could not be saved; nobody else raises that afterwards.

        AfterSavingError, which is one too, if it is there but something after that went wrong.
        """
        with scope.lock():
            if self._answer is None:
                self._answer = self._own() if self._parted else self._ask()
            if self._session.unfinished is self:
                self._session.unfinished = None
        if self._answer:
            raise (CheckpointError if self._failed else AfterSavingError)(self._answer[0])

    def part(self) -> None:
        """Ask no other rank from now on: this one leaves them by an exception."""
        self._parted = True

    def _own(self) -> list[str]:
        """What went wrong in this process; what was written is left to the next save."""
        outcomes = [outcome for task in self._tasks if task is not None and (outcome := task.join(None)) is not None]
        self._failed = any(outcome.failure is not None for outcome in outcomes)
        return [outcome.problem for outcome in outcomes if outcome.problem is not None]

    def _ask(self) -> list[str]:
        """What went wrong, as all ranks tell it; what was written is removed then.

        Rank 0 decides: what it has published is complete, even where a rank was never told that its part arrived.
        """
        outcomes: list[ranks.Outcome] = self._world.call(ranks.Collect(self._draft))
        failed = [rank for rank, outcome in enumerate(outcomes) if outcome.failure is not None]
        if failed:
            self._world.call(ranks.Discard(self._draft))
        if 0 not in failed:
            return [outcome.warning for outcome in outcomes if outcome.warning is not None]
        self._failed = True
        rank = min(failed, key=lambda rank: (outcomes[rank].of_another, rank))  # who failed of itself knows best
        if outcomes[rank].unsure:
            return [f"{outcomes[rank].failure}{self._where}"]
        named = f"rank {rank}: " if self._world.size > 1 and not outcomes[rank].of_another else ""
        return [f"checkpoint {self.path} could not be saved{self._where}, and nothing was changed: {named}{outcomes[rank].failure}"]


@scope.alone
def save(
    session: Session,
    path: Where,
    extra: Mapping[str, Any] | None = None,
    *,
    asynchronous: bool = False,
    replace: bool = False,
    limit: float = parts.LIMIT,
    then: Callable[[], Any] | None = None,
) -> Saving:
    """Write every variable of the session, and a JSON tree beside them, to the directory `path`, whole or not at all.

    The path must not exist or be an empty directory; with `replace` an older checkpoint may be there.  "seed", "runs" and "layout"
    are added to `extra` unless it has them.  With `asynchronous` this returns when the ranks have copied their parts; what goes
    wrong later is raised by `Saving.wait`, by the next save, or when the session ends.  One save is under way at a time.
    `limit` is how many seconds rank 0 waits for another rank that gives no sign; `then`, which is picklable, is called in the
    process of rank 0 once the checkpoint has its name.
    Raises: CheckpointError, the same on all ranks.
    """
    world = _world_of(session)
    session.finish()
    target = _seen_by_all(path, world, "save")
    whole = described(session) | dict(extra or {})
    check_extra(whole)
    for name in session.variables:
        name_of(name)
    where = f" (save at {user_line()})"
    draft: Draft | CheckpointError = world.call(ranks.Prepare(target, replace))[0]
    if isinstance(draft, CheckpointError):
        raise CheckpointError(f"{draft}{where}")
    boxes = shared_out(session.variables, world.size)
    types = {name: (variable.type.shape, variable.type.dtype.numpy.name) for name, variable in session.variables.items()}
    publication = ranks.Publication(types, whole, [rank for rank, own in enumerate(boxes) if own], limit, then)
    orders = [ranks.Order(own, publication if rank == 0 else None) for rank, own in enumerate(boxes)]
    try:
        world.call(ranks.Write(draft, asynchronous), orders)
    except BaseException:
        if world.ranks:
            world.call(ranks.Discard(draft))
        raise
    saving = Saving(session, world, target, draft, where)
    if asynchronous:
        _under_way(session, saving)
    else:
        saving.wait()
    return saving


def _world_of(session: Session) -> World:
    """The session's world, with all of its variables."""
    session.prepare_all()
    session.settle()
    return session.start()


def _seen_by_all(path: Where, world: World, what: str) -> AnyPath:
    """The path of a checkpoint.  CheckpointError if the ranks do not see the same there."""
    found = path_of(path, absolute=True)
    if isinstance(found, RemotePath) and found.is_of_one_process and world.multi and world.size > 1:
        raise CheckpointError(
            f"{what} at {user_line()}: what is in {found} is of one process, and this program has {world.size}; "
            f"give a directory that all of them see, or a store such as s3://bucket/name"
        )
    return found


def described(session: Session) -> dict[str, Any]:
    """What every checkpoint of a session says about it."""
    layouts = {name: str(variable.layout) for name, variable in session.variables.items()}
    return {"seed": session.settings.seed, "runs": dict(session.runs), "layout": {"ranks": session.device_count(), "variables": layouts}}


def shared_out(variables: Mapping[str, Variable], size: int) -> list[dict[str, Spans]]:
    """For each rank the boxes that it writes: each box of each variable once, by that of its holders which has least to write so far.

    Large boxes are given out first, so that the rest evens out what they leave uneven.
    """
    holders: list[tuple[int, str, Spans, list[int]]] = []
    for name, variable in variables.items():
        each: dict[Spans, list[int]] = {}
        for rank, box in variable.layout.boxes(variable.type.shape).items():
            if not box.is_empty or box.is_whole:
                each.setdefault(box.spans, []).append(rank)
        for spans, held in each.items():
            holders.append((variable.layout.local_type(variable.type, held[0]).nbytes, name, spans, sorted(held)))
    written: list[dict[str, Spans]] = [{} for _ in range(size)]
    load = [0] * size
    for nbytes, name, spans, held in sorted(holders, key=lambda entry: (-entry[0], entry[1:])):
        rank = min(held, key=lambda rank: load[rank])
        load[rank] += nbytes
        written[rank][name] = spans
    return written


# ---- what is under way ---------------------------------------------------------------------------------------------------------------

_sessions: WeakSet[Session] = WeakSet()
#: set at the end of a program that could not save
_failed: list[bool] = []


def _under_way(session: Session, saving: Saving) -> None:
    if not _sessions:
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)  # the later, the sooner it is called: before the ranks end
    _sessions.add(session)
    session.unfinished = saving


def _at_exit() -> None:
    """The program ends: what is under way is completed, and a failure that nobody has heard of is reported."""
    for session in list(_sessions):
        try:
            session.finish()
        except CheckpointError as error:
            started = launch.launched()
            if started is not None:
                launch.end_job(error, started)
            print(f"jobflow: {error}", file=sys.stderr, flush=True)
            _failed.append(True)


@atexit.register
def _tell_the_shell() -> None:
    """Registered early and so called late: exit code 1 if the last checkpoint could not be saved."""
    if _failed:
        sys.stdout.flush()
        os._exit(1)


# ---- loading -------------------------------------------------------------------------------------------------------------------------


@scope.alone
def load(
    session: Session, path: Where, names: Sequence[str] = ("*",), strict: bool | Literal["variables", "some"] = True, *, what: str = "load"
) -> dict[str, Any]:
    """Give the variables whose names match one of the patterns `names` the values that a checkpoint has; what was saved beside them.

    strict=True: the variables and the tensors that match are the same; "variables": every variable that matches has a tensor;
    "some": what is in both is loaded, and a notice names the rest; False: the same without a notice.
    If everything is loaded (names=("*",)), jobs go on with the counts of runs that were saved.
    Raises: CheckpointError, the same on all ranks, if something is missing or damaged or has another type, or if no variable is in the
    checkpoint; nothing has changed then.
    """
    world = _world_of(session)
    session.finish()
    source = _seen_by_all(path, world, what)
    here = f"{what} of {source} at {user_line()}"
    own = {name: variable.type for name, variable in session.variables.items()}
    found: ranks.Contents | CheckpointError = world.call(ranks.Look(source, own))[0]
    if isinstance(found, CheckpointError):
        raise type(found)(f"{found} ({what} at {user_line()})")
    chosen = _chosen(own, found.types, names, strict, here)
    runs = _runs(found.extra, here)
    failures: list[CheckpointError | None] = world.call(ranks.Stage(source, found.digest, chosen))
    failed = _first(failures)
    world.call(ranks.Take(failed is None))
    session.changed(chosen)
    session.loaded.update(chosen)
    if failed is not None:
        raise type(failed)(f"{here}, no variable was changed: {failed}")
    if strict == "some":
        tell_the_rest(session, here, chosen, own, found.types)
    if tuple(names) == ("*",):
        session.runs.update({job: runs.get(job, 0) for job in {*session.runs, *runs}} if runs is not None else {})
    return dict(found.extra)


def _first(failures: Sequence[CheckpointError | None]) -> CheckpointError | None:
    """What to report of what ranks met: that the checkpoint was replaced, or else what the first of them says."""
    failed = [(rank, error) for rank, error in enumerate(failures) if error is not None]
    rank, error = next((one for one in failed if isinstance(one[1], ReplacedError)), failed[0]) if failed else (0, None)
    return error if error is None or len(failures) == 1 else type(error)(f"rank {rank}: {error}")


def _chosen(
    own: Mapping[str, TensorType],
    there: Mapping[str, TensorType | None],
    names: Sequence[str],
    strict: bool | Literal["variables", "some"],
    here: str,
) -> dict[str, TensorType]:
    """The variables to load; CheckpointError if the checkpoint does not fit them."""
    variables, tensors = _matching(own, names), _matching(there, names)
    for pattern in names:
        if pattern != "*" and not _matching(own, [pattern]):
            raise CheckpointError(f'{here}: no variable is called "{pattern}"{did_you_mean(pattern, own)}')
    missing = [name for name in variables if name not in there] if strict in (True, "variables") else []
    beyond = [name for name in tensors if name not in own] if strict is True else []
    if missing:
        raise CheckpointError(f"{here}: the checkpoint has no {_listed(missing)}{did_you_mean(missing[0], there)}")
    if beyond:
        near = did_you_mean_or(beyond[0], own, 'with strict="variables" load what the program has, with strict=False what both have')
        raise CheckpointError(f"{here}: the program has no variable {_listed(beyond)}{near}")
    both = {name: own[name] for name in variables if name in there}
    if (variables or (tensors and strict == "some")) and not both:
        raise CheckpointError(_nothing_in_common(here, own, there))
    for name, type in both.items():
        other = there[name]
        assert other is not None, "legacy tensors that do not say their type have that of the variable"
        if (other.shape, other.dtype.numpy) != (type.shape, type.dtype.numpy):
            raise CheckpointError(f'{here}: variable "{name}" is {type}, but the saved value is {other}')
    return both


def _nothing_in_common(here: str, own: Iterable[str], there: Iterable[str]) -> str:
    """Why nothing can be loaded: the names on both sides."""
    sides = [_listed(list(names), 3) or "none" for names in (own, there)]
    return f"{here}: no variable has a value in it, and nothing was changed; the variables are {sides[0]}, the values {sides[1]}"


def tell_the_rest(session: Session, here: str, loaded: Collection[str], own: Iterable[str], there: Collection[str]) -> None:
    """A notice, if not all variables that are meant have values, or not all values variables."""
    lacking, beyond = ([name for name in names if name not in loaded] for names in (own, there))
    rest = [f"no value there for {_listed(lacking)}" if lacking else "", f"no variable called {_listed(beyond)}" if beyond else ""]
    if any(rest) and session.writes_files:
        notice(f"{here}: {len(loaded)} of {len(there)} values loaded; {'; '.join(filter(None, rest))}")


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f'"{name}"' for name in names[:most]) + more


def _runs(extra: Mapping[str, Any], here: str) -> dict[str, int] | None:
    """The counts of runs that were saved, with which dropout goes on; None in legacy directories, which do not say."""
    saved = extra.get("runs")
    try:
        return None if saved is None else {str(job): whole(count) for job, count in saved.items()}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{here}: the run counts of jobs in the checkpoint are wrong: {error}") from None


# ---- files that one rank looks at or writes ------------------------------------------------------------------------------------------


@scope.alone
def on_first(session: Session, what: Callable[[], T]) -> T:
    """The result of `what`, which is picklable and knows only files, called by rank 0; collective.  CheckpointError, on all ranks, if it fails."""
    world = session.world or session.start()
    answer: T | CheckpointError = world.call(ranks.OnFirst(), [what, *[None] * (world.size - 1)])[0]
    if isinstance(answer, CheckpointError):
        raise CheckpointError(str(answer))
    return answer


@scope.alone
def free_path(session: Session, path: Where) -> AnyPath:
    """A path at which nothing is yet, the same on all ranks: `path`, or path-2, path-3 ... with a notice; collective."""
    world = _world_of(session)
    session.finish()
    target = _seen_by_all(path, world, "save")
    found = on_first(session, partial(drafts.free_path, target))
    if found != target and session.writes_files:
        notice(f"save at {user_line()}: {target} exists already and stays as it is; the checkpoint is written to {found}")
    return found


@scope.alone
def save_on_first(session: Session, path: Where, arrays: Mapping[str, Array], extra: Mapping[str, Any]) -> None:
    """Arrays that every client has, written by rank 0; collective."""
    session.finish()
    stored = {name_of(name): safetensors.storable(name, array) for name, array in arrays.items()}
    check_extra(extra)
    on_first(session, partial(save_arrays, path_of(path, absolute=True), stored, dict(extra)))
