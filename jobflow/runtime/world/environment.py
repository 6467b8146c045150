"""The environment variables that make a process one of several ranks.

mpiexec and srun set their own variables.  Without them, the variables are MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, set by `jobflow launch`
or by hand in one terminal per rank.  Either all four are set or none; LOCAL_RANK is optional.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, VariableError, user_line

NEEDED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
#: identifies this process as a rank, for its child processes, which inherit the variables above and are not ranks
MARK = "JOBFLOW_RANK"
#: the address of the job whose output `jobflow launch` shows
LAUNCHER = "JOBFLOW_LAUNCHER"
#: processes on this node, set by `jobflow launch`
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
#: number of devices of a program in one process, which overrides the program; set by `jobflow run --devices N`
DEVICES = "JOBFLOW_DEVICES"
#: kernel tier of programs that do not call `flow.config.kernels`
KERNELS = "JOBFLOW_KERNELS"
#: checkpoint format of programs that do not call `flow.config.checkpoint_format`
CHECKPOINTS = "JOBFLOW_CHECKPOINTS"
#: "sync": the host waits for a GPU after each call, for programs that do not call `flow.config.debug`
DEBUG = "JOBFLOW_DEBUG"
#: the variable of CUDA with the same meaning, if it is an integer other than 0
BLOCKING = "CUDA_LAUNCH_BLOCKING"


def usable_cores() -> set[int]:
    """Return the indices of the CPU cores on which this process may run."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class Launch:
    """The position of a process among `size` processes, and its launcher."""

    rank: int
    size: int
    launcher: str
    #: "host:port" of the rendezvous of ranks without mpiexec; empty under mpiexec
    master: str = ""

    @property
    def multi(self) -> bool:
        """True if every rank is a client unless the program sets another mode."""
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
    """Return the launch described by the environment; None for a single process, or for a child process of a rank.

    mpiexec has priority over the four variables, which may be left over in a terminal.  These have priority over srun, which may have started the
    launcher that set them.
    Raises: VariableError if the variables are incomplete or contradict each other.
    """
    if _descends(environ):
        return None
    launch = _named(environ, _MPIEXEC) or _by_hand(environ) or _named(environ, _SRUN)
    return launch if launch is not None and launch.size > 1 else None


def _named(environ: Mapping[str, str], launchers: Sequence[tuple[str, str, str]]) -> Launch | None:
    for launcher, rank, size in launchers:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return Launch(int(environ[rank]), int(environ[size]), launcher)
    return None


def _by_hand(environ: Mapping[str, str]) -> Launch | None:
    names = [name for name in NEEDED if environ.get(name)]
    if not names:
        return None
    if len(names) < len(NEEDED):
        if _named(environ, _SRUN):
            return None  # batch scripts often set an address for other programs
        raise VariableError(_incomplete(environ, names))
    size, port = number(environ, "WORLD_SIZE", 1), number(environ, "MASTER_PORT", 1, 65535)
    rank = number(environ, "RANK", 0)
    if rank >= size:
        raise VariableError(f"RANK={rank} but WORLD_SIZE={size}; set RANK to a number from 0 to {size - 1}")
    if environ.get("LOCAL_RANK"):
        local = number(environ, "LOCAL_RANK", 0)
        if local >= size:
            raise VariableError(f"LOCAL_RANK={local} but WORLD_SIZE={size}; set LOCAL_RANK to the number of the process on its machine, from 0")
    master = f"{environ['MASTER_ADDR']}:{port}"
    return Launch(rank, size, "jobflow launch" if environ.get(LAUNCHER) == master else "WORLD_SIZE", master)


def _incomplete(environ: Mapping[str, str], names: Sequence[str]) -> str:
    values = ", ".join(f"{name}={environ[name]}" for name in names)
    lacking = " and ".join(name for name in NEEDED if name not in names)
    them = "it" if len(names) == 1 else "them"
    return f"{values} set but not {lacking}: set all four to make this process one of several, or unset {them} to run it alone"


def number(environ: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    """Return the variable `name` as an integer; raise VariableError unless it is one from `least` to `most` (None: no maximum)."""
    text = environ[name].strip()
    legal = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
        raise VariableError(f"{name}={environ[name]!r} must be {legal}")
    return int(text)


# ---------------------------------------------------------------- descendants


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables by which another launcher numbers its ranks."""
    own = {name for row in _MPIEXEC + _SRUN for name in row[1:]} | {MARK, LAUNCHER, LOCAL_SIZE, "LOCAL_RANK", *NEEDED, *_LOCAL_RANK, *_NEIGHBOURS}
    return {name: value for name, value in environ.items() if name not in own and not name.startswith(("PMI_", "PMIX_"))}


#: True if this process, or the process that it was forked from, is a rank
_marked = False


def mark() -> None:
    """Mark the environment of this rank, so that child processes, which inherit the launcher's variables, do not count as ranks."""
    global _marked
    _marked = True
    os.environ[MARK] = f"{_identity(os.environ)} {_socket(os.environ)} {os.getpid()}"


def _descends(environ: Mapping[str, str]) -> bool:
    """Return True if an ancestor is the rank named by the variables.  A forked child of the rank is treated as the rank."""
    mark = environ.get(MARK, "").split(" ")
    if _marked or len(mark) != 3:
        return False
    identity, socket, pid = mark
    return pid != str(os.getpid()) and identity == _identity(environ) and _socket(environ) in ("", socket)


def _identity(environ: Mapping[str, str]) -> str:
    """Return the variables that identify the job and rank of a process, as "name=value,name=value"."""
    return ",".join(f"{name}={environ[name]}" for name in _IDENTITY if name in environ)


def _socket(environ: Mapping[str, str]) -> str:
    """Return the inode of the socket to MPICH's launcher, whose variables do not identify the job; "" without that socket."""
    try:
        status = os.fstat(int(environ.get("PMI_FD", "")))
    except (OSError, ValueError):
        return ""
    return str(status.st_ino) if stat.S_ISSOCK(status.st_mode) else ""


def check_process(pid: int) -> None:
    """Raise JobError in a forked child of process `pid`, whose copies of ranks cannot communicate with the other ranks."""
    if pid != os.getpid():
        raise JobError(
            f"communication at {user_line()}: this process was forked (os.fork, multiprocessing) from a rank or a process with several devices, "
            f"and is not a rank; "
            f'call jobs and global tensors in the parent process, or start a new process: multiprocessing.get_context("spawn")'
        )


# ---------------------------------------------------------------- positions


def rank() -> int:
    """Return the rank of this process; 0 for a single process."""
    launch = launched()
    return 0 if launch is None else launch.rank


def world_size() -> int:
    """Return the number of processes of the program."""
    launch = launched()
    return 1 if launch is None else launch.size


def default_client() -> str:
    """Return the default mode: "multi" if each rank was started separately, otherwise "single", in which rank 0 is the client."""
    launch = launched()
    return "multi" if launch is not None and launch.multi else "single"


def local_rank_from_launcher() -> int | None:
    """Return the number of this process on its node, 0 for a single process; None if no variable states it."""
    launch = launched()
    if launch is None:
        return 0
    return _first(("LOCAL_RANK",) if launch.master else _LOCAL_RANK)


def node_size_from_launcher() -> int | None:
    """Return the number of nodes, 1 for a single process; None if no variable states it.

    Unless srun states the number, each node is assumed to have the same number of processes.
    """
    launch = launched()
    if launch is None:
        return 1
    if launch.launcher == "srun" and (nodes := _first(("SLURM_STEP_NUM_NODES",))) is not None:
        return nodes
    here = _neighbours(launch)
    return None if not here else -(-launch.size // here)


def _neighbours(launch: Launch) -> int | None:
    return _first((LOCAL_SIZE,) if launch.supervised else _NEIGHBOURS) if not launch.master or launch.supervised else None


def ranks_here(launch: Launch) -> int:
    """Return the number of ranks on this machine; 1 if no variable states it."""
    return _neighbours(launch) or 1


def _first(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)
