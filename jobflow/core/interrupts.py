"""Ctrl-C waits until a step is done: a program that catches KeyboardInterrupt finds all variables written, or none."""

from __future__ import annotations

import inspect
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

# without the conversions to members of enumerations, which take ten times as long
_get: Any = inspect.unwrap(signal.getsignal)
_set: Any = inspect.unwrap(signal.signal)


class held:
    """Inside, the first SIGINT is only noted; its handler is called at the end, or when a second one comes.

    Only the main thread is interrupted by signals, so elsewhere this does nothing.
    """

    __slots__ = ("_handler", "_noted")

    def __enter__(self) -> None:
        self._noted: tuple[int, FrameType | None] | None = None
        self._handler = None
        if threading.current_thread() is threading.main_thread() and callable(handler := _get(signal.SIGINT)):
            self._handler = handler
            _set(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is None:
            self._noted = number, frame
            return
        (first, self._noted) = self._noted, None
        self._handler(*first)  # type: ignore[misc]
        self._handler(number, frame)  # type: ignore[misc]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handler is not None:
            _set(signal.SIGINT, self._handler)
            if self._noted is not None:
                self._handler(*self._noted)
