"""Programs in processes of their own, alone or as ranks, started in every way; afterwards no process of them is left."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from jobflow.distributed import mpiexec

ROOT = pathlib.Path(__file__).parents[2]
#: prints one line for each case of how ranks start, fail and end
PROGRAM = ROOT / "tests" / "distributed" / "programs" / "cases.py"
MPIEXEC = mpiexec.find() or "mpiexec"
LAUNCH = [sys.executable, "-m", "jobflow.distributed.launch"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: for programs whose warnings are errors
STRICT = {"PYTHONWARNINGS": "error"}
#: the variable that marks a process and its children
TOKEN = "JOBFLOW_TEST"

#: seconds from an accident to the end of all processes
PROMPT = 2.0
#: seconds after which processes of a group, and a program of `run`, count as hanging
LIMIT, LIMIT_OF_PROGRAM = 40.0, 120.0


@dataclass
class Exited:
    """Exit code and output of a process; `at` is the time of its end."""

    code: int
    out: str
    err: str
    at: float

    @property
    def lines(self) -> list[str]:
        return sorted(self.out.splitlines())

    @property
    def late(self) -> float:
        """Seconds from the accident that the process reported to its end; 0 without an accident."""
        return self.at - accident([self]) if re.search(ACCIDENT, self.err) else 0.0


ACCIDENT = re.compile(r"accident ([\d.]+)$", re.MULTILINE)


def accident(exited: Sequence[Exited]) -> float:
    """Return the time of the last accident that a process reported."""
    return max(float(moment) for process in exited for moment in ACCIDENT.findall(process.err))


def late(exited: Sequence[Exited]) -> float:
    """Return the seconds from the accident to the end of the last process."""
    return max(process.at for process in exited) - accident(exited)


# -------------------------------------------------------------------- one program


def run(
    script: pathlib.Path | str,
    *arguments: object,
    ranks: int = 0,
    limit: float = LIMIT_OF_PROGRAM,
    environment: Mapping[str, str] | None = None,
    folder: pathlib.Path | None = None,
) -> Exited:
    """Run a Python script alone, or on `ranks` processes under mpiexec."""
    command = [sys.executable, str(script), *map(str, arguments)]
    return run_command([*under_mpiexec(ranks), *command] if ranks else command, limit, environment, folder)


def under_mpiexec(ranks: int) -> list[str]:
    if mpiexec.find() is None:
        pytest.fail("there is no mpiexec: install the extra mpi, or deselect these tests with -m 'not mpi'")
    return [MPIEXEC, "-n", str(ranks)]


def run_command(
    command: Sequence[str], limit: float = LIMIT_OF_PROGRAM, environment: Mapping[str, str] | None = None, folder: pathlib.Path | None = None
) -> Exited:
    """Run a command in a session of its own; fail if it hangs or leaves processes."""
    token = new_token()
    variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT), **(environment or {}), TOKEN: token}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen(command, cwd=folder, env=variables, text=True, start_new_session=True, **pipes)
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill_all(token)
        out, err = job.communicate()
        pytest.fail(f"{' '.join(command)} was still running after {limit:g} s\n{out}\n{err}")
    exited = Exited(job.returncode, out, err, time.time())
    leaves_nothing(token)
    return exited


# -------------------------------------------------------------------- what is left of processes


def new_token() -> str:
    return f"jobflow-test-{uuid.uuid4()}"


def left_over(token: str) -> list[int]:
    """Return the processes that carry `token` in their environment."""
    left = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    left.append(int(entry.name))
            except OSError:
                continue  # it has ended, or belongs to another user
    return left


def leaves_nothing(token: str) -> None:
    """Fail unless all processes with this token end within moments."""
    deadline = time.monotonic() + PROMPT
    while left_over(token) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left_over(token) == []


def kill_all(token: str) -> None:
    for pid in left_over(token):
        os.kill(pid, signal.SIGKILL)


# -------------------------------------------------------------------- groups of processes


def clean(extra: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables that make a process a rank, plus `extra`."""
    of_ranks = ("PMI", "OMPI_", "SLURM_", "MASTER_", "JOBFLOW_", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    others = {name: value for name, value in os.environ.items() if not name.startswith(of_ranks)}
    return {**others, **ONE_THREAD, "PYTHONPATH": str(ROOT), **STRICT, **extra}


@dataclass
class Crowd:
    """Processes that belong together."""

    token: str = field(default_factory=new_token)
    jobs: list[tuple[subprocess.Popen[str], pathlib.Path]] = field(default_factory=list)
    folder: str = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None, typed: str = "") -> subprocess.Popen[str]:
        stem = pathlib.Path(self.folder) / str(len(self.jobs))
        pathlib.Path(f"{stem}.in").write_text(typed)
        with open(f"{stem}.in") as keys, open(f"{stem}.out", "w") as out, open(f"{stem}.err", "w") as err:
            env = clean({TOKEN: self.token, **(environment or {})})
            job = subprocess.Popen(command, env=env, stdin=keys, stdout=out, stderr=err, text=True, start_new_session=True)
        self.jobs.append((job, stem))
        return job

    def printed(self, number: int, name: str = "err") -> str:
        """Return the output of a process until now."""
        return pathlib.Path(f"{self.jobs[number][1]}.{name}").read_text()

    def await_text(self, number: int, text: str, name: str = "err") -> None:
        deadline = time.monotonic() + LIMIT
        while text not in self.printed(number, name):
            assert time.monotonic() < deadline and self.jobs[number][0].poll() is None, f"no {text!r} in {self.printed(number, name)!r}"
            time.sleep(0.02)

    def wait(self, limit: float = LIMIT) -> list[Exited]:
        """Wait until all processes, and the processes that they started, end by themselves."""
        ends: dict[int, float] = {}
        deadline = time.monotonic() + limit
        while len(ends) < len(self.jobs) and time.monotonic() < deadline:
            for number, (job, _) in enumerate(self.jobs):
                if number not in ends and job.poll() is not None:
                    ends[number] = time.time()
            time.sleep(0.01)
        exited = [Exited(job.poll() or 0, self.printed(i, "out"), self.printed(i), ends.get(i, 0.0)) for i, (job, _) in enumerate(self.jobs)]
        assert len(ends) == len(self.jobs), f"after {limit} s only {sorted(ends)} had ended: {exited}"
        self.leaves_nothing()
        return exited

    def leaves_nothing(self) -> None:
        leaves_nothing(self.token)


@contextmanager
def crowd() -> Iterator[Crowd]:
    """Yield a group of processes; kill what is left of it."""
    with tempfile.TemporaryDirectory() as folder:
        group = Crowd(folder=folder)
        try:
            yield group
        finally:
            kill_all(group.token)
            for job, _ in group.jobs:
                job.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)}


def by_hand(case: str, size: int, order: Sequence[int] | None = None, pause: float = 0.0) -> list[Exited]:
    """Start each rank as a process of its own, in `order`; retry with another port if a program took the first."""
    for _ in range(5):
        port = free_port()
        ranks = list(order or range(size))
        with crowd() as jobs:
            for rank in ranks:
                jobs.start([sys.executable, str(PROGRAM), case], variables(rank, size, port))
                time.sleep(pause)
            exited = dict(zip(ranks, jobs.wait(), strict=True))
        if not any("is in use by another program" in process.err for process in exited.values()):
            return [exited[rank] for rank in sorted(exited)]
    raise AssertionError("no port stayed free")


def by_launcher(case: str, size: int, *options: str, limit: float = LIMIT) -> Exited:
    with crowd() as jobs:
        jobs.start([*LAUNCH, "--nproc_per_node", str(size), *options, str(PROGRAM), case])
        return jobs.wait(limit)[0]


def by_mpiexec(case: str, size: int) -> Exited:
    with crowd() as jobs:
        jobs.start([MPIEXEC, "-n", str(size), sys.executable, str(PROGRAM), case])
        return jobs.wait()[0]


def ranks_of_python(way: str, size: int) -> list[str]:
    """Return the command that starts Python programs on `size` ranks: `way` is "mpiexec" or "launch"."""
    return [MPIEXEC, "-n", str(size), sys.executable] if way == "mpiexec" else [*LAUNCH, "--nproc_per_node", str(size)]


def started(way: str, size: int, *words: str) -> tuple[int, list[str], str]:
    """Run a Python program with `size` ranks; return the exit code, the sorted lines of its output, and its errors.

    By hand, the ranks start in reverse order.
    """
    command = [*([sys.executable] if way == "by hand" else ranks_of_python(way, size)), *words]
    port = free_port()
    with crowd() as jobs:
        for rank in reversed(range(size)) if way == "by hand" else [None]:
            jobs.start(command, {} if rank is None else variables(rank, size, port))
        exited = jobs.wait()
    lines = [line for process in exited for line in process.lines]
    if way == "launcher":
        lines = [line[line.find("] ") + 2 :] for line in lines]
    return max(process.code for process in exited), sorted(lines), "".join(process.err for process in exited)
