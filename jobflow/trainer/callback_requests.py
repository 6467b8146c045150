"""Calls of a run's callbacks: rank 0 calls them, and all ranks carry out their requests.

    rank 0           callback.on_step: run.log("a", 1)   run.read("w")         run.lr = 0.1    Done
    the others                                           Log("a", 1) Read("w") SetRate(0.5)    Done

Rank 0 sends messages and does not wait for the others. An event without requests costs one short message; an event that only observers handle
costs none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, did_you_mean_or, user_line
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.data.samples import Samples
from jobflow.program.commands import ExchangeItems
from jobflow.storage.series import Series
from jobflow.trainer.callback_entries import ERRORS, Entry, guarded, handles, line_text, recorded
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.element_types import converted
from jobflow.trainer.jobs import Jobs
from jobflow.trainer.optimizing import RATE_FACTOR
from jobflow.trainer.parameter_average import averages_of, exchange_averages
from jobflow.trainer.resume import together
from jobflow.trainer.shown_samples import write_sample
from jobflow.trainer.training_run import CallbackError, Stopped, TrainingRun

#: events at which callbacks may change parameters and the learning rate; others happen at times that depend on the speed of a disk
CHANGING = ("on_start", "on_step", "on_epoch", "on_evaluation")
LOGGING = ("on_step", "on_epoch", "on_evaluation")
#: the syntax of a name that a callback logs
LOGGED = r"[A-Za-z_][\w./ -]*"


# -------------------------------------------------------------------- requests, which every rank carries out


@dataclass(frozen=True)
class Read:
    """The request for the value of a variable."""

    name: str

    def __call__(self, calls: Calls) -> Any:
        return calls.session.read([self.name])[self.name]


@dataclass(frozen=True)
class Write:
    """The request to set a variable; without effect after a step whose gradients were not finite, because the run ends with the state before it."""

    name: str
    value: Any

    def __call__(self, calls: Calls) -> None:
        if not calls.halted():
            calls.session.write({self.name: self.value})


@dataclass(frozen=True)
class SetRate:
    """The request to multiply the rates of the schedule by `factor`."""

    factor: float

    def __call__(self, calls: Calls) -> None:
        if not calls.halted():
            calls.session.write({RATE_FACTOR: np.array([self.factor])})
            calls.factor = self.factor


@dataclass(frozen=True)
class Stop:
    """The request to stop the run."""

    entry: str
    key: str
    reason: str
    ending: Stopped

    def __call__(self, calls: Calls) -> None:
        if calls.stop is None:
            calls.stop = self


@dataclass(frozen=True)
class Save:
    """The request to save a checkpoint after the current step."""

    def __call__(self, calls: Calls) -> None:
        calls.saves = True


@dataclass(frozen=True)
class Predict:
    """The request for the outputs of the model for a batch."""

    batch: Mapping[str, Array]

    def __call__(self, calls: Calls) -> dict[str, Array]:
        first = next(iter(self.batch.values()))
        return calls.jobs.call(calls.jobs.prediction(len(first)), self.batch)


@dataclass(frozen=True)
class ExchangeAverages:
    """The request to exchange the averages of the parameters, if there are any, with the parameters."""

    def __call__(self, calls: Calls) -> None:
        exchange_averages(calls.session)
        calls.exchanged = not calls.exchanged


@dataclass(frozen=True)
class KeepBest:
    """The request to keep the best checkpoints by a metric."""

    metric: str
    mode: Literal["min", "max"]
    count: int

    def __call__(self, calls: Calls) -> None:
        calls.best = self

    def of(self, series: Series) -> Series:
        """Return the series with the rule for its best checkpoints."""
        return replace(series, keep_best=self.count, best_metric=self.metric, best_mode=self.mode)


@dataclass(frozen=True)
class Log:
    """The request to record a value."""

    name: str
    value: float

    def __call__(self, calls: Calls) -> None:
        calls.run.logged[self.name] = calls.run.metrics[self.name] = self.value


@dataclass(frozen=True)
class Done:
    """The end of the requests of an event; `error` is the message of the callback that raised an exception."""

    error: str | None = None


# -------------------------------------------------------------------- calls


@dataclass
class Calls:
    """The callbacks of a run on one rank, and the decisions of the callbacks, which are equal on all ranks."""

    jobs: Jobs
    run: TrainingRun
    entries: Sequence[Entry]
    #: callbacks of the configuration's `logging`, and the recorder of the run; every rank calls its own
    recorders: Sequence[Callback]
    #: the scheduled rate of the next step
    rate: Callable[[], float]
    #: True after a step that changed no variable, because its gradients were not finite
    halted: Callable[[], bool]
    factor: float = 1.0
    stop: Stop | None = None
    #: True if a callback has requested a checkpoint of this step; the best checkpoints that callbacks keep
    saves: bool = False
    best: KeepBest | None = None
    #: True while the averages are exchanged with the parameters
    exchanged: bool = False

    def __post_init__(self) -> None:
        self.session = self.jobs.session
        self._objects: dict[str, Callback] = {}
        self._event = ""
        self._caller: Entry | None = None
        self._broken: BaseException | None = None
        self._postponed: list[Any] = []

    @property
    def first(self) -> bool:
        """True in the process of rank 0, which calls the callbacks."""
        return self.session.writes_files

    def make(self, states: Mapping[str, Any]) -> None:
        """Create the callbacks on rank 0, and restore their states from a checkpoint.  Collective."""
        self._check_alike()
        together(self.session, partial(self._make, states))
        if RATE_FACTOR in self.session.variables:
            self.factor = float(self.session.read([RATE_FACTOR])[RATE_FACTOR][0])

    def _check_alike(self) -> None:
        world = self.session.start()
        if not world.multi:
            return
        first, *others = world.call(ExchangeItems([entry.name for entry in self.entries]))
        for rank, other in enumerate(others, 1):
            if other != first:
                listed = [", ".join(names) or "none" for names in (first, other)]
                raise ConfigError(f"train: rank 0 has the callbacks {listed[0]}, and rank {rank} has {listed[1]}; pass equal callbacks on all ranks")

    def _make(self, states: Mapping[str, Any]) -> None:
        for entry in self.entries:
            self._objects[entry.name] = callback = self._guarded(entry, "the constructor", entry.make)
            if entry.name in states:
                self._guarded(entry, "load_state_dict", partial(callback.load_state_dict, states[entry.name]))

    def states(self) -> dict[str, Any]:
        """Return the states of the callbacks for a checkpoint.  Collective."""
        if all(entry.kind.state_dict is Callback.state_dict for entry in self.entries):
            return {}
        return together(self.session, self._states)

    def _states(self) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for entry in self.entries:
            state = self._guarded(entry, "state_dict", self._objects[entry.name].state_dict)
            try:
                copy = json.loads(json.dumps(state))  # a checkpoint is written while the callback may change its lists
                if copy != state:
                    raise TypeError("keys that are not texts, or tuples")
            except (TypeError, ValueError) as error:
                raise CallbackError(
                    f"callback {entry.name}: state_dict returned a tree that JSON changes ({error}); return dicts with text keys, lists, numbers "
                    f"that are finite, texts, booleans and None"
                ) from None
            if copy:
                states[entry.name] = copy
        return states

    def call(self, event: str, *arguments: Any) -> None:
        """Call the method `event` of all callbacks with the run and the arguments.  Collective if a callback with requests has the method."""
        self.run.logged = {}
        acting = [entry for entry in self.entries if not entry.kind.observes and handles(entry.kind, event)]
        if acting:
            self._act(acting, event, arguments)
        if self.first:
            for entry in self.entries:
                if entry.kind.observes:
                    self._guarded(entry, event, partial(getattr(self._objects[entry.name], event), self.run, *arguments))
        for recorder in self.recorders:
            recorded(recorder, event, self.run, *arguments)

    def failed(self, error: BaseException) -> None:
        """Call `on_exception` of all callbacks of this process; report their own errors as notices, because `error` ended the run."""
        self.run.controls = None
        own = [(name, callback) for name, callback in self._objects.items()]
        for name, callback in [*own, *((type(one).__name__, one) for one in self.recorders)]:
            try:
                callback.on_exception(self.run, error)
            except ERRORS as other:
                notice(f"callback {name}: on_exception{line_text(other)} raised {type(other).__name__}: {other}; the run had failed before")

    def _act(self, entries: Sequence[Entry], event: str, arguments: tuple[Any, ...]) -> None:
        world = self.session.start()
        if world.multi and not self.first:
            self._follow(event)
            return
        self._event, self.run.controls = event, self
        try:
            for entry in entries:
                self._caller = entry
                self._guarded(entry, event, partial(getattr(self._objects[entry.name], event), self.run, *arguments))
        except CallbackError as error:
            self._send(Done(str(error)))
            raise
        finally:
            self.run.controls = None
        self._send(Done())

    def _follow(self, event: str) -> None:
        """Carry out the requests of rank 0 until the end of the event."""
        world = self.session.start()
        while True:
            for request in world.broadcast((), f"the requests of callbacks in {event}"):
                if not isinstance(request, Done):
                    request(self)
                elif request.error is not None:
                    raise CallbackError(request.error)
                else:
                    return

    def _guarded(self, entry: Entry, what: str, call: Callable[[], Any]) -> Any:
        return guarded(entry.name, what, call, self.run.step, lambda: self._broken)

    def _send(self, request: Any) -> None:
        """Send the postponed requests and `request` to the other ranks."""
        requests, self._postponed = (*self._postponed, request), []
        try:
            self.session.start().broadcast(requests, f"the requests of callbacks in {self._event}")
        except BaseException as error:
            self._broken = error
            raise

    def _postpone(self, request: Callable[[Calls], None]) -> None:
        """Carry out a request that exchanges no data; the other ranks receive it with the next one."""
        self._postponed.append(request)
        request(self)

    def _do(self, request: Callable[[Calls], Any]) -> Any:
        """Carry out a request on all ranks, and return the result of this rank."""
        self._send(request)
        try:
            return request(self)
        except BaseException as error:
            self._broken = error
            raise

    # ---------------------------------------------------------------- controls of the run, on rank 0

    def lr(self) -> float:
        return self.rate() * self.factor

    def set_rate(self, rate: float) -> None:
        self._check_event("lr", CHANGING)
        base = self.rate()
        if base == 0 and rate != 0 and self.run.step >= self.run.steps:
            return  # no step follows; a longer run would have another rate there
        if base == 0 and rate != 0:
            raise CallbackError(
                f"run.lr at {user_line()}: the schedule's rate of the next step is 0, which no factor makes {rate:g}; change it earlier"
            )
        if base != 0:
            self._do(SetRate(rate / base))

    def request_stop(self, reason: str) -> None:
        self._check_event("stop", (*CHANGING, "on_checkpoint"))
        assert self._caller is not None
        self._postpone(Stop(self._caller.name, self._caller.key, reason, self._caller.kind.ending))

    def save(self) -> None:
        self._check_event("save", LOGGING)
        self._postpone(Save())

    def keep_best(self, metric: str, mode: str, count: int) -> None:
        self._check_event("keep_best", ("on_start",))
        if self.best is not None:
            raise CallbackError(
                f"run.keep_best at {user_line()}: the run already keeps the best checkpoints by {self.best.metric}; request one metric only"
            )
        if mode not in ("min", "max"):
            raise CallbackError(f'run.keep_best at {user_line()}: mode is {mode!r:.80}; pass "min" if smaller values are better, or "max"')
        try:
            self.run.check_metric(metric)
        except ConfigError as error:
            raise CallbackError(f"run.keep_best at {user_line()}: {error}") from None
        self._check_count("keep_best", count)
        self._postpone(KeepBest(metric, "max" if mode == "max" else "min", count))

    def metric_names(self) -> Sequence[str]:
        return self.jobs.evaluated() if "validation" in self.jobs.samples else ()

    def facts(self) -> Mapping[str, Any]:
        return self.jobs.samples["train"].facts

    def examples(self, count: int) -> dict[str, Any]:
        self._check_count("examples", count)
        samples = self.jobs.samples.get("validation", self.jobs.samples["train"])
        if not isinstance(samples, Samples):
            raise CallbackError(f"run.examples at {user_line()}: {samples} is a stream, which cannot be read twice; set data.validation to samples")
        return samples.read(np.arange(min(count, len(samples))))

    def show(self, name: str, value: Any) -> None:
        self._check_event("show", LOGGING)
        self._check_logged("show", name)
        write_sample(self.run.output, self.run.step, name, value)

    def exchange_averages(self) -> None:
        self._check_event("averages", (*CHANGING, "on_end"))
        if self._broken is None and averages_of(self.session):
            self._do(ExchangeAverages())

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        self._check_event("predict", (*CHANGING, "on_end"))
        if not isinstance(batch, Mapping):
            raise CallbackError(f"run.predict at {user_line()}: the batch is {batch!r:.80}; pass a dict of arrays by field")
        fields = self.jobs.network.inputs(self.jobs.fields)
        arrays: dict[str, Array] = {}
        for name, type in fields.items():
            if name not in batch:
                near = did_you_mean_or(name, batch, f"the batch has {', '.join(batch) or 'no fields'}")
                raise CallbackError(f'run.predict at {user_line()}: the model needs the field "{name}"{near}')
            array = np.asarray(batch[name])
            if array.shape[1:] != type.shape or not len(array):
                raise CallbackError(
                    f'run.predict at {user_line()}: the field "{name}" has rows of shape {list(type.shape)}, and the array has the shape '
                    f"{list(array.shape)}; pass an array [rows, {', '.join(map(str, type.shape))}]"
                )
            arrays[name] = array.astype(type.dtype.numpy)
        if len({len(array) for array in arrays.values()}) != 1:
            raise CallbackError(f"run.predict at {user_line()}: the fields have different numbers of rows; pass one row per sample")
        result: dict[str, Any] = self._do(Predict(arrays))
        return {name: np.asarray(array) for name, array in result.items()}

    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name, variable in self.session.variables.items() if variable.trainable)

    def read(self, name: str) -> Any:
        self._check_name("read", name)
        return np.array(self._do(Read(name)))

    def write(self, name: str, value: Any) -> None:
        self._check_event("write", CHANGING)
        self._check_name("write", name)
        if self.exchanged:
            raise CallbackError(f"run.write at {user_line()}: the run uses averages here; write parameters outside of run.averages()")
        type = self.session.variables[name].type
        try:
            source = np.asarray(value)
            if source.dtype.kind == "c":
                raise TypeError("it is complex; write its real part")
            array, beyond = converted(source, type.dtype.numpy)
        except (TypeError, ValueError) as error:
            raise CallbackError(f'run.write at {user_line()}: the value of "{name}" is no array of numbers: {error}') from None
        if beyond is not None:
            raise CallbackError(
                f'run.write at {user_line()}: the value of "{name}" has {beyond:g}, beyond the range of {type.dtype.name}; pass smaller values'
            )
        if array.shape != type.shape:
            raise CallbackError(
                f'run.write at {user_line()}: variable "{name}" has shape {list(type.shape)}, and the value {list(array.shape)}; pass the same shape'
            )
        self._do(Write(name, array))

    def log(self, name: str, value: float) -> None:
        self._check_event("log", LOGGING)
        self._check_logged("log", name)
        if name in RESERVED or name.startswith(("train/", "train_epoch/", "validation/")):
            raise CallbackError(f'run.log at {user_line()}: "{name}" is a value of the trainer; choose another name, such as "own/{name}"')
        self._postpone(Log(name, value))

    @staticmethod
    def _check_logged(what: str, name: str) -> None:
        if not isinstance(name, str) or not re.fullmatch(LOGGED, name):
            raise CallbackError(f'run.{what} at {user_line()}: "{name}" is no name of a value; write letters, digits, _, ., / and -')

    @staticmethod
    def _check_count(what: str, count: int) -> None:
        if not isinstance(count, int | np.integer) or count < 1:
            raise CallbackError(f"run.{what} at {user_line()}: the count is {count!r:.80}; pass a whole number of 1 or more")

    def _check_event(self, what: str, events: Sequence[str]) -> None:
        if self._event not in events:
            raise CallbackError(f"run.{what} at {user_line()}: {self._event} cannot use it; use it in {', '.join(events)}")

    def _check_name(self, what: str, name: str) -> None:
        variables = self.session.variables
        if not isinstance(name, str) or name not in variables:
            near = did_you_mean_or(str(name), variables, f"run.parameters lists them: {', '.join(self.parameters()[:4])} ...")
            raise CallbackError(f'run.{what} at {user_line()}: the model has no variable "{name}"{near}')


#: names of columns in metrics files
RESERVED = ("step", "epoch", "rate", "seconds", "samples_per_second")
