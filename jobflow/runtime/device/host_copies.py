"""Copies between arrays of the host by several threads, because one thread uses a fraction of the memory's bandwidth."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextvars import copy_context
from functools import partial

import numpy as np

from jobflow.core.types import Array
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.world.environment import usable_cores

#: bytes of a piece, and the most threads
PIECE, THREADS = 4 << 20, 8


def copied_pieces(target: Array, source: Array) -> Iterator[tuple[Array, int]]:
    """Copy `source` to a contiguous array of the same shape; yield each complete piece of it, flat, and the index of its first element.

    Pieces are yielded in their order while threads copy later ones.
    """
    source = np.asarray(source)  # a part of a numpy.matrix has two axes
    if source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)
    row = math.prod(target.shape[1:])
    rows = max(1, PIECE // max(row * target.itemsize, 1))
    pieces = [slice(start, start + rows) for start in range(0, len(target), rows)]
    if len(pieces) <= 2:
        np.copyto(target, source, casting="unsafe")
        yield target.reshape(-1), 0
        return
    turns = iter(range(len(pieces)))  # next() of a range's iterator is atomic
    complete = [threading.Event() for _ in pieces]
    errors: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        for k in turns:
            try:
                if not ended.is_set():
                    np.copyto(target[pieces[k]], source[pieces[k]], casting="unsafe")
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                errors.append(error)
            complete[k].set()

    threads: list[threading.Thread] = []
    try:
        for k in range(min(THREADS, len(usable_cores()), len(pieces))):
            threads.append(start_thread(partial(copy_context().run, work), f"copy {k}"))  # with the caller's numpy.errstate
        for piece, done in zip(pieces, complete, strict=True):
            done.wait()
            if errors:
                raise errors[0]
            yield target[piece].reshape(-1), piece.start * row
    finally:
        ended.set()
        for thread in threads:
            thread.join()
