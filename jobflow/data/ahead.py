"""Reading ahead: threads prepare the next results."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from jobflow.core.errors import JobError
from jobflow.data.waiting import Coming, Watch
from jobflow.runtime.thread_start import start_thread

T = TypeVar("T")
Found = TypeVar("Found", covariant=True)

#: seconds that `close` waits for reads that have begun
PATIENCE = 2.0
#: what a read gives where there is nothing more
END: Any = object()


class Pool:
    """Performs calls in the order in which they are asked for, on so many threads; at once and in the caller's with none.

    The threads do not keep a program from ending: a read that hangs is left behind after `PATIENCE` seconds.
    """

    def __init__(self, threads: int) -> None:
        self._wanted: queue.SimpleQueue[tuple[Coming[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._watch = None if threads else Watch()
        self._closed = False
        try:
            for i in range(threads):
                self._threads.append(start_thread(partial(_work, self._wanted), f"reader-{i}"))
        except JobError:
            self.close()
            raise

    def ask(self, call: Callable[[], T], what: Callable[[], str]) -> Coming[T]:
        """What `call()` gives in the caller's context, once it is there; `what` it reads, for messages."""
        future: Coming[T] = Coming(what)
        if self._closed:
            future.cancel()
        elif self._watch is None:
            self._wanted.put((future, partial(copy_context().run, call)))
        else:
            self._watch.begin(what)
            _perform(future, call)
            self._watch.end()
        return future

    def close(self) -> None:
        """End the threads: calls that have not begun are given up."""
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.close()
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
        future, call = waiting
        try:
            _perform(future, partial(_end_children, call))
        except BaseException as error:  # noqa: BLE001 - such as MemoryError outside of the call: the caller waits for the result
            future.set_exception(error)
        del waiting, future, call  # what was read belongs to whom it was read for


def _end_children(call: Callable[[], T]) -> T:
    """Call, and end a child that the call forked: it has this thread only, which would wait for work for ever."""
    process = os.getpid()
    try:
        return call()
    except BaseException as error:
        if os.getpid() == process:
            raise
        _end_child(error)
    finally:
        if os.getpid() != process:
            _end_child(None)


def _end_child(error: BaseException | None) -> NoReturn:
    """End a child by fork as the end of its script would, without the parent's exit handlers."""
    code: Any = error.code if isinstance(error, SystemExit) else int(error is not None)
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    os._exit((code or 0) & 255)


def _perform(future: Coming[T], call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        future.thread = threading.get_ident()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
            future.set_exception(error)


class Pending(Protocol[Found]):
    """Something that is being read; `END` where there is no more."""

    def result(self) -> Found: ...


class Reading(Iterator[T], Generic[T]):
    """What a plan has asked a pool to read, in order, and up to `prefetch` of what follows; an error is raised where the batch would have come.

    Close it, or leave its `with` block, when no more are wanted; the end of the program or the last reference does too.
    """

    def __init__(self, plan: Iterator[Pending[T]], prefetch: int, pool: Pool) -> None:
        self._plan, self._prefetch = plan, prefetch
        self._ahead: deque[Pending[T]] = deque()
        #: seconds that were spent waiting for batches
        self.waited = 0.0
        self._close = weakref.finalize(self, pool.close)

    def __next__(self) -> T:
        began = time.perf_counter()
        try:
            while self._close.alive and len(self._ahead) <= self._prefetch:
                pending = self._planned()
                if pending is END:
                    break
                self._ahead.append(pending)
            found = self._ahead.popleft().result() if self._close.alive and self._ahead else END
        except StopIteration as error:
            self.close()
            raise RuntimeError("what reads a batch raised StopIteration") from error
        except BaseException:
            self.close()
            raise
        self.waited += time.perf_counter() - began
        if found is END:
            self.close()
            raise StopIteration
        return found

    def _planned(self) -> Any:
        try:
            return next(self._plan, END)
        except Exception as error:  # noqa: BLE001 - it is raised where the batch would have come
            failed: Coming[T] = Coming("the next batch".__str__)
            failed.set_exception(error)
            return failed

    def close(self) -> None:
        """End the threads; there are no more batches."""
        self._close()
        self._ahead.clear()
        self._plan = iter(())

    def __enter__(self) -> Reading[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
