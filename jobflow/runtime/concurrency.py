"""Work in a second thread while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial

from jobflow.runtime.thread_start import start_thread


@contextmanager
def concurrently(work: Callable[[], None]) -> Iterator[None]:
    """Run `work` in a thread while the block runs, in the scope of the block; raise its exception at the end of the block."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = start_thread(partial(copy_context().run, run), "concurrently")
    try:
        yield
    finally:
        thread.join()
    for error in raised:
        raise error
