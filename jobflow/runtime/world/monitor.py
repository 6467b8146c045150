"""A process that monitors a rank started by mpiexec, and reports its end.

MPICH's process managers do not report the end of a rank reliably.  If a process exits with code 0 without finalizing MPI, they end the job silently
with exit code 0.  They miss the end of a process that has not started MPI, or whose children hold its connections.
Ranks survive the end of their local proxy.  So each rank has a monitor:

    the rank ends without announcement                  the monitor reports it, and requests exit code 1 from the process manager
    the process manager ends while the rank runs        it ends the rank, and removes the names of its shared memory
    MPI's start waits for missing ranks                 it names them, and after a time limit requests exit code 1
    other ranks start MPI after the rank's main thread  it names the rank, and after a time limit requests exit code 1
    SIGINT before MPI has started                       it prints one line, and requests exit code 130

MPI's start holds the interpreter lock, so no thread of the rank could do the last three tasks.

The monitor is a separate program, started by `start`.  It runs isolated Python and imports the standard library only:

    python monitor.py RANK SIZE NAME LINE PROCESS STARTER

The last three are file descriptors.  LINE is a socket to the rank, PROCESS its pidfd,
and STARTER a copy of its connection to the process manager.  Because of the copy, the starter does not see the end of the rank before the monitor.
NAME is the token of the rank of a node that has reported an error.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

#: sent by a monitor when it is ready
READY = b"."
#: sent by a rank before an end that needs no report
GOODBYE = b"."
#: sent by a rank before MPI starts, with the seconds that it waits for others, and when MPI has started
STARTING, STARTED = b"starting", b"started"
#: sent by a rank when its main thread has ended before MPI has started, with the seconds that others wait for it, and the remaining threads
LINGERING = b"lingering"
#: maximum bytes of a message of a rank
LONGEST = 1000
#: text and exit code after SIGINT before MPI has started
INTERRUPTED_TEXT, INTERRUPTED = "interrupted while MPI starts", 128 + signal.SIGINT
#: advice for a rank whose main thread has ended
JOIN_ADVICE = "end it with the main thread (join, or daemon=True), or set JOBFLOW_JOIN_SECONDS to wait longer"
#: seconds after which a monitor names the missing ranks
PATIENCE = 5.0
#: seconds between polls for missing ranks
POLL = 0.5
#: seconds in which the end of a job also closes the process manager's connection
SETTLE = 0.3
#: seconds in which the monitor of the first failed rank can report and end the job
DEFERENCE = 3 * SETTLE
#: seconds after SIGINT in which it is the cause of the end of a rank
RECENT = 2.0
#: seconds that a rank waits for its monitor
START = 5.0
#: seconds in which a rank without its process manager may end by itself
GRACE = 0.5
#: files of MPICH in /dev/shm
SHARED = "/dev/shm/mpich_shm_"


def start(rank: int, size: int, token: str) -> socket.socket | None:
    """Start the monitor of this process; return the socket for `GOODBYE`.  None without MPICH or without pidfds.

    Return when the monitor is ready.  Otherwise the process manager could end the other ranks before the monitor notices the end of this one.
    Their ends would then be reported as the first.
    """
    starter = os.environ.get("PMI_FD", "")
    if not starter.isdigit() or not hasattr(os, "pidfd_open") or not sys.executable:
        return None
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = os.pidfd_open(os.getpid())
    descriptors = (its.fileno(), process, int(starter))
    command = [sys.executable, "-I", "-S", __file__, str(rank), str(size), token, *map(str, descriptors)]
    try:
        with its:
            child = subprocess.Popen(  # in the session of the rank, so that a child of the monitor can join the rank's process group
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=descriptors, process_group=0, cwd="/"
            )
    except OSError:
        mine.close()  # such as for a PMI_FD of another process
        return None
    finally:
        os.close(process)
    child.returncode = 0  # the monitor outlives this process; avoids a warning of Popen
    if poller((mine.fileno(), select.POLLIN)).poll(1000 * START):
        mine.recv(1)
    return mine


def poller(*files: tuple[int, int]) -> select.poll:
    """Return a poll object for these files and events."""
    poll = select.poll()
    for number, events in files:
        poll.register(number, events)
    return poll


def is_over(process: int, seconds: float) -> bool:
    """Return True if a process has ended, or ends within `seconds`."""
    return bool(poller((process, select.POLLIN)).poll(1000 * seconds))


def is_closed(starter: int, seconds: float) -> bool:
    """Return True if the process manager has closed its end of the connection, or closes it within `seconds`."""
    return bool(poller((starter, select.POLLRDHUP)).poll(1000 * seconds))


class AbsentRanks:
    """The ranks that have not imported jobflow while this one waits in the start of MPI.

    Each monitor holds a socket name of its rank, so the ranks of one machine can detect each other before MPI starts.
    """

    def __init__(self, rank: int, size: int, starter: int) -> None:
        self._rank, self._size, self._starter = rank, size, starter
        self._name = f"jobflow-{os.getuid()}-{starter_pid(starter)}"
        #: ranks of this machine
        self._here = int(os.environ.get("MPI_LOCALNRANKS", size))
        self._began: float | None = None
        self._longest = 0.0
        self._announced = False
        #: the name that this process holds while its rank starts MPI
        self._start: socket.socket | None = None
        #: the text of the remaining threads after the end of the main thread, the seconds that others wait, and the time since which they do
        self._remaining, self._patience, self._awaited = "", 0.0, float("inf")
        claim(f"{self._name}.{rank}")

    def starting(self, longest: float) -> None:
        """Record the start of MPI, which waits for other ranks for `longest` seconds."""
        self._began, self._longest = time.monotonic(), longest
        self._start = hold(f"{self._name}.{self._rank}.starting")
        self._remaining = ""

    def started(self) -> None:
        """Record that MPI has started."""
        self._began = None
        if self._start is not None:
            self._start.close()

    def lingering(self, longest: float, remaining: str) -> None:
        """Record the end of the rank's main thread, while `remaining` still runs; other ranks wait for this rank for at most `longest` seconds."""
        self._remaining, self._patience = remaining, longest

    @property
    def is_starting(self) -> bool:
        return self._began is not None

    def is_too_long(self) -> str:
        """Print the ranks that are missing or wait for this one; return the text of the error, or "" if there is no error yet.

        It is an error if a missing rank has ended, or if a wait reaches the time limit.
        """
        if self._remaining:
            return self._lingers_too_long()
        if self._began is None:
            return ""
        waited = time.monotonic() - self._began
        if waited < min(PATIENCE, self._longest):
            return ""
        missing = self._missing()
        if not missing:
            return ""
        if self._has_ended():
            advice = "its output states the reason, such as too little memory (ulimit -v)"
            return f"start of MPI: rank {self._rank} of {self._size} waits for {missing}, which ended without importing jobflow; {advice}"
        if waited >= self._longest:
            advice = "start all ranks with a program that imports jobflow, or set JOBFLOW_JOIN_SECONDS to wait longer"
            return f"start of MPI: rank {self._rank} of {self._size} has waited {self._longest:g} s for {missing}; {advice}"
        if not self._announced:
            self._announced = True
            say(f"rank {self._rank} of {self._size} has waited {PATIENCE:g} s for {missing}, which must import jobflow")
        return ""

    def _lingers_too_long(self) -> str:
        """Print the ranks that wait for this one after the end of its main thread; return the text of an error after the time limit."""
        waiting = _listed({rank for rank in range(self._size) if rank != self._rank and is_held(f"{self._name}.{rank}.starting")})
        now = time.monotonic()
        self._awaited = min(self._awaited, now) if waiting else float("inf")
        waited = now - self._awaited
        if waited < min(PATIENCE, self._patience):
            return ""
        text = f"rank {self._rank}: {lingering_text(self._remaining, waiting, waited, 'the start of MPI')}"
        if waited >= self._patience:
            return text
        if not self._announced:
            self._announced = True
            say(f"{text}; the job ends after {self._patience:g} s")
        return ""

    def _has_ended(self) -> bool:
        """Return True if some, but not all, of the ranks that the process manager started on this machine have ended."""
        return 0 < sum(map(is_alive, ranks_of(self._starter))) < self._here

    def _missing(self) -> str:
        """Describe the ranks of this machine without a monitor, only by their number if the job has other machines; "" if there are none."""
        there = {rank for rank in range(self._size) if is_held(f"{self._name}.{rank}")}
        if self._here < self._size:
            lacking = self._here - len(there)
            return f"{lacking} of the {self._here} ranks of this machine (here: {_listed(there)})" if lacking > 0 else ""
        return _listed(set(range(self._size)) - there)


def _listed(ranks: set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}" if ranks else ""


def lingering_text(remaining: str, waiting: str, waited: float, what: str) -> str:
    """Return the error of a rank whose main thread has ended, while other ranks wait for it."""
    began = f"{waiting} began to wait for this rank in {what} {waited:.0f} s ago"
    return f"the main thread has ended, but {remaining} still runs, and {began}; {JOIN_ADVICE}"


class Interrupts:
    """A detector of SIGINT in the process group of the rank: the monitor forks a child into that group.

    SIGINT ends a rank that has not imported jobflow.  The process manager then kills the other ranks, possibly before they handle their SIGINT.
    The exit status of the rank may therefore not show the SIGINT; the exit status of the child does.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._at = -float("inf")
        #: the child ends when the monitor, which alone can write to the pipe, has ended
        self._pipe = os.pipe()
        self._child: int | None = None
        #: the pidfd of the child; None without one
        self.file: int | None = None
        self._start()

    def _start(self) -> None:
        try:
            group = os.getpgid(pid_of(self._process))
        except OSError:
            return  # the rank has ended
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # for the child
        child = os.fork()
        if child == 0:
            os.dup2(self._pipe[0], 0)
            os.closerange(3, max(*self._pipe, self._process) + 1)
            os.read(0, 1)
            os._exit(0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):
            os.setpgid(child, group)
        self._child, self.file = child, os.pidfd_open(child)

    def renew(self) -> None:
        """Reap the ended child, record a SIGINT that ended it, and start another child."""
        self._end()
        self._start()

    def _end(self) -> None:
        if self._child is not None and self.file is not None:
            _, status = os.waitpid(self._child, 0)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT:
                self._at = time.monotonic()
            os.close(self.file)
            self._child = self.file = None

    def is_recent(self, seconds: float = 0.0) -> bool:
        """Return True if a SIGINT has arrived within the last RECENT seconds, or arrives within `seconds`."""
        if self.file is not None and is_over(self.file, seconds):
            self._end()
        return time.monotonic() < self._at + RECENT

    def close(self) -> None:
        """Kill the child process, if there is one."""
        if self._child is not None:
            os.kill(self._child, signal.SIGKILL)
            self._end()


def is_held(name: str) -> bool:
    """Return True if a process holds the abstract socket name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(f"\0{name}")
        except OSError:
            return True
    return False


def watch(line: int, process: int, starter: int, absent: AbsentRanks, interrupts: Interrupts) -> str:
    """Wait for the end of the rank or its process manager.

    Return "rank" or "starter" for the first unannounced end, the text of an error, or "" if there is nothing to report.
    """
    files = [(line, select.POLLIN), (process, select.POLLIN), (starter, select.POLLRDHUP)]
    while True:
        listening = [] if interrupts.file is None else [(interrupts.file, select.POLLIN)]
        ready = {number for number, _ in poller(*files, *listening).poll(1000 * POLL)}
        if line in ready:
            message, *rest = os.read(line, LONGEST).split(maxsplit=2) or [b""]
            if message == GOODBYE:
                return ""
            if message == STARTING:
                absent.starting(float(rest[0]))
                continue
            if message == STARTED:
                absent.started()
                interrupts.close()
                continue
            if message == LINGERING:
                absent.lingering(float(rest[0]), rest[1].decode(errors="replace"))
                continue
            # the rank has ended, or was replaced by another program, which has its own monitor if it is a rank
            if not is_over(process, 1.0):
                return ""
        if process in ready or line in ready:
            return "rank"
        if starter in ready:
            return "starter"
        if interrupts.file in ready:
            if interrupts.is_recent() and absent.is_starting:
                return INTERRUPTED_TEXT
            interrupts.renew()
        if error := absent.is_too_long() or stopped(process):
            return error


def stopped(process: int) -> str:
    """Return the text of an error if the rank is stopped and has a pending SIGTERM, because its peers would wait for it; otherwise return ""."""
    with suppress(OSError), open(f"/proc/{pid_of(process)}/status", encoding="ascii", errors="replace") as status:
        words = {name: value.split()[0] for name, _, value in (line.partition(":") for line in status) if value.strip()}
        pending = int(words["SigPnd"], 16) | int(words["ShdPnd"], 16)
        if words["State"] in ("T", "t") and pending >> (signal.SIGTERM - 1) & 1:
            return "a stopped rank (SIGSTOP) cannot follow SIGTERM; all ranks are ended"
    return ""


def names_of(pid: int) -> set[str]:
    """Return the shared-memory files of MPICH that a process maps."""
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        return {word for line in maps for word in line.split()[5:6] if word.startswith(SHARED)}
    return set()


def pid_of(process: int) -> int:
    """Return the process id of a pidfd; 0 if the process has ended."""
    with open(f"/proc/self/fdinfo/{process}", encoding="ascii") as info:
        pid = next((int(line.split()[1]) for line in info if line.startswith("Pid:")), 0)
    return max(pid, 0)


def starter_pid(starter: int) -> int:
    """Return the process id of the process manager; 0 if the system does not state it."""
    peer = socket.socket(fileno=os.dup(starter))
    with peer, suppress(OSError):
        return int.from_bytes(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
    return 0


def ranks_of(starter: int) -> list[int]:
    """Return the ids of the processes that the process manager has started on this node; [] if the system does not list them."""
    pid = starter_pid(starter)
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [int(word) for word in children.read().split()]
    return []


def is_alive(pid: int) -> bool:
    """Return True if a process runs; False for a zombie."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def hold(name: str) -> socket.socket | None:
    """Return a socket that holds the abstract name until it is closed; None if another process holds the name."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0{name}")
    except OSError:
        holder.close()
        return None
    return holder


def claim(token: str) -> bool:
    """Hold the abstract socket name `token` until this process ends; return False if another process holds the name."""
    holder = hold(token)
    if holder is not None:
        _held.append(holder)
    return holder is not None


_held: list[socket.socket] = []


def say(text: str) -> None:
    """Print a message on standard error; do nothing if that is closed."""
    with suppress(OSError):
        os.write(2, f"jobflow: {text}\n".encode())


def end_job(rank: int, token: str, starter: int, interrupts: Interrupts, *, starting: bool) -> None:
    """Report the end of the rank and end the job, unless the whole job is ending.

    `starting` is True if the rank was in the start of MPI, which ends the process after an error, often because another rank has ended.
    The monitor of that other rank then reports the cause.
    """
    # immediately, because the process manager may end the other ranks, whose monitors then claim it
    first = not starting and claim(token)
    if interrupts.is_recent(SETTLE):
        report(INTERRUPTED_TEXT if starting else "interrupted", starter, INTERRUPTED, first=first or claim(token))
        return
    if starting:
        if is_closed(starter, DEFERENCE):
            return
        first = claim(token)
    if is_closed(starter, SETTLE):
        return
    cause = "in the start of MPI, such as for too little memory (ulimit -v, /dev/shm)" if starting else "it was killed, or called os._exit"
    report(f"rank {rank} ended without a report: {cause}; all others are ended", starter, first=first)


def report(text: str, starter: int, code: int = 1, *, first: bool) -> None:
    """Print the text and end the job.

    A monitor that is not the `first` to report prints nothing; it ends the job only if the job still runs after DEFERENCE seconds.
    """
    if first:
        say(text)
        time.sleep(SETTLE)  # an abort drops output that the process manager has not forwarded
    elif is_closed(starter, DEFERENCE):
        return
    abort(starter, code)


def abort(starter: int, code: int = 1) -> None:
    """Request the end of the job with an exit code from the process manager."""
    names = {name for pid in ranks_of(starter) for name in names_of(pid)}
    with suppress(OSError):
        os.write(starter, b"cmd=abort exitcode=%d\n" % code)  # PMI-1, the process manager's protocol
    is_closed(starter, 2.0)
    forget(names)


def end_rank(rank: int, token: str, process: int) -> None:
    """Kill the rank if it still runs GRACE seconds after the end of its process manager, and remove the names of its shared memory."""
    if is_over(process, GRACE):
        return
    names = names_of(pid_of(process))
    if claim(token):
        say(f"rank {rank} ends, because the process manager of this node, which mpiexec started, has ended")
    with suppress(OSError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    is_over(process, 2.0)
    forget(names)


def forget(names: set[str]) -> None:
    """Remove the names of shared memory; the memory itself lasts as long as a process maps it."""
    for name in names:
        with suppress(OSError):
            os.unlink(name)


def main() -> None:
    """Run the monitor; the docstring of the module lists the arguments."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # the rank handles them
    rank, size, token = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    line, process, starter = map(int, sys.argv[4:])
    absent = AbsentRanks(rank, size, starter)
    interrupts = Interrupts(process)
    with suppress(OSError):
        os.write(line, READY)
    try:
        ended = watch(line, process, starter, absent, interrupts)
        if ended == "rank":
            end_job(rank, token, starter, interrupts, starting=absent.is_starting)
        elif ended == "starter":
            end_rank(rank, token, process)
        elif ended:
            report(ended, starter, INTERRUPTED if ended == INTERRUPTED_TEXT else 1, first=claim(token))
    finally:
        interrupts.close()


if __name__ == "__main__":
    main()
