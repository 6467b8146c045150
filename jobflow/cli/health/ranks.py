"""Checks of MPI: the library, its launcher, and two ranks started by the launcher and by `jobflow launch`."""

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
#: part of Open MPI's message to the user root, and the variables that permit root
NOT_AS_ROOT, ALLOW_ROOT = "allow-run-as-root", "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
#: one thread per rank, so that two ranks do not compete for the cores
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def mpi() -> Iterator[Finding]:
    """Check that the MPI library and its launcher are of the same MPI, and that they start ranks."""
    library = ask(probe("library"))
    if library.failure:
        text = f"mpi4py cannot load an MPI library ({library.failure}): programs run as one process or on threads only"
        yield Finding("MPI", PROBLEM, text, "install an MPI, or load the MPI module of your cluster", INSTALL)
        return
    vendor = str(library.data["vendor"])
    yield Finding("MPI", OK, f"{vendor} {library.data['version']}, by mpi4py {library.data['mpi4py']}")
    path = mpiexec.find()
    works = False
    if path is None:
        yield Finding("mpiexec", NOTE, "missing; `jobflow launch` and `jobflow run --ranks N` start ranks without it", "", INSTALL)
    else:
        finding = started(path, vendor)
        works = finding.status != PROBLEM
        yield finding
    yield launched(vendor, works)


def started(path: str, vendor: str) -> Finding:
    """Check two ranks started by mpiexec, and measure their communication."""
    kind = mpiexec.flavour(path)
    if kind and kind != vendor and not {kind, vendor} <= {"MPICH", "Intel MPI"}:
        text = f"{path} belongs to {kind}, but mpi4py uses {vendor}: its ranks would not communicate"
        return Finding("mpiexec", PROBLEM, text, f"put the mpiexec of {vendor} first in PATH, or install one that belongs to this Python", INSTALL)
    answer = ask(mpiexec.ranks(path, 2, probe("ranks", ALARM)), limit=LIMIT, more=THREADS)
    if NOT_AS_ROOT in answer.output:
        text = f"{path} refuses to run as root, which Open MPI permits only with --allow-run-as-root"
        return Finding("mpiexec", PROBLEM, text, "run as another user, or permit root, which is usual in containers", ALLOW_ROOT)
    if answer.failure:
        again = " ".join(mpiexec.ranks(path, 2, [sys.executable, "-c", "'from mpi4py import MPI; print(MPI.COMM_WORLD.size)'"]))
        fix = "check its output; frequent causes are a host name missing in /etc/hosts and a firewall on the loopback device"
        return Finding("mpiexec", PROBLEM, f"two ranks by {path} failed: {answer.failure}", fix, again)
    if answer.data["ranks"] != 2:
        text = f"{path} started two processes in separate worlds: it does not belong to mpi4py's MPI, {vendor}"
        return Finding("mpiexec", PROBLEM, text, f"use the mpiexec of {vendor}, or install one that belongs to this Python", INSTALL)
    path_finding = _speeds("mpiexec", f"two ranks by {path}", answer)
    if path_finding.status == OK and shutil.which("mpiexec") != path:
        fix = "`jobflow run --ranks N` uses it; to use mpiexec as a command, activate the environment, or"
        return Finding("mpiexec", NOTE, f"{path_finding.text}; PATH has another mpiexec or none", fix, f'export PATH="{os.path.dirname(path)}:$PATH"')
    return path_finding


def launched(vendor: str, works: bool) -> Finding:
    """Check two ranks started by `jobflow launch`; a failure is only a note if mpiexec works."""
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
    room = "enlarge /dev/shm, and permit shared memory between processes; for a container: docker run --ipc=host"
    windows = f", shared windows {read / 1e9:.1f} GB/s"
    return judged(
        name,
        text,
        (not read, NOTE, alone, room, ""),
        (read < SLOW, NOTE, f"{windows}: slow", "use at most one rank per core, and end other programs", "uptime; top"),
        (True, OK, windows, "", ""),
    )
