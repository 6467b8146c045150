"""Prefetching of batches by reader threads."""

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
Result = TypeVar("Result", covariant=True)

#: seconds that `close` waits for reads in progress
PATIENCE = 2.0
#: result of a read beyond the last element
END: Any = object()


class Pool:
    """A pool of reader threads that run calls in the order of submission; without threads, a call runs in the caller's thread.

    The threads do not prevent a program from exiting: a hanging read is abandoned after `PATIENCE` seconds.
    With `separate`, each thread has its own queue, and `ask` selects the thread.
    """

    def __init__(self, threads: int, separate: bool = False) -> None:
        self._requests: list[queue.SimpleQueue[tuple[Coming[Any], Callable[[], Any]] | None]]
        self._requests = [queue.SimpleQueue() for _ in range(max(threads, 1) if separate else 1)]
        self._threads: list[threading.Thread] = []
        self._watch = None if threads else Watch()
        self._closed = False
        try:
            for i in range(threads):
                self._threads.append(start_thread(partial(_work, self._requests[i % len(self._requests)]), f"reader-{i}"))
        except JobError:
            self.close()
            raise

    def ask(self, call: Callable[[], T], what: Callable[[], str], thread: int = 0) -> Coming[T]:
        """Submit `call` in the caller's context and return its future; `what` describes the data in messages.

        `thread` is the number of the thread in a pool with separate queues.
        """
        future: Coming[T] = Coming(what)
        if self._closed:
            future.cancel()
        elif self._watch is None:
            self._requests[thread % len(self._requests)].put((future, partial(copy_context().run, call)))
        else:
            self._watch.begin(what)
            _perform(future, call)
            self._watch.end()
        return future

    def close(self) -> None:
        """End the threads and cancel the calls that have not started."""
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        for requests in self._requests:
            while not requests.empty():
                waiting = requests.get()
                if waiting is not None:
                    waiting[0].cancel()
        for i in range(len(self._threads)):
            self._requests[i % len(self._requests)].put(None)
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            if thread is not threading.current_thread():  # the garbage collector may call `close` on a reader thread
                thread.join(max(0.0, deadline - time.monotonic()))


def _work(requests: queue.SimpleQueue[tuple[Coming[Any], Callable[[], Any]] | None]) -> None:
    while (waiting := requests.get()) is not None:
        future, call = waiting
        try:
            _perform(future, partial(_end_children, call))
        except BaseException as error:  # noqa: BLE001 - such as a MemoryError outside of the call; the caller waits for the result
            future.set_exception(error)
        del waiting, future, call  # release the result: a waiting thread must not keep it alive


def _end_children(call: Callable[[], T]) -> T:
    """Run the call, and end a child process forked by the call.

    The child has only this thread, which would wait for work forever.
    """
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
    """End a forked child process with the exit code of `error`, or 0 without an error.

    Print an error other than SystemExit, and run none of the parent's exit handlers.
    """
    code: Any = error.code if isinstance(error, SystemExit) else int(error is not None)
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the other end may be closed
            stream.flush()
    os._exit((code or 0) & 255)


def _perform(future: Coming[T], call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        future.thread = threading.get_ident()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            future.set_exception(error)


class Pending(Protocol[Result]):
    """The protocol of a read in progress; its result is `END` beyond the last element."""

    def result(self) -> Result: ...


class Reading(Iterator[T], Generic[T]):
    """An iterator over the reads that a plan submits to a pool, in order, with up to `prefetch` reads ahead.

    An error of a read is raised at the position of its batch. The threads end at `close`, at the end of a `with` block or the program, or when
    the iterator is collected.
    """

    def __init__(self, plan: Iterator[Pending[T]], prefetch: int, pool: Pool) -> None:
        self._plan, self._prefetch = plan, prefetch
        self._ahead: deque[Pending[T]] = deque()
        #: seconds spent waiting for batches
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
            batch = self._ahead.popleft().result() if self._close.alive and self._ahead else END
        except StopIteration as error:
            self.close()
            raise RuntimeError("the reader of a batch raised StopIteration") from error
        except BaseException:
            self.close()
            raise
        self.waited += time.perf_counter() - began
        if batch is END:
            self.close()
            raise StopIteration
        return batch

    def _planned(self) -> Any:
        try:
            return next(self._plan, END)
        except Exception as error:  # noqa: BLE001 - raised where the batch would have come
            failed: Coming[T] = Coming("the next batch".__str__)
            failed.set_exception(error)
            return failed

    def close(self) -> None:
        """End the threads; the iterator is exhausted afterwards."""
        self._close()
        self._ahead.clear()
        self._plan = iter(())

    def __enter__(self) -> Reading[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
