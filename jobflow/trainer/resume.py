"""Resuming a run: the choice of a checkpoint, the comparison with the configuration, and the saved state.

Settings that determine the losses must not change: seed, model, training data, batch size, order, kind of optimizer.  All others may change from
run to run: the number of ranks, the strategy, learning rates, the length, and the intervals of evaluations and checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar

from jobflow.compiler.front.dynamic_loss_scale import NOT_FINITE
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, ConfigError, JobflowError, ReplacedError
from jobflow.core.notices import notice
from jobflow.data.samples import Samples, Stream
from jobflow.engine.session import Session
from jobflow.program.commands import ExchangeItems
from jobflow.storage import drafts, sessions, store
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.series import TRIES, Series
from jobflow.storage.untrusted import whole
from jobflow.trainer.config import Loaded, TrainConfig
from jobflow.trainer.fingerprint import Fingerprint

T = TypeVar("T")

#: the advice to a training that finds no checkpoint it can read
NEVER = "use the jobflow version that saved them, or correct permissions and limits; --resume never starts a new run and renames the checkpoints"
PRECISION = "strategy.precision"
#: what may not change, as keys of the configuration
FIXED = ("seed", "model", "data.train", "data.batch_size", "data.shuffle", "data.drop_last", "optimizer.name")


@dataclass
class Progress:
    """The state of a run; with the variables and the counts of runs, it determines the rest of the run."""

    step: int = 0
    epoch: int = 0
    #: the sample in the epoch's order that comes next
    sample: int = 0
    #: the last known metrics
    metrics: dict[str, float] = field(default_factory=dict)
    #: the step after which the model was evaluated last
    evaluated: int = 0
    #: of early stopping
    early: dict[str, Any] | None = None
    #: seconds of training, over all runs
    seconds: float = 0.0

    def extra(self, plain: Mapping[str, Any], samples: Samples | Stream) -> dict[str, Any]:
        """Return a checkpoint's entries in addition to variables, seed, counts of runs and layout; `samples` are the training samples."""
        return {
            "step": self.step,
            "position": {"epoch": self.epoch, "sample": self.sample},
            "config": plainly(plain),
            "metrics": dict(self.metrics),
            "facts": plainly(samples.facts),
            "fields": {name: [list(field.shape), field.dtype.name] for name, field in samples.fields.items()},
            "trainer": {"evaluated": self.evaluated, "early": self.early, "seconds": self.seconds},
        }

    @classmethod
    def of(cls, extra: Mapping[str, Any], path: AnyPath) -> Progress:
        """Read the entries of `extra`; raise CheckpointError if the trainer did not write the checkpoint."""
        try:
            position, own = extra["position"], extra["trainer"]
            if not isinstance(extra["config"], Mapping):
                raise TypeError("a configuration")
            early = own["early"]
            if early is not None:
                early = {"best": None if early["best"] is None else float(early["best"]), "waited": whole(early["waited"])}
            return cls(
                whole(extra["step"]),
                whole(position["epoch"]),
                whole(position["sample"]),
                {str(name): float(value) for name, value in extra["metrics"].items()},
                whole(own["evaluated"]),
                early,
                float(own["seconds"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"{path} was not saved by the trainer ({type(error).__name__}: {error}); it has variables to load, but no run to resume"
            ) from None


def plainly(tree: Any) -> Any:
    """Convert a tree to JSON types."""
    return json.loads(json.dumps(tree, default=str))


def together(session: Session, ask: Callable[[], T]) -> T:
    """What rank 0 finds, on all ranks; or the error that it meets.  Other ranks do not ask."""
    world = session.start()
    if not world.multi:
        return ask()
    answer: tuple[T | None, JobflowError | None] = (None, None)
    if session.writes_files:
        try:
            answer = (ask(), None)
        except JobflowError as raised:
            answer = (None, raised)
    found: T
    found, error = world.call(ExchangeItems(answer))[0]
    if error is not None:
        raise error
    return found


def check_alike(session: Session, mine: Mapping[str, Any]) -> None:
    """ConfigError, on all ranks alike, unless all of them have read the same; `mine` is what it is of, and what tells it from another."""
    world = session.start()
    if not world.multi:
        return
    first, *others = world.call(ExchangeItems(dict(mine)))
    for rank, other in enumerate(others, 1):
        different = [name for name in first if other.get(name) != first[name]]
        if different:
            raise ConfigError(f"rank {rank} has read another {different[0]} than rank 0: {other.get(different[0])}, not {first[different[0]]}")


def check_configurations(session: Session, loaded: Loaded) -> None:
    """ConfigError, on all ranks, that lists keys, values and origins unless all ranks have one configuration."""
    world = session.start()
    if not world.multi:
        return
    plain = plainly(loaded.plain)
    first, *others = world.call(ExchangeItems((plain, {key: str(origin) for key, origin in loaded.origins.items()})))
    for rank, (other, origins) in enumerate(others, 1):
        lines = [
            f"  {key}: rank 0 has {json.dumps(value)} ({first[1].get(key, 'default')}), "
            f"rank {rank} has {json.dumps(its)} ({origins.get(key, 'default')})"
            for key, value, its in _unequal("", first[0], other)
        ]
        if lines:
            listed = "\n".join(lines)
            raise ConfigError(f"the ranks have different configurations:\n{listed}\nstart all ranks with the same file and settings")


def _unequal(key: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key and both values of each difference between two trees."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in {**one, **other}:
            yield from _unequal(f"{key}.{name}" if key else name, one.get(name), other.get(name))
    elif one != other:
        yield key, one, other


def chosen(series: Series, wish: str, advice: str = NEVER) -> AnyPath | None:
    """The checkpoint to go on from; None to begin anew.  For rank 0.

    "auto" is the newest that is good: worse ones are told.  "never" sets aside what there is.  Else it is the path of one, or of a
    directory of which the newest is taken; CheckpointError if that is missing or damaged.

    Raises: CheckpointError if there are checkpoints, but none that this process can read; `advice` ends the message.
    """
    directory = series.directory
    if wish == "never":
        set_aside(directory)
        return None
    if wish == "auto":
        return _newest(series, advice) if directory.is_dir() else None
    path = path_of(wish)
    if not path.is_dir():
        raise CheckpointError(f"--resume {wish}: there is no such directory; give a checkpoint, auto or never")
    if not (path / "manifest.json").is_file():
        found = _newest(Series(path), "repair one, or give another path")
        if found is None:
            raise CheckpointError(f"--resume {wish}: it has no complete checkpoint")
        return found
    return path


def _newest(series: Series, advice: str) -> AnyPath | None:
    series.clean()
    found = series.newest_good()
    if found.path is None and (unusable := (*found.skipped, *series.misnamed())):
        listed = "\n".join(f"  {skipped.path}: {skipped.reason}" for skipped in unusable)
        raise CheckpointError(f"none of the checkpoints in {series.directory} can be read:\n{listed}\n{advice}")
    for skipped in found.skipped:
        notice(str(skipped))
    return found.path


def follow(session: Session, choose: Callable[[], AnyPath | None], use: Callable[[AnyPath], None]) -> AnyPath | None:
    """The checkpoint that rank 0 chooses, used by all ranks; None if it chooses none.

    Another one is chosen if somebody replaces or removes it before all of it has been read, as a training does that saves and tidies up there.
    """
    for left in reversed(range(TRIES)):
        found = together(session, choose)
        if found is None:
            return None
        try:
            use(found)
            return found
        except CheckpointError as error:
            if not left or not (isinstance(error, ReplacedError) or not together(session, found.is_dir)):
                raise
            if session.writes_files:
                notice(f"{error}; looking for the newest one again")
    raise AssertionError("unreachable")


def set_aside(directory: AnyPath) -> None:
    """Give what is in a directory of checkpoints another place, so that those of the run that begins are not mixed with them."""
    earlier = [path for path in directory.iterdir() if path.is_dir() or path.is_symlink()] if directory.is_dir() else []
    if not earlier:
        return
    aside = _free(directory)
    _rename(earlier, aside)
    notice(f"the checkpoints of an earlier run are now in {aside}")


def set_aside_behind(series: Series, step: int) -> None:
    """Give checkpoints of later steps another place: the run that goes on from `step` will make its own."""
    later = [other for other in series.present() if other > step]
    if not later:
        return
    directory = series.directory
    aside = _free(directory)
    _rename(map(series.path_of, later), aside)
    notice(f"training goes on from step {step}; checkpoints of later steps are now in {aside}")


def _rename(paths: Iterable[AnyPath], folder: AnyPath) -> None:
    """Move checkpoints to another folder; CheckpointError if the file system refuses."""
    for path in paths:
        try:
            drafts.move(path, folder / path.name)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be renamed to {folder / path.name}: {error.strerror or error}; rename it by hand") from error


def _free(directory: AnyPath) -> AnyPath:
    number = 1
    while (found := directory.with_name(f"{directory.name}-{number}")).exists():
        number += 1
    return found


def check_same(path: AnyPath, then: Mapping[str, Any], loaded: Loaded) -> None:
    """ConfigError, with every difference, if a checkpoint was made by a configuration whose run this one cannot go on with."""
    now, before = plainly(loaded.plain), plainly(then)
    wrong = [line for key in FIXED for line in differences(key, _at(before, key), _at(now, key), loaded.origins)]
    if wrong:
        listed = "\n".join(f"  {line}" for line in wrong)
        raise ConfigError(
            f"{path} belongs to another run, so training cannot continue from it:\n{listed}\n"
            f"set these back, use another output, or start again with --resume never (the checkpoints are renamed)"
        )


def differences(key: str, before: Any, now: Any, origins: Mapping[str, Any]) -> list[str]:
    """One line for every value below `key` that changed."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [line for name in {**before, **now} for line in differences(f"{key}.{name}", before.get(name), now.get(name), origins)]
    if before == now:
        return []
    origin = origins.get(key)
    where = f" ({origin.file}:{origin.line})" if origin is not None and getattr(origin, "line", None) else ""
    return [f"{key}: it was {json.dumps(before)}, it is {json.dumps(now)}{where}"]


def _at(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def read(session: Session, path: AnyPath, loaded: Loaded, program: Fingerprint | None = None) -> Progress:
    """Give the session's variables the values of a checkpoint, and say where its run was.  On all ranks.

    `program` is the fingerprint of the model.
    Raises: CheckpointError if the model's program changed.
    ReplacedError if the variables are not of the checkpoint that says so, since there is another one by now.
    """
    found = together(session, lambda: dict(store.load(path).extra))
    progress = Progress.of(found, path)
    check_same(path, found["config"], loaded)
    if program is not None:
        told = program.check(path, found.get("fingerprint"), loaded.config.checkpoint.accept_changed_model)
        if told and session.writes_files:
            notice(told)
    taken = _load(session, path, same=_at(found["config"], PRECISION) == loaded.config.strategy.precision)
    if json.dumps(taken, sort_keys=True) != json.dumps(found, sort_keys=True):
        raise ReplacedError(f"checkpoint {path} was replaced by another one while it was being read")
    return progress


def _load(session: Session, path: AnyPath, same: bool) -> dict[str, Any]:
    """Variables as the checkpoint has them; in another precision, those of the loss scale begin anew."""
    try:
        return _loaded(session, path, same)
    except ReplacedError:
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{error}; if the model changed, --resume never starts a new run and renames the checkpoints") from error


def _loaded(session: Session, path: AnyPath, same: bool) -> dict[str, Any]:
    if same:
        return sessions.load(session, path, what="--resume")
    there = together(session, lambda: set(store.load(path)))
    lacking = [name for name in session.variables if name not in there and not name.startswith((NOT_FINITE, "System-Train-DynamicLossScale"))]
    if lacking:
        raise CheckpointError(f"{path} lacks the variable {lacking[0]}, so training cannot continue from it")
    return sessions.load(session, path, strict=False, what="--resume")


def series_of(config: TrainConfig) -> Series:
    """The checkpoints of a run."""
    wish = config.checkpoint
    return Series(path_of(wish.directory), keep_last=wish.keep_last, keep_best=wish.keep_best, best_metric=wish.best_metric, best_mode=wish.best_mode)
