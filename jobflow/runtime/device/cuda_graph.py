"""Capture of prepared calls as a CUDA graph, which the host launches by one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from jobflow.core.errors import JobflowError
from jobflow.core.types import Xp
from jobflow.kernels.half import rounded
from jobflow.ops.op import Call
from jobflow.runtime.collection import collection_paused


class CapturedGraph:
    """A captured graph; calling it launches the graph on the stream of the capture.

    It keeps the captured calls alive, whose arrays the graph reads and writes.
    """

    def __init__(self, graph: Any, stream: Any, calls: Sequence[Call]) -> None:
        self._launch, self._stream = graph.launch, stream
        self.calls = tuple(calls)
        #: called before each launch
        self._before = [function.replayed for function, _ in calls if hasattr(function, "replayed")]

    def __call__(self) -> None:
        for function in self._before:
            function()
        self._launch(self._stream)

    @property
    def communicates(self) -> bool:
        return bool(self._before)

    def follow(self, function: Callable[[], None]) -> None:
        """Call a function before each launch, if the graph contains communication."""
        if self._before:
            self._before.insert(0, function)

    def release(self) -> None:
        """Destroy the graph, for example before the communicators that it uses."""
        self._launch = _refuse


def _refuse(stream: Any) -> None:
    raise JobflowError("launch of a captured graph: its session has been closed; start a new session")


def captured(cupy: Any, stream: Any, calls: Sequence[Call]) -> CapturedGraph:
    """Capture the calls, which must run on the current stream `stream` and on streams that it joins by events; nothing runs.

    If a call raises, the capture ends, the stream is usable again, and the error is raised.
    """
    # other threads may allocate and wait meanwhile; this thread may not
    mode = cupy.cuda.runtime.streamCaptureModeThreadLocal
    with collection_paused():  # freeing memory of the device invalidates a capture
        stream.begin_capture(mode)
        try:
            for function, arguments in calls:
                function(*arguments)
        except BaseException:
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):  # the capture is invalid, which the raised error explains
                stream.end_capture()
            raise
        return CapturedGraph(stream.end_capture(), stream, calls)


def capturable(call: Call, xp: Xp) -> bool:
    """Return True if a graph may capture the call: its function allocates no memory and waits for nothing.

    That holds for functions with the attribute `capturable`, and for copies between arrays of the GPU by the array module `xp`.
    """
    function = call[0]
    return getattr(function, "capturable", False) is True or function is xp.copyto or function is rounded
