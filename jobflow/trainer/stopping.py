"""The end of training: early stopping, signals, time limits, and the exchange between ranks about them.

Steps and metrics are equal on all ranks. Clocks, signals and files are not, so ranks exchange a message about them every PERIOD seconds. The
message contains the received signal, the time limit, and the state of the checkpoint. All ranks act on the same messages. Rank 0 also sends the
number of steps until the next exchange.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from types import FrameType, TracebackType
from typing import Any, Self

import psutil

from jobflow.core.dataclass import dataclass
from jobflow.engine.session import Session
from jobflow.program.commands import ExchangeItems
from jobflow.runtime.world.launched import launched
from jobflow.trainer.training_run import INTERRUPTED

#: seconds between two exchanges
PERIOD = 0.2
#: assumed seconds of the first save, and additional reserve
FIRST_SAVE = 10.0
RESERVE = 10.0
#: factor on the longest save so far
CAUTION = 1.5


# -------------------------------------------------------------------- early stopping


@dataclass
class Early:
    """Early stopping after `patience` consecutive evaluations without an improvement of a metric by more than `min_delta`."""

    metric: str
    mode: str
    patience: int
    min_delta: float = 0.0
    best: float | None = None
    #: evaluations since the best
    waited: int = 0

    def heed(self, value: float) -> bool:
        """Record the metric of an evaluation, and return True if training should stop; NaN is never an improvement."""
        if self.best is None and not math.isnan(value):
            self.best = value
            return False
        if self.best is not None and (value < self.best - self.min_delta if self.mode == "min" else value > self.best + self.min_delta):
            self.best, self.waited = value, 0
            return False
        self.waited += 1
        return self.is_over

    @property
    def is_over(self) -> bool:
        """True after `patience` consecutive evaluations without an improvement."""
        return self.waited >= self.patience

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.waited = state["best"], int(state["waited"])


# -------------------------------------------------------------------- Ctrl-C and SIGTERM

# A handler only records the signal; the step is finished and saved first. Ranks then exchange signals, so all stop after the
# same step, whichever rank received the signal. A second Ctrl-C ends the process immediately.


class Signals:
    """Handlers for SIGINT and SIGTERM inside a `with` block; without effect outside of the main thread, where Python allows no handlers."""

    def __init__(self) -> None:
        #: the first signal that requested the end
        self.noted: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def request(self) -> str:
        """The requested end of the run: "interrupt", "terminated", or "" without a request."""
        return "" if self.noted is None else "interrupt" if self.noted == signal.SIGINT else "terminated"

    @property
    def announced(self) -> str:
        """A description of the received signal for messages; "" without a signal."""
        started = launched()
        rank = "" if started is None else f" to rank {started.rank}"
        return "" if self.noted is None else f"{signal.Signals(self.noted).name} was sent{rank}"

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted == signal.SIGINT == number:
            self._exit_now()
        if self.noted is None:
            self.noted = number
            if number == signal.SIGINT:
                _say("jobflow: finishing the step and saving; press Ctrl-C again to exit immediately without saving")

    @staticmethod
    def _exit_now() -> None:
        if launched() is None:
            raise KeyboardInterrupt
        os._exit(INTERRUPTED)  # other ranks may wait for this one; the launcher ends them


def _say(text: str) -> None:
    """Print from a signal handler on rank 0, directly to the file descriptor: the stream may be in use by the interrupted code."""
    started = launched()
    if started is None or started.rank == 0:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"\n{text}\n".encode())


# -------------------------------------------------------------------- time


def end_of_allocation(environ: Mapping[str, str] = os.environ, started: float | None = None) -> float | None:
    """Return the time at which a batch system ends this process, in seconds since 1970; None without a batch system.

    Slurm states the end of the job. PBS states its duration, counted here from the start of this process.
    """
    if environ.get("SLURM_JOB_END_TIME", "").isdigit():
        return float(environ["SLURM_JOB_END_TIME"])
    if "PBS_JOBID" in environ and environ.get("PBS_WALLTIME", "").isdigit():
        return (psutil.Process().create_time() if started is None else started) + float(environ["PBS_WALLTIME"])
    return None


@dataclass
class Clock:
    """The remaining time of a run, and the time that a final save needs."""

    #: by the monotonic clock, which ignores changes of the system time; None without a limit
    deadline: float | None = None
    reserve: float = RESERVE
    #: seconds of the longest save, the longest evaluation, and recent steps
    save: float | None = None
    evaluation: float = 0.0
    step: float = 0.0
    now: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, limit: float | None, environ: Mapping[str, str] = os.environ) -> Clock:
        """Return a clock that ends with the allocation, or `limit` seconds after the start of this process, whichever is first."""
        now, end = time.time(), end_of_allocation(environ)
        left = [] if end is None else [end - now]
        if limit is not None:
            left.append(limit - (now - psutil.Process().create_time()))
        reserve = RESERVE if limit is None else min(RESERVE, limit / 10)
        return cls(time.monotonic() + min(left) if left else None, reserve)

    def saved(self, seconds: float) -> None:
        """Record the duration of a save."""
        self.save = max(self.save or 0.0, seconds)

    def evaluated(self, seconds: float) -> None:
        """Record the duration of an evaluation."""
        self.evaluation = max(self.evaluation, seconds)

    def stepped(self, seconds: float) -> None:
        """Record the duration of a step; the effect of earlier long steps, such as the one with the compilation, decays slowly."""
        self.step = max(seconds, 0.9 * self.step)

    def is_up(self, steps: int = 1) -> bool:
        """Return True if a save may miss the deadline after `steps` more steps and an evaluation; False without a deadline."""
        if self.deadline is None:
            return False
        save = min(FIRST_SAVE, self.reserve) if self.save is None else CAUTION * self.save
        return self.now() + steps * self.step + self.evaluation + save + self.reserve >= self.deadline


# -------------------------------------------------------------------- agreement


@dataclass(frozen=True)
class Request:
    """The message of a rank, or the combination of all messages.

    The fields are the requested end and its reason, the state of the checkpoint, and the number of steps until the next exchange.
    """

    stop: str = ""
    why: str = ""
    done: bool = True
    again: int = 1


@dataclass
class Agreement:
    """A periodic exchange between all ranks about the end of the run."""

    session: Session
    clock: Clock
    #: the requested end of this process and its reason; "" without a request
    request: Callable[[], tuple[str, str]]
    _next: int = 0
    _last: tuple[int, float] | None = field(default=None)

    def ask(self, step: int, done: bool = True) -> Request | None:
        """Exchange messages after `step` steps and return the combined request; return None on all ranks between exchanges.

        `done` is False while a checkpoint of this rank is being written.
        """
        if step < self._next:
            return None
        again = self._period(step)
        stop, why = self.request()
        if not stop and self.clock.is_up(again):
            stop, why = "terminated", "the time limit is near"
        mine = Request(stop, why, done, again)
        world = self.session.start()
        answers: list[Request] = world.call(ExchangeItems(mine)) if world.multi else [mine]
        self._next = step + answers[0].again
        requests = sorted((one for one in answers if one.stop), key=lambda one: one.stop)  # "interrupt" comes before "terminated"
        first = requests[0] if requests else Request()
        return Request(first.stop, first.why, all(one.done for one in answers), answers[0].again)

    def _period(self, step: int) -> int:
        """Estimate the number of steps in PERIOD seconds from the time since the last exchange; at most twice the steps since then."""
        now = time.monotonic()
        before, self._last = self._last, (step, now)
        if before is None or step <= before[0]:
            return 1
        each = (now - before[1]) / (step - before[0])
        return max(1, min(int(PERIOD / max(each, 1e-6)), 2 * (step - before[0])))
