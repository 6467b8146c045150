"""Whether a launcher started this process as one of several, and how such a job ends.

Nothing here imports MPI: `launched` reads the environment, and `guard` is cheap enough for every import of jobflow.  After `guard`

* ranks above 0 that mpiexec or srun started print nothing on standard output, until `unmute`;
* an uncaught exception on any rank is printed once, with the rank, and ends the whole job with exit code 1; so does an error of
  jobflow in any other of its Python threads;
* a rank that comes to the end of its script tells the others, so that none waits for it in vain.
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
from jobflow.runtime.interrupts import INTERRUPTED, described, is_interrupt, shows_traceback
from jobflow.runtime.thread_start import address_space, has_limit
from jobflow.runtime.world import mpi_end, watcher
from jobflow.runtime.world.environment import Launch as Launch
from jobflow.runtime.world.environment import check_process
from jobflow.runtime.world.environment import launched as launched

#: seconds that the first failing rank lives on: others which fail in the same way find that it has spoken, and the launcher,
#: which drops what it has not yet passed on when a job is aborted, passes on what was printed
GRACE = 0.3
#: seconds that a rank which has to stop leaves to the one that failed, to end the job
DEFERENCE = 1.2


class _Guard:
    """What `guard` changed in this process."""

    launch: Launch | None = None
    #: a copy of the standard output that was muted
    output: int | None = None
    #: what to do when the script comes to its end; a world that has started puts its own in place
    leave: Callable[[], None] | None = None
    #: tells ranks that no mpiexec started of this one's end by an error
    fail: Callable[[str], None] | None = None
    #: children by fork are no ranks
    pid = 0
    #: this rank has an error of its own to print
    failing = False
    #: what `say_once` holds until this process ends
    token: socket.socket | None = None
    #: to the process that watches this one
    watcher: socket.socket | None = None


def starts_ranks(command: Sequence[str] = sys.orig_argv) -> bool:
    """True in `jobflow launch`, which is no rank whatever variables are left over in its terminal."""
    pairs = zip(command, command[1:], strict=False)
    return any(pair == ("-m", "jobflow.distributed.launch") or (os.path.basename(pair[0]) == "jobflow" and pair[1] == "launch") for pair in pairs)


def guard(launch: Launch, leave: Callable[[], None], fail: Callable[[str], None] | None = None) -> None:
    """Make this process a good member of its job; `leave` tells the other ranks that its script has ended.

    `fail`, for ranks that no mpiexec started, tells them of an error.
    """
    if _Guard.launch is not None:
        return
    _Guard.launch, _Guard.leave, _Guard.fail, _Guard.pid = launch, leave, fail, os.getpid()
    for stream in (sys.stdout, sys.stderr):
        # a rank may be killed at any time because another failed: what it printed should not die in a buffer
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, write_through=False)  # whole lines, so that those of two ranks do not mix
    if not launch.master:
        _Guard.watcher = watcher.start(launch.rank, launch.size, _token_of(launch))
    if launch.rank > 0 and not launch.multi:
        _mute()
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    atexit.register(_leave)


def _leave() -> None:
    if _Guard.leave is not None and _Guard.pid == os.getpid():
        _Guard.leave()
        _say_goodbye()
    elif _Guard.launch is not None and "mpi4py.MPI" in sys.modules and not mpi_end.is_ours():
        print(
            f"jobflow: a child by fork of rank {_Guard.launch.rank} ends MPI, which ends its ranks: leave it by os._exit, or import mpi4py.MPI "
            f"after jobflow has started MPI",
            file=sys.stderr,
        )


def _say_goodbye() -> None:
    """Whoever watches this process need not tell of its end: it is orderly, or the process tells of it itself."""
    if _Guard.watcher is not None:
        with suppress(OSError):
            _Guard.watcher.send(watcher.GOODBYE)
        _Guard.watcher.close()
        _Guard.watcher = None


@contextmanager
def mpi_starts(longest: float) -> Iterator[None]:
    """Have the start of MPI watched: after `longest` seconds it ends the job if ranks are missing."""
    _send_watcher(b"%b %a" % (watcher.STARTING, longest))
    with _interrupts_to_watcher():
        yield
    _send_watcher(watcher.STARTED)


@contextmanager
def _interrupts_to_watcher() -> Iterator[None]:
    """Send the watcher the numbers of signals at once: their Python handlers do not run inside MPI's start."""
    if _Guard.watcher is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _Guard.watcher.setblocking(False)
    before = signal.set_wakeup_fd(_Guard.watcher.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        if _Guard.watcher is not None:
            _Guard.watcher.setblocking(True)


def _send_watcher(message: bytes) -> None:
    if _Guard.watcher is not None:
        with suppress(OSError):  # somebody has ended it
            _Guard.watcher.send(message)


def leave_now() -> NoReturn:
    """End this process as the end of its script would, exit code 0; no `except` and no `finally` of the program gets in between.

    A program may catch everything around a call of a job; a rank that left by an exception would go on with it then.
    """
    if threading.current_thread() is not threading.main_thread():
        _exit_beside_others()
    ctypes.pythonapi.Py_Exit(0)  # ends threads, calls what atexit has, and MPI's end, in the interpreter's own order
    raise AssertionError("unreachable")


def _exit_beside_others() -> NoReturn:
    """The end of a process that another thread than the main one brings about: the interpreter's own would wait for all of them."""
    _leave()
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
    """Let this rank print again."""
    if _Guard.output is not None:
        sys.stdout.flush()
        os.dup2(_Guard.output, 1)
        os.close(_Guard.output)
        _Guard.output = None


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    launch = _Guard.launch
    # who types at a prompt goes on after an error
    if launch is None or _Guard.pid != os.getpid() or hasattr(sys, "ps1") or sys.flags.interactive:
        sys.__excepthook__(kind, error, trace)
    else:
        end_job(error.with_traceback(trace), launch)


def _uncaught_in_thread(about: threading.ExceptHookArgs) -> None:
    """What a Python thread of the program did with other ranks failed, and they may wait for it; other errors are the thread's own."""
    if isinstance(about.exc_value, JobflowError):
        _uncaught(about.exc_type, about.exc_value, about.exc_traceback)
    else:
        threading.__excepthook__(about)


def guarded() -> Launch | None:
    """Which of several processes this is, if it is a member of a job; None for one that is alone, and for what starts ranks."""
    return _Guard.launch if _Guard.pid == os.getpid() else None


def check_member() -> None:
    """See `check_process`: children by fork are no members."""
    if _Guard.launch is not None:
        check_process(_Guard.pid)


def say_once(text: str, launch: Launch) -> None:
    """Print what all ranks find alike, once on each node; this process then ends as at the end of its script, after the others have come here."""
    _Guard.token = _Guard.token or _claim(launch)
    if _Guard.token is not None:
        print(text, file=sys.stderr, flush=True)


def end_job(error: BaseException, launch: Launch, text: str = "") -> NoReturn:
    """Print `error`, or `text` for it, unless another rank of this node has just printed one, and end all ranks.

    The exit code is 1, or 130 after Ctrl-C.

    The first error is the one to print: who ends because of another rank's gives that one the time.
    """
    if _follows(error, launch.rank):
        time.sleep(DEFERENCE)
    _Guard.failing = True
    claim = _claim(launch)
    code = INTERRUPTED if is_interrupt(error) else 1
    brief = code == INTERRUPTED and not shows_traceback()
    text = text or (described(error) if brief else _traceback(error))
    named = f"rank {launch.rank}: {text}"
    if claim is not None:
        print(text if launch.supervised else named, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if claim is not None and _Guard.fail is not None:
        _Guard.fail(named)
        os._exit(code)
    # whoever has not printed leaves it to the one that has to end the job; if that end does not come, it goes on
    time.sleep(GRACE if claim is not None else 3 * GRACE)
    abort(launch, code)


def _traceback(error: BaseException) -> str:
    """Return the traceback of an error, or its last line if there is no memory for more."""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except MemoryError:
        text = f"{type(error).__name__}: {error}"
    return f"{text}\n{address_space()}" if isinstance(error, MemoryError) and has_limit() else text


def _follows(error: BaseException | None, rank: int) -> bool:
    """True if an error came, on this rank, of another rank's."""
    while error is not None:
        if isinstance(error, AbortedError) or (isinstance(error, DivergedError) and error.first not in (None, rank)):
            return True
        error = error.__cause__ or error.__context__
    return False


def ended_elsewhere(text: str, show: bool) -> None:
    """Another rank has failed, so this one ends; called on a thread of its own, whatever the program is at."""
    if _Guard.failing:
        return
    launch = _Guard.launch
    assert launch is not None
    with suppress(OSError, ValueError):  # whoever read it may have gone
        sys.stdout.flush()
    if show:
        print(f"jobflow: rank {launch.rank} ends because of another:\n{text}", file=sys.stderr, flush=True)
    os._exit(1)


def _token_of(launch: Launch) -> str:
    """What the ranks of a job on a node have in common."""
    step = os.environ.get("SLURM_JOB_ID", "") + "." + os.environ["SLURM_STEP_ID"] if "SLURM_STEP_ID" in os.environ else ""
    return f"jobflow-{os.getuid()}-{launch.master or step or os.getppid()}"


def _claim(launch: Launch) -> socket.socket | None:
    """A token that one process of a job on a node can hold at a time; it ends with the process.

    An abstract socket name needs no file that someone would have to remove, and cannot be taken twice.  Where there are
    none, everybody gets the token.
    """
    token = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if not sys.platform.startswith("linux") or (launch.master and not launch.supervised):  # each has a terminal of its own
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
    if _Guard.fail is not None:
        _Guard.fail(f"rank {launch.rank} failed")
        os._exit(code)
    mpi = sys.modules.get("mpi4py.MPI")
    # MPI's own abort prints lines, which an error may have and Ctrl-C should not
    quiet = code == INTERRUPTED and "PMI_FD" in os.environ
    if not quiet and mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)
    # without MPI it is not enough to exit: MPICH's launcher lets the others run on, and wait for this rank forever
    if "PMI_FD" in os.environ:
        os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=%d\n" % code)  # PMI-1, the launcher's own protocol
        time.sleep(GRACE)
    elif launch.launcher != "Open MPI":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)  # launchers end a job of which a process died by a signal
    os._exit(code)
