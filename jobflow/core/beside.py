"""Work in a thread beside other work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Do the work while the block runs, in the scope of the block; what it raises is raised where the block ends."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="beside", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    for error in raised:
        raise error
