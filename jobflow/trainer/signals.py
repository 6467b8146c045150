"""Ctrl-C and SIGTERM during training: the step is finished and saved first.

A handler only takes note.  Ranks learn of each other's notes in the next agreement (stopping.py), so that all stop after the same step,
whichever of them a launcher has told.  Who presses Ctrl-C a second time does not want to wait: then the process ends as it would have at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from jobflow.runtime.world.launched import launched
from jobflow.trainer.outcome import INTERRUPTED


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
