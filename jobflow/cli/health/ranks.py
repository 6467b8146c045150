"""Checks of MPI: the library, its launcher, and two ranks started by it and by `jobflow launch`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator

from jobflow.cli.health.child import Answer, ask, probe
from jobflow.cli.health.finding import NOTE, OK, PROBLEM, Finding, judged
from jobflow.distributed import mpiexec

INSTALL = 'pip install "jobflow-sbp[mpi]"'
#: time limits in seconds: for the command, and for the ranks themselves
LIMIT, ALARM = 40.0, "30"
#: bytes per second below which communication dominates
SLOW = 0.5e9
#: Open MPI's message to root, and the variables that permit it
NOT_AS_ROOT, ALLOW_ROOT = "allow-run-as-root", "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
#: one thread per rank, so that two ranks do not compete for the cores
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def mpi() -> Iterator[Finding]:
    """Check that library and launcher belong together; then check the ranks."""
    library = ask(probe("library"))
    if library.failure:
        text = f"mpi4py finds no MPI library ({library.failure}): programs run as one process or on threads only"
        yield Finding("MPI", PROBLEM, text, "install an MPI, or load the module of your cluster that has one", INSTALL)
        return
    vendor = str(library.data["vendor"])
    yield Finding("MPI", OK, f"{vendor} {library.data['version']}, by mpi4py {library.data['mpi4py']}")
    path = mpiexec.find()
    works = False
    if path is None:
        yield Finding("mpiexec", NOTE, "there is none; `jobflow launch` and `jobflow run --ranks N` start ranks without it", "", INSTALL)
    else:
        finding = started(path, vendor)
        works = finding.status != PROBLEM
        yield finding
    yield launched(vendor, works)


def started(path: str, vendor: str) -> Finding:
    """Check two ranks started by mpiexec."""
    kind = mpiexec.flavour(path)
    if kind and kind != vendor and not {kind, vendor} <= {"MPICH", "Intel MPI"}:
        text = f"{path} is of {kind}, but mpi4py uses {vendor}: ranks would not find each other"
        return Finding("mpiexec", PROBLEM, text, f"put the mpiexec of {vendor} first in PATH, or install one that belongs to this Python", INSTALL)
    answer = ask(mpiexec.ranks(path, 2, probe("ranks", ALARM)), limit=LIMIT, more=THREADS)
    if NOT_AS_ROOT in answer.output:
        text = f"{path} refuses to run as root, as Open MPI does unless it is told otherwise (--allow-run-as-root)"
        return Finding("mpiexec", PROBLEM, text, "be another user, or allow it, which is usual in containers", ALLOW_ROOT)
    if answer.failure:
        again = " ".join(mpiexec.ranks(path, 2, [sys.executable, "-c", "'from mpi4py import MPI; print(MPI.COMM_WORLD.size)'"]))
        fix = "see what it says; a host name that is not in /etc/hosts and firewalls on the loopback device are frequent causes"
        return Finding("mpiexec", PROBLEM, f"two ranks by {path} failed: {answer.failure}", fix, again)
    if answer.data["ranks"] != 2:
        text = f"{path} started two processes that do not know each other: it is not of mpi4py's MPI, {vendor}"
        return Finding("mpiexec", PROBLEM, text, "use the mpiexec of that MPI, or install one that belongs to this Python", INSTALL)
    path_finding = _speeds("mpiexec", f"two ranks by {path}", answer)
    if path_finding.status == OK and shutil.which("mpiexec") != path:
        fix = "`jobflow run --ranks N` finds it; for mpiexec as a command of its own, activate the environment, or"
        return Finding("mpiexec", NOTE, f"{path_finding.text}; it is not the one in PATH", fix, f'export PATH="{os.path.dirname(path)}:$PATH"')
    return path_finding


def launched(vendor: str, works: bool) -> Finding:
    """Check two ranks started by `jobflow launch`, which need not work where mpiexec does."""
    words = [sys.executable, "-P", "-m", "jobflow.distributed.launch", "--nproc_per_node", "2", "--no_python", *probe("ranks", ALARM, "launched")]
    answer = ask(words, limit=LIMIT, more=THREADS)
    if not answer.failure:
        return _speeds("launch", "two ranks by jobflow launch", answer)
    if works:
        return Finding("launch", NOTE, f"jobflow launch cannot start ranks over {vendor} ({answer.failure})", "start programs with mpiexec")
    return Finding("launch", PROBLEM, f"two ranks by jobflow launch failed: {answer.failure}", "install an MPICH", INSTALL)


def _speeds(name: str, what: str, answer: Answer) -> Finding:
    sent, read = answer.data["messages"], answer.data["shared"]
    text = f"{what}: {1e6 * answer.data['latency']:.0f} us, messages {sent / 1e9:.1f} GB/s"
    alone = f"; no shared windows ({answer.data['trouble']}), so ranks exchange tensors by messages"
    room = "give /dev/shm room, and processes leave to share memory; for a container: docker run --ipc=host"
    windows = f", shared windows {read / 1e9:.1f} GB/s"
    return judged(
        name,
        text,
        (not read, NOTE, alone, room, ""),
        (read < SLOW, NOTE, f"{windows}: slow", "give each rank a core of its own, and end what else runs", "uptime; top"),
        (True, OK, windows, "", ""),
    )
