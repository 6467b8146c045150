"""Start programs in all ways, and see that nothing of them is left."""

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

from jobflow.distributed import mpiexec

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = pathlib.Path(__file__).parent / "programs" / "cases.py"
MPIEXEC = mpiexec.find() or "mpiexec"
LAUNCH = [sys.executable, "-m", "jobflow.distributed.launch"]

#: seconds from an accident to the end of all processes
PROMPT = 2.0
LIMIT = 40.0


@dataclass
class Ended:
    """What a process left; `at` is when it had ended."""

    code: int
    out: str
    err: str
    at: float

    @property
    def lines(self) -> list[str]:
        return sorted(self.out.splitlines())


def accident(ended: Sequence[Ended]) -> float:
    """When what must end the job happened."""
    return max(float(line.split()[-1]) for one in ended for line in one.err.splitlines() if re.search(r"accident [\d.]+$", line))


def late(ended: Sequence[Ended]) -> float:
    """Seconds from the accident to the end of the last process."""
    return max(one.at for one in ended) - accident(ended)


def left_over(token: str) -> list[int]:
    """Processes that still carry `token` in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended, or belongs to somebody else
    return found


def clean(extra: Mapping[str, str]) -> dict[str, str]:
    """An environment in which nothing says that a process is a rank, but for `extra`."""
    told = ("PMI", "OMPI_", "SLURM_", "MASTER_", "JOBFLOW_", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, **threads, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **extra}


@dataclass
class Crowd:
    """Processes that belong together."""

    token: str = field(default_factory=lambda: f"jobflow-test-{uuid.uuid4()}")
    jobs: list[tuple[subprocess.Popen[str], pathlib.Path]] = field(default_factory=list)
    folder: str = ""

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None, typed: str = "") -> subprocess.Popen[str]:
        place = pathlib.Path(self.folder) / str(len(self.jobs))
        pathlib.Path(f"{place}.in").write_text(typed)
        with open(f"{place}.in") as keys, open(f"{place}.out", "w") as out, open(f"{place}.err", "w") as err:
            env = clean({"JOBFLOW_TEST": self.token, **(environment or {})})
            job = subprocess.Popen(command, env=env, stdin=keys, stdout=out, stderr=err, text=True, start_new_session=True)
        self.jobs.append((job, place))
        return job

    def seen(self, number: int, name: str = "err") -> str:
        """What a process has printed so far."""
        return pathlib.Path(f"{self.jobs[number][1]}.{name}").read_text()

    def await_text(self, number: int, text: str, name: str = "err") -> None:
        deadline = time.monotonic() + LIMIT
        while text not in self.seen(number, name):
            assert time.monotonic() < deadline and self.jobs[number][0].poll() is None, f"no {text!r} in {self.seen(number, name)!r}"
            time.sleep(0.02)

    def wait(self, limit: float = LIMIT) -> list[Ended]:
        """All have ended by themselves, and with them whatever they started."""
        ended: dict[int, float] = {}
        deadline = time.monotonic() + limit
        while len(ended) < len(self.jobs) and time.monotonic() < deadline:
            for number, (job, _) in enumerate(self.jobs):
                if number not in ended and job.poll() is not None:
                    ended[number] = time.time()
            time.sleep(0.01)
        found = [Ended(job.poll() or 0, self.seen(i, "out"), self.seen(i), ended.get(i, 0.0)) for i, (job, _) in enumerate(self.jobs)]
        assert len(ended) == len(self.jobs), f"after {limit} s only {sorted(ended)} had ended: {found}"
        self.leaves_nothing()
        return found

    def leaves_nothing(self) -> None:
        """Within moments no process is left that they started."""
        deadline = time.monotonic() + PROMPT
        while left_over(self.token) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left_over(self.token) == []


@contextmanager
def crowd() -> Iterator[Crowd]:
    """A crowd; whatever is left of it is ended."""
    with tempfile.TemporaryDirectory() as folder:
        made = Crowd(folder=folder)
        try:
            yield made
        finally:
            for pid in left_over(made.token):
                os.kill(pid, signal.SIGKILL)
            for job, _ in made.jobs:
                job.wait()


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)}


def by_hand(case: str, size: int, order: Sequence[int] | None = None, pause: float = 0.0) -> list[Ended]:
    """Each rank as a process of its own, started in `order`; what they left, by rank.  Another port if somebody took the first."""
    for _ in range(5):
        port = free_port()
        ranks = list(order or range(size))
        with crowd() as jobs:
            for rank in ranks:
                jobs.start([sys.executable, str(PROGRAM), case], variables(rank, size, port))
                time.sleep(pause)
            ended = dict(zip(ranks, jobs.wait(), strict=True))
        if not any("is taken by another program" in one.err for one in ended.values()):
            return [ended[rank] for rank in sorted(ended)]
    raise AssertionError("no port stayed free")


def by_launcher(case: str, size: int, *options: str, limit: float = LIMIT) -> Ended:
    with crowd() as jobs:
        jobs.start([*LAUNCH, "--nproc_per_node", str(size), *options, str(PROGRAM), case])
        return jobs.wait(limit)[0]


def by_mpiexec(case: str, size: int) -> Ended:
    with crowd() as jobs:
        jobs.start([MPIEXEC, "-n", str(size), sys.executable, str(PROGRAM), case])
        return jobs.wait()[0]


def started(way: str, size: int, *words: str) -> tuple[int, list[str], str]:
    """A Python program with `size` ranks: the exit code, the lines that ranks printed, sorted, and what they said beside.

    By hand, the ranks come in reverse order.
    """
    command = [sys.executable, *words]
    if way == "mpiexec":
        command = [MPIEXEC, "-n", str(size), *command]
    elif way == "launcher":
        command = [*LAUNCH, "--nproc_per_node", str(size), *words]
    port = free_port()
    with crowd() as jobs:
        for rank in reversed(range(size)) if way == "by hand" else [None]:
            jobs.start(command, {} if rank is None else variables(rank, size, port))
        ended = jobs.wait()
    lines = [line for one in ended for line in one.lines]
    if way == "launcher":
        lines = [line[line.find("] ") + 2 :] for line in lines]
    return max(one.code for one in ended), sorted(lines), "".join(one.err for one in ended)
