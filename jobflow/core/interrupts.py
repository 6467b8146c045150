"""Ctrl-C waits until a step is done: a program that catches KeyboardInterrupt finds all variables written, or none.

Only the main thread is interrupted by signals, so elsewhere nothing here does anything.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

# those that `signal` calls, where they are known: its conversions to members of enumerations take ten times as long
_calls: Any = sys.modules.get("_signal", signal)
_SIGINT = int(signal.SIGINT)


class _Instead:
    """Inside, `_note` is called for SIGINT instead of the handler that there is."""

    __slots__ = ("_handler",)

    def __enter__(self) -> Self:
        self._handler: Any = None
        if threading.current_thread() is threading.main_thread() and callable(handler := _calls.getsignal(_SIGINT)):
            self._handler = handler
            _calls.signal(_SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handler is not None:
            _calls.signal(_SIGINT, self._handler)


class held(_Instead):
    """Inside, the first SIGINT is only noted; its handler is called at the end, or when a second one comes."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: tuple[int, FrameType | None] | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is None:
            self._noted = number, frame
            return
        first, self._noted = self._noted, None
        self._handler(*first)
        self._handler(number, frame)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if self._noted is not None:
            self._handler(*self._noted)


class caught(_Instead):
    """Inside, what the handler of SIGINT raises is kept as `error`, `stop` is called, and the error is raised at the end."""

    __slots__ = ("_stop", "error")

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.error: BaseException | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handler(number, frame)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self.error = error
            self._stop()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if self.error is not None:
            raise self.error
