"""Streams and events of GPUs, for the namespace `flow.cuda`.

All operations of a GPU run on one stream, in the order of the program.  A `Stream` is therefore always ordered with the operations around it, and
`wait_stream` and `wait_event` have nothing to wait for.  `synchronize` waits for the GPU, and events record its time.  Without a GPU, operations
have ended when they return.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.functional.devices import checked_gpu
from jobflow.functional.memory_statistics import opened
from jobflow.runtime.device import cuda_facts

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu


def synchronize(device: Any = None) -> None:
    """Wait until all operations on the GPU have ended; raise the error of an index or label that an operation rejected."""
    gpu = opened("synchronize", device)
    if gpu is not None:
        gpu.synchronize()


class Stream:
    """A queue of operations of the GPU `device`; operations run in the order of the program, also in the blocks of several streams."""

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device, self.priority = checked_gpu("Stream", device), priority
        self._gpu = opened("Stream", device)

    @property
    def cuda_stream(self) -> int:
        """The address of the CUDA stream, for other libraries; 0 without a GPU."""
        return 0 if self._gpu is None else int(self._gpu.device.stream.ptr)

    def synchronize(self) -> None:
        """Wait until all operations on the GPU have ended."""
        if self._gpu is not None:
            self._gpu.synchronize()

    def query(self) -> bool:
        """Return True if all operations on the GPU have ended."""
        return True if self._gpu is None else bool(self._gpu.device.is_idle)

    def wait_stream(self, stream: Any) -> None:
        """Do nothing; operations run in the order of the program."""

    def wait_event(self, event: Any) -> None:
        """Do nothing; operations run in the order of the program."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event, a new one by default, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class Event:
    """A point in the sequence of operations; with `enable_timing`, `elapsed_time` returns the time between two of them."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False) -> None:
        self.enable_timing = enable_timing
        self.time: float | None = None
        self._gpu: EagerGpu | None = None
        self._event: Any = None

    def record(self, stream: Any = None) -> None:
        """Record the end of the operations so far, on the GPU of `stream` or on the current one."""
        if stream is not None and not isinstance(stream, Stream):
            raise ArgumentError(f"Event.record at {user_line()}: stream must be a cuda.Stream; got {stream!r}")
        self._gpu = opened("Event", None if stream is None else stream.device)
        self.time = time.perf_counter()
        if self._gpu is not None:
            self._gpu.activate()
            self._event = cuda_facts.timed_event()
            with self._gpu.device.lock:
                self._event.record(self._gpu.device.stream)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to `end_event`, which both must have happened.

        Raises: JobError unless both were recorded with `enable_timing`, on one GPU.
        """
        ends = self, end_event
        if not all(isinstance(event, Event) and event.enable_timing and event.time is not None for event in ends):
            raise JobError(f"Event.elapsed_time at {user_line()}: both events must be recorded; pass enable_timing=True, and call record() first")
        if self._gpu is not end_event._gpu:
            raise JobError(f"Event.elapsed_time at {user_line()}: the events are on {self._gpu} and {end_event._gpu}; record both on one GPU")
        if self._gpu is None:
            return (end_event.time - self.time) * 1000  # type: ignore[operator]
        if not end_event.query():
            raise JobError(f"Event.elapsed_time at {user_line()}: the last event has not happened yet; call synchronize() on it first")
        return cuda_facts.milliseconds(self._event, end_event._event)

    def query(self) -> bool:
        """Return True if the operations before the event have ended."""
        return True if self._event is None else bool(self._event.done)

    def wait(self, stream: Any = None) -> None:
        """Do nothing; operations run in the order of the program."""

    def synchronize(self) -> None:
        """Wait until the operations before the event have ended."""
        if self._event is not None:
            self._event.synchronize()


class stream(Stream):
    """A `with` block whose operations run on `stream`, in the order of the program."""

    def __init__(self, stream: Any) -> None:
        if stream is not None and not isinstance(stream, Stream):
            raise ArgumentError(f"cuda.stream at {user_line()}: stream must be a cuda.Stream; got {stream!r}")
        super().__init__(None if stream is None else stream.device)
        self.stream = stream


def current_stream(device: Any = None) -> Stream:
    """Return the stream of the device."""
    return Stream(device)


def default_stream(device: Any = None) -> Stream:
    """Return the stream of the device."""
    return Stream(device)


def set_stream(stream: Any) -> None:
    """Do nothing; operations run in the order of the program."""
