"""Notices about slow reads, with the waiting rank, the samples, and the user's line that the reader executes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from jobflow.core.errors import NOWHERE, line_of
from jobflow.core.notices import notice
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.world import launched as launch

T = TypeVar("T")

#: seconds until a notice about a slow read, equal to the time until notices about slow ranks
PATIENCE = 10.0
#: functions by thread that describe the sample in reading
_reading: dict[int, Callable[[], str]] = {}


class Coming(Future[T]):
    """The future of a read; `what` describes the data in messages."""

    def __init__(self, what: Callable[[], str]) -> None:
        super().__init__()
        self.what = what
        #: the thread that reads the data, or None before the read
        self.thread: int | None = None

    def result(self, timeout: float | None = None) -> T:
        if timeout is None and not self.done() and not wait([self], PATIENCE).done:
            _tell(self.what, self.thread)
        return super().result(timeout)


@contextmanager
def notice_if_long(what: Callable[[], str]) -> Iterator[None]:
    """Print a notice with the data `what()` if the block takes longer than `PATIENCE` seconds; the block reads data for a waiting caller."""
    over, thread = threading.Event(), threading.get_ident()

    def report() -> None:
        if not over.wait(PATIENCE):
            _tell(what, thread)

    start_thread(report, "slow-read")
    try:
        yield
    finally:
        over.set()


class Watch:
    """A timer like `notice_if_long` for many reads in sequence, because a thread per read would cost more than most reads."""

    def __init__(self) -> None:
        self._begun: tuple[float, Callable[[], str], int] | None = None
        self._closed = threading.Event()
        self._thread = start_thread(self._look, "slow-reads")

    def begin(self, what: Callable[[], str]) -> None:
        """Start the timer for a read by the calling thread."""
        self._begun = time.monotonic(), what, threading.get_ident()

    def end(self) -> None:
        """Stop the timer."""
        self._begun = None

    def close(self) -> None:
        """End the timer thread."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _look(self) -> None:
        left, reported = PATIENCE, None
        while not self._closed.wait(left):
            read, now = self._begun, time.monotonic()
            is_late = read is not None and read is not reported and now - read[0] >= PATIENCE
            left = PATIENCE if read is None or read is reported or is_late else read[0] + PATIENCE - now
            if read is not None and is_late:
                reported = read
                _tell(*read[1:])


def at(place: Callable[[], str]) -> None:
    """Record that this thread reads the sample described by `place()`."""
    _reading[threading.get_ident()] = place


def one_by_one(numbers: Iterable[T], place: Callable[[T], str]) -> Iterator[tuple[int, T]]:
    """Yield (row, number) of samples, and record each as the sample that this thread reads."""
    current: T
    at(lambda: place(current))
    for row, current in enumerate(numbers):
        yield row, current
    _reading.pop(threading.get_ident(), None)


def numbered(numbers: Iterable[Any], most: int = 5) -> str:
    """List sample numbers for messages: at most `most` numbers, then the count of the others."""
    listed = list(numbers)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"sample{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed[:most]))}{more}"


def _tell(what: Callable[[], str], thread: int | None) -> None:
    started = launch.launched()
    who = "the program" if started is None or started.size == 1 else f"rank {started.rank}"
    notice("; ".join([f"{who} has waited {PATIENCE:g} s for {what()}", *_standing(thread)]))


def _standing(thread: int | None) -> list[str]:
    """Describe the sample that `thread` reads, and the user's line that it executes, in a list of one text.

    If the thread has not started or executes neither, return one text for each thread that reads.
    """
    position = _stands(thread)
    return [position] if position else [text for other in list(_reading) if (text := _stands(other))]


def _stands(thread: int | None) -> str:
    if thread is None:
        return ""
    place, line = _reading.get(thread), line_of(sys._current_frames().get(thread))
    return " ".join(filter(None, [place and f"it reads {place()}", f"at {line}" if line != NOWHERE else ""]))
