"""The shared memory of this machine, and how much of it ranks may use."""

from __future__ import annotations

import math
import os
import sys

from jobflow.core.errors import ConfigError, JobError

#: the file system of shared memory
FOLDER = "/dev/shm"
#: the environment variable that limits the MiB which the ranks of a node use for tensors
LIMIT = "JOBFLOW_SHARED_MIB"
#: a remedy for too little of it
ADVICE = f"give {FOLDER} room (for a container: docker run --shm-size=8g)"
#: bytes that are left to other programs
SPARE = 1 << 20
#: bytes of each rank that MPICH takes when it starts (measured: 1,045 KiB), and bytes with which UCX, if it can have them, starts too
MPI_SHARE, UCX_SHARE = 1100 << 10, 16 << 20


def limit() -> int:
    """Return the bytes that LIMIT allows; ConfigError unless it is a number that is not negative."""
    text = os.environ.get(LIMIT, "").strip()
    try:
        found = float(text) if text else math.inf
    except ValueError:
        found = math.nan
    if not found >= 0:
        raise ConfigError(f"{LIMIT}={text}: not a number of MiB; give the MiB of {FOLDER} that the ranks of a node may use for tensors, such as 64")
    return sys.maxsize if found == math.inf else int(found * (1 << 20))


def size() -> int:
    """Return the bytes of FOLDER, used or not."""
    found = _statistics()
    return sys.maxsize if found is None else found.f_blocks * found.f_frsize


def available() -> int:
    """Return the free bytes of FOLDER; a large number where MPI puts shared memory elsewhere."""
    found = _statistics()
    return sys.maxsize if found is None else found.f_bavail * found.f_frsize


def free(reserved: int = 0) -> int:
    """Return the bytes that windows may still take, if the job's windows have `reserved` bytes already."""
    return min(max(0, available() - SPARE), max(0, limit() - reserved))


def _statistics() -> os.statvfs_result | None:
    try:
        return os.statvfs(FOLDER)
    except OSError:
        return None


def prepare_mpi(ranks: int) -> None:
    """Prepare the start of the MPI library among `ranks` ranks of this machine; JobError if it would end them by SIGBUS.

    UCX crashes if FOLDER has room for a part of its buffers.  Its other kind of shared memory (System V) is not in FOLDER.  The size of FOLDER
    decides, not the free bytes, because all ranks must decide alike.
    """
    if size() < UCX_SHARE * ranks:
        os.environ.setdefault("UCX_TLS", "^posix")
    # a peer that started earlier has taken its share of the free bytes
    if size() < MPI_SHARE * ranks or available() < MPI_SHARE:
        needed, free_bytes = MPI_SHARE * ranks / 2**20, available() / 2**20
        raise JobError(f"start of MPI: {FOLDER} has {free_bytes:.1f} MiB free, and MPI needs {needed:.1f} MiB for {ranks} ranks; {ADVICE}")


def shortage() -> str:
    """Describe too little shared memory."""
    limited = f", of which {LIMIT} allows {limit() / 2**20:.3g} MiB" if limit() < sys.maxsize else ""
    return f"too little shared memory: {FOLDER} has {size() / 2**20:.0f} MiB{limited}; {ADVICE}"
