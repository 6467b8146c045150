"""Several trials at once, each in a process of its own: `jobflow train FILE` with the settings of the trial.

The processes share the cores of this process evenly.  Each line of their output is printed with the name of the trial.  Ctrl-C and SIGTERM are
sent on to each process by its id, which saves and ends; a second signal kills the processes.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from types import FrameType
from typing import Any

import psutil

from jobflow.core.dataclass import dataclass
from jobflow.distributed.processes import ending
from jobflow.runtime.world.environment import usable_cores
from jobflow.trainer.run_file import RunRecord
from jobflow.trainer.sweep.trial_results import record_of
from jobflow.trainer.sweep.trials import Trial
from jobflow.trainer.training_run import ENDS

#: seconds between polls of the processes
TICK = 0.1
#: number of last lines of output that may contain the cause of a failure
LINES = 50
#: an incomplete line is printed after this number of bytes
LONGEST = 1 << 16
#: exit code -> kind of end
ENDED = {code: kind for kind, (code, *_) in reversed(ENDS.items())}


@dataclass
class Child:
    """The process of a trial, with the incomplete last line and the last complete lines of its output."""

    trial: Trial
    process: subprocess.Popen[bytes]
    cores: set[int]
    pending: bytes = b""
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LINES))

    @property
    def cause(self) -> str:
        """The last line of the output, which names the error."""
        return self.last[-1] if self.last else f"the process {ending(self.process.returncode)}"


class Processes:
    """Up to `jobs` processes of trials; `resume` and `time_limit` are options of `jobflow train`."""

    def __init__(self, file: str, jobs: int, resume: str, time_limit: float | None, say: Callable[[str], None]) -> None:
        self._file, self._jobs, self._resume, self._limit, self._say = file, jobs, resume, time_limit, say
        self._children: list[Child] = []
        self._free = list(parts(sorted(usable_cores()), jobs))
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []

    def run(self, next_trial: Callable[[], Trial | None], ended: Callable[[Trial, RunRecord], None]) -> str:
        """Run trials until none remains or a signal ends the sweep; return the kind of end: "end", "interrupt" or "terminated"."""
        with self._handled():
            try:
                more = True
                while more or self._children:
                    while more and not self._signals and len(self._children) < self._jobs:
                        trial = next_trial()
                        more = trial is not None
                        if trial is not None:
                            self._start(trial)
                    self._read()
                    for child in [child for child in self._children if child.process.poll() is not None]:
                        self._drain(child)
                        ended(child.trial, self._record(child))
                    more = more and not self._signals
            finally:
                self._kill()
        return "end" if not self._signals else "interrupt" if self._signals[0] == signal.SIGINT else "terminated"

    # ---------------------------------------------------------------- start

    def command(self, trial: Trial) -> list[str]:
        """Return the command of a trial's process."""
        words = [word for setting in trial.settings for word in ("--set", str(setting))]
        if self._limit is not None:
            left = self._limit - (time.time() - psutil.Process().create_time())
            words += ["--time-limit", f"{max(left, 1e-3):.3f}"]
        return [sys.executable, "-m", "jobflow", "train", self._file, *words, "--resume", self._resume]

    def _start(self, trial: Trial) -> None:
        cores = self._free.pop(0)
        with running_on(cores):  # the process inherits the cores
            process = subprocess.Popen(
                self.command(trial), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        child = Child(trial, process, cores)
        self._children.append(child)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)

    # ---------------------------------------------------------------- output

    def _read(self) -> None:
        """Print the output that becomes available within TICK seconds."""
        if not self._selector.get_map():
            time.sleep(TICK)
        for key, _ in self._selector.select(TICK):
            if not self._read_once(key.data):
                self._selector.unregister(key.fileobj)

    def _read_once(self, child: Child) -> bool:
        """Print the available output of a process by lines; return False if none is available, at the end of the output."""
        assert child.process.stdout is not None
        try:
            data = os.read(child.process.stdout.fileno(), LONGEST)
        except BlockingIOError:
            return False
        *lines, child.pending = (child.pending + data).split(b"\n")
        if child.pending and (len(child.pending) > LONGEST or not data):
            lines, child.pending = [*lines, child.pending], b""
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                child.last.append(text)
                self._say(f"{child.trial.name} | {text}")
        return bool(data)

    def _drain(self, child: Child) -> None:
        """Print the remaining output of an ended process, and release its pipe and its cores."""
        pipe = child.process.stdout
        assert pipe is not None
        while self._read_once(child):
            pass
        if pipe.fileno() in self._selector.get_map():
            self._selector.unregister(pipe)
        pipe.close()
        self._children.remove(child)
        self._free.append(child.cores)

    @staticmethod
    def _record(child: Child) -> RunRecord:
        """Return the record of the run, with the kind of end by the exit code of the process."""
        code, trial = child.process.returncode, child.trial
        record = record_of(trial) or RunRecord(trial.loaded.config.name, trial.loaded.plain)
        kind = ENDED.get(code, "failed")
        if record.stopped and ENDS.get(record.stopped, (None,))[0] == code:
            return record
        return replace(record, stopped=kind, message=child.cause if kind == "failed" else record.message)

    # ---------------------------------------------------------------- signals

    @contextmanager
    def _handled(self) -> Iterator[None]:
        """Send SIGINT, SIGTERM and SIGHUP on to the processes inside the block."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            self._kill()
            return
        for child in self._children:
            with suppress(ProcessLookupError):
                os.kill(child.process.pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _kill(self) -> None:
        """Kill the remaining processes with their own children, which are in sessions of their own."""
        for child in self._children:
            if child.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)


def parts(cores: Sequence[int], jobs: int) -> Iterator[set[int]]:
    """Divide cores among jobs; jobs share cores if there are more jobs than cores."""
    for i in range(jobs):
        own = cores[len(cores) * i // jobs : len(cores) * (i + 1) // jobs]
        yield set(own) or {cores[i % len(cores)]}


@contextmanager
def running_on(cores: set[int]) -> Iterator[None]:
    """Restrict this thread, and the processes it starts, to these cores inside the block."""
    call: Any = getattr(os, "sched_setaffinity", None)
    if call is None:
        yield
        return
    before = os.sched_getaffinity(0)
    call(0, cores)
    try:
        yield
    finally:
        call(0, before)
