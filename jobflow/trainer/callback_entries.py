"""The callbacks of a run: those of the configuration and of `train`, and calls of their functions with errors that name them."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobflowError, SourceLine, is_users, user_line
from jobflow.core.imports import function_named
from jobflow.trainer.best_checkpoint import BestCheckpoint
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import Loaded
from jobflow.trainer.early_stopping import EARLY_STOPPING, EarlyStopping
from jobflow.trainer.step_extensions import StepExtension
from jobflow.trainer.training_run import CallbackError, TrainingRun

#: exceptions of a callback; SystemExit would end the process, and GeneratorExit is no Exception either
ERRORS = (Exception, SystemExit, GeneratorExit)


@dataclass(frozen=True)
class Entry:
    """A callback of a run: its name in messages, its class, and its arguments in the configuration."""

    name: str
    kind: type[Callback]
    make: Callable[[], Callback]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: the callback of every process, if it adds operations to the train job; None for callbacks that only rank 0 creates
    extension: StepExtension | None = None

    @property
    def key(self) -> str:
        """The name and the arguments; a run that the callback stopped is complete as long as a callback has this key."""
        return f"{self.name} {json.dumps(dict(self.arguments), sort_keys=True, default=str)}"


def entries_of(loaded: Loaded, objects: Sequence[Callback]) -> list[Entry]:
    """Return the callbacks of the configuration, then those passed to `train`; raise ConfigError for an object of another class."""
    entries: list[Entry] = []
    for one in loaded.config.callbacks:
        kind: Any = function_named(one.callback)
        entries.append(_entry(one.callback, kind, partial(kind, **one.arguments), one.arguments))
    for each in objects:
        if not isinstance(each, Callback):
            what = f"the class {each.__name__}, pass an object of it" if isinstance(each, type) else f"{each!r:.100} of type {type(each).__name__}"
            raise ConfigError(
                f"train at {user_line()}: callbacks has {what}; a callback is an object of a class derived from jobflow.trainer.Callback"
            )
        name = type(each).__qualname__.rpartition("<locals>.")[2]
        entries.append(_entry(f"{type(each).__module__}:{name}", type(each), partial(_itself, each)))
    entries += _of_keys(loaded)
    for entry in entries:
        _check_methods(entry)
    counts: dict[str, int] = {}
    numbered = []
    for entry in entries:
        counts[entry.name] = number = counts.get(entry.name, 0) + 1
        numbered.append(entry if number == 1 else replace(entry, name=f"{entry.name} ({number})"))
    return numbered


def _entry(name: str, kind: type[Callback], make: Callable[[], Callback], arguments: Mapping[str, Any] = MappingProxyType({})) -> Entry:
    if not issubclass(kind, StepExtension):
        return Entry(name, kind, make, arguments)
    extension: Any = guarded(name, "the constructor", make)
    return Entry(name, kind, partial(_itself, extension), arguments, extension)


def _of_keys(loaded: Loaded) -> Iterator[Entry]:
    """Yield the callbacks of evaluation.early_stopping and checkpoint.keep_best."""
    early, saving = loaded.config.evaluation.early_stopping, loaded.config.checkpoint
    if early is not None:
        arguments: dict[str, Any] = {"metric": early.metric, "mode": early.mode, "patience": early.patience, "min_delta": early.min_delta}
        yield Entry(EARLY_STOPPING, EarlyStopping, partial(EarlyStopping, **arguments), arguments)
    if saving.keep_best:
        best: dict[str, Any] = {"metric": saving.best_metric, "mode": saving.best_mode, "keep": saving.keep_best, "saves": False}
        yield Entry("checkpoint.keep_best", BestCheckpoint, partial(BestCheckpoint, **best), best)


def _check_methods(entry: Entry) -> None:
    """Raise ConfigError for a method that a call would not run: a generator, or an asynchronous function."""
    for event in (name for name in dir(Callback) if name.startswith("on_") or name in ("state_dict", "load_state_dict")):
        method = getattr(entry.kind, event)
        word = "yield" if inspect.isgeneratorfunction(method) else "async"
        if word == "yield" or inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            where = SourceLine(method.__code__.co_filename, method.__code__.co_firstlineno)
            raise ConfigError(f"callback {entry.name}: {event} at {where} contains {word}, so a call would not run it; remove {word}")


def _itself(callback: Callback) -> Callback:
    return callback


def handles(kind: type[Callback], event: str) -> bool:
    """Return True if a class of callbacks has its own method for an event."""
    return getattr(kind, event) is not getattr(Callback, event)


def guarded(name: str, what: str, call: Callable[[], Any], step: int = 0, broken: Callable[[], BaseException | None] = lambda: None) -> Any:
    """Call a function of the callback `name`; raise CallbackError, which names the callback and the user's line, from any exception.

    `broken` returns the error of a request to the run, if one failed; that error is raised unchanged.
    """
    try:
        return call()
    except ERRORS as error:
        if error is broken():
            raise
        if isinstance(error, CallbackError | ConfigError):
            raise CallbackError(f"callback {name}: {error}") from error
        action = "call run.stop() to end the run" if isinstance(error, SystemExit) else "correct the callback or omit it"
        raise _error_of(f"callback {name}", what, error, step, action) from error


def recorded(recorder: Callback, event: str, run: TrainingRun, *arguments: Any) -> None:
    """Call the method `event` of a logger; raise CallbackError, which names the logger, unless the error is one of jobflow."""
    try:
        getattr(recorder, event)(run, *arguments)
    except JobflowError:
        raise
    except ERRORS as error:
        if isinstance(error, ModuleNotFoundError):
            raise
        action = "correct the cause, or turn the logger off in the section logging"
        raise _error_of(f"logger {type(recorder).__name__}", event, error, run.step, action) from error


def _error_of(name: str, what: str, error: BaseException, step: int, action: str) -> CallbackError:
    """Return the error for an exception of the function `what`, with the user's line, the step, and an action."""
    at = f"step {step:,}" if step else "the start"
    return CallbackError(f"{name}: {what}{line_text(error)} raised {type(error).__name__} at {at}: {error}; {action}")


def line_text(error: BaseException) -> str:
    """Return " at FILE:LINE", the innermost line of the user that raised an error; "" without such a line."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_users(frame)]
    return f" at {SourceLine(*lines[-1])}" if lines else ""
