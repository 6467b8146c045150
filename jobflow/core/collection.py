"""No search for dead objects while a program is compiled: what is made then is kept, and Python would look through all of it time and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Cycles of dead objects stay meanwhile, and go afterwards; a program that has switched the collector off finds it so.

    Threads may be here together: whoever switched it off switches it on, at the latest when all have left.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


__all__ = ["collection_paused"]
