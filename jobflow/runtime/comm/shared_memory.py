"""The shared memory of this machine, and the limit on its use by ranks."""

from __future__ import annotations

import math
import os
import sys

from jobflow.core.errors import JobError, VariableError

#: the file system of shared memory
FOLDER = "/dev/shm"
#: the environment variable that limits the MiB which the ranks of a node use for tensors
LIMIT = "JOBFLOW_SHARED_MIB"
#: a remedy for too little shared memory
ADVICE = f"enlarge {FOLDER} (for a container: docker run --shm-size=8g)"
#: bytes reserved for other programs
SPARE = 1 << 20
#: bytes per rank that MPICH allocates at its start (measured: 1,045 KiB), and bytes that UCX allocates if available
MPI_SHARE, UCX_SHARE = 1100 << 10, 16 << 20
#: the variable that selects UCX's transports
TRANSPORTS = "UCX_TLS"
#: the value of this variable that jobflow has set in this process
_selected: dict[str, str] = {}


def limit() -> int:
    """Return the limit in bytes from the environment variable LIMIT, which is in MiB; `sys.maxsize` if it is not set or is infinite.

    Raises: VariableError if LIMIT is not a number of at least 0.
    """
    text = os.environ.get(LIMIT, "").strip()
    try:
        mib = float(text) if text else math.inf
    except ValueError:
        mib = math.nan
    if not mib >= 0:
        raise VariableError(
            f"{LIMIT}={text} is not a number of MiB; set it to the MiB of {FOLDER} that the ranks of a node may use for tensors, such as 64"
        )
    return sys.maxsize if mib == math.inf else int(mib * (1 << 20))


def size() -> int:
    """Return the total bytes of FOLDER."""
    status = _statistics()
    return sys.maxsize if status is None else status.f_blocks * status.f_frsize


def available() -> int:
    """Return the free bytes of FOLDER; `sys.maxsize` if FOLDER does not exist, because MPI then uses other shared memory."""
    status = _statistics()
    return sys.maxsize if status is None else status.f_bavail * status.f_frsize


def free(reserved: int = 0) -> int:
    """Return the bytes available for new windows, if the existing windows of the job have `reserved` bytes."""
    return min(max(0, available() - SPARE), max(0, limit() - reserved))


def _statistics() -> os.statvfs_result | None:
    try:
        return os.statvfs(FOLDER)
    except OSError:
        return None


def prepare_mpi(ranks: int) -> None:
    """Prepare the start of the MPI library among `ranks` ranks of this machine; raise JobError if SIGBUS would end them.

    UCX crashes if FOLDER has room for a part of its buffers only.  System V shared memory, which UCX can use instead, does not need FOLDER.
    The size of FOLDER decides instead of the free bytes, so that all ranks make the same choice.
    """
    if size() < UCX_SHARE * ranks:
        _select("^posix")
    # the free bytes exclude the allocations of peers that started earlier
    if size() < MPI_SHARE * ranks or available() < MPI_SHARE:
        needed, free_bytes = MPI_SHARE * ranks / 2**20, available() / 2**20
        raise JobError(f"start of MPI: {FOLDER} has {free_bytes:.1f} MiB free, but MPI needs {needed:.1f} MiB for {ranks} ranks; {ADVICE}")


def prepare_nodes() -> None:
    """Prepare the start of the MPI library on several nodes.

    MPICH uses its own shared memory within a node, and UCX between nodes.  UCX recognizes a machine by its boot id.  Copies of a virtual machine
    may have one boot id, and UCX would use shared memory between them.
    """
    _select("^sm")


def _select(transports: str) -> None:
    """Select UCX's transports, unless the user has selected some."""
    if TRANSPORTS not in os.environ or os.environ[TRANSPORTS] == _selected.get(TRANSPORTS):
        os.environ[TRANSPORTS] = _selected[TRANSPORTS] = transports


def shortage() -> str:
    """Return the message that there is too little shared memory, with its size, the limit if there is one, and advice."""
    limited = f", of which {LIMIT} allows {limit() / 2**20:.3g} MiB" if limit() < sys.maxsize else ""
    return f"too little shared memory: {FOLDER} has {size() / 2**20:.0f} MiB{limited}; {ADVICE}"
