"""Messages about reads that take long: who waits, for which samples, and the user's line in which the reader is."""

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

#: seconds of waiting for a read after which it is reported: as many as of waiting for another rank
PATIENCE = 10.0
#: by thread, what says which sample it is reading
_reading: dict[int, Callable[[], str]] = {}


class Coming(Future[T]):
    """What a read will give; `what` it reads, for messages."""

    def __init__(self, what: Callable[[], str]) -> None:
        super().__init__()
        self.what = what
        #: that reads it, once it has begun
        self.thread: int | None = None

    def result(self, timeout: float | None = None) -> T:
        if timeout is None and not self.done() and not wait([self], PATIENCE).done:
            _tell(self.what, self.thread)
        return super().result(timeout)


@contextmanager
def notice_if_long(what: Callable[[], str]) -> Iterator[None]:
    """The block reads for its caller, who waits for it."""
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
    """`notice_if_long` for one read after another: a timer for each would cost more than many reads do."""

    def __init__(self) -> None:
        self._begun: tuple[float, Callable[[], str], int] | None = None
        self._closed = threading.Event()
        self._thread = start_thread(self._look, "slow-reads")

    def begin(self, what: Callable[[], str]) -> None:
        """From now on the caller reads, and waits for it."""
        self._begun = time.monotonic(), what, threading.get_ident()

    def end(self) -> None:
        """The caller has read."""
        self._begun = None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _look(self) -> None:
        left, reported = PATIENCE, None
        while not self._closed.wait(left):
            found, now = self._begun, time.monotonic()
            is_late = found is not None and found is not reported and now - found[0] >= PATIENCE
            left = PATIENCE if found is None or found is reported or is_late else found[0] + PATIENCE - now
            if found is not None and is_late:
                reported = found
                _tell(*found[1:])


def at(place: Callable[[], str]) -> None:
    """From now on this thread reads the sample of which `place()` says where it lies."""
    _reading[threading.get_ident()] = place


def one_by_one(numbers: Iterable[T], place: Callable[[T], str]) -> Iterator[tuple[int, T]]:
    """(row, number) of samples that are read one after another."""
    current: T
    at(lambda: place(current))
    for row, current in enumerate(numbers):
        yield row, current
    _reading.pop(threading.get_ident(), None)


def numbered(numbers: Iterable[Any], most: int = 5) -> str:
    """For messages: samples of these numbers."""
    found = list(numbers)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"sample{'s' if len(found) > 1 else ''} {', '.join(map(str, found[:most]))}{more}"


def _tell(what: Callable[[], str], thread: int | None) -> None:
    started = launch.launched()
    who = "the program" if started is None or started.size == 1 else f"rank {started.rank}"
    notice("; ".join([f"{who} has waited {PATIENCE:g} s for {what()}", *_standing(thread)]))


def _standing(thread: int | None) -> list[str]:
    """Where the read stands; where others do, if it waits for them or has not begun."""
    found = _stands(thread)
    return [found] if found else [text for other in list(_reading) if (text := _stands(other))]


def _stands(thread: int | None) -> str:
    if thread is None:
        return ""
    place, line = _reading.get(thread), line_of(sys._current_frames().get(thread))
    return " ".join(filter(None, [place and f"it reads {place()}", f"at {line}" if line != NOWHERE else ""]))
