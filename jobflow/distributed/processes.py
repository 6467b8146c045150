"""The processes that `jobflow launch` starts on this node, and their termination.

Each process leads a session and a process group, so children of a rank end with it.  The first rank that ends with an exit code other than 0 ends
all: SIGTERM, then SIGKILL after a grace period.  Signals to this process have the same effect.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from jobflow.distributed.output import Screen, drop_output

#: seconds between polls of the processes
TICK = 0.03
#: seconds in which output is still read after all processes have ended; their children may hold the pipes open
LAST_OUTPUT = 0.3
#: seconds to wait for the service, and for a process after a signal
FAREWELL = 2.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text: str) -> None:
    """Print a line of the launcher."""
    with suppress(BrokenPipeError):
        print(f"jobflow launch: {text}", file=sys.stderr, flush=True)


def ending(code: int) -> str:
    """Describe how a process ended, from the exit code of `subprocess`."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def finished(command: Sequence[str], limit: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a new session, and return its exit code and output.

    After `limit` seconds, end the session and raise TimeoutExpired.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, start_new_session=True, text=True, errors="replace", **options)
    try:
        out, err = process.communicate(timeout=limit)
        return subprocess.CompletedProcess(command, process.returncode, out, err)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:  # a process blocked in the kernel cannot be ended
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=FAREWELL)


class Processes:
    """The processes of the ranks on this node; `service` is the connection to the rendezvous service, None if another node runs it."""

    def __init__(self, screen: Screen, grace: float, service: socket.socket | None) -> None:
        self._screen, self._grace, self._service = screen, grace, service
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._pipes = 0
        #: the rank that failed first, on this or another node
        self._first: int | None = None
        self._stopped: int | None = None
        self._kill_at: float | None = None
        if service is not None:
            service.setblocking(False)
        self._heard = b""

    def _start(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._running[rank] = process
        self._pids[rank] = process.pid
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (rank, name))
            self._pipes += 1

    def run(self, command: Sequence[str], environments: Mapping[int, Mapping[str, str]]) -> int:
        """Start `command` with each rank's environment and wait until all processes have ended.

        Return the exit code of this process: 0, the exit code of the rank that failed first, or 128 + signal.
        """
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            for rank, environment in environments.items():
                self._start(rank, command, environment)
            self._watch()
        finally:
            # no process may remain if this one fails
            self._signal_all(signal.SIGKILL)
            for number, old in before.items():
                signal.signal(number, old)
        return self._report()

    def _watch(self) -> None:
        deadline = float("inf")
        while (self._running or self._pipes) and time.monotonic() < deadline:
            self._read()
            self._reap()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = float("inf")
            if not self._running:
                deadline = min(deadline, time.monotonic() + LAST_OUTPUT)
        for key in list(self._selector.get_map().values()):
            self._end_of(key)

    # ---------------------------------------------------------------- output

    def _read(self) -> None:
        for key, _ in self._selector.select(TICK):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                self._show(key.data, data)
            else:
                self._end_of(key)

    def _end_of(self, key: selectors.SelectorKey) -> None:
        self._show(key.data, b"")
        self._selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]
        self._pipes -= 1

    def _show(self, whose: tuple[int, str], data: bytes) -> None:
        try:
            self._screen.feed(*whose, data)
        except BrokenPipeError:
            drop_output()
            self._stop(signal.SIGPIPE)

    # ---------------------------------------------------------------- ends

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                continue
            if status.si_status != 0:
                with suppress(ProcessLookupError):  # children of the rank; its process id is its own until `poll`
                    os.killpg(process.pid, signal.SIGTERM)
            code = process.poll()
            assert code is not None
            self._codes[rank] = code
            del self._running[rank]
        ended = [rank for rank in self._codes if rank in self._pids]
        if ended or self._service is not None:
            self._listen()  # the service reports which rank was first
        for rank in ended:
            del self._pids[rank]
            self._tell({"gone": rank, "code": self._codes[rank]})
            if self._codes[rank] != 0 and self._kill_at is None:
                self._first = rank if self._first is None else self._first
                self._end_all()

    def _listen(self) -> None:
        if self._service is None:
            return
        with suppress(BlockingIOError, ConnectionError):
            self._heard += self._service.recv(1 << 16)
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            failed: int | None = json.loads(line).get("failed")
            if self._first is None and self._kill_at is None and failed is not None:
                self._first = failed
                self._kill_at = time.monotonic() + self._grace  # the service ends ranks; this process kills those that remain

    def _tell(self, message: dict[str, Any]) -> None:
        if self._service is not None:
            with suppress(OSError):
                self._service.sendall(json.dumps(message).encode() + b"\n")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopped is not None:  # a second signal
            self._kill_at = 0.0
        else:
            self._stop(number)

    def _stop(self, number: int) -> None:
        self._stopped = number
        self._end_all()

    def _end_all(self) -> None:
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + self._grace)
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _report(self) -> int:
        """Print the reason of an early end, a signal or the rank that failed first with its error; return the exit code."""
        if self._service is not None:
            self._service.close()
        if self._stopped is not None:
            say(f"ended all ranks because of {signal.Signals(self._stopped).name}")
            return 128 + self._stopped
        if self._first is None:
            return 0
        code = self._codes.get(self._first)
        if code is None:
            say(f"rank {self._first}, of another node, failed first; the ranks of this node were ended")
            return next((_positive(code) for code in self._codes.values() if code), 1)
        self._screen.repeat(self._first)
        early = ", without a report before the end of its program" if code == 0 else ""
        say(f"rank {self._first} {ending(code)}{early}; all others were ended")
        return _positive(code) or 1


def _positive(code: int) -> int:
    return 128 - code if code < 0 else code


def end_service(process: subprocess.Popen[bytes]) -> None:
    """Wait at most FAREWELL seconds for the end of the rendezvous service.

    The service may continue after that, because ranks of other nodes may need more time.
    """
    with suppress(subprocess.TimeoutExpired):
        process.wait(FAREWELL)
    process.returncode = 0 if process.returncode is None else process.returncode
