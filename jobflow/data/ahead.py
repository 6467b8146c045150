"""Threads that read what will be needed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from jobflow.data.waiting import Coming, told_if_long

T = TypeVar("T")

#: seconds that `close` waits for reads that have begun
PATIENCE = 2.0


class Pool:
    """Performs calls in the order in which they are asked for, on so many threads; at once and in the caller's with none.

    The threads do not keep a program from ending: a read that hangs is left behind after `PATIENCE` seconds.
    """

    def __init__(self, threads: int) -> None:
        self._wanted: queue.SimpleQueue[tuple[Coming[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=_work, args=(self._wanted,), name=f"reader-{i}", daemon=True) for i in range(threads)]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def ask(self, call: Callable[[], T], what: Callable[[], str]) -> Coming[T]:
        """What `call()` gives, once it is there; `what` it reads, for messages."""
        future: Coming[T] = Coming(what)
        if self._closed:
            future.cancel()
        elif self._threads:
            self._wanted.put((future, call))
        else:
            with told_if_long(what):
                _perform(future, call)
        return future

    def close(self) -> None:
        """End the threads: calls that have not begun are given up."""
        if self._closed:
            return
        self._closed = True
        while not self._wanted.empty():
            waiting = self._wanted.get()
            if waiting is not None:
                waiting[0].cancel()
        for _ in self._threads:
            self._wanted.put(None)
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            if thread is not threading.current_thread():  # whom the collector may have chosen to close it
                thread.join(max(0.0, deadline - time.monotonic()))


def _work(wanted: queue.SimpleQueue[tuple[Coming[Any], Callable[[], Any]] | None]) -> None:
    while (waiting := wanted.get()) is not None:
        _perform(*waiting)
        del waiting  # what was read belongs to whom it was read for


def _perform(future: Coming[T], call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        future.thread = threading.get_ident()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
            future.set_exception(error)
