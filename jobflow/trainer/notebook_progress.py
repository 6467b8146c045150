"""Progress in a notebook: one output of the cell with state, latest values and live charts, which is updated in place.

The messages go through the shell of IPython that runs the program, so jobflow imports no package for them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from jobflow.core.errors import running_shell
from jobflow.trainer.progress import Progress, epoch_text
from jobflow.trainer.run_html import run_html
from jobflow.trainer.training_run import EvaluationReport, Outcome, StepReport, TrainingRun

#: minimum and maximum seconds between two updates, and the fraction of the time that updates take
REDRAW, LATEST, SHARE = 0.5, 5.0, 0.05


def notebook_shell() -> Any:
    """Return the shell of IPython if the program runs in the kernel of a notebook, otherwise None."""
    shell = running_shell()
    return shell if getattr(shell, "kernel", None) is not None else None


class NotebookProgress(Progress):
    """A callback that shows a run as one output of a notebook's cell."""

    def __init__(self, shell: Any) -> None:
        super().__init__("plain")
        self._shell = shell
        self._shown: str | None = None
        self._next = 0.0

    def on_start(self, run: TrainingRun) -> None:
        self._begin()
        self._introduce(run)
        self._show(run, ["compiling"])

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        if self._measure(report) >= self._next:
            self._show(run, [epoch_text(run, report), *self._texts(run, report)])

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        """Show the values with the next step."""

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        """Show the means with the next step."""

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self._show(run)

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        self._show(run, error=error)

    def _show(self, run: TrainingRun, texts: Sequence[str] = (), error: BaseException | None = None) -> None:
        """Create or update the output; the time of the next update depends on the duration of this one."""
        began = perf_counter()
        update = self._shown is not None
        self._shown = self._shown or uuid.uuid4().hex
        data = {
            "text/plain": repr(run) if error is None else f"{run.name}: {type(error).__name__}: {error}",
            "text/html": run_html(run, texts, error),
        }
        self._shell.display_pub.publish(data=data, metadata={}, transient={"display_id": self._shown}, update=update)
        now = perf_counter()
        self._next = now + max(REDRAW, min(LATEST, (now - began) / SHARE))
