"""The tree of exceptions, and the user's line that their messages name.

    JobflowError
    ├── ShapeError          the shapes of operands do not match              (also ValueError, AssertionError)
    │   └── AxisError       an axis or an index is out of range              (also IndexError)
    ├── DtypeError          an op does not support the element type          (also TypeError)
    ├── SbpError            no signature or route for a requested layout     (also ValueError)
    ├── PlacementError      an unknown device, or a rank listed twice        (also ValueError)
    ├── ConfigError         an unknown option, or an invalid value           (also ValueError, AssertionError, AttributeError)
    │   └── VariableError   an environment variable with an invalid value
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

import os
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from types import FrameType
from typing import Any

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
#: the models of jobflow count as user programs, but not the functions that they share for generation
_MODELS = os.path.join(_PACKAGE, "models") + os.sep
_GENERATION = os.path.join(_MODELS, "generation") + os.sep
#: the advice of messages that reject an array in place of a tensor of a job
NOT_A_TENSOR = "arrays become tensors as arguments of the job, as variables (get_variable, load_variables) or as constants (flow.tensor)"


class JobflowError(Exception):
    """Base class of all errors raised by jobflow."""

    #: True if every rank raises the same error and can continue
    everywhere = False
    #: True if the environment of the process is wrong, not a line of the program: uncaught, the error is printed without a traceback
    of_environment = False
    #: the row of the batch with the problem, if known
    row: int | None = None

    @property
    def told(self) -> str:
        """The message with the name of the exception class."""
        return f"{type(self).__name__}: {self}"


class ShapeError(JobflowError, ValueError, AssertionError):
    """Error for operands of an op whose shapes do not match."""


class AxisError(ShapeError, IndexError):
    """Error for an axis, or an index along an axis, that is out of range."""


class DtypeError(JobflowError, TypeError):
    """Error for an element type that an op does not support."""


class SbpError(JobflowError, ValueError):
    """Error for a requested layout without a matching signature of an op or conversion between layouts."""


class PlacementError(JobflowError, ValueError):
    """Error for a placement with devices that do not exist, or with a device listed twice."""


class ConfigError(JobflowError, ValueError, AssertionError, AttributeError):
    """Error for an option with an unknown name or an invalid value."""


class VariableError(ConfigError):
    """Error for an environment variable with an invalid value."""

    of_environment = True


class ArgumentError(JobflowError, ValueError, AssertionError):
    """Error for arguments that do not match the declaration of a job or function."""


class JobError(JobflowError, AssertionError, NotImplementedError):
    """Error for an invalid declaration or use of a job."""

    #: the variable of the session that a job declares differently, or None
    variable: str | None = None


class DuplicateNameError(JobflowError, AssertionError):
    """Error for two variables or ops of one job with the same name."""


class PlanError(JobflowError):
    """Error for an inconsistent plan, raised by the compiler or by the verifier before a run."""


class CheckpointError(JobflowError, AssertionError, RuntimeError):
    """Error for a checkpoint that is missing, damaged, or does not match the variables."""


class ReplacedError(CheckpointError):
    """Error for a checkpoint that another process replaced or removed during the read; the new checkpoint may be complete."""


class DataError(JobflowError, ValueError):
    """Error for a data file that is missing, damaged, or has unexpected contents."""


class FileError(JobflowError, OSError):
    """Error for a path that is a pipe, a device or a folder, or a file above the size limit of its kind."""


class DivergedError(JobflowError, RuntimeError):
    """Error for ranks that execute different operations; the message lists the operation of each rank.

    `first` is the rank that diverged because it raised an error, or None.
    """

    def __init__(self, message: str, first: int | None = None) -> None:
        super().__init__(message)
        self.first = first

    def __reduce__(self) -> tuple[type[DivergedError], tuple[str, int | None]]:
        return DivergedError, (str(self), self.first)


class RankError(JobflowError):
    """Error for the first rank that failed during a run, with its number and message."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(f"rank {rank}: {message}")
        self.rank = rank
        self.message = message

    def __reduce__(self) -> tuple[type[RankError], tuple[int, str]]:
        return RankError, (self.rank, self.message)


class AbortedError(JobflowError):
    """Error for a rank that was stopped because another rank failed."""


def in_short(error: BaseException) -> str:
    """Return an exception as one line: class, first line of the message, and the raising line unless it is in jobflow."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    if trace is None or trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return text
    return f"{text} (at {SourceLine(trace.tb_frame.f_code.co_filename, trace.tb_lineno)})"


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's program; prints as ``model.py:41``, and as ``In[3]:2`` in the cell of a notebook."""

    file: str
    line: int

    def __str__(self) -> str:
        # undecodable bytes of a file name are surrogates, which cannot be printed
        name = _cell(self.file) or os.path.basename(self.file)
        return f"{name if name.isascii() else os.fsencode(name).decode(errors='replace')}:{self.line}"


def _cell(file: str) -> str | None:
    """Return the name of the cell whose code IPython has stored as `file`, such as "In[3]"; None for other files and outside of IPython."""
    shell = running_shell()
    name = None if shell is None else shell.compile.format_code_name(file)
    return None if name is None else name[1]


def running_shell() -> Any:
    """Return the shell of IPython in which the program runs, or None; IPython is not imported."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if find is None else find()


NOWHERE = SourceLine("<jobflow>", 0)


#: the frame that entered `at_line`, and its line
_STANDING: ContextVar[tuple[FrameType, SourceLine] | None] = ContextVar("standing", default=None)


class at_line:
    """Context manager `with at_line(line):` that attributes errors in the block to this line, for example of a configuration file.

    Lines of the user's program that the block calls have precedence over `line`.
    """

    def __init__(self, line: SourceLine) -> None:
        self._line = line

    def __enter__(self) -> None:
        self._before = _STANDING.set((sys._getframe(1), self._line))

    def __exit__(self, *_: object) -> None:
        _STANDING.reset(self._before)


def user_line() -> SourceLine:
    """Return the innermost line on the stack that belongs to the user's program or to `at_line`; NOWHERE if there is no such line."""
    standing, line = _STANDING.get() or (None, NOWHERE)
    return line_of(sys._getframe(1), standing, line)


def called_function() -> str:
    """Return the name of the public jobflow function that the user's line calls, directly or through a method; otherwise return ""."""
    frame, name = sys._getframe(1), ""
    while frame is not None and (frame.f_code.co_filename in _NOT_OF_USERS or not is_users(frame)):
        if frame.f_code.co_name in frame.f_globals.get("__all__", ()):
            name = frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return name


def line_of(frame: FrameType | None, standing: FrameType | None = None, line: SourceLine = NOWHERE) -> SourceLine:
    """Return the innermost user's line of a frame and its callers.

    The search stops at the frame `standing` and then returns `line`. If no frame has a user's line, the function returns NOWHERE.
    """
    while frame is not None:
        if frame is standing:
            return line
        if frame.f_code.co_filename not in _NOT_OF_USERS and is_users(frame):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return NOWHERE


#: cache of file names of jobflow or the standard library
_NOT_OF_USERS: set[str] = set()
_INSTALLED = ("site-packages", "dist-packages")


def is_users(frame: FrameType) -> bool:
    """Return True for a frame of the user's program: not of jobflow, the interpreter or the standard library."""
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


def is_installed(frame: FrameType) -> bool:
    """Return True for a frame of an installed package other than jobflow."""
    file = frame.f_code.co_filename
    return not file.startswith(_PACKAGE) and any(f"/{folder}/" in file for folder in _INSTALLED)


def _is_own(file: str) -> bool:
    in_package = file.startswith(_PACKAGE) and (not file.startswith(_MODELS) or file.startswith(_GENERATION))
    return in_package or file.startswith("<frozen ")


def _is_standard(file: str) -> bool:
    """Return True for a file of Python's standard library."""
    return file.startswith(_LIBRARY) and not any(file.startswith(_LIBRARY + name) for name in _INSTALLED)


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the legal name closest to `name`, or an empty string."""
    names = sorted(legal)
    if not names:
        return ""
    from difflib import get_close_matches  # programs without errors need none

    close = [one for one in names if one.lower() == name.lower()] or get_close_matches(name, names, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def did_you_mean_or(name: str, legal: Iterable[str], advice: str) -> str:
    """Return the end of a message: the suggestion of `did_you_mean`, if any, and `advice`."""
    near = did_you_mean(name, legal)
    return f"{near} {advice[:1].upper()}{advice[1:]}" if near else f"; {advice}"


def patterns_like(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the candidates for a suggestion in place of `pattern`: the names, and patterns of names with wildcards in the same parts.

    Parts are separated by "." or "-": for "haed.*" and the name "head.weight", the pattern is "head.*".
    """
    import re  # programs without errors need none
    from fnmatch import fnmatchcase

    parts = re.split("([.-])", pattern)
    result: dict[str, None] = {}
    for name in names:
        pieces = re.split("([.-])", name)
        for aligned in (pieces[: len(parts)], pieces[-len(parts) :]):
            near = "".join(part if "*" in part else piece for part, piece in zip(parts, aligned, strict=False))
            if "*" in near and fnmatchcase(name, near):
                result[near] = None
        result[name] = None
    return list(result)


def no_attribute(name: str, message: str, legal: Iterable[str] = ()) -> AttributeError:
    """Return the AttributeError for a missing attribute, with a suggestion from `legal` in place of Python's own."""
    return AttributeError(f"{message}{did_you_mean(name, legal)}", name=name, obj=None)


def counted(number: int, what: str) -> str:
    """Format a number with its noun: 1 sample, 1,200 samples."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
