"""The environment variables that make a process one of several ranks.

mpiexec and srun set variables of their own.  Without them MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK do: set by `jobflow launch`,
or by hand in as many terminals as there are ranks.  All four or none; LOCAL_RANK may be added.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, user_line

NEEDED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
#: the rank that this process is, for the processes that it starts: they inherit the variables above and are no ranks
MARK = "JOBFLOW_RANK"
#: the address for which `jobflow launch` listens and shows output
LAUNCHER = "JOBFLOW_LAUNCHER"
#: processes on this node, set by `jobflow launch`
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
#: how many devices a program has in one process, whatever it says itself; set by `jobflow run --devices N`
DEVICES = "JOBFLOW_DEVICES"
#: who computes in programs that do not call `flow.config.kernels`
KERNELS = "JOBFLOW_KERNELS"
#: how checkpoints are written by programs that do not call `flow.config.checkpoint_format`
CHECKPOINTS = "JOBFLOW_CHECKPOINTS"


def usable_cores() -> set[int]:
    """The processors that the system lets this process use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class Launch:
    """One of `size` processes, and who started it."""

    rank: int
    size: int
    launcher: str
    #: "host:port" where ranks meet that no mpiexec started; empty under mpiexec
    master: str = ""

    @property
    def multi(self) -> bool:
        """True if every rank is a client unless the program says otherwise."""
        return bool(self.master)

    @property
    def supervised(self) -> bool:
        """True if `jobflow launch` shows the output of this process."""
        return self.launcher == "jobflow launch"


#: (launcher, variable of the rank, variable of the number of ranks)
_MPIEXEC = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE"),
    ("PMIx", "PMIX_RANK", "PMIX_SIZE"),
)
# only srun sets the size of a step: a batch script has a rank too, but runs once
_SRUN = (("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),)
_OF_JOBS = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT", "RANK")
_IDENTITY = (*(name for row in _MPIEXEC + _SRUN for name in row[1:]), *_OF_JOBS)
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_NEIGHBOURS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


def launched(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """What the environment says; None for a process that is alone.

    mpiexec comes before the four variables, which may be left over in a terminal, and those before srun, which may have started
    the launcher that set them.  ConfigError if the variables are incomplete or contradict each other.
    """
    if _descends(environ):
        return None
    found = _named(environ, _MPIEXEC) or _by_hand(environ) or _named(environ, _SRUN)
    return found if found is not None and found.size > 1 else None


def _named(environ: Mapping[str, str], launchers: Sequence[tuple[str, str, str]]) -> Launch | None:
    for launcher, rank, size in launchers:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return Launch(int(environ[rank]), int(environ[size]), launcher)
    return None


def _by_hand(environ: Mapping[str, str]) -> Launch | None:
    given = [name for name in NEEDED if environ.get(name)]
    if not given:
        return None
    if len(given) < len(NEEDED):
        if _named(environ, _SRUN):
            return None  # batch scripts like to set an address for programs of other kinds
        raise ConfigError(_incomplete(environ, given))
    size, port = number(environ, "WORLD_SIZE", 1), number(environ, "MASTER_PORT", 1, 65535)
    rank = number(environ, "RANK", 0)
    if rank >= size:
        raise ConfigError(f"RANK={rank} but WORLD_SIZE={size}: ranks are numbered from 0 to {size - 1}")
    if environ.get("LOCAL_RANK"):
        local = number(environ, "LOCAL_RANK", 0)
        if local >= size:
            raise ConfigError(f"LOCAL_RANK={local} but WORLD_SIZE={size}: it is the number of the process among those of its machine, from 0")
    master = f"{environ['MASTER_ADDR']}:{port}"
    return Launch(rank, size, "jobflow launch" if environ.get(LAUNCHER) == master else "WORLD_SIZE", master)


def _incomplete(environ: Mapping[str, str], given: Sequence[str]) -> str:
    values = ", ".join(f"{name}={environ[name]}" for name in given)
    lacking = " and ".join(name for name in NEEDED if name not in given)
    them = "it" if len(given) == 1 else "them"
    return f"{values} set but not {lacking}: set all four to make this process one of several, or unset {them} to run it alone"


def number(environ: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    """A variable as a number; ConfigError if it is none, or is out of range."""
    text = environ[name].strip()
    legal = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
        raise ConfigError(f"{name}={environ[name]!r} must be {legal}")
    return int(text)


# ---------------------------------------------------------------- descendants


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without what says which rank of some other launcher a process is."""
    own = {name for row in _MPIEXEC + _SRUN for name in row[1:]} | {MARK, LAUNCHER, LOCAL_SIZE, "LOCAL_RANK", *NEEDED, *_LOCAL_RANK, *_NEIGHBOURS}
    return {name: value for name, value in environ.items() if name not in own and not name.startswith(("PMI_", "PMIX_"))}


#: this process, or one that it is a copy of by fork, is a rank
_marked = False


def mark() -> None:
    """Let processes that this one starts know that they are no ranks, though they inherit its variables."""
    global _marked
    _marked = True
    os.environ[MARK] = f"{_place(os.environ)} {_socket(os.environ)} {os.getpid()}"


def _descends(environ: Mapping[str, str]) -> bool:
    """True if an ancestor is the rank that the variables name.  A child by fork is asked as the rank that it is a copy of."""
    mark = environ.get(MARK, "").split(" ")
    if _marked or len(mark) != 3:
        return False
    place, socket, pid = mark
    return pid != str(os.getpid()) and place == _place(environ) and _socket(environ) in ("", socket)


def _place(environ: Mapping[str, str]) -> str:
    """What the variables say about which rank of which job a process is."""
    return ",".join(f"{name}={environ[name]}" for name in _IDENTITY if name in environ)


def _socket(environ: Mapping[str, str]) -> str:
    """The number of the socket to MPICH's launcher, whose variables do not say which job they are of; "" for who has not got it."""
    try:
        found = os.fstat(int(environ.get("PMI_FD", "")))
    except (OSError, ValueError):
        return ""
    return str(found.st_ino) if stat.S_ISSOCK(found.st_mode) else ""


def check_process(pid: int) -> None:
    """JobError in a child by fork of process `pid`: it has copies of ranks there, which the other ranks take for the ranks, or wait for in vain."""
    if pid != os.getpid():
        raise JobError(
            f"{user_line()}: this process was forked (os.fork, multiprocessing) from one of several ranks, or one with several devices, and is none "
            f'of them; call jobs and global tensors where it was forked from, or start it anew: multiprocessing.get_context("spawn")'
        )


# ---------------------------------------------------------------- positions


def rank() -> int:
    """The number of this process among all; 0 if it is alone."""
    found = launched()
    return 0 if found is None else found.rank


def world_size() -> int:
    """How many processes there are."""
    found = launched()
    return 1 if found is None else found.size


def default_client() -> str:
    """Who runs the program unless it says otherwise: rank 0 under mpiexec, every rank where each was started for itself."""
    found = launched()
    return "multi" if found is not None and found.multi else "single"


def local_rank_from_launcher() -> int | None:
    """The number of this process among those of its node, 0 if it is alone; None if nothing says it."""
    found = launched()
    if found is None:
        return 0
    return _first(("LOCAL_RANK",) if found.master else _LOCAL_RANK)


def node_size_from_launcher() -> int | None:
    """The number of nodes, if each has as many processes as this one; None if nothing says it."""
    found = launched()
    if found is None:
        return 1
    if found.launcher == "srun" and (nodes := _first(("SLURM_STEP_NUM_NODES",))) is not None:
        return nodes
    here = _neighbours(found)
    return None if not here else -(-found.size // here)


def _neighbours(found: Launch) -> int | None:
    return _first((LOCAL_SIZE,) if found.supervised else _NEIGHBOURS) if not found.master or found.supervised else None


def ranks_here(found: Launch) -> int:
    """Return the number of ranks on this machine as far as variables state it: 1 otherwise."""
    return _neighbours(found) or 1


def _first(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)
