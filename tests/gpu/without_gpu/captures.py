"""Captured graphs of the stub GPU, and what CUDA refuses while a stream is captured.

The rules are those of CUDA's runtime for captures in "thread local" mode: the capturing thread must not allocate, copy synchronously, wait, or
query events.  Such a call fails, and the capture is invalid.
"""

from __future__ import annotations

import importlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

#: numbers of cudaError
UNSUPPORTED, INVALIDATED, UNMATCHED, UNJOINED, ISOLATION, CAPTURED_EVENT = 900, 901, 903, 904, 905, 907
#: the mode that allows allocation, of cudaStreamCaptureMode
RELAXED = 2


def error(status: int) -> Exception:
    """Return CuPy's error for a status of CUDA."""
    failure: Exception = importlib.import_module("cupy_backends.cuda.api.runtime").CUDARuntimeError(status)
    return failure


@dataclass
class Capture:
    """The work captured from `first_stream` and from the streams that joined it."""

    first_stream: int
    mode: int
    thread: int = field(default_factory=threading.get_ident)
    nodes: list[tuple[str, Callable[[], object]]] = field(default_factory=list)
    #: streams with work that `first_stream` does not wait for
    unjoined: set[int] = field(default_factory=set)
    valid: bool = True


class Captures:
    """The captures in progress, and the graphs."""

    def __init__(self) -> None:
        self._ids = itertools.count(1 << 20)
        self._by_stream: dict[int, Capture] = {}
        #: the capture and the stream of a captured event
        self._events: dict[int, tuple[Capture, int]] = {}
        self.graphs: dict[int, list[tuple[str, Callable[[], object]]]] = {}

    def begin(self, stream: int, mode: int) -> None:
        if stream in self._by_stream or not stream:
            raise error(UNSUPPORTED if not stream else UNMATCHED)
        self._by_stream[stream] = Capture(stream, mode)

    def end(self, stream: int) -> int:
        capture = self._by_stream.get(stream)
        if capture is None or capture.first_stream != stream:
            raise error(UNMATCHED)
        self._by_stream = {other: each for other, each in self._by_stream.items() if each is not capture}
        self._events = {event: of for event, of in self._events.items() if of[0] is not capture}
        if not capture.valid:
            raise error(INVALIDATED)
        if capture.unjoined:
            raise error(UNJOINED)
        graph = next(self._ids)
        self.graphs[graph] = capture.nodes
        return graph

    def instantiate(self, graph: int) -> int:
        executable = next(self._ids)
        self.graphs[executable] = self.graphs[graph]
        return executable

    def forget(self, graph: int) -> None:
        self.graphs.pop(graph, None)

    def is_capturing(self, stream: int) -> bool:
        return stream in self._by_stream

    def of_thread(self) -> Capture | None:
        """Return the capture that restricts the calling thread."""
        return next((c for c in self._by_stream.values() if c.thread == threading.get_ident() and c.mode != RELAXED), None)

    def refuse(self, stream: int | None = None) -> None:
        """Raise if the calling thread captures, or if `stream` is captured: the call cannot be part of a graph."""
        capture = self._by_stream.get(stream) if stream is not None else None
        capture = capture or self.of_thread()
        if capture is not None:
            capture.valid = False
            raise error(UNSUPPORTED)

    def add(self, stream: int, what: str, work: Callable[[], object]) -> bool:
        """Add work to the capture of a stream; return False if the stream is not captured."""
        capture = self._by_stream.get(stream)
        if capture is None:
            return False
        capture.nodes.append((what, work))
        if stream != capture.first_stream:
            capture.unjoined.add(stream)
        return True

    def record(self, event: int, stream: int) -> None:
        capture = self._by_stream.get(stream)
        if capture is None:
            self._events.pop(event, None)
        else:
            self._events[event] = capture, stream

    def wait(self, stream: int, event: int) -> None:
        """Let a stream wait for an event: it joins the capture of the event."""
        capture, recorded = self._events.get(event, (None, 0))
        own = self._by_stream.get(stream)
        if capture is None:
            if own is not None:
                own.valid = False
                raise error(ISOLATION)
            return
        if stream == capture.first_stream:
            capture.unjoined.discard(recorded)
            return
        self._by_stream[stream] = capture
        capture.unjoined.add(stream)

    def query(self, event: int) -> None:
        """Raise if an event cannot be queried."""
        if event in self._events:
            self._events[event][0].valid = False
            raise error(CAPTURED_EVENT)
        self.refuse()
