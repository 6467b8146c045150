"""The rendezvous of ranks without mpiexec: they connect, start MPI together, and detect each other's end.

The process with RANK=0 (or `jobflow launch` before it) listens at MASTER_ADDR:MASTER_PORT and starts the service there (service/main.py).
From `import jobflow` on, every rank keeps a connection to it, in a thread that retries to connect and then listens:

    Membership.need      wait until all ranks have connected and are about to start MPI; report missing ranks
    Membership.end       the script has ended; rank 0 waits until all have ended, as the service does
    Membership.fail      this rank ends by an error, so all ranks end
    start_mpi            MPI_COMM_WORLD of all ranks: the MPI library communicates with the service over the connection PMI_FD

MPI starts only when all ranks are ready, because a process inside MPI's start can neither communicate nor be interrupted.
"""

from __future__ import annotations

import errno
import importlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobflow.core.errors import JobError, RankError
from jobflow.runtime.comm import shared_memory
from jobflow.runtime.comm.waits import listed
from jobflow.runtime.thread_start import start_thread
from jobflow.runtime.world import environment as variables
from jobflow.runtime.world import mpi_end, service
from jobflow.runtime.world.environment import Launch
from jobflow.runtime.world.rank_authentication import MAKE, SILENCES, WAIT, authenticate, job_secret, longest_wait, silent
from jobflow.runtime.world.service.authentication import SECRET
from jobflow.runtime.world.service.members import memory_name, node_name
from jobflow.runtime.world.service.messages import SILENCE, SILENT, keep_alive

#: seconds after which a rank prints the ranks for which it waits; the interval then triples, up to RARE
PATIENCE = 5.0
RARE = 300.0
#: seconds between attempts to connect, at first and later, and the time limit of one attempt
RETRIES = (0.02, 0.5)
CONNECT = 10.0
#: seconds in which the service of an earlier job may still hold the port
LINGER = 1.5
#: seconds in which a failing rank tries to reach the service, so that all ranks end within two seconds
FIRST_LINE = 1.4
#: maximum characters of an error text sent to the other ranks
LONGEST_TEXT = 20_000
#: lines with which the service acknowledges an MPI library: initack, size, rank, debug
ACKNOWLEDGEMENT = 4
#: MPI libraries whose PMI-1 client accepts PMI_FD
SPEAKERS = ("MPICH", "MVAPICH", "Intel MPI")


class AddressError(JobError):
    """An address or port at which this process cannot listen or connect."""

    of_environment = True


class PortInUseError(AddressError):
    """A port on which another program listens."""


def split(master: str) -> tuple[str, int]:
    """Split "host:port" into ("host", port); an IPv6 address may have brackets."""
    host, _, port = master.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def resolve(master: str) -> tuple[socket.AddressFamily, Any]:
    """Return the address family and socket address of "host:port".

    A name with addresses of both families resolves to its IPv4 address, so that all ranks choose the same address.
    """
    host, port = split(master)
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(f"MASTER_ADDR={host} is not a name or address of a machine ({error}); set it to the machine of RANK=0") from error
    family, _, _, _, address = min(candidates, key=lambda candidate: candidate[0] != socket.AF_INET)
    return family, address


def connect(master: str, timeout: float) -> socket.socket:
    """Return a connection to the service at "host:port"."""
    family, address = resolve(master)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def listen(master: str, secret: bytes) -> socket.socket:
    """Return a socket that listens at MASTER_ADDR:MASTER_PORT only; port 0 selects any free port.

    Raises: AddressError if it cannot listen, or if other machines can reach the address and there is no secret to authenticate ranks.
    """
    family, where = resolve(master)
    if not secret and not ipaddress.ip_address(where[0]).is_loopback:
        raise AddressError(f"MASTER_ADDR={where[0]} is reachable from other machines, so ranks must share a secret: {MAKE}")
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            text = f"MASTER_PORT={where[1]} at {where[0]} is in use by another program, perhaps another job"
            raise PortInUseError(f"{text}; choose another port for all ranks") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise AddressError(f"MASTER_ADDR={where[0]} is not an address of this machine; set it to the address of the machine of RANK=0") from error
        raise AddressError(f"listening at MASTER_ADDR={where[0]} MASTER_PORT={where[1]}: {error}; choose another port for all ranks") from error
    return listener


def start_service(listener: socket.socket, size: int, secret: bytes) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the service as a process; return the process and a connection to it.  The service ends the ranks when that connection closes."""
    mine, its = socket.socketpair()
    folder = Path(service.__file__).parent
    # by its path and isolated from the package and the environment
    program = f"import sys; sys.path.append({str(folder.parent)!r}); from {folder.name}.main import main; main()"
    command = [sys.executable, "-I", "-S", "-c", program, str(size), str(listener.fileno())]
    environment = {**os.environ, SECRET: secret.decode(errors="surrogateescape")}
    with listener, its:
        process = subprocess.Popen(
            command, env=environment, stdin=its.fileno(), stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()], start_new_session=True, cwd="/"
        )
    return process, mine


def about(started: Launch) -> dict[str, Any]:
    """Return the description of this rank that it sends to the service: rank, size, process, machine and terminal."""
    node, pid = node_name(), os.getpid()
    screen = f"{node} {os.getppid()}" if started.supervised else f"{node} {pid} own"
    host, memory = socket.gethostname(), memory_name()
    return {"rank": started.rank, "size": started.size, "pid": pid, "node": node, "host": host, "memory": memory, "screen": screen}


class Membership:
    """The connection of this rank to other ranks.  Its thread calls `ended(text, shown)` if the job fails on another rank."""

    def __init__(self, started: Launch, ended: Callable[[str, bool], None]) -> None:
        self.started = started
        #: the ticket that its MPI library sends to the service
        self.ticket = 0
        self._ended = ended
        self._secret = job_secret()
        self._longest = longest_wait()
        self._news = threading.Condition()
        self._sock: socket.socket | None = None
        self._state: dict[str, Any] | None = None
        self._error: Exception | None = None
        self._trouble = "no answer yet"
        self._done = False
        self._service = self._serve() if started.rank == 0 and not started.supervised else None
        self._thread = start_thread(self._run, "jobflow rendezvous")

    # ---------------------------------------------------------------- rank 0's part

    def _serve(self) -> socket.socket:
        """Start the service and return the connection to it; raise AddressError if another process with RANK=0, or another program, uses the port."""
        deadline = time.monotonic() + LINGER
        while True:
            try:
                listener = listen(self.started.master, self._secret)
                break
            except PortInUseError:
                reason = self._rejection()
                if reason is not None:
                    raise AddressError(reason) from None
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRIES[0])
        process, parent = start_service(listener, self.started.size, self._secret)
        process.returncode = 0  # the service may outlive this process; avoids a warning of Popen
        return parent

    def _rejection(self) -> str | None:
        """Return the reason for which the service of another process with RANK=0 rejects this process; None if no such service answers."""
        master = self.started.master
        with suppress(OSError, JobError, StopIteration), connect(master, LINGER) as sock:
            _, lines = authenticate(sock, {**about(self.started), "second": True}, self._secret, master, LINGER)
            return str(json.loads(next(lines))["refused"])
        return None

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            lines = self._connect()
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits for the other ranks
            self._set(_error=error)
            return
        reason = f"the process with RANK=0, or the service that it started at {self.started.master}, has died"
        try:
            if not all(self._take(json.loads(line)) for line in lines):
                return
        except OSError as error:  # the connection broke
            if error.errno in SILENT:
                reason = (
                    f"the service at {self.started.master} has not answered for {SILENCE} s: the machine of RANK=0, "
                    f"or the network between it and {socket.gethostname()}, is down"
                )
        except Exception as error:  # noqa: BLE001 - such as MemoryError: without this thread the rank would miss the end of the job
            reason = f"reading from the service at {self.started.master}: {type(error).__name__}: {error}"
        if not self._done:
            self._ended(reason, True)

    def _connect(self) -> Iterator[str]:
        """Connect to the service and authenticate; return the lines of the service."""
        family, where = resolve(self.started.master)
        pause, silences, deadline = RETRIES[0], 0, time.monotonic() + self._longest
        while True:
            if time.monotonic() > deadline:
                raise JobError(self._timeout_text(self._no_answer_text(self._longest)))
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(CONNECT)
                sock.connect(where)
                return self._greeted(sock)
            except TimeoutError as error:
                silences += _is_connected(sock)
                if silences == SILENCES:
                    raise silent(self.started.master) from error
                self._trouble = "no answer"
            except OSError as error:
                self._trouble = error.strerror or str(error)
            except JobError:
                sock.close()
                raise
            sock.close()
            time.sleep(pause)
            pause = min(2 * pause, RETRIES[1])

    def _greeted(self, sock: socket.socket) -> Iterator[str]:
        keep_alive(sock)
        ticket, lines = authenticate(sock, about(self.started), self._secret, self.started.master)
        self._set(_sock=sock, ticket=ticket)
        return lines

    def _take(self, message: dict[str, Any]) -> bool:
        """Process a message of the service: a new state, a refusal, or the end of the job.

        Return True after a new state; otherwise return False, because no further message follows.
        """
        if "refused" in message:
            self._set(_error=JobError(message["refused"]))
            return False
        if "end" in message:
            if not self._done:
                self._ended(message["end"], message["show"])
            return False
        self._set(_state=message)
        return True

    def _set(self, **values: Any) -> None:
        with self._news:
            vars(self).update(values)
            self._news.notify_all()

    # ---------------------------------------------------------------- the ranks' calls

    def need(self) -> None:
        """Wait until all ranks are about to start MPI."""
        self._send({"need": True})
        self._wait(self._all_ready, lambda state: state["missing"] or state["idle"])

    def _all_ready(self, state: dict[str, Any]) -> bool:
        gone = sorted(set(state["left"]) & set(state["idle"]))
        if gone:
            raise RankError(gone[0], f"ended its script while rank {self.started.rank} waited for it in the start of a session")
        return not (state["missing"] or state["idle"])

    def end(self) -> None:
        """Report the end of this rank's script; on rank 0, wait until all ranks have reported the end."""
        self._send({"leave": True})
        self._done = True
        if self.started.rank == 0:
            all_ranks = list(range(self.started.size))
            self._wait(lambda state: state["left"] == all_ranks, lambda state: state["missing"])

    def waiting(self) -> list[int]:
        """Return the other ranks that are about to start MPI."""
        state = self._state or {}
        return [rank for rank in range(self.started.size) if state and rank != self.started.rank and rank not in (*state["missing"], *state["idle"])]

    def fail(self, text: str) -> None:
        """End all ranks; other ranks print `text` on screens that do not show the output of this rank."""
        self._done = True
        try:
            # a rank may fail before the service starts, or after it has ended
            self._wait_connected(FIRST_LINE)
            self._send({"failed": text[-LONGEST_TEXT:]})
        except (OSError, JobError):
            return  # other ranks report the missing service themselves

    def nodes(self) -> list[int]:
        """Return the node number of each rank, after waiting for all ranks."""
        self._wait(lambda state: state["nodes"] is not None, lambda state: state["missing"])
        assert self._state is not None
        return list(self._state["nodes"])

    def _send(self, message: dict[str, Any]) -> None:
        if self._sock is None:
            self._wait(lambda state: True, lambda state: ())
        assert self._sock is not None
        self._sock.sendall(json.dumps(message).encode() + b"\n")

    def _wait_connected(self, limit: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._sock is not None or self._error is not None, limit)
        if self._sock is None:
            raise self._error or JobError("not connected")

    def _wait(self, ready: Callable[[dict[str, Any]], bool], awaited: Callable[[dict[str, Any]], Sequence[int]]) -> None:
        """Wait until `ready(state)`; print the ranks in `awaited(state)` at growing intervals."""
        began, patience = time.monotonic(), PATIENCE
        while True:
            with self._news:
                if self._error is not None:
                    raise self._error
                if self._state is not None and ready(self._state):
                    return
                if self._done and self._state is not None and not self._thread.is_alive():
                    return  # the service has ended, because all ranks have
                left = began + patience - time.monotonic()
                self._news.wait(min(left, 0.5) if left > 0 else 0)
            if left <= 0:
                self._announce(patience, awaited)
                patience += min(2 * patience, RARE)
            if self._state is not None and self._state["missing"] and time.monotonic() - began > self._longest:
                raise JobError(self._timeout_text(self._missing_text(self._longest, self._state["missing"])))

    def _announce(self, waited: float, awaited: Callable[[dict[str, Any]], Sequence[int]]) -> None:
        state = self._state
        if state is None:
            print(f"jobflow: {self._no_answer_text(waited)}", file=sys.stderr, flush=True)
        elif state["missing"]:
            print(f"jobflow: {self._missing_text(waited, state['missing'])}", file=sys.stderr, flush=True)
        elif idle := awaited(state):
            print(f"jobflow: {self._waited(waited, listed(idle))}, still running, to start a job or global tensor", file=sys.stderr, flush=True)

    def _waited(self, seconds: float, target: str) -> str:
        return f"rank {self.started.rank} of {self.started.size} has waited {seconds:g} s for {target}"

    def _no_answer_text(self, seconds: float) -> str:
        """Return the message that the service has not answered for `seconds` seconds, with the variables that start it."""
        return f"{self._waited(seconds, f'RANK=0 at {self.started.master}')} ({self._trouble}); start it with {self._start_variables(0)}"

    def _missing_text(self, seconds: float, missing: Sequence[int]) -> str:
        """Return the message that the ranks `missing` have not connected for `seconds` seconds, with the variables that start one."""
        them = "it" if len(missing) == 1 else "each"
        return f"{self._waited(seconds, listed(missing))}; start {them} with {self._start_variables(missing[0])}"

    def _timeout_text(self, waited: str) -> str:
        """Return the error of a rank whose wait, described by `waited`, has reached the time limit."""
        advice = f"if the other rank was started, its output states the reason; set {WAIT} to wait for more seconds"
        return f"{waited}. The time limit is reached; {advice}"

    def _start_variables(self, rank: int) -> str:
        host, port = split(self.started.master)
        same = f" and the same {SECRET}" if self._secret else ""
        return f"MASTER_ADDR={host} MASTER_PORT={port} WORLD_SIZE={self.started.size} RANK={rank}{same}"


def _is_connected(sock: socket.socket) -> bool:
    with suppress(OSError):
        return bool(sock.getpeername())
    return False


# ---------------------------------------------------------------- MPI


def start_mpi(member: Membership) -> Any:
    """Return the module mpi4py.MPI, started with all ranks.

    Raises: JobError if MPI has been initialized before, or if its library cannot be started over PMI-1.
    """
    settings = importlib.import_module("mpi4py").rc
    ours = "mpi4py.MPI" not in sys.modules
    if ours:
        settings.initialize = False
        mpi_end.leave_to_us(settings)
    mpi = importlib.import_module("mpi4py.MPI")
    if ours:
        mpi_end.ends_with_interpreter(mpi)
    if mpi.Is_initialized():
        raise JobError(
            "start of MPI: mpi4py.MPI was imported before jobflow started MPI, so MPI contains this process only; "
            "import it after the first job or global tensor, or start the program with mpiexec"
        )
    name, version = mpi.get_vendor()
    if name not in SPEAKERS:
        raise JobError(
            f"start of MPI: mpi4py uses {name} {'.'.join(map(str, version))}, which only its own mpiexec can start; run "
            f'"mpiexec -n {member.started.size} python script.py", or install an MPICH with: pip install "jobflow-sbp[mpi]"'
        )
    member.need()
    if len(set(member.nodes())) > 1:
        shared_memory.prepare_nodes()
    _initialize(mpi, member.started, member.ticket)
    return mpi


def _initialize(mpi: Any, started: Launch, ticket: int) -> None:
    """Start MPI with the variables that connect it to the service, and remove them afterwards, so that child processes do not inherit them."""
    # MPI libraries read PMI_PORT up to its first colon, so they cannot connect to an IPv6 address themselves
    values = {"PMI_FD": str(_present(started, ticket)), "PMI_RANK": str(started.rank), "PMI_SIZE": str(started.size)}
    before = {name: os.environ.pop(name, None) for name in (*values, "PMI_PORT", "PMI_ID")}
    os.environ.update(values)
    try:
        mpi.Init_thread(mpi.THREAD_SERIALIZED)  # one thread per rank calls MPI
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _present(started: Launch, ticket: int) -> int:
    """Open a connection to the service for the MPI library of this rank, and return its file descriptor.

    The service identifies the rank by `ticket`.  Raises: JobError if the service closes the connection.
    """
    with connect(started.master, CONNECT) as sock:
        sock.sendall(f"cmd=initack pmiid={ticket}\n".encode())
        answer = b""
        while answer.count(b"\n") < ACKNOWLEDGEMENT:
            received = sock.recv(1024)
            if not received:
                raise JobError(
                    f"the service at {started.master} closed the connection of MPI on rank {started.rank} before its start; start all ranks again"
                )
            answer += received
        sock.setblocking(True)
        return sock.detach()


_members: list[Membership] = []


def join(started: Launch, ended: Callable[[str, bool], None]) -> Membership:
    """Create the membership of this process, which lasts until the process ends."""
    _members.append(Membership(started, ended))
    return _members[0]


def member() -> Membership:
    """Return the membership of this process; raise JobError if the process has not joined other ranks."""
    if not _members:
        raise JobError("this process has not joined other ranks; set MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK before `import jobflow`")
    return _members[0]


# ---------------------------------------------------------------- positions


def local_rank() -> int:
    """Return the number of this process on its node.

    If no variable states it, communicate with the other ranks; raise JobError under mpiexec and srun, which have no rendezvous.
    """
    number = variables.local_rank_from_launcher()
    if number is not None:
        return number
    nodes = _nodes("LOCAL_RANK")
    me = variables.rank()
    return nodes[:me].count(nodes[me])


def node_size() -> int:
    """Return the number of nodes.

    If no variable states it, communicate with the other ranks; raise JobError under mpiexec and srun, which have no rendezvous.
    """
    size = variables.node_size_from_launcher()
    return size if size is not None else len(set(_nodes("the number of nodes")))


def _nodes(variable: str) -> list[int]:
    started = variables.launched()
    if started is not None and not started.master:
        raise JobError(f"{started.launcher} does not set {variable} in the environment; start the program with `jobflow launch`")
    return member().nodes()
