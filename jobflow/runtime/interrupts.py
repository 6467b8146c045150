"""Handling of Ctrl-C, which is delayed until a step is complete.

A program that catches KeyboardInterrupt sees all variables updated, or none.  An uncaught KeyboardInterrupt prints one line and exits with
code 130 (`install`).  An uncaught error of the environment prints its message only.

Python runs signal handlers in the main thread only, so this module has no effect in other threads.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # the module typing takes longer to import than this one, and Ctrl-C prints a traceback until `install`
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any, Self

# the C module behind `signal`, whose conversions to enumerations take ten times as long
_calls: Any = sys.modules.get("_signal", signal)
_SIGINT = int(signal.SIGINT)
#: exit code after Ctrl-C
INTERRUPTED = 130
#: environment variable: set to 1, errors and Ctrl-C print full tracebacks
TRACEBACK = "JOBFLOW_TRACEBACK"
#: seconds after which a lost SIGINT is sent again
AGAIN = 0.01


class _SigintScope:
    """A context in which `_note` replaces the handler of SIGINT."""

    __slots__ = ("_previous",)

    def __enter__(self) -> Self:
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread() and callable(previous := _calls.getsignal(_SIGINT)):
            self._previous = previous
            _calls.signal(_SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._previous is not None:
            _calls.signal(_SIGINT, self._previous)


class held(_SigintScope):
    """A context manager that delays the first SIGINT until the block ends or a second SIGINT arrives."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: tuple[int, FrameType | None] | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is None:
            self._noted = number, frame
            return
        first, self._noted = self._noted, None
        self._previous(*first)
        self._previous(number, frame)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if self._noted is not None:
            self._previous(*self._noted)


class caught(_SigintScope):
    """A context that stores the exception of the SIGINT handler as `error`, calls `stop`, and raises the exception at the end of the block."""

    __slots__ = ("_stop", "error")

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.error: BaseException | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            self._previous(number, frame)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self.error = error
            self._stop()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if self.error is not None:
            raise self.error


# -------------------------------------------------------------------- the end of a program


def install() -> None:
    """Install hooks that print an uncaught KeyboardInterrupt, or an uncaught error of the environment, in one line.

    If Python had to drop a KeyboardInterrupt, SIGINT is sent again.

    A hook that the program has set before, or that calls this one, keeps its own report and exit code.
    """
    report, ignored = sys.excepthook, sys.unraisablehook

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if shows_traceback() or hasattr(sys, "ps1") or sys.flags.interactive or _has_caller() or not (brief := text_without_traceback(error)):
            report(kind, error, trace)
            return
        print(brief, file=sys.stderr, flush=True)
        if is_interrupt(error):
            forget_interrupt()
            raise SystemExit(INTERRUPTED)

    def unraisable(about: Any) -> None:
        if isinstance(about.exc_value, KeyboardInterrupt):
            _thread.start_new_thread(_send_again, (os.getpid(),))
        else:
            ignored(about)

    sys.unraisablehook = unraisable
    if report is sys.__excepthook__:
        sys.excepthook = uncaught


def _has_caller() -> bool:
    """Return True if the function that calls this one was called by Python code, such as another hook, and not by the interpreter."""
    try:
        sys._getframe(2)
    except ValueError:
        return False
    return True


def _send_again(pid: int) -> None:
    """Send SIGINT to the main thread after it has left a callback, where Python drops exceptions."""
    time.sleep(AGAIN)
    if os.getpid() == pid:
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGINT)


def shows_traceback() -> bool:
    """Return True if the environment requests full tracebacks."""
    return os.environ.get(TRACEBACK, "0") not in ("", "0")


def is_interrupt(error: BaseException) -> bool:
    """Return True for a KeyboardInterrupt, and for a pydantic_core error that wraps one: its message ends with "KeyboardInterrupt"."""
    wrapped = type(error).__module__.startswith("pydantic_core") and str(error).rstrip(": \n").endswith("KeyboardInterrupt")
    return type(error) is KeyboardInterrupt or wrapped


def text_without_traceback(error: BaseException) -> str:
    """Return the message of an interrupt, or of an error of the environment; "" for other errors, which need a traceback."""
    if is_interrupt(error):
        return described(error)
    return f"{type(error).__name__}: {error}" if getattr(error, "of_environment", False) else ""


def forget_interrupt() -> None:
    """Clear the interpreter's flag of an unhandled KeyboardInterrupt, which `exec` of a string resets.

    With this flag the interpreter would exit by a signal instead of a code.
    """
    exec("")


def described(error: BaseException) -> str:
    """Return "interrupted at file:line" for the innermost line of the user's program, or "interrupted" if no line is known."""
    from jobflow.core.errors import is_users

    line, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_users(trace.tb_frame) and file != "<string>" and "site-packages" not in file:
            line = f" at {file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"interrupted{line}"
