"""Callbacks of a run: the interface of progress bars, metrics files, charts and reports, and the data that callbacks receive.

    started (saved | step | evaluated)* finished? closed

Callbacks run on rank 0 only, receive events, and do not influence the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jobflow.core.dataclass import dataclass
from jobflow.core.notices import notice
from jobflow.engine.compiled import Compiled
from jobflow.runtime.interrupts import INTERRUPTED as INTERRUPTED
from jobflow.storage.remote import AnyPath

if TYPE_CHECKING:
    from jobflow.trainer.config import Loaded


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run before its first step."""

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
    compiled: Callable[[], Compiled | None] = field(default=lambda: None, repr=False)
    #: seconds of training in earlier parts of the run
    seconds_before: float = 0.0
    #: text to print before the first step: initial values from files, and frozen variables
    before: str = ""

    @property
    def epochs(self) -> float:
        """The number of passes over the samples at the end; 0 if the number of samples is unknown."""
        return self.steps / self.steps_per_epoch if self.steps_per_epoch else 0.0


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


#: end: all steps are done. early: no improvement. interrupt: Ctrl-C. terminated: SIGTERM or the time limit. nan: a non-finite loss.
Stopped = Literal["end", "early", "interrupt", "terminated", "nan"]

DONE = 0
NOT_FINITE = 3
#: exit code of a saved run, which the same command resumes
AGAIN = 75

#: kind of end -> exit code, label, rating
ENDS: dict[str, tuple[int, str, str]] = {
    "end": (DONE, "done", "good"),
    "early": (DONE, "stopped early", "good"),
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


class Watcher:
    """Base class of callbacks, whose methods do nothing. `closed` is called at the very end, also after errors, and may be called twice."""

    def started(self, run: RunInfo) -> None:
        """Handle the start, before the first step."""

    def step(self, run: RunInfo, report: StepReport) -> None:
        """Handle a finished step."""

    def evaluated(self, run: RunInfo, report: EvaluationReport) -> None:
        """Handle a finished evaluation."""

    def saved(self, run: RunInfo, path: AnyPath) -> None:
        """Handle a checkpoint published at `path`."""

    def finished(self, run: RunInfo, outcome: Outcome) -> None:
        """Handle the end of a run without an error."""

    def closed(self, run: RunInfo) -> None:
        """Release resources such as terminals and files."""


def leave(path: Path, content: bytes) -> bool:
    """Write an optional output file and return True; after a failure, print a notice and return False."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        notice(f"{path} could not be written: {error.strerror or error}")
        return False
    return True
