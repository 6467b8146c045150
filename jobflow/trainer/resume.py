"""Resuming a run: the choice of a checkpoint, the comparison with the configuration, and the saved state.

Settings that determine the losses must not change: seed, model, training data, batch size, order and kind of optimizer. Other settings may
change from run to run: the number of ranks, the strategy, learning rates, the length, and the intervals of evaluations and checkpoints.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar, cast

import numpy as np

from jobflow.compiler.front.dynamic_loss_scale import NOT_FINITE
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, ConfigError, JobflowError, ReplacedError, did_you_mean_or
from jobflow.core.notices import notice
from jobflow.data.samples import Samples, Stream
from jobflow.engine.session import Session
from jobflow.program.commands import ExchangeItems
from jobflow.storage import drafts, sessions, store
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.series import TRIES, Series
from jobflow.storage.untrusted import whole
from jobflow.trainer.config import Loaded, TrainConfig
from jobflow.trainer.config.keys import default_at
from jobflow.trainer.configured_rates import FACTOR
from jobflow.trainer.early_stopping import EARLY_STOPPING
from jobflow.trainer.facts import sizes_of
from jobflow.trainer.fingerprint import Fingerprint
from jobflow.trainer.optimizing import RATE_FACTOR
from jobflow.trainer.parameter_average import averages_of
from jobflow.trainer.step_extensions import PREFIX

T = TypeVar("T")

#: advice for a training without a readable checkpoint
NEVER = "use the jobflow version that saved them, or correct permissions and limits; --resume never starts a new run and renames the checkpoints"
PRECISION = "strategy.precision"
#: beginnings of the names of variables that other settings create
VARYING = (NOT_FINITE, "System-Train-DynamicLossScale", RATE_FACTOR, FACTOR, PREFIX)
#: keys of the configuration that must not change
FIXED = (
    "seed", "model", "data.train", "data.batch_size", "data.shuffle", "data.drop_last", "data.mixup", "data.cutmix", "optimizer.name", "freeze",
)  # fmt: skip


@dataclass
class Progress:
    """The state of a run; together with the variables and the run counts, it determines the remaining steps."""

    step: int = 0
    epoch: int = 0
    #: the next sample in the epoch's order
    sample: int = 0
    #: the latest metrics
    metrics: dict[str, float] = field(default_factory=dict)
    #: the step of the latest evaluation
    evaluated: int = 0
    #: seconds of training, over all runs
    seconds: float = 0.0
    #: states of callbacks by name, and the callback that stopped the run with its reason
    callbacks: dict[str, Any] = field(default_factory=dict)
    stop: dict[str, str] | None = None
    #: means and metrics of the training samples of this epoch, from `Totals.state`
    totals: dict[str, Any] = field(default_factory=dict)
    #: state of the schedule "plateau"
    plateau: dict[str, Any] | None = None
    #: True if the checkpoint has averages in place of the parameters; see `ParameterAverage`
    averaged: bool = False

    def extra(self, plain: Mapping[str, Any], samples: Samples | Stream) -> dict[str, Any]:
        """Return a checkpoint's entries in addition to variables, seed, run counts and layout; `samples` are the training samples."""
        return {
            "step": self.step,
            "position": {"epoch": self.epoch, "sample": self.sample},
            "config": plainly(plain),
            "metrics": dict(self.metrics),
            "facts": plainly(samples.facts),
            "sizes": sizes_of(samples),
            "fields": {name: [list(field.shape), field.dtype.name] for name, field in samples.fields.items()},
            "trainer": {
                "evaluated": self.evaluated,
                "seconds": self.seconds,
                "stop": self.stop,
                "totals": self.totals,
                "plateau": self.plateau,
                "averaged": self.averaged,
            },
            "callbacks": self.callbacks,
        }

    @classmethod
    def of(cls, extra: Mapping[str, Any], path: AnyPath) -> Progress:
        """Read the entries of `extra`; raise CheckpointError if the trainer did not write the checkpoint."""
        try:
            position, own = extra["position"], extra["trainer"]
            if not isinstance(extra["config"], Mapping):
                raise TypeError("a configuration")
            states = dict(extra.get("callbacks", {}))
            if (early := own.get("early")) is not None:  # earlier releases saved it here
                states[EARLY_STOPPING] = {"best": None if early["best"] is None else float(early["best"]), "waited": whole(early["waited"])}
            return cls(
                whole(extra["step"]),
                whole(position["epoch"]),
                whole(position["sample"]),
                {str(name): float(value) for name, value in extra["metrics"].items()},
                whole(own["evaluated"]),
                float(own["seconds"]),
                states,
                None if own.get("stop") is None else {name: str(own["stop"][name]) for name in ("entry", "key", "reason")},
                dict(own.get("totals", {})),  # earlier releases saved none
                _plateau(own.get("plateau")),
                bool(own.get("averaged", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"{path} was not saved by the trainer ({type(error).__name__}: {error}); pass another checkpoint, or --resume never"
            ) from None


def _plateau(state: Any) -> dict[str, Any] | None:
    """Check the saved state of a plateau; raise ValueError, TypeError or KeyError for other values."""
    if state is None:
        return None
    if not 0 < (factor := float(state["factor"])) <= 1:
        raise ValueError(f"the factor {factor} of the learning rate")
    best = None if state["best"] is None else float(state["best"])
    return {"best": best, "waited": whole(state["waited"]), "factor": factor, "cooling": whole(state["cooling"])}


def plainly(tree: Any) -> Any:
    """Convert a tree to JSON types; values of other types become strings."""
    return json.loads(json.dumps(tree, default=str))


def together(session: Session, ask: Callable[[], T]) -> T:
    """Call `ask` on rank 0 only, and return its result, or raise its error, on all ranks."""
    world = session.start()
    if not world.multi:
        return ask()
    answer: tuple[T | None, JobflowError | None] = (None, None)
    if session.writes_files:
        try:
            answer = (ask(), None)
        except JobflowError as raised:
            answer = (None, raised)
    result: T
    result, error = world.call(ExchangeItems(answer))[0]
    if error is not None:
        raise error
    return result


def everywhere(session: Session, ask: Callable[[], T]) -> T:
    """Call `ask` in every process and return its result; if a call raises a JobflowError, raise the first one on all ranks."""
    result: T | None = None
    failure: JobflowError | None = None
    try:
        result = ask()
    except JobflowError as raised:
        failure = raised
    world = session.start()
    failures = world.call(ExchangeItems(failure)) if world.multi else [failure]
    if (first := next(filter(None, failures), None)) is not None:
        raise first
    return cast("T", result)


def check_alike(session: Session, mine: Mapping[str, Any]) -> None:
    """Raise ConfigError on all ranks unless the ranks have read the same data; `mine` maps names of data to their hashes."""
    world = session.start()
    if not world.multi:
        return
    first, *others = world.call(ExchangeItems(dict(mine)))
    for rank, other in enumerate(others, 1):
        different = [name for name in first if other.get(name) != first[name]]
        if different:
            raise ConfigError(
                f"{different[0]} differs between ranks: {world.map.rank_text(0)} has {first[different[0]]}, "
                f"{world.map.rank_text(rank)} has {other.get(different[0])}; use equal files"
            )


def check_samples(session: Session, samples: Mapping[str, Samples | Stream]) -> None:
    """Raise ConfigError on all ranks unless they have read the same samples; on several nodes, compare the content of some of them."""
    read = {f"data.{name}": one for name, one in samples.items() if isinstance(one, Samples)}
    check_alike(session, {name: one.fingerprint for name, one in read.items()})
    if session.start().map.count > 1:
        check_alike(session, {name: content_hash(one) for name, one in read.items()})


def content_hash(samples: Samples, count: int = 16) -> str:
    """Return a hash of `count` evenly spaced samples, which reveals files with different content on the nodes of a job."""
    last = len(samples) - 1
    rows = samples.read(sorted({i * last // (count - 1) for i in range(count)})) if last >= 0 else {}
    digest = hashlib.sha256()
    for name in sorted(rows):
        digest.update(name.encode() + np.ascontiguousarray(rows[name]).tobytes())
    return digest.hexdigest()[:16]


def check_configurations(session: Session, loaded: Loaded) -> None:
    """Raise ConfigError on all ranks if their configurations differ; the message lists keys, values and source positions."""
    world = session.start()
    if not world.multi:
        return
    plain = plainly(loaded.plain)
    first, *others = world.call(ExchangeItems((plain, {key: str(origin) for key, origin in loaded.origins.items()})))
    for rank, (other, origins) in enumerate(others, 1):
        lines = [
            f"  {key}: {world.map.rank_text(0)} has {json.dumps(value)} ({first[1].get(key, 'default')}), "
            f"{world.map.rank_text(rank)} has {json.dumps(its)} ({origins.get(key, 'default')})"
            for key, value, its in _unequal("", first[0], other)
        ]
        if lines:
            listed = "\n".join(lines)
            raise ConfigError(f"the ranks have different configurations:\n{listed}\nstart all ranks with the same file and settings")


def _unequal(key: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, value of `one`, value of `other`) for each difference between two trees."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in {**one, **other}:
            yield from _unequal(f"{key}.{name}" if key else name, one.get(name), other.get(name))
    elif one != other:
        yield key, one, other


def chosen(series: Series, option: str, advice: str = NEVER) -> AnyPath | None:
    """Return the checkpoint to resume from; None for a new run. Only rank 0 may call this function.

    "auto" selects the newest valid checkpoint, with a notice about damaged checkpoints. "never" renames the existing checkpoints. Another value is
    the path of a checkpoint, or of a directory whose newest valid checkpoint is selected.

    Raises: CheckpointError for a missing or damaged path, or if none of the existing checkpoints can be read; `advice` ends the message.
    """
    directory = series.directory
    if option == "never":
        set_aside(directory)
        return None
    if option == "auto":
        return _newest(series, advice) if directory.is_dir() else None
    path = path_of(option)
    if not path.is_dir():
        near = did_you_mean_or(option, ("auto", "never"), "pass a checkpoint, auto or never")
        raise CheckpointError(f"--resume {option}: there is no such directory{near}")
    if not (path / "manifest.json").is_file():
        newest = _newest(Series(path), "repair one, or give another path")
        if newest is None:
            advice = "pass a checkpoint, auto or never"
            if (path / "checkpoints").is_dir():
                advice = f"it is the output of a training: pass --output {option} --resume auto, or --resume {path / 'checkpoints'}"
            raise CheckpointError(f"--resume {option}: the directory has no complete checkpoint; {advice}")
        return newest
    return path


def _newest(series: Series, advice: str) -> AnyPath | None:
    series.clean()
    newest = series.newest_good()
    if newest.path is None and (unusable := (*newest.skipped, *series.misnamed())):
        listed = "\n".join(f"  {skipped.path}: {skipped.reason}" for skipped in unusable)
        raise CheckpointError(f"none of the checkpoints in {series.directory} can be read:\n{listed}\n{advice}")
    for skipped in newest.skipped:
        notice(str(skipped))
    return newest.path


def follow(session: Session, choose: Callable[[], AnyPath | None], use: Callable[[AnyPath], None]) -> AnyPath | None:
    """Choose a checkpoint on rank 0, and call `use` with it on all ranks; return the checkpoint, or None if there is none.

    If another process, such as a running training, replaces or removes the checkpoint during the read, rank 0 chooses again.
    """
    for left in reversed(range(TRIES)):
        checkpoint = together(session, choose)
        if checkpoint is None:
            return None
        try:
            use(checkpoint)
            return checkpoint
        except CheckpointError as error:
            if not left or not (isinstance(error, ReplacedError) or not together(session, checkpoint.is_dir)):
                raise
            if session.writes_files:
                notice(f"{error}; looking for the newest one again")
    raise AssertionError("unreachable")


def set_aside(directory: AnyPath) -> None:
    """Move the checkpoints of an earlier run to another directory, so that they do not mix with new checkpoints."""
    earlier = [path for path in directory.iterdir() if path.is_dir() or path.is_symlink()] if directory.is_dir() else []
    if not earlier:
        return
    aside = _free(directory)
    _rename(earlier, aside)
    notice(f"the checkpoints of an earlier run are now in {aside}")


def set_aside_behind(series: Series, step: int) -> None:
    """Move checkpoints of later steps to another directory, because the run resumed from `step` writes new ones."""
    later = [other for other in series.present() if other > step]
    if not later:
        return
    directory = series.directory
    aside = _free(directory)
    _rename(map(series.path_of, later), aside)
    notice(f"training resumes from step {step}; checkpoints of later steps are now in {aside}")


def _rename(paths: Iterable[AnyPath], folder: AnyPath) -> None:
    """Move checkpoints to another folder; raise CheckpointError if the file system refuses."""
    for path in paths:
        try:
            drafts.move(path, folder / path.name)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be renamed to {folder / path.name}: {error.strerror or error}; rename it by hand") from error


def _free(directory: AnyPath) -> AnyPath:
    number = 1
    while (candidate := directory.with_name(f"{directory.name}-{number}")).exists():
        number += 1
    return candidate


def check_same(path: AnyPath, then: Mapping[str, Any], loaded: Loaded) -> None:
    """Raise ConfigError with every difference if the checkpoint's configuration and the current configuration determine different losses."""
    now = plainly(loaded.plain)
    before = completed(plainly(then), now, (), loaded.plain)
    wrong = [line for key in FIXED for line in differences(key, _at(before, key), _at(now, key), loaded.origins)]
    if wrong:
        listed = "\n".join(f"  {line}" for line in wrong)
        raise ConfigError(
            f"{path} belongs to another run, so training cannot resume from it:\n{listed}\n"
            f"restore these values, use another output directory, or start again with --resume never (the checkpoints are renamed)"
        )


def completed(before: Any, now: Any, path: tuple[str, ...], whole: Any) -> Any:
    """Return `before`, the configuration at `path` of an earlier release, with the defaults of keys that only `now` has; `whole` has all keys."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return before
    added = {name: plainly(default_at((*path, name), whole)) for name in now if name not in before}
    return {**added, **{name: completed(value, now.get(name), (*path, name), whole) for name, value in before.items()}}


def differences(key: str, before: Any, now: Any, origins: Mapping[str, Any]) -> list[str]:
    """Return one line for every changed value below `key`."""
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
    """Set the session's variables from a checkpoint and return the state of its run. Collective.

    `program` is the fingerprint of the model.

    Raises: CheckpointError if the checkpoint cannot be read, or if the model's program changed.
    Raises: ConfigError if the configurations determine different losses.
    Raises: ReplacedError if another process replaced the checkpoint during the read.
    """
    entries, adjusted = together(session, lambda: _inspected(path))
    progress = Progress.of(entries, path)
    check_same(path, entries["config"], loaded)
    if program is not None:
        text = program.check(path, entries.get("fingerprint"), loaded.config.checkpoint.accept_changed_model)
        if text and session.writes_files:
            notice(text)
    if progress.averaged and not averages_of(session):
        raise ConfigError(
            f"{path} was saved with the callback ParameterAverage, and this run has none; list the callback, start a run with start_from: {path}, "
            f"or start again with --resume never"
        )
    same = _at(entries["config"], PRECISION) == loaded.config.strategy.precision and adjusted == _factors(session.variables)
    loaded_entries = _load(session, path, same)
    if json.dumps(loaded_entries, sort_keys=True) != json.dumps(entries, sort_keys=True):
        raise ReplacedError(f"checkpoint {path} was replaced by another process during the read; resume again")
    return progress


def _inspected(path: AnyPath) -> tuple[dict[str, Any], list[str]]:
    """Return the extra entries of a checkpoint, and its factors of the learning rate and variables of callbacks."""
    saved = store.load(path)
    return dict(saved.extra), _factors(saved)


def _factors(variables: Iterable[str]) -> list[str]:
    """Return the names of learning-rate factors and of the variables of callbacks."""
    return sorted(name for name in variables if name in (RATE_FACTOR, FACTOR) or name.startswith(PREFIX))


def _load(session: Session, path: AnyPath, same: bool) -> dict[str, Any]:
    """Load variables from the checkpoint `path`, and return its extra entries.

    If `same` is False, the precision differs from the checkpoint's, or only one of both runs has callbacks that may change the learning rate. The
    loss scale or the factor of the rate then starts at its initial value.
    """
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
    lacking = [name for name in session.variables if name not in there and not name.startswith(VARYING)]
    if lacking:
        raise CheckpointError(
            f"{path} lacks the variable {lacking[0]}, so training cannot resume from this checkpoint; start again with --resume never"
        )
    return sessions.load(session, path, strict=False, what="--resume")


def series_of(config: TrainConfig) -> Series:
    """Return the series of checkpoints that a configuration describes; the callback BestCheckpoint adds the rule for the best ones."""
    options = config.checkpoint
    return Series(
        path_of(options.directory),
        keep_last=options.keep_last,
    )
