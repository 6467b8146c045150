"""Calls of a library that may never return after the failure of another rank, executed in a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from jobflow.runtime.thread_start import start_thread

T = TypeVar("T")

#: the name of the threads
NAME = "jobflow library call"
#: seconds between two checks for failed ranks
NAP = 1e-3


class BlockingCall(Generic[T]):
    """One call in a daemon thread, which the process does not join at its end."""

    def __init__(self, function: Callable[[], T], abandoned: Callable[[T], None] | None = None) -> None:
        """Start the call; `abandoned` receives a result that arrives after `abandon`."""
        self._function, self._abandoned = function, abandoned
        self._lock = threading.Lock()
        self._late = False
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._over = threading.Event()
        start_thread(self._perform, NAME)

    def _perform(self) -> None:
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error
        else:
            with self._lock:
                self._results.append(result)
                late = self._late
            if late and self._abandoned is not None:
                self._abandoned(result)
        self._over.set()

    def wait(self, limit: float) -> bool:
        """Wait at most `limit` seconds; return True if the call has ended."""
        return self._over.wait(limit)

    def abandon(self) -> None:
        """Stop waiting for the call."""
        with self._lock:
            self._late = True
            late = [*self._results]
        if self._abandoned is not None:
            for result in late:
                self._abandoned(result)

    def result(self, listen: Callable[[], None]) -> T:
        """Return the result, or raise the error of the call.

        `listen` is called while the call blocks.  If it raises, the call is abandoned.
        """
        nap = NAP / 16
        while not self.wait(nap):
            nap = min(2 * nap, NAP)
            try:
                listen()
            except BaseException:
                self.abandon()
                raise
        if self._error is not None:
            raise self._error
        return self._results[0]


def ends_within(limit: float, function: Callable[[], None]) -> bool:
    """Perform a call; return False if it blocks for more than `limit` seconds.  Raise its error."""
    call = BlockingCall(function)
    if not call.wait(limit):
        return False
    call.result(lambda: None)
    return True
