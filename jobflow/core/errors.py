"""The tree of exceptions, and the user's line that their messages name.

    JobflowError
    ├── ShapeError          the shapes of operands do not match              (also ValueError, AssertionError)
    │   └── AxisError       an axis or an index is out of range              (also IndexError)
    ├── DtypeError          an op does not support the element type          (also TypeError)
    ├── SbpError            no signature or route for a requested layout     (also ValueError)
    ├── PlacementError      an unknown device, or a rank listed twice        (also ValueError)
    ├── ConfigError         an unknown option, or an invalid value           (also ValueError, AssertionError, AttributeError)
    ├── ArgumentError       invalid arguments in a call of a job             (also ValueError, AssertionError)
    ├── JobError            invalid declaration or use of a job              (also AssertionError, NotImplementedError)
    ├── DuplicateNameError  two objects of one job have the same name        (also AssertionError)
    ├── PlanError           an inconsistent plan: a defect of jobflow, or ranks with different programs
    ├── CheckpointError     a missing, damaged or incompatible checkpoint    (also AssertionError, RuntimeError)
    │   └── ReplacedError   the checkpoint was replaced or removed during the read
    ├── DataError           a missing, damaged or malformed data file        (also ValueError)
    ├── FileError           an object that is not a readable file            (also OSError)
    ├── DivergedError       ranks called different operations                (also RuntimeError)
    ├── RankError           a failure on a rank, with its number and message
    └── AbortedError        this rank stopped because another one failed

The second bases are the kinds of exception that programs written for the legacy system expect.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from types import FrameType

from jobflow.core.dataclass import dataclass

__all__ = [
    "AbortedError",
    "ArgumentError",
    "AxisError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DivergedError",
    "DtypeError",
    "DuplicateNameError",
    "FileError",
    "JobError",
    "JobflowError",
    "PlacementError",
    "PlanError",
    "RankError",
    "ReplacedError",
    "SbpError",
    "ShapeError",
]

_PACKAGE = os.path.join(os.path.abspath(sys.modules["jobflow"].__path__[0]), "")
#: Python's standard library
_LIBRARY = os.path.dirname(os.__file__) + os.sep
#: ready models are programs like those of users
_MODELS = os.path.join(_PACKAGE, "models") + os.sep
#: the advice of messages that reject an array in place of a tensor of a job
NOT_A_TENSOR = "arrays become tensors as arguments of the job, as variables (get_variable, load_variables) or as constants (flow.tensor)"


class JobflowError(Exception):
    """Base class of all errors raised by jobflow."""

    #: True if every rank raises the same error and can continue
    everywhere = False
    #: the row of the batch with the problem, if known
    row: int | None = None

    @property
    def told(self) -> str:
        """The printed form: kind and message."""
        return f"{type(self).__name__}: {self}"


class ShapeError(JobflowError, ValueError, AssertionError):
    """The shapes of an op's operands do not match."""


class AxisError(ShapeError, IndexError):
    """An axis, or an index along an axis, is out of range."""


class DtypeError(JobflowError, TypeError):
    """An op does not support an element type."""


class SbpError(JobflowError, ValueError):
    """No signature of an op, or no conversion between layouts, satisfies the request."""


class PlacementError(JobflowError, ValueError):
    """A placement names devices that do not exist, or names one twice."""


class ConfigError(JobflowError, ValueError, AssertionError, AttributeError):
    """An option has an unknown name or a wrong value."""


class ArgumentError(JobflowError, ValueError, AssertionError):
    """A job was called with arguments that do not match its declaration."""


class JobError(JobflowError, AssertionError, NotImplementedError):
    """A job is declared or used in an invalid way."""


class DuplicateNameError(JobflowError, AssertionError):
    """Two variables or ops of one job have the same name."""


class PlanError(JobflowError):
    """A plan is inconsistent; the verifier rejects it before a run."""


class CheckpointError(JobflowError, AssertionError, RuntimeError):
    """A checkpoint is missing, damaged, or does not fit the variables."""


class ReplacedError(CheckpointError):
    """Another process replaced or removed a checkpoint during the read; the new checkpoint may be complete."""


class DataError(JobflowError, ValueError):
    """A file of samples is missing, damaged, or does not have the contents that its reader expects."""


class FileError(JobflowError, OSError):
    """A path is a pipe, a device or a folder, or a file above the size limit of its kind."""


class DivergedError(JobflowError, RuntimeError):
    """Ranks that should execute the same operations diverge; the message lists the operation of each rank.

    `first` is the rank that diverged because of its own error, if any.
    """

    def __init__(self, message: str, first: int | None = None) -> None:
        super().__init__(message)
        self.first = first

    def __reduce__(self) -> tuple[type[DivergedError], tuple[str, int | None]]:
        return DivergedError, (str(self), self.first)


class RankError(JobflowError):
    """A rank failed during a run; the first failure is reported."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(f"rank {rank}: {message}")
        self.rank = rank
        self.message = message

    def __reduce__(self) -> tuple[type[RankError], tuple[int, str]]:
        return RankError, (self.rank, self.message)


class AbortedError(JobflowError):
    """This rank was stopped because another rank failed."""


def in_short(error: BaseException) -> str:
    """Return an exception as one line: its kind, the first line of its message, and the raising line unless it is in jobflow."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    if trace is None or trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return text
    return f"{text} (at {SourceLine(trace.tb_frame.f_code.co_filename, trace.tb_lineno)})"


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's program; prints as ``model.py:41``."""

    file: str
    line: int

    def __str__(self) -> str:
        # undecodable bytes of a file name are surrogates, which cannot be printed
        name = os.path.basename(self.file)
        return f"{name if name.isascii() else os.fsencode(name).decode(errors='replace')}:{self.line}"


NOWHERE = SourceLine("<jobflow>", 0)


#: the frame of `at_line`, and its line
_STANDING: ContextVar[tuple[FrameType, SourceLine] | None] = ContextVar("standing", default=None)


class at_line:
    """Context manager `with at_line(line):` that attributes the work of the block to this line, for example of a configuration file.

    Lines of the user's program called by the block have precedence; lines that called the block do not.
    """

    def __init__(self, line: SourceLine) -> None:
        self._line = line

    def __enter__(self) -> None:
        self._before = _STANDING.set((sys._getframe(1), self._line))

    def __exit__(self, *_: object) -> None:
        _STANDING.reset(self._before)


def user_line() -> SourceLine:
    """Return the innermost line on the stack outside of jobflow and the standard library, or the line of `at_line`."""
    standing, line = _STANDING.get() or (None, NOWHERE)
    return line_of(sys._getframe(1), standing, line)


def line_of(frame: FrameType | None, standing: FrameType | None = None, line: SourceLine = NOWHERE) -> SourceLine:
    """Return the user's line of a frame and its callers, up to the frame `standing`, which is replaced by `line`."""
    while frame is not None:
        if frame is standing:
            return line
        if frame.f_code.co_filename not in _NOT_OF_USERS and is_users(frame):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return NOWHERE


#: a cache of files of jobflow or the standard library
_NOT_OF_USERS: set[str] = set()


def is_users(frame: FrameType) -> bool:
    """Return True for a frame outside of jobflow, the interpreter and the standard library."""
    file = frame.f_code.co_filename
    if _is_own(file) or _is_standard(file):
        _NOT_OF_USERS.add(file)
        return False
    return not is_ours(frame)


def is_ours(frame: FrameType) -> bool:
    """Return True for a frame of jobflow, of the interpreter, or of the installed script `bin/jobflow`."""
    file = frame.f_code.co_filename
    if _is_own(file):
        return True
    if file == "<string>":  # a dataclass's own __init__
        return str(frame.f_globals.get("__name__", "")).startswith("jobflow.")
    if not file.endswith("jobflow") or os.path.basename(file) != "jobflow":
        return False
    main = getattr(frame.f_globals.get("main"), "__module__", "")
    return (frame.f_globals.get("__name__"), main) == ("__main__", "jobflow.cli")


def _is_own(file: str) -> bool:
    return (file.startswith(_PACKAGE) and not file.startswith(_MODELS)) or file.startswith("<frozen ")


def _is_standard(file: str) -> bool:
    """Return True for a file of Python's standard library, which calls functions of the user."""
    return file.startswith(_LIBRARY) and not any(file.startswith(_LIBRARY + name) for name in ("site-packages", "dist-packages"))


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the legal name closest to `name`, or an empty string."""
    names = sorted(legal)
    close = [one for one in names if one.lower() == name.lower()] or difflib.get_close_matches(name, names, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def did_you_mean_or(name: str, legal: Iterable[str], advice: str) -> str:
    """Return `advice` as the end of a message, after the suggestion of `did_you_mean` if there is one."""
    near = did_you_mean(name, legal)
    return f"{near} {advice[:1].upper()}{advice[1:]}" if near else f"; {advice}"


def no_attribute(name: str, message: str, legal: Iterable[str] = ()) -> AttributeError:
    """Return the error for a missing attribute, without Python's own suggestion."""
    return AttributeError(f"{message}{did_you_mean(name, legal)}", name=name, obj=None)


def counted(number: int, what: str) -> str:
    """Format a number with its noun: 1 sample, 1,200 samples."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
