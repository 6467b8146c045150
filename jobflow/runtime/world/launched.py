"""The end of a job of several processes.

This module does not import MPI: `launched` reads the environment, and `guard` is cheap enough for every import of jobflow.  After `guard`

* ranks above 0 that mpiexec or srun started print nothing on standard output, until `unmute`;
* an uncaught exception on any rank is printed once, with the rank, and ends the whole job with exit code 1; so does an error of
  jobflow in any other Python thread;
* a rank at the end of its script reports that to the others, so that no rank waits for it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NoReturn

from jobflow.core.errors import AbortedError, DivergedError, JobflowError
from jobflow.runtime.interrupts import INTERRUPTED, is_interrupt, shows_traceback, text_without_traceback
from jobflow.runtime.thread_start import address_space, has_limit
from jobflow.runtime.world import monitor, mpi_end
from jobflow.runtime.world.environment import Launch as Launch
from jobflow.runtime.world.environment import check_process
from jobflow.runtime.world.environment import launched as launched

#: seconds between the first error message and the end of its rank: other ranks find the token held, and the launcher forwards the message,
#: because it drops pending output when a job is aborted
GRACE = 0.3
#: seconds in which the rank with the first error can end the job before other ranks do
DEFERENCE = 1.2


class _Guard:
    """The state that `guard` sets in this process."""

    launch: Launch | None = None
    #: a copy of the standard output that was muted
    output: int | None = None
    #: called at the end of the script
    report_end: Callable[[], None] | None = None
    #: reports an error to the other ranks; for ranks without mpiexec
    report_error: Callable[[str], None] | None = None
    #: the process id, because forked children are no ranks
    pid = 0
    #: True if this rank prints its own error
    failing = False
    #: the token that `say_once` holds until this process ends
    token: socket.socket | None = None
    #: the socket to the monitor of this process
    monitor: socket.socket | None = None


def starts_ranks(command: Sequence[str] = sys.orig_argv) -> bool:
    """Return True if `command` is `jobflow launch` or its module, which is not a rank even if the variables of a rank are set."""
    pairs = zip(command, command[1:], strict=False)
    return any(pair == ("-m", "jobflow.distributed.launch") or (os.path.basename(pair[0]) == "jobflow" and pair[1] == "launch") for pair in pairs)


def guard(launch: Launch, report_end: Callable[[], None], report_error: Callable[[str], None] | None = None) -> None:
    """Install the exit handlers of a rank in this process; `report_end` reports the end of its script to the other ranks.

    `report_error` reports an error to the other ranks, for ranks without mpiexec.
    """
    if _Guard.launch is not None:
        return
    _Guard.launch, _Guard.report_end, _Guard.report_error, _Guard.pid = launch, report_end, report_error, os.getpid()
    for stream in (sys.stdout, sys.stderr):
        # a rank may be killed at any time because another failed; output must not remain in a buffer
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, write_through=False)  # whole lines, so that lines of two ranks do not mix
    if not launch.master:
        _Guard.monitor = monitor.start(launch.rank, launch.size, _token_of(launch))
    if launch.rank > 0 and not launch.multi:
        _mute()
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    atexit.register(_at_exit)


def _at_exit() -> None:
    if _Guard.report_end is not None and _Guard.pid == os.getpid():
        _Guard.report_end()
        _say_goodbye()
    elif _Guard.launch is not None and "mpi4py.MPI" in sys.modules and not mpi_end.is_ours():
        print(
            f"jobflow: a forked child of rank {_Guard.launch.rank} finalizes MPI, which ends all ranks; exit it by os._exit, or import mpi4py.MPI "
            f"after jobflow has started MPI",
            file=sys.stderr,
        )


def _say_goodbye() -> None:
    """Announce the end of this process to its monitor, which then reports nothing."""
    if _Guard.monitor is not None:
        with suppress(OSError):
            _Guard.monitor.send(monitor.GOODBYE)
        _Guard.monitor.close()
        _Guard.monitor = None


@contextmanager
def mpi_starts(longest: float) -> Iterator[None]:
    """Monitor the start of MPI: after `longest` seconds the monitor ends the job if ranks are missing."""
    _send_monitor(b"%b %a" % (monitor.STARTING, longest))
    yield
    _send_monitor(monitor.STARTED)


def announce_lingering(longest: float, remaining: str) -> None:
    """Report to the monitor that the main thread has ended before MPI has started, while `remaining` runs; see `AbsentRanks.lingering`."""
    _send_monitor(b"%b %a %b" % (monitor.LINGERING, longest, remaining.encode()[: monitor.LONGEST - 100]))


def _send_monitor(message: bytes) -> None:
    if _Guard.monitor is not None:
        with suppress(OSError):  # the monitor has ended
            _Guard.monitor.send(message)


def leave_now() -> NoReturn:
    """End this process with exit code 0 as at the end of its script, without running any `except` or `finally` of the program.

    A program may catch all exceptions around a call of a job; a rank that left by an exception would then continue the program.
    """
    if threading.current_thread() is not threading.main_thread():
        _exit_from_thread()
    ctypes.pythonapi.Py_Exit(0)  # ends threads, calls atexit functions and finalizes MPI in the interpreter's order
    raise AssertionError("unreachable")


def _exit_from_thread() -> NoReturn:
    """End the process from a thread other than the main one; the interpreter's own exit would wait for all threads."""
    _at_exit()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _mute() -> None:
    sys.stdout.flush()
    _Guard.output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def unmute() -> None:
    """Enable the standard output of this rank again."""
    if _Guard.output is not None:
        sys.stdout.flush()
        os.dup2(_Guard.output, 1)
        os.close(_Guard.output)
        _Guard.output = None


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    launch = _Guard.launch
    # an interactive session continues after an error
    if launch is None or _Guard.pid != os.getpid() or hasattr(sys, "ps1") or sys.flags.interactive:
        sys.__excepthook__(kind, error, trace)
    else:
        end_job(error.with_traceback(trace), launch)


def _uncaught_in_thread(about: threading.ExceptHookArgs) -> None:
    """End the job after an error of jobflow in a Python thread, because other ranks may wait; other errors concern the thread only."""
    if isinstance(about.exc_value, JobflowError):
        _uncaught(about.exc_type, about.exc_value, about.exc_traceback)
    else:
        threading.__excepthook__(about)


def guarded() -> Launch | None:
    """Return the launch of this process if it is a rank; None for other processes, such as a launcher or a forked child."""
    return _Guard.launch if _Guard.pid == os.getpid() else None


def check_member() -> None:
    """Raise JobError in a forked child of a rank; see `check_process`."""
    if _Guard.launch is not None:
        check_process(_Guard.pid)


def say_once(text: str, launch: Launch) -> None:
    """Print a text that is equal on all ranks, once on each node; unlike `end_job`, do not end the ranks."""
    _Guard.token = _Guard.token or _claim(launch)
    if _Guard.token is not None:
        print(text, file=sys.stderr, flush=True)


def end_job(error: BaseException, launch: Launch, text: str = "") -> NoReturn:
    """Print `text`, or else the message or traceback of `error`, unless another rank of this node has printed an error, and end all ranks.

    The exit code is 1, or 130 after Ctrl-C.  A rank that ends because of another rank waits first, so that the first error is printed.
    """
    if _follows(error, launch.rank):
        time.sleep(DEFERENCE)
    _Guard.failing = True
    claim = _claim(launch)
    code = INTERRUPTED if is_interrupt(error) else 1
    text = text or (not shows_traceback() and text_without_traceback(error)) or _traceback(error)
    named = f"rank {launch.rank}: {text}"
    if claim is not None:
        print(text if launch.supervised else named, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if claim is not None and _Guard.report_error is not None:
        _Guard.report_error(named)
        os._exit(code)
    # the rank that has printed ends the job; if that fails, this rank ends it
    time.sleep(GRACE if claim is not None else 3 * GRACE)
    abort(launch, code)


def _traceback(error: BaseException) -> str:
    """Return the traceback of an error, or only its last line if there is too little memory; add advice to a MemoryError under a limit."""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except MemoryError:
        text = f"{type(error).__name__}: {error}"
    return f"{text}\n{address_space()}" if isinstance(error, MemoryError) and has_limit() else text


def _follows(error: BaseException | None, rank: int) -> bool:
    """Return True if an error on this rank is the consequence of an error on another rank."""
    while error is not None:
        if isinstance(error, AbortedError) or (isinstance(error, DivergedError) and error.first not in (None, rank)):
            return True
        error = error.__cause__ or error.__context__
    return False


def ended_elsewhere(text: str, show: bool) -> None:
    """End this rank because another rank has failed, and print `text` if `show`; called in a separate thread at any point of the program."""
    if _Guard.failing:
        return
    launch = _Guard.launch
    assert launch is not None
    with suppress(OSError, ValueError):  # the reader may have exited
        sys.stdout.flush()
    if show:
        print(f"jobflow: rank {launch.rank} ends because of an error on another rank:\n{text}", file=sys.stderr, flush=True)
    os._exit(1)


def ended_by_silence(text: str) -> None:
    """End this rank under mpiexec because a node no longer answers, and print `text` once on each node; called in a separate thread."""
    if _Guard.failing:
        return
    _Guard.failing = True
    launch = _Guard.launch
    assert launch is not None
    claim = _claim(launch)
    if claim is not None:
        print(f"jobflow: {text}; all ranks are ended", file=sys.stderr, flush=True)
    with suppress(OSError, ValueError):  # the reader may have exited
        sys.stdout.flush()
    _say_goodbye()
    time.sleep(GRACE if claim is not None else 3 * GRACE)
    with suppress(OSError):
        _abort_launcher(1)
    os._exit(1)


def _token_of(launch: Launch) -> str:
    """Return the name of the token shared by the ranks of a job on a node."""
    step = os.environ.get("SLURM_JOB_ID", "") + "." + os.environ["SLURM_STEP_ID"] if "SLURM_STEP_ID" in os.environ else ""
    return f"jobflow-{os.getuid()}-{launch.master or step or os.getppid()}"


def _claim(launch: Launch) -> socket.socket | None:
    """Return a token that only one process of a job on a node can hold until it ends; None if another process holds it.

    An abstract socket name is exclusive and needs no cleanup.  Every process gets a token
    on systems without such names, and if each rank has its own terminal.
    """
    token = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if not sys.platform.startswith("linux") or (launch.master and not launch.supervised):  # each rank has its own terminal
        return token
    try:
        token.bind(f"\0{_token_of(launch)}")
    except OSError:
        token.close()
        return None
    return token


def abort(launch: Launch, code: int = 1) -> NoReturn:
    """End all ranks of the job with an exit code."""
    _say_goodbye()
    if _Guard.report_error is not None:
        _Guard.report_error(f"rank {launch.rank} failed")
        os._exit(code)
    mpi = sys.modules.get("mpi4py.MPI")
    # MPI_Abort prints lines, which are unwanted after Ctrl-C
    quiet = code == INTERRUPTED and "PMI_FD" in os.environ
    if not quiet and mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)
    # without MPI, an exit is not enough: MPICH's launcher keeps the others running, and they wait for this rank forever
    if not _abort_launcher(code) and launch.launcher != "Open MPI":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)  # launchers end the job after a signal
    os._exit(code)


def _abort_launcher(code: int) -> bool:
    """Request the end of the job from MPICH's launcher, and wait for it; return False without such a launcher."""
    if "PMI_FD" not in os.environ:
        return False
    os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=%d\n" % code)  # PMI-1, the launcher's protocol
    time.sleep(GRACE)
    return True
