"""Pretended devices, their streams and events, and the memory that notices who uses it without waiting."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar


class Gpus:
    """The number of simulated GPUs."""

    count = 1


class CUDARuntimeError(RuntimeError):
    """An error of CUDA, such as a call that cannot be captured."""


class Race(Exception):
    """Memory was used on a stream that nothing orders after the one that wrote it."""


class Current(threading.local):
    """The device of this thread, and its stream on each device; 0 is the legacy stream."""

    device = 0

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}
        #: the streams of the enclosing `with` statements, by device
        self.entered: dict[int, list[int]] = {}

    @property
    def stream(self) -> int:
        return self.streams.get(self.device, 0)


current = Current()


class Memory:
    """One allocation on a device."""

    written: ClassVar[weakref.WeakSet[Memory]] = weakref.WeakSet()
    guard = threading.Lock()

    def __init__(self, device: int) -> None:
        self.device = device
        #: the stream that wrote last, unless somebody has waited for it since
        self.writer: int | None = None

    def divided(self) -> Memory:
        """Return the memory of a part, which other streams may use from now on."""
        part = Memory(self.device)
        if self.writer is not None:
            part.writer = self.writer
            with Memory.guard:
                Memory.written.add(part)
        return part

    def use(self, stream: int) -> None:
        if current.device != self.device:
            raise ValueError(f"Array device must be same as the current device: array device = {self.device} while current = {current.device}")
        if self.writer not in (None, stream):
            raise Race(f"stream {stream} uses what stream {self.writer} has written, and does not wait for it")

    def write(self, stream: int) -> None:
        self.use(stream)
        self.writer = stream
        with Memory.guard:
            Memory.written.add(self)

    @staticmethod
    def finish(stream: int) -> None:
        with Memory.guard:
            written = list(Memory.written)
        for memory in written:
            if memory.writer == stream:
                memory.writer = None


def capturing() -> Stream | None:
    """Return the current stream of this thread if it is captured."""
    stream = Stream.all.get(current.stream)
    return stream if stream is not None and stream.captured is not None else None


def refuse_in_capture(what: str) -> None:
    """Raise if this thread captures its current stream: the call would allocate or wait, or would not be part of the graph."""
    stream = capturing()
    if stream is not None:
        stream.valid = False
        raise CUDARuntimeError(f"cudaErrorStreamCaptureUnsupported: {what} while a stream is captured")


class Graph:
    """The launches of a capture."""

    def __init__(self, launches: list[Callable[[], None]]) -> None:
        self._launches = launches

    def launch(self, stream: Stream) -> None:
        assert stream.ptr == current.stream, "the launches of the graph use the memory of this stream"
        for launch in self._launches:
            launch()


class Device:
    """Makes a device the current one of this thread."""

    compute_capability = "90"
    attributes: ClassVar[dict[str, int]] = {"MultiProcessorCount": 1}

    def __init__(self, device: int | None = None) -> None:
        self.id = current.device if device is None else device
        if not 0 <= self.id < Gpus.count:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(current.device)
        current.device = self.id
        return self

    def __exit__(self, *_: Any) -> None:
        current.device = self._before.pop()

    def use(self) -> Device:
        current.device = self.id
        return self


class Launch:
    """Work on a stream that is no thread's current one: it is done when somebody waits for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    @property
    def over(self) -> bool:
        return self._work is None

    def finish(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()


class LegacyStream:
    """The stream that waits for all others."""

    ptr = 0

    def use(self) -> None:
        current.streams[current.device] = 0


def current_stream() -> Stream | LegacyStream:
    """Return the current stream of this thread."""
    return Stream.all.get(current.stream) or LegacyStream()


class Event:
    """The work of a stream before a point."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._before: list[Launch] = []
        self._stream = 0
        #: the launches of the capture that recorded the event
        self.capture: list[Callable[[], None]] | None = None

    def record(self, stream: Stream) -> None:
        self.capture = stream.captured
        if self.capture is None:
            self._before, self._stream = list(stream.under_way), stream.ptr

    def finish(self) -> None:
        for launch in self._before:
            launch.finish()
        Memory.finish(self._stream)

    @property
    def done(self) -> bool:
        refuse_in_capture("a query of an event")
        self._refuse_captured()
        return True

    def synchronize(self) -> None:
        refuse_in_capture("a wait")
        self._refuse_captured()
        self.finish()

    def _refuse_captured(self) -> None:
        if self.capture is not None:
            raise CUDARuntimeError("cudaErrorCapturedEvent: operation not permitted on an event last recorded in a capturing stream")


class Stream:
    """An order of launches."""

    _pointers = itertools.count(1)
    all: ClassVar[dict[int, Stream]] = {}

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        assert non_blocking, "a blocking stream would be ordered with the legacy stream, which is not pretended here"
        self.device_id = current.device
        self.ptr = next(self._pointers)
        self.done = True
        self.under_way: list[Launch] = []
        #: the launches of the capture in progress
        self.captured: list[Callable[[], None]] | None = None
        self.valid = True
        Stream.all[self.ptr] = self

    def wait_event(self, event: Event) -> None:
        """Kernels are pretended to be done at once, so what they wait for is done at once; another stream's work waits with it."""
        if event.capture is not None:
            assert self.captured in (None, event.capture), "an event of one capture is awaited in another one"
            self.captured = event.capture
        elif current.stream == self.ptr and self.captured is None:
            event.finish()

    def use(self) -> Stream:
        if current.device != self.device_id:
            raise RuntimeError(f"This stream was created on device {self.device_id}, not on {current.device}")
        current.streams[self.device_id] = self.ptr
        return self

    def __enter__(self) -> Stream:
        current.entered.setdefault(self.device_id, []).append(self.ptr)
        return self.use()

    def __exit__(self, *_: Any) -> None:
        """As with CuPy, the stream of `use` is not restored."""
        entered = current.entered[self.device_id]
        entered.pop()
        current.streams[self.device_id] = entered[-1] if entered else 0

    def begin_capture(self, mode: int) -> None:
        self.captured, self.valid = [], True

    def end_capture(self) -> Graph:
        assert self.captured is not None
        graph, captured = Graph(self.captured), self.captured
        for stream in Stream.all.values():
            if stream.captured is captured:
                stream.captured = None
        if not self.valid:
            raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated")
        return graph

    def run(self, launch: Callable[[], None]) -> None:
        """Run a launch now, or when the captured graph is launched."""
        if self.captured is None:
            launch()
        else:
            self.captured.append(launch)

    def synchronize(self) -> None:
        refuse_in_capture("a wait")
        for launch in self.under_way:
            launch.finish()
        self.under_way.clear()
        Memory.finish(self.ptr)


def copied(number: int, target: Any, source: Any) -> None:
    """Copy elements on a stream, or make the copy a part of the graph if the stream is captured."""

    def copy() -> None:
        target[...] = source

    stream = Stream.all.get(number)
    if stream is None:
        copy()
    else:
        stream.run(copy)
