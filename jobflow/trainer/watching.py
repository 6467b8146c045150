"""Watchers: the interface of progress bars, metrics files, charts and reports; and what they are told, up to how a run ended.

    started (saved | step | evaluated)* finished? closed

Watchers live on rank 0 alone.  They see what has happened and decide nothing; a run with other watchers is the same run.
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
    """What is known of a run before its first step."""

    name: str
    loaded: Loaded
    #: where the run writes
    output: Path
    #: devices that take part, threads or processes
    ranks: int
    #: steps done when training ends by itself, and when this run took over: 0, or what the checkpoint had
    steps: int
    first_step: int
    steps_per_epoch: int
    #: training samples in an epoch, and in a whole batch over all ranks
    samples: int
    batch_size: int
    resumed_from: AnyPath | None = None
    #: the train job as it is laid out for whole batches, once it is; None before
    compiled: Callable[[], Compiled | None] = field(default=lambda: None, repr=False)
    #: of training, in earlier parts of the run
    seconds_before: float = 0.0

    @property
    def epochs(self) -> float:
        """How often all samples are seen by the end; 0 if nobody knows how many there are."""
        return self.steps / self.steps_per_epoch if self.steps_per_epoch else 0.0


@dataclass(frozen=True)
class StepReport:
    """One step of training, after it."""

    #: steps done, this one too, counted over all runs; the epoch it belongs to, from 0
    step: int
    epoch: int
    #: mean over the samples of the step, like all metrics
    loss: float
    metrics: Mapping[str, float]
    #: from the end of the step before to the end of this one, without evaluation and what was waited for while saving
    seconds: float
    #: in this step, over all ranks
    samples: int
    #: learning rate
    rate: float
    #: of `seconds`, how long the step waited for its data
    waited: float = 0.0


@dataclass(frozen=True)
class EvaluationReport:
    """One pass over the validation samples, or over others: metrics are named "validation/loss" and so on."""

    step: int
    epoch: int
    metrics: Mapping[str, float]
    seconds: float = 0.0
    samples: int = 0


#: end: all steps are done.  early: nothing got better.  interrupt: Ctrl-C.  terminated: SIGTERM, or the time is up.  nan: not finite.
Stopped = Literal["end", "early", "interrupt", "terminated", "nan"]

DONE = 0
NOT_FINITE = 3
#: saved; the same command goes on
AGAIN = 75

#: by the way to end: the exit code, what it is called, and whether it is good news
ENDS: dict[str, tuple[int, str, str]] = {
    "end": (DONE, "done", "good"),
    "early": (DONE, "stopped early", "good"),
    "interrupt": (INTERRUPTED, "interrupted", "plain"),
    "terminated": (AGAIN, "terminated", "plain"),
    "nan": (NOT_FINITE, "not finite", "bad"),
}


@dataclass(frozen=True)
class Outcome:
    """The end of a run; `step` and `epoch` are those done, over all runs that were resumed."""

    step: int
    epoch: int
    #: the last known: "train/loss", "validation/loss", "test/accuracy" ...
    metrics: Mapping[str, float]
    stopped: Stopped
    #: the checkpoint of this step, if one was saved
    saved: AnyPath | None = None
    #: why it stopped, for people
    message: str = ""
    #: sums over this process' run: seconds of training, and of it waiting for data
    seconds: float = field(default=0.0, compare=False)

    @property
    def exit_code(self) -> int:
        """What `jobflow train` ends with."""
        return ENDS[self.stopped][0]


class Watcher:
    """Sees a run; does nothing.  `closed` is called at the very end in every case, after errors too, and may be called twice."""

    def started(self, run: RunInfo) -> None:
        """Before the first step."""

    def step(self, run: RunInfo, report: StepReport) -> None:
        """After every step."""

    def evaluated(self, run: RunInfo, report: EvaluationReport) -> None:
        """After every evaluation."""

    def saved(self, run: RunInfo, path: AnyPath) -> None:
        """A checkpoint is published at `path`."""

    def finished(self, run: RunInfo, outcome: Outcome) -> None:
        """The run has come to an end that is no error."""

    def closed(self, run: RunInfo) -> None:
        """Give back what is held: terminals, files."""


def leave(path: Path, content: bytes) -> bool:
    """Write a file that a run leaves for people, and can do without; if that fails, a notice says why, and the run goes on.  True if it is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        notice(f"{path} could not be written: {error.strerror or error}")
        return False
    return True
