"""The progress bar, and plain progress lines.

    epoch 3/10 ━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━ 1200/4000 loss 0.1234  5,600 samples/s  0:29 left  lr 0.001

The bar is the last line of the terminal. Other output of the program and lines about evaluations appear above it. The training thread redraws
the bar a few times per second.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import counted
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.training_run import ENDS, EvaluationReport, Outcome, StepReport, TrainingRun
from jobflow.trainer.units import clock_text, metric_text, metrics_text, number_text, rate_text

if TYPE_CHECKING:
    from rich import progress

Mode: TypeAlias = Literal["auto", "bar", "plain", "none"]
#: seconds between two updates of the bar
REDRAW = 0.2
#: steps over which the speed is averaged
WINDOW = 50


class Progress(Callback):
    """A callback that shows the progress of a run, with a plain line every `every_steps` steps; `stream` defaults to standard output."""

    observes = True

    def __init__(self, mode: Mode = "auto", every_steps: int = 10, stream: IO[str] | None = None) -> None:
        self._mode = mode
        self._every = max(1, every_steps)
        self._stream = stream
        self._bar: progress.Progress | None = None

    def on_start(self, run: TrainingRun) -> None:
        self._begin()
        stream = self._stream or sys.stdout
        if self._mode == "bar" or (self._mode == "auto" and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")):
            self._bar = bar(stream)
            self._bar.add_task(epoch_text(run, None), total=run.steps, completed=run.first_step, texts=["compiling"])
            self._bar.start()
        elif run.first_step < run.steps:  # otherwise only the last evaluation remains
            left = counted(run.steps - run.first_step, "step")
            self._say(f"{run.name}: {left} of {counted(run.batch_size, 'sample')} on {counted(run.ranks, 'rank')}")
        self._introduce(run)

    def _begin(self) -> None:
        """Start to measure times."""
        self._begun = perf_counter()
        self._drawn, self._printed = 0.0, ""
        self._first: tuple[float, int] | None = None
        self._recent: deque[StepReport] = deque(maxlen=WINDOW)

    def _introduce(self, run: TrainingRun) -> None:
        """Print the tables before the first step, and the checkpoint from which the run resumes."""
        if run.before:
            self._say(run.before)
        if run.resumed_from is not None:
            self._say(f"resuming from step {run.first_step}: {run.resumed_from}")

    def _measure(self, report: StepReport) -> float:
        """Record the time of a step, and return the current time."""
        now = perf_counter()
        if self._first is None:
            self._first = now, report.step  # the time before includes compilation
        elif report.step == self._first[1] + 1:
            self._recent.clear()
        self._recent.append(report)
        return now

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        now = self._measure(report)
        if self._bar is not None and now - self._drawn >= REDRAW:
            texts = [*self._texts(run, report), *filter(None, [self._printed])]
            self._bar.update(self._bar.task_ids[0], completed=report.step, description=epoch_text(run, report), texts=texts, refresh=True)
            self._drawn = perf_counter()
        elif self._bar is None and (report.step % self._every == 0 or report.step in (run.first_step + 1, run.steps)):
            counter = f"step {report.step:{len(str(run.steps))}d}/{run.steps}"
            self._say("  ".join([counter, epoch_text(run, report), *self._texts(run, report)]))

    def _texts(self, run: TrainingRun, report: StepReport) -> Iterator[str]:
        """Yield the texts next to the counter, most important first: the values of this step as in the metrics files."""
        yield f"loss {number_text(report.loss)}"
        seconds = sum(recent.seconds for recent in self._recent)
        yield f"{rate_text(sum(recent.samples for recent in self._recent) / seconds if seconds > 0 else 0.0)} samples/s"
        if self._first is not None and report.step > self._first[1]:
            each = (perf_counter() - self._first[0]) / (report.step - self._first[1])  # with the evaluations and checkpoints so far
            yield f"{clock_text(max(0, run.steps - report.step) * each)} left"
        yield from (f"{name} {metric_text(name, value)}" for name, value in report.metrics.items())
        yield f"lr {number_text(report.rate)}"

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self._printed = metrics_text(report.metrics)
        self._say(f"step {report.step}: {self._printed}")

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        metrics = {name.replace("train_epoch/", "train/"): value for name, value in report.metrics.items()}
        self._say(f"epoch {report.epoch + 1}: {metrics_text(metrics)}")

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        self.close()
        words = [f"step {outcome.step}", clock_text(perf_counter() - self._begun), *filter(None, [metrics_text(outcome.metrics)])]
        self._say(f"{ENDS[outcome.stopped][1]}: {', '.join(words)}")

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _say(self, text: str) -> None:
        """Print a line that the progress bar does not overwrite."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, soft_wrap=True)
        elif self._mode != "none":
            print(text, file=self._stream or sys.stdout, flush=True)


def epoch_text(run: TrainingRun, report: StepReport | None) -> str:
    """Return a text such as "epoch 3/10"."""
    total = math.ceil(run.epochs)
    epoch = (report.epoch if report else run.first_step // max(run.steps_per_epoch, 1)) + 1
    return f"epoch {min(epoch, total)}/{total}" if total else f"epoch {epoch}"


def bar(stream: IO[str]) -> progress.Progress:
    """Return a progress bar as wide as the terminal; if the texts of a task do not fit, the last texts are omitted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column

    class Texts(ProgressColumn):
        max_refresh = None

        def render(self, task: Task) -> Any:
            return Fitting(task.fields["texts"])

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(None, complete_style="blue", finished_style="blue", table_column=Column(ratio=1, max_width=40)),
        MofNCompleteColumn(),
        Texts(Column(ratio=2, no_wrap=True)),
        console=Console(file=stream, force_terminal=True, highlight=False),
        auto_refresh=False,
        transient=True,
        expand=True,
    )


@dataclass(frozen=True)
class Fitting:
    """A line with as many of the leading texts as fit the width."""

    texts: Sequence[str]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        lines = ["", *accumulate(self.texts, "{}  {}".format)]
        yield Text(next(line for line in reversed(lines) if len(line) <= options.max_width), no_wrap=True)
