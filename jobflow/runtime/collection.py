"""A pause of the garbage collector while a program is compiled: the objects created then stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector; leave it off if the program had switched it off.

    Several threads may be inside such blocks.  The thread that switched the collector off switches it on again.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


__all__ = ["collection_paused"]
