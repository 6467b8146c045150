"""A context in which a stream is the current one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def current_stream(cupy: Any, index: int, stream: Any) -> Iterator[None]:
    """Make GPU `index` and a stream of it the current ones, and restore both afterwards.

    CuPy's `with stream` must not be used.  It restores the stream of the enclosing `with`, or the legacy stream.  It does not restore the
    stream of `Stream.use`, which `CudaDevice.activate` calls.
    """
    with cupy.cuda.Device(index):
        before = cupy.cuda.get_current_stream()
        stream.use()
        try:
            yield
        finally:
            before.use()
