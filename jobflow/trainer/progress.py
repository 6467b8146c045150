"""How far a run has come: a bar on a terminal, plain lines elsewhere.

    epoch 3/10 ━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━ 1200/4000  loss 0.1234  5,600 samples/s  0:29 left  lr 0.001

The bar is the last line of the terminal; what the program prints meanwhile appears above it, and evaluations leave a line there.  It
is drawn from the thread that trains, a few times a second.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Literal, TypeAlias

from jobflow.errors import counted
from jobflow.trainer.amounts import clock_text, metric_text, metrics_text, number_text, rate_text
from jobflow.trainer.watching import Ended, EvaluationReport, RunInfo, StepReport, Watcher

Mode: TypeAlias = Literal["auto", "bar", "plain", "none"]
#: seconds between two pictures of the bar
REDRAW = 0.2
#: steps over which the speed is averaged
WINDOW = 50
#: columns; a bar is at least this long, and at most
SHORTEST, LONGEST = 8, 40
#: what the bar says of a run's end
ENDS = {"end": "done", "early": "stopped early", "interrupt": "interrupted", "terminated": "terminated", "nan": "stopped: not finite"}


class Progress(Watcher):
    """Shows a run; `every_steps` is how often a plain line is printed.  `stream` is standard output unless given."""

    def __init__(self, mode: Mode = "auto", every_steps: int = 10, stream: IO[str] | None = None) -> None:
        self._mode = mode
        self._every = max(1, every_steps)
        self._stream = stream
        self._shown: Display = Display()
        self._state: State | None = None

    def started(self, run: RunInfo) -> None:
        stream = self._stream or sys.stdout
        self._state = state = State(run)
        self._shown = display_of(self._mode, stream, state, self._every)
        self._shown.begin()
        if run.resumed_from is not None:
            self._shown.say(f"going on from step {run.first_step}: {run.resumed_from}")

    def step(self, run: RunInfo, report: StepReport) -> None:
        if self._state is not None:
            self._state.step(report)
            self._shown.step(report)

    def evaluated(self, run: RunInfo, report: EvaluationReport) -> None:
        if self._state is not None:
            self._state.evaluation = report
            self._shown.say(f"step {report.step}: {metrics_text(report.metrics)}")

    def saved(self, run: RunInfo, path: Path) -> None:
        if self._state is not None:
            self._state.saved = path

    def finished(self, run: RunInfo, outcome: Ended) -> None:
        self._shown.end()
        if self._state is not None:
            self._shown.say(f"{ENDS.get(outcome.stopped, outcome.stopped)}: {self._state.summary(outcome)}")

    def closed(self, run: RunInfo) -> None:
        self._shown.end()


class State:
    """What is known of a run while it goes on."""

    def __init__(self, run: RunInfo) -> None:
        self.run = run
        self.began = perf_counter()
        self.report: StepReport | None = None
        self.evaluation: EvaluationReport | None = None
        self.saved: Path | None = None
        self._recent: deque[StepReport] = deque(maxlen=WINDOW)
        self._first: tuple[float, int] | None = None

    def step(self, report: StepReport) -> None:
        if self._first is None:
            self._first = perf_counter(), report.step  # what comes before compiled the job
        else:
            if len(self._recent) == 1 and self._recent[0].step == self._first[1]:
                self._recent.clear()
        self._recent.append(report)
        self.report = report

    @property
    def speed(self) -> float:
        """Samples per second of the last steps."""
        seconds = sum(report.seconds for report in self._recent)
        return sum(report.samples for report in self._recent) / seconds if seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Seconds to the end, if all goes on as it has since the first step; infinite if that is not known."""
        if self._first is None or self.report is None or self.report.step <= self._first[1]:
            return math.inf
        each = (perf_counter() - self._first[0]) / (self.report.step - self._first[1])
        return max(0, self.run.steps - self.report.step) * each

    def epoch_text(self) -> str:
        total = math.ceil(self.run.epochs)
        epoch = (self.report.epoch if self.report else self.run.first_step // max(self.run.steps_per_epoch, 1)) + 1
        return f"epoch {min(epoch, total)}/{total}" if total else f"epoch {epoch}"

    def step_text(self) -> str:
        digits = len(str(self.run.steps))
        return f"{self.report.step if self.report else self.run.first_step:{digits}d}/{self.run.steps}"

    def fields(self) -> list[str]:
        """What is said beside the bar, the most important first."""
        if self.report is None:
            return ["compiling"]
        found = [f"loss {number_text(self.report.loss)}", f"{rate_text(self.speed)} samples/s"]
        if math.isfinite(self.left):
            found.append(f"{clock_text(self.left)} left")
        found += [f"{name} {metric_text(name, value)}" for name, value in self.report.metrics.items()]
        return [*found, f"lr {number_text(self.report.rate)}"]

    def summary(self, outcome: Ended) -> str:
        took = clock_text(perf_counter() - self.began)
        found = f"step {outcome.step}, {took}"
        return f"{found}, {metrics_text(outcome.metrics)}" if outcome.metrics else found


class Display:
    """Shows nothing."""

    def begin(self) -> None:
        """Before the first step."""

    def step(self, report: StepReport) -> None:
        """After every step."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def end(self) -> None:
        """Give the terminal back; may be called twice."""


class Plain(Display):
    """A line every so many steps: the numbers of that step, as files of metrics have them."""

    def __init__(self, stream: IO[str], state: State, every: int) -> None:
        self._stream = stream
        self._state = state
        self._every = every

    def begin(self) -> None:
        run = self._state.run
        left = run.steps - run.first_step
        if left > 0:  # else a last evaluation was left out
            self.say(f"{run.name}: {counted(left, 'step')} of {counted(run.batch_size, 'sample')} on {counted(run.ranks, 'rank')}")

    def step(self, report: StepReport) -> None:
        run = self._state.run
        if report.step % self._every == 0 or report.step in (run.first_step + 1, run.steps):
            self.say("  ".join([f"step {self._state.step_text()}", self._state.epoch_text(), *self._state.fields()]))

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Bar(Display):
    """A line at the bottom of the terminal that is drawn again and again."""

    def __init__(self, stream: IO[str], state: State) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = state
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._live = Live(Picture(state), console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._drawn = 0.0

    def begin(self) -> None:
        self._live.start(refresh=True)

    def step(self, report: StepReport) -> None:
        now = perf_counter()
        if now - self._drawn >= REDRAW:
            self._live.refresh()
            self._drawn = perf_counter()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def end(self) -> None:
        self._live.stop()


class Picture:
    """The bar, as wide as the terminal is when it is drawn: what does not fit is left out, the least important first."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        plain = (options.encoding or "utf-8").lower().replace("-", "") not in ("utf8", "utf16", "utf32")
        words = line(self._state, options.max_width - 1)
        done, rest = bar(share(self._state), words.length, plain)
        whole = Text(no_wrap=True, overflow="crop", end="")
        whole.append(words.before)
        whole.append(done, "blue")
        whole.append(rest, "bright_black")
        whole.append(words.after)
        whole.truncate(options.max_width - 1)
        yield whole


class Words:
    """A line with a bar of `length` columns in it."""

    def __init__(self, before: str, length: int, after: str) -> None:
        self.before = before
        self.length = length
        self.after = after


def line(state: State, width: int) -> Words:
    """What fits into `width` columns."""
    before, counter = f"{state.epoch_text()} ", f" {state.step_text()}"
    evaluation = [] if state.evaluation is None else [metrics_text(state.evaluation.metrics)]
    after = counter + fitting([*state.fields(), *evaluation], width - len(before) - len(counter) - SHORTEST)
    length = min(LONGEST, width - len(before) - len(after))
    return Words(before, length, after) if length >= SHORTEST else Words(before, 0, counter.strip())


def fitting(fields: Sequence[str], room: int) -> str:
    """As many of the first fields as there is room for."""
    found = ""
    for text in fields:
        if len(found) + 2 + len(text) > room:
            break
        found += f"  {text}"
    return found


def share(state: State) -> float:
    """Of all steps, those that are done."""
    step = state.report.step if state.report else state.run.first_step
    return min(1.0, step / max(state.run.steps, 1))


def bar(part: float, length: int, plain: bool) -> tuple[str, str]:
    """What is done, and what is not."""
    done = round(part * length)
    full, empty = ("#", "-") if plain else ("━", "━")
    return full * done, empty * (length - done)


def display_of(mode: Mode, stream: IO[str], state: State, every: int, environment: Mapping[str, str] = os.environ) -> Display:
    """The display that a mode means here."""
    if mode == "auto":
        mode = "bar" if stream.isatty() and environment.get("TERM", "") not in ("", "dumb") else "plain"
    if mode == "bar":
        return Bar(stream, state)
    return Plain(stream, state, every) if mode == "plain" else Display()
