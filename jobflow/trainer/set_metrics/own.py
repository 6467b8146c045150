"""Metrics by import path: a class with `reset()`, `update(outputs, batch)` and `compute()`.

    class Hits:
        states = ("hits", "count")                # attributes that a checkpoint in the middle of an epoch contains

        def reset(self):
            self.hits = self.count = 0

        def update(self, outputs, batch):         # NumPy arrays of one batch, in the order of the samples
            self.hits += int((outputs["scores"].argmax(1) == batch["labels"]).sum())
            self.count += len(batch["labels"])

        def compute(self):
            return self.hits / self.count

A class may also have `outputs = ("scores",)` and `fields = ("labels",)`, the outputs of the model and the fields of the samples that `update`
receives. These are the defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jobflow.core.errors import ConfigError, JobError, JobflowError, SourceLine, is_users
from jobflow.core.imports import function_named
from jobflow.core.types import Array
from jobflow.trainer.config import schema_metrics as schema
from jobflow.trainer.set_metrics.metric_names import METHODS, lacking
from jobflow.trainer.set_metrics.requests import FIELD, OUTPUT, SCORES, Request


class Own:
    """A metric by import path."""

    def __init__(self, options: schema.OwnMetric) -> None:
        self.options = options
        builder: Callable[..., Any] = function_named(options.builder)
        self.metric = self._called(builder, **options.arguments)
        if method := lacking(self.metric):
            raise ConfigError(f"{options.builder} returned {type(self.metric).__name__}, which has no {method}(); a metric has {', '.join(METHODS)}")
        self.states = self._names("states", ())
        self.requests = {f"{OUTPUT} {name}": Request(OUTPUT, name) for name in self._names("outputs", (SCORES,))}
        self.requests |= {f"{FIELD} {name}": Request(FIELD, name) for name in self._names("fields", ("labels",))}
        self.reset()

    def _names(self, attribute: str, default: tuple[str, ...]) -> tuple[str, ...]:
        names = getattr(self.metric, attribute, default)
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f'{self.options.builder}: {attribute} is {names!r:.60}; write a tuple of names, such as {attribute} = ("{attribute[:-1]}",)'
            )
        return tuple(names)

    def reset(self) -> None:
        self._called(self.metric.reset)

    def update(self, values: Mapping[str, Array]) -> None:
        outputs, batch = ({key.partition(" ")[2]: array for key, array in values.items() if key.startswith(kind)} for kind in (OUTPUT, FIELD))
        self._called(self.metric.update, outputs, batch)

    def compute(self) -> float:
        value = self._called(self.metric.compute)
        if getattr(value, "shape", ()) == ():
            try:
                return float(value)
            except (TypeError, ValueError):
                pass
        raise JobError(f"{self.options.builder}: compute() returned {value!r:.60} of type {type(value).__name__}; return one number")

    def _called(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call user code; raise JobError with the name of the function and the user's line if it raises an exception."""
        try:
            return function(*arguments, **named)
        except JobflowError:
            raise
        except Exception as error:  # user code may raise any exception
            name = getattr(function, "__name__", self.options.builder)
            called = self.options.builder if inspect.isclass(function) else f"{self.options.builder}.{name}"
            raise JobError(f"{called}{_line(error)} raised {type(error).__name__}: {error}; correct it, or omit the metric") from error


def _line(error: BaseException) -> str:
    """Return " at file:line" for the innermost line of the user in a traceback, or ""."""
    trace, line = error.__traceback__, ""
    while trace is not None:
        if is_users(trace.tb_frame):
            line = f" at {SourceLine(trace.tb_frame.f_code.co_filename, trace.tb_lineno)}"
        trace = trace.tb_next
    return line
