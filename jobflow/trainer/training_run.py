"""A run of training: its facts and state, which callbacks receive and `train` returns, and the reports of steps, evaluations and the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobflowError, did_you_mean_or, user_line
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.engine.compiled import Compiled
from jobflow.runtime.interrupts import INTERRUPTED as INTERRUPTED
from jobflow.storage.remote import AnyPath

if TYPE_CHECKING:
    from jobflow.trainer.config import Loaded
    from jobflow.trainer.history import History, Numbers


@dataclass(frozen=True)
class StepReport:
    """The result of one step of training."""

    #: number of this step over all runs, from 1; its epoch, from 0
    step: int
    epoch: int
    #: mean over the samples of the step, as for all metrics
    loss: float
    metrics: Mapping[str, float]
    #: seconds from the end of the previous step to the end of this one, without evaluations and saves
    seconds: float
    #: samples of this step over all ranks
    samples: int
    #: learning rate
    rate: float
    #: the part of `seconds` spent waiting for data
    waited: float = 0.0


@dataclass(frozen=True)
class EvaluationReport:
    """The result of one pass over validation or other samples; metrics have names such as "validation/loss"."""

    step: int
    epoch: int
    metrics: Mapping[str, float]
    seconds: float = 0.0
    samples: int = 0
    #: confusion matrices, by names such as "validation/confusion_matrix"
    tables: Mapping[str, Array] = field(default_factory=dict)
    #: names of the classes; empty if they are unknown
    classes: Sequence[str] = ()


#: end: all steps are done. early: no improvement. callback: `TrainingRun.stop`. interrupt: Ctrl-C. terminated: SIGTERM or the time limit.
#: nan: a non-finite loss.
Stopped = Literal["end", "early", "callback", "interrupt", "terminated", "nan"]

DONE = 0
NOT_FINITE = 3
#: exit code of a saved run, which the same command resumes
AGAIN = 75

#: kind of end -> exit code, label, rating
ENDS: dict[str, tuple[int, str, str]] = {
    "end": (DONE, "done", "good"),
    "early": (DONE, "stopped early", "good"),
    "callback": (DONE, "stopped by a callback", "good"),
    "interrupt": (INTERRUPTED, "interrupted", "plain"),
    "terminated": (AGAIN, "terminated", "plain"),
    "nan": (NOT_FINITE, "not finite", "bad"),
}


@dataclass(frozen=True)
class Outcome:
    """The end of a run; `step` and `epoch` count over all resumed runs."""

    step: int
    epoch: int
    #: the latest values: "train/loss", "validation/loss", "test/accuracy" ...
    metrics: Mapping[str, float]
    stopped: Stopped
    #: the checkpoint of this step, if one was saved
    saved: AnyPath | None = None
    #: the reason of the end, for messages
    message: str = ""
    #: seconds of training in this process, and the part spent waiting for data
    seconds: float = field(default=0.0, compare=False)

    @property
    def exit_code(self) -> int:
        """The exit code of `jobflow train`."""
        return ENDS[self.stopped][0]


class CallbackError(JobflowError):
    """Error for a callback that raised an exception, and for a request of a callback that the run cannot fulfil."""


class Controls(Protocol):
    """The requests of callbacks to a run."""

    def lr(self) -> float:
        """Return the learning rate of the next step."""

    def set_rate(self, rate: float) -> None:
        """Change the learning rate of the next step, and scale the later rates of the schedule by the same factor."""

    def request_stop(self, reason: str) -> None:
        """Stop the run after the current step."""

    def parameters(self) -> tuple[str, ...]:
        """Return the names of the trainable variables."""

    def read(self, name: str) -> Any:
        """Return the value of a variable as a NumPy array."""

    def write(self, name: str, value: Any) -> None:
        """Set a variable."""

    def log(self, name: str, value: float) -> None:
        """Add a value to the records of the current step or evaluation."""

    def save(self) -> None:
        """Save a checkpoint after the current step."""

    def keep_best(self, metric: str, mode: str, count: int) -> None:
        """Keep the best checkpoints by a metric."""

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of the model for a batch."""

    def exchange_averages(self) -> None:
        """Exchange the averages with the parameters."""

    def examples(self, count: int) -> dict[str, Any]:
        """Return the first samples of evaluations."""

    def show(self, name: str, value: Any) -> None:
        """Show a sample in the report."""

    def facts(self) -> Mapping[str, Any]:
        """Return the facts of the training samples."""

    def metric_names(self) -> Sequence[str]:
        """Return the names of the metrics of evaluations during training."""


@dataclass(eq=False)
class TrainingRun:
    """A run of training.  Callbacks receive it at each event, and `train` returns it at the end."""

    name: str
    loaded: Loaded
    #: folder of the run's files
    output: Path
    #: number of devices, as threads or processes
    ranks: int
    #: steps at the regular end, and at the start of this run: 0, or the step of the checkpoint
    steps: int
    first_step: int
    steps_per_epoch: int
    #: training samples per epoch, and per full batch over all ranks
    samples: int
    batch_size: int
    resumed_from: AnyPath | None = None
    #: the compiled train job for full batches; None before compilation
    compiled: Callable[[], Compiled | None] = lambda: None
    #: seconds of training in earlier parts of the run
    seconds_before: float = 0.0
    #: text to print before the first step: initial values from files, frozen variables, and parameter groups
    before: str = ""
    #: the finished steps and epochs, and the latest metrics by name, such as "train/loss"
    step: int = 0
    epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    #: the values that callbacks have logged for the current step or evaluation
    logged: dict[str, float] = field(default_factory=dict)
    #: the latest checkpoint of the run
    checkpoint: AnyPath | None = None
    #: None before the end
    outcome: Outcome | None = None
    #: the report's page; None without logging.report and on ranks other than 0
    report: Path | None = None
    #: the steps and evaluations so far
    recorded: History | None = None
    #: None after the end and after an error
    controls: Controls | None = None

    @property
    def epochs(self) -> float:
        """The number of passes over the samples at the end; 0 if the number of samples is unknown."""
        return self.steps / self.steps_per_epoch if self.steps_per_epoch else 0.0

    # ---------------------------------------------------------------- requests of callbacks

    @property
    def lr(self) -> float:
        """The learning rate of the next step.  A new value also scales the later rates of the schedule; checkpoints contain the change."""
        return self._controls("lr").lr()

    @lr.setter
    def lr(self, rate: float) -> None:
        if not is_real(rate) or not 0 <= rate < math.inf:
            raise CallbackError(f"run.lr at {user_line()}: the learning rate must be a finite number that is not negative, not {rate!r}")
        self._controls("lr").set_rate(float(rate))

    def stop(self, reason: str = "") -> None:
        """Stop the run after the current step, with an evaluation and a checkpoint; `reason` is part of the run's message."""
        if not isinstance(reason, str):
            raise CallbackError(f"run.stop at {user_line()}: the reason must be a text, not {reason!r}")
        self._controls("stop").request_stop(reason)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the trainable variables."""
        return self._controls("parameters").parameters()

    def read(self, name: str) -> Any:
        """Return the whole value of a variable as a NumPy array, from all ranks."""
        return self._controls("read").read(name)

    def write(self, name: str, value: Any) -> None:
        """Set a variable on all ranks; the shape must be the variable's, and the values are converted to its element type."""
        self._controls("write").write(name, value)

    def log(self, name: str, value: float) -> None:
        """Add a number to the records of the current step or evaluation: metrics files, charts, the history and `metrics`."""
        if not isinstance(name, str) or not is_real(value):
            raise CallbackError(f"run.log at {user_line()}: pass a name and a number, not {name!r} and {value!r:.80}")
        self._controls("log").log(name, float(value))

    def save(self) -> None:
        """Save a checkpoint after the current step, in addition to those of the configuration."""
        self._controls("save").save()

    def keep_best(self, metric: str, mode: str = "min", count: int = 1) -> None:
        """Keep the `count` best checkpoints by a metric, in addition to the newest ones; call it in `on_start`."""
        self._controls("keep_best").keep_best(metric, mode, count)

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of the model by name for a batch, {field: array}, without an update; fields that the model does not need are ignored.

        Each number of rows compiles the model once.  The outputs are those of the current parameters; see `averages`.
        """
        return self._controls("predict").predict(batch)

    @contextmanager
    def averages(self) -> Iterator[None]:
        """Use the averages of the parameters inside a `with` block, as evaluations do; without the callback ParameterAverage, change nothing."""
        controls = self._controls("averages")
        controls.exchange_averages()
        try:
            yield
        finally:
            controls.exchange_averages()

    def examples(self, count: int) -> dict[str, Any]:
        """Return the first `count` samples of data.validation, or of data.train without it: {field: array}."""
        return self._controls("examples").examples(count)

    def show(self, name: str, value: Any) -> None:
        """Show a sample of this step or evaluation in the report: a text, an image, or several images.

        An image is an array [height, width] or [height, width, 3], of bytes or of floats from 0 to 1.  Channels may also be the first axis.
        The sample is also a file in the folder "samples" of the run's output.
        """
        self._controls("show").show(name, value)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts of the training samples, such as their classes or vocabulary."""
        return self._controls("facts").facts()

    def check_metric(self, name: str) -> None:
        """Raise ConfigError unless evaluations during training measure this metric, such as "validation/loss"."""
        known = self._controls("check_metric").metric_names()
        if not known:
            raise ConfigError(f"{name}: the run has no evaluations; set data.validation")
        if name not in known:
            near = did_you_mean_or(name, known, f"there are {', '.join(known)}; the section metrics adds more")
            raise ConfigError(f'the evaluations measure no metric "{name}"{near}')

    def _controls(self, what: str) -> Controls:
        if self.controls is None:
            when = "has ended" if self.outcome is not None else "has failed or has not started"
            raise CallbackError(f"run.{what} at {user_line()}: the run {when}; use it in on_start, on_step or on_evaluation of a callback")
        return self.controls

    # ---------------------------------------------------------------- the end

    @property
    def history(self) -> dict[str, Numbers]:
        """The values of the run by name: "step" and columns of the same length, such as "loss"; NaN where a step has no value."""
        return {} if self.recorded is None else self.recorded.columns()

    @property
    def stopped(self) -> Stopped | None:
        """The kind of end, such as "end" or "early"; None before the end."""
        return None if self.outcome is None else self.outcome.stopped

    @property
    def message(self) -> str:
        """The reason of the end; "" before the end, and for a regular end."""
        return "" if self.outcome is None else self.outcome.message

    @property
    def exit_code(self) -> int:
        """The exit code of `jobflow train`.  Raises: ConfigError before the end."""
        if self.outcome is None:
            raise ConfigError("run.exit_code: the run has not ended; use it after train returns")
        return self.outcome.exit_code

    def __repr__(self) -> str:
        end = "running" if self.stopped is None else ENDS[self.stopped][1]
        values = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items() if name.endswith("/loss"))
        return f"<TrainingRun {self.name}: {end}, step {self.step:,} of {self.steps:,}{values}>"

    def _repr_html_(self) -> str:
        """Return result, charts and a link to the report, for notebooks."""
        from jobflow.trainer.run_html import run_html

        return run_html(self)


def is_real(value: Any) -> bool:
    """Return True for a number of Python or NumPy, also inside an array of one element; False for a bool."""
    if isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, int | float | np.number) or (isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iuf")


def leave(path: Path, content: bytes) -> bool:
    """Write an optional output file and return True; after a failure, print a notice and return False."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        notice(f"{path} could not be written: {error.strerror or error}")
        return False
    return True
