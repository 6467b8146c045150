"""Checkpoints of the variables of a session, saved and loaded by all ranks together, in any layout.

Saving. Each box of a variable is written by one of the ranks that have a copy. Each rank writes a similar number of bytes. Rank 0 creates
a temporary directory next to the target. Each rank writes its boxes and a manifest of its part there. Rank 0 waits for all parts and renames the
directory to the target in one step (rank_files, local_drafts). With `asynchronous` the ranks copy their boxes and continue while threads write.
No rank stores more than its own boxes.

Loading. Each rank reads the shards that overlap its boxes and checks their hashes. Variables change only after all ranks have read their boxes.

`save`, `load` and `Saving.wait` are collective: in multi-client mode every rank calls them, and all get the same result.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import jobflow.core.scope as scope
from jobflow.core.errors import CheckpointError, ReplacedError, did_you_mean, did_you_mean_or, patterns_like, user_line
from jobflow.core.filters import Filter, selected, unmatched
from jobflow.core.notices import notice
from jobflow.core.types import Array, TensorType
from jobflow.engine.session import Session
from jobflow.graph.ir import Variable
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world.node_map import NodeMap
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
    """An error after the publication of a checkpoint, which is complete."""


class Saving:
    """A save in progress."""

    def __init__(self, session: Session, world: World, path: AnyPath, draft: Draft, where: str) -> None:
        self.path = path
        self._session = session
        self._world = world
        self._draft = draft
        self._where = where
        self._tasks = [rank.memory.get(ranks.TASK) for rank in world.ranks]
        #: the errors of all ranks once they are collected
        self._problems: list[str] | None = None
        #: True after an error before publication
        self._failed = False
        self._detached = False

    @property
    def done(self) -> bool:
        """True if the ranks of this process have finished writing; in the process of rank 0, the checkpoint is then published or has failed."""
        return all(task is None or task.outcome is not None for task in self._tasks)

    @property
    def error(self) -> CheckpointError | None:
        """The first error of all ranks; before `wait`, the first error of this process.  None without an error."""
        known = [task.outcome.problem for task in self._tasks if task is not None and task.outcome is not None]
        problem = next(filter(None, known if self._problems is None else self._problems), None)
        return CheckpointError(problem) if problem else None

    def wait(self) -> None:
        """Wait until all ranks have finished writing, and raise the first error.  Collective.

        Later functions do not raise the error again.
        Raises: CheckpointError if the checkpoint could not be saved; its subclass AfterSavingError if a step after the completion failed.
        """
        with scope.lock():
            if self._problems is None:
                self._problems = self._local_problems() if self._detached else self._collect()
            if self._session.unfinished is self:
                self._session.unfinished = None
        if self._problems:
            raise (CheckpointError if self._failed else AfterSavingError)(self._problems[0])

    def detach(self) -> None:
        """Stop communication with other ranks, because an exception ends the program on this rank."""
        self._detached = True

    def _local_problems(self) -> list[str]:
        """Wait for the writes of this process, and return their errors."""
        outcomes = [outcome for task in self._tasks if task is not None and (outcome := task.join(None)) is not None]
        self._failed = any(outcome.failure is not None for outcome in outcomes)
        return [outcome.problem for outcome in outcomes if outcome.problem is not None]

    def _collect(self) -> list[str]:
        """Return the errors of all ranks, and remove the written files after a failure.

        A checkpoint that rank 0 has published is complete, even if another rank received no confirmation for its part.
        """
        outcomes: list[ranks.Outcome] = self._world.call(ranks.Collect(self._draft))
        failed = [rank for rank, outcome in enumerate(outcomes) if outcome.failure is not None]
        if failed:
            self._world.call(ranks.Discard(self._draft))
        if 0 not in failed:
            return [outcome.warning for outcome in outcomes if outcome.warning is not None]
        self._failed = True
        rank = min(failed, key=lambda rank: (outcomes[rank].by_other_rank, rank))  # the rank that failed first has the cause
        if outcomes[rank].unsure:
            return [f"{outcomes[rank].failure}{self._where}"]
        named = f"rank {rank}: " if self._world.size > 1 and not outcomes[rank].by_other_rank else ""
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
    """Write every variable of the session, and a JSON tree, to the directory `path` atomically.  Collective.

    The path must be missing or an empty directory; with `replace` it may also be an older checkpoint.  "seed", "runs" and "layout" are added
    to `extra` unless `extra` has these keys.  With `asynchronous`, return as soon as the ranks have copied their parts.  A later failure is raised by
    `Saving.wait`, by the next save, or at the end of the session.  At most one save is in progress at a time.

    `limit` is the number of seconds without a new file after which rank 0 fails the save.  `then` must be picklable; the process of rank 0 calls it
    after publication.
    Raises: CheckpointError, the same on all ranks.
    """
    world = _world_of(session)
    session.finish()
    target = _shared_path(path, world, "save")
    whole = described(session) | dict(extra or {})
    check_extra(whole)
    for name in session.variables:
        name_of(name)
    where = f" (save at {user_line()})"
    draft: Draft | CheckpointError = world.call(ranks.Prepare(target, replace))[0]
    if isinstance(draft, CheckpointError):
        raise CheckpointError(f"{draft}{where}")
    if isinstance(draft.folder, Path) and (reason := missing_on(world, draft.folder)):
        world.call(ranks.Discard(draft))
        raise CheckpointError(f"checkpoint {target} could not be saved, and nothing was changed: {reason}{where}")
    boxes = assign_boxes(session.variables, world.size)
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
    """Create all variables of the session, and return its started world."""
    session.prepare_all()
    session.settle()
    return session.start()


def _shared_path(path: Where, world: World, what: str) -> AnyPath:
    """Return the absolute path of a checkpoint; raise CheckpointError if only one of several processes can access the path."""
    location = path_of(path, absolute=True)
    if isinstance(location, RemotePath) and location.is_of_one_process and world.multi and world.size > 1:
        raise CheckpointError(
            f"{what} at {user_line()}: {location} is visible to one process only, but this program has {world.size} processes; "
            f"pass a directory that all processes share, or a store such as s3://bucket/name"
        )
    return location


def missing_on(world: World, path: Path) -> str:
    """Return the message that a path, which rank 0 has created, is missing on some nodes; "" if it is on all nodes.  Collective."""
    places = world.map
    if places.count == 1:
        return ""
    without = [rank for rank, exists in enumerate(world.call(ranks.PathExists(path))) if not exists]
    nodes = ", ".join(places.node_text(first) for first in dict.fromkeys(places.nodes[rank] for rank in without))
    if not nodes:
        return ""
    return (
        f"{places.node_text(0)} has created {path}, which is not visible on {nodes}; use a directory that all nodes share, or a store such as s3://"
    )


def described(session: Session) -> dict[str, Any]:
    """Return the metadata of a session for a checkpoint: seed, run counts, and layouts."""
    layouts = {name: str(variable.layout) for name, variable in session.variables.items()}
    return {"seed": session.settings.seed, "runs": dict(session.runs), "layout": {"ranks": session.device_count(), "variables": layouts}}


def assign_boxes(variables: Mapping[str, Variable], size: int) -> list[dict[str, Spans]]:
    """Return the boxes that each rank writes; each box is written by the rank with the fewest bytes among the ranks that have it.

    Large boxes are assigned first, so that small boxes balance the load.
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


# ---- saves in progress ---------------------------------------------------------------------------------------------------------------

_sessions: WeakSet[Session] = WeakSet()
#: non-empty if a save failed at the end of the program
_failed: list[bool] = []


def _under_way(session: Session, saving: Saving) -> None:
    if not _sessions:
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)  # registered last and so called first, before the ranks end
    _sessions.add(session)
    session.unfinished = saving


def _at_exit() -> None:
    """Complete running saves at the end of the program, and report failures that were not raised."""
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
def _set_exit_code() -> None:
    """Exit with code 1 if `_at_exit` reported a failure; this function is registered early, so that it is called late."""
    if _failed:
        sys.stdout.flush()
        os._exit(1)


# ---- loading -------------------------------------------------------------------------------------------------------------------------


@scope.alone
def load(
    session: Session, path: Where, names: Filter = ("*",), strict: bool | Literal["variables", "some"] = True, *, what: str = "load"
) -> dict[str, Any]:
    """Set the variables that the filter `names` selects by name and type from a checkpoint; return its JSON tree.  Collective.

    strict=True     the matching variables and the matching tensors must have the same names
    "variables"     every matching variable needs a tensor
    "some"          the matching variables that have a tensor are loaded, and a notice lists the other names
    False           as with "some", but without the notice

    If all variables are loaded (names=("*",)), jobs continue with the saved run counts.
    Raises: CheckpointError, the same on all ranks, if a tensor is missing, damaged or of another type, or if the checkpoint contains no variable.
    After an error no variable has changed.
    """
    world = _world_of(session)
    session.finish()
    source = _shared_path(path, world, what)
    here = f"{what} of {source} at {user_line()}"
    own = {name: variable.type for name, variable in session.variables.items()}
    contents: ranks.Contents | CheckpointError = world.call(ranks.Inspect(source, own))[0]
    if isinstance(contents, CheckpointError):
        raise type(contents)(f"{contents} ({what} at {user_line()})")
    chosen = _chosen(own, contents.types, names, strict, here)
    runs = _runs(contents.extra, here)
    failures: list[CheckpointError | None] = world.call(ranks.Stage(source, contents.digest, chosen))
    failed = _first(failures, world.map)
    world.call(ranks.Apply(failed is None))
    session.changed(chosen)
    session.loaded.update(chosen)
    if failed is not None:
        raise type(failed)(f"{here}, no variable was changed: {failed}")
    if strict == "some":
        report_unmatched(session, here, chosen, own, contents.types)
    if names in ("*", ("*",), ["*"]):
        session.runs.update({job: runs.get(job, 0) for job in {*session.runs, *runs}} if runs is not None else {})
    return dict(contents.extra)


def _first(failures: Sequence[CheckpointError | None], places: NodeMap) -> CheckpointError | None:
    """Return the error to report: a ReplacedError of any rank, else the error of the lowest rank of each node; None without an error."""
    failed = [(rank, error) for rank, error in enumerate(failures) if error is not None]
    if not failed or len(failures) == 1:
        return failed[0][1] if failed else None
    replaced = [one for one in failed if isinstance(one[1], ReplacedError)][:1]
    of_nodes = {places.nodes[rank]: (rank, error) for rank, error in reversed(replaced or failed)}
    lines = [f"{places.rank_text(rank)}: {error}" for rank, error in sorted(of_nodes.values(), key=lambda one: one[0])]
    return type((replaced or failed)[0][1])("\n".join(lines))


def _chosen(
    own: Mapping[str, TensorType],
    there: Mapping[str, TensorType | None],
    names: Filter,
    strict: bool | Literal["variables", "some"],
    here: str,
) -> dict[str, TensorType]:
    """Return the types, by name, of the variables in `own` to load from the tensors in `there`; `here` begins messages.

    Raises: CheckpointError if a pattern matches no variable, if names do not match as `strict` requires, or if types differ.
    """
    variables, tensors = selected(names, own), selected(names, there)
    if (pattern := unmatched(names, own)) is not None:
        raise CheckpointError(f'{here}: no variable matches "{pattern}"{did_you_mean(pattern, patterns_like(pattern, own))}')
    missing = [name for name in variables if name not in there] if strict in (True, "variables") else []
    beyond = [name for name in tensors if name not in own] if strict is True else []
    if missing:
        raise CheckpointError(f"{here}: the checkpoint has no {_listed(missing)}{did_you_mean(missing[0], there)}")
    if beyond:
        near = did_you_mean_or(beyond[0], own, 'pass strict="variables" to load the variables of the program only, or strict=False')
        raise CheckpointError(f"{here}: the program has no variable {_listed(beyond)}{near}")
    both = {name: own[name] for name in variables if name in there}
    if (variables or (tensors and strict == "some")) and not both:
        raise CheckpointError(_nothing_in_common(here, own, there))
    for name, type in both.items():
        other = there[name]
        assert other is not None, f"{here}: tensor {name} has no type"
        if (other.shape, other.dtype.numpy) != (type.shape, type.dtype.numpy):
            raise CheckpointError(f'{here}: variable "{name}" is {type}, but the saved value is {other}')
    return both


def _nothing_in_common(here: str, own: Iterable[str], there: Iterable[str]) -> str:
    """Return the message that no variable in `own` has a value in the checkpoint, whose names are `there`."""
    sides = [_listed(list(names), 3) or "none" for names in (own, there)]
    return f"{here}: the checkpoint has no value for any variable, and nothing was changed; the variables are {sides[0]}, the saved values {sides[1]}"


def report_unmatched(session: Session, here: str, loaded: Collection[str], own: Iterable[str], there: Collection[str]) -> None:
    """Print a notice if variables have no saved value, or saved values have no variable."""
    lacking, beyond = ([name for name in names if name not in loaded] for names in (own, there))
    rest = [f"no saved value for {_listed(lacking)}" if lacking else "", f"no variable {_listed(beyond)}" if beyond else ""]
    if any(rest) and session.writes_files:
        notice(f"{here}: {len(loaded)} of {len(there)} values loaded; {'; '.join(filter(None, rest))}")


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f'"{name}"' for name in names[:most]) + more


def _runs(extra: Mapping[str, Any], here: str) -> dict[str, int] | None:
    """Return the saved run count of each job; None without run counts, as in legacy directories.

    Raises: CheckpointError if the run counts are invalid.
    """
    saved = extra.get("runs")
    try:
        return None if saved is None else {str(job): whole(count) for job, count in saved.items()}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{here}: the checkpoint contains invalid run counts: {error}") from None


# ---- files that one rank reads or writes ---------------------------------------------------------------------------------------------


@scope.alone
def on_first(session: Session, what: Callable[[], T]) -> T:
    """Call `what` on rank 0 and return its result on all ranks.  Collective.

    `what` must be picklable and use only files.
    Raises: CheckpointError on all ranks if the call fails.
    """
    world = session.world or session.start()
    answer: T | CheckpointError = world.call(ranks.OnFirst(), [what, *[None] * (world.size - 1)])[0]
    if isinstance(answer, CheckpointError):
        raise CheckpointError(str(answer))
    return answer


@scope.alone
def free_path(session: Session, path: Where) -> AnyPath:
    """Return an unused path, the same on all ranks: `path`, or path-2, path-3, ... with a notice.  Collective."""
    world = _world_of(session)
    session.finish()
    target = _shared_path(path, world, "save")
    free = on_first(session, partial(drafts.free_path, target))
    if free != target and session.writes_files:
        notice(f"save at {user_line()}: {target} already exists and is not changed; the checkpoint is written to {free}")
    return free


@scope.alone
def save_on_first(session: Session, path: Where, arrays: Mapping[str, Array], extra: Mapping[str, Any]) -> None:
    """Save arrays on rank 0; every client passes the same arrays.  Collective."""
    session.finish()
    stored = {name_of(name): safetensors.storable(name, array) for name, array in arrays.items()}
    check_extra(extra)
    on_first(session, partial(save_arrays, path_of(path, absolute=True), stored, dict(extra)))
