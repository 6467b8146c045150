"""When training stops: early stopping, signals, time limits, and the agreement of ranks.

Numbers that all ranks have alike (steps, metrics) need no agreement.  Clocks, signals and files do: every rank says which signal it was sent,
whether its time is up, and whether its part of a checkpoint is written, and all heed the same answers.  That costs a message, so ranks ask each
other about every PERIOD seconds: with every answer rank 0 says after how many steps the next question comes.
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
from jobflow.trainer.watching import INTERRUPTED

#: seconds between two agreements
PERIOD = 0.2
#: seconds that a save takes before the first was measured, and what is kept in reserve beside it
FIRST_SAVE = 10.0
RESERVE = 10.0
#: how much longer than the longest so far a save may take
CAUTION = 1.5


# -------------------------------------------------------------------- early stopping


@dataclass
class Early:
    """Stops when a metric has not got better by more than `min_delta` in `patience` evaluations one after another."""

    metric: str
    mode: str
    patience: int
    min_delta: float = 0.0
    best: float | None = None
    #: evaluations since the best
    waited: int = 0

    def heed(self, value: float) -> bool:
        """Take note of an evaluation; True if training should stop.  A value that is not a number is not better than any."""
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
        """True if it has waited as long as it may."""
        return self.waited >= self.patience

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"best": self.best, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As `state` has it."""
        self.best, self.waited = state["best"], int(state["waited"])


# -------------------------------------------------------------------- Ctrl-C and SIGTERM

# A handler only takes note: the step is finished and saved first.  Ranks learn of each other's notes in the next agreement, so that all stop after
# the same step, whichever of them a launcher has told.  Who presses Ctrl-C a second time does not want to wait: then the process ends as it would
# have at once.


class Signals:
    """Takes note of signals inside a `with` block; outside the main thread, where Python hands none out, it notes nothing."""

    def __init__(self) -> None:
        #: the signal that asks for the end, the first one of them
        self.noted: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def wish(self) -> str:
        """ "" or how the run should stop: "interrupt" or "terminated"."""
        return "" if self.noted is None else "interrupt" if self.noted == signal.SIGINT else "terminated"

    @property
    def announced(self) -> str:
        """What this process was sent, for people; "" if nothing."""
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
            self._leave()
        if self.noted is None:
            self.noted = number
            if number == signal.SIGINT:
                _say("jobflow: finishing the step and saving; press Ctrl-C again to leave at once without saving")

    @staticmethod
    def _leave() -> None:
        if launched() is None:
            raise KeyboardInterrupt
        os._exit(INTERRUPTED)  # other ranks may wait for this one; the launcher ends them


def _say(text: str) -> None:
    """Print from a handler, on rank 0; a stream that the interrupted code is writing to would not take it."""
    started = launched()
    if started is None or started.rank == 0:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"\n{text}\n".encode())


# -------------------------------------------------------------------- time


def end_of_allocation(environ: Mapping[str, str] = os.environ, started: float | None = None) -> float | None:
    """When a batch system will end this process, in seconds since 1970; None if it does not say.

    Slurm says when the job ends, PBS how long it may take: from its start, which is taken for that of this process.
    """
    if environ.get("SLURM_JOB_END_TIME", "").isdigit():
        return float(environ["SLURM_JOB_END_TIME"])
    if "PBS_JOBID" in environ and environ.get("PBS_WALLTIME", "").isdigit():
        return (psutil.Process().create_time() if started is None else started) + float(environ["PBS_WALLTIME"])
    return None


@dataclass
class Clock:
    """Knows when there is just enough time left to save."""

    #: on the monotonic clock, which does not follow changes of the system time; None for ever
    deadline: float | None = None
    reserve: float = RESERVE
    #: seconds that the longest save and the longest evaluation took, and steps lately
    save: float | None = None
    evaluation: float = 0.0
    step: float = 0.0
    now: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, limit: float | None, environ: Mapping[str, str] = os.environ) -> Clock:
        """With the end of the allocation, or `limit` seconds from the start of this process, whichever comes first."""
        now, end = time.time(), end_of_allocation(environ)
        left = [] if end is None else [end - now]
        if limit is not None:
            left.append(limit - (now - psutil.Process().create_time()))
        reserve = RESERVE if limit is None else min(RESERVE, limit / 10)
        return cls(time.monotonic() + min(left) if left else None, reserve)

    def saved(self, seconds: float) -> None:
        """A save took so long."""
        self.save = max(self.save or 0.0, seconds)

    def evaluated(self, seconds: float) -> None:
        """An evaluation took so long."""
        self.evaluation = max(self.evaluation, seconds)

    def stepped(self, seconds: float) -> None:
        """A step took so long; what was long once, such as compiling, is forgotten slowly."""
        self.step = max(seconds, 0.9 * self.step)

    def is_up(self, steps: int = 1) -> bool:
        """True if after `steps` more steps it might be too late to save."""
        if self.deadline is None:
            return False
        save = min(FIRST_SAVE, self.reserve) if self.save is None else CAUTION * self.save
        return self.now() + steps * self.step + self.evaluation + save + self.reserve >= self.deadline


# -------------------------------------------------------------------- agreement


@dataclass(frozen=True)
class Said:
    """What a rank says, and what then holds for all: how to stop and why, whether parts of the checkpoint are written, when to ask again."""

    stop: str = ""
    why: str = ""
    done: bool = True
    again: int = 1


@dataclass
class Agreement:
    """Asks all ranks, now and then, whether to stop."""

    session: Session
    clock: Clock
    #: how this process was asked to stop, and by what; "" if it was not
    wish: Callable[[], tuple[str, str]]
    _next: int = 0
    _asked: tuple[int, float] | None = field(default=None)

    def ask(self, step: int, done: bool = True) -> Said | None:
        """After so many steps; None, on all ranks alike, if it is not time to ask."""
        if step < self._next:
            return None
        again = self._period(step)
        stop, why = self.wish()
        if not stop and self.clock.is_up(again):
            stop, why = "terminated", "the time is nearly up"
        mine = Said(stop, why, done, again)
        world = self.session.start()
        said: list[Said] = world.call(ExchangeItems(mine)) if world.multi else [mine]
        self._next = step + said[0].again
        asked = sorted((one for one in said if one.stop), key=lambda one: one.stop)  # "interrupt" comes before "terminated"
        first = asked[0] if asked else Said()
        return Said(first.stop, first.why, all(one.done for one in said), said[0].again)

    def _period(self, step: int) -> int:
        """How many steps PERIOD seconds are, by what passed since the last question."""
        now = time.monotonic()
        before, self._asked = self._asked, (step, now)
        if before is None or step <= before[0]:
            return 1
        each = (now - before[1]) / (step - before[0])
        return max(1, min(int(PERIOD / max(each, 1e-6)), 2 * (step - before[0])))
