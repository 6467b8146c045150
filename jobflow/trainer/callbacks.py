"""The interface of callbacks: progress bars, metrics files, charts and reports, and classes of the user.

    on_start (on_checkpoint | on_step | on_epoch | on_evaluation)* (on_end | on_exception)

The process of rank 0 calls the callbacks. Other ranks repeat its requests, such as a change of the learning rate, so all ranks decide alike.
"""

from __future__ import annotations

from typing import Any, ClassVar

from jobflow.storage.remote import AnyPath
from jobflow.trainer.training_run import EvaluationReport, Outcome, StepReport, Stopped, TrainingRun


class Callback:
    """Base class of callbacks, whose methods do nothing.  The process of rank 0 calls them.

    A callback may stop the run (`run.stop`), change the learning rate (`run.lr`), read and write parameters (`run.read`, `run.write`), and log
    values (`run.log`).
    """

    #: True for a callback that makes no request to the run; the ranks then exchange nothing for it
    observes: ClassVar[bool] = False
    #: False for a callback that never sets `run.lr`; a run without others has no variable for changes of the learning rate
    changes_rate: ClassVar[bool] = True
    #: the kind of end after `run.stop`: "callback" or "early"
    ending: ClassVar[Stopped] = "callback"

    def on_start(self, run: TrainingRun) -> None:
        """Handle the start, before the first step; also the start of a resumed run."""

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        """Handle a finished step."""

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        """Handle a finished evaluation."""

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        """Handle the means and metrics of all training samples of an epoch, with names such as "train_epoch/loss"."""

    def on_checkpoint(self, run: TrainingRun, path: AnyPath) -> None:
        """Handle a checkpoint published at `path`; an asynchronous one may belong to an earlier step."""

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        """Handle the end of a run by an error.  The run continues with no other method, and accepts no request."""

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        """Handle the end of a run without an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves for a resumed run, as a tree of JSON types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict` from a checkpoint, before `on_start`."""
