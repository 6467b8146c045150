"""Benchmark of the communication between two ranks.

Arguments: a time limit in seconds, and "launched" under `jobflow launch`.

Rank 0 prints a JSON object.  "ranks" is the number of ranks; other values are measured for two ranks only.  "latency" is the time in seconds of
an exchange of one byte, and "messages" the bytes per second that each rank sends.  "shared" is the bytes per second that a rank reads from
shared memory.  If the ranks cannot share memory, "shared" is 0 and "trouble" the reason; otherwise "trouble" is "".
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from typing import Any

import numpy as np

SIZE, TIMES = 8 << 20, 10


def find_mpi() -> Any:
    """Start MPI, and return the module mpi4py.MPI; under `jobflow launch`, start MPI as a rank of the launcher."""
    if sys.argv[2:] != ["launched"]:
        return importlib.import_module("mpi4py.MPI")
    world = importlib.import_module("jobflow.runtime.world.mpi")
    return world.mpi_process(importlib.import_module("jobflow.runtime.world.launched").launched()).mpi


def best(what: Any, comm: Any) -> float:
    """Return the shortest time of several calls of `what`, in seconds; all ranks of `comm` must call this function together."""
    times = float("inf")
    for _ in range(TIMES):
        comm.Barrier()
        begun = time.perf_counter()
        what()
        times = min(times, time.perf_counter() - begun)
    return times


def messages(comm: Any) -> tuple[float, float]:
    """Return the seconds of an exchange of one byte, and the bytes per second that each rank sends in a large exchange."""
    other = 1 - comm.Get_rank()
    small, large = np.zeros(1, np.uint8), np.full(SIZE, comm.Get_rank(), np.uint8)
    got_small, got_large = small.copy(), large.copy()
    latency = best(lambda: comm.Sendrecv(small, other, recvbuf=got_small, source=other), comm)
    seconds = best(lambda: comm.Sendrecv(large, other, recvbuf=got_large, source=other), comm)
    assert np.all(got_large == other), "a message has wrong content"
    return latency, SIZE / seconds


def window(mpi: Any, comm: Any) -> float:
    """Return the bytes per second at which a rank reads shared memory of the other rank; raise RuntimeError on different machines."""
    node = comm.Split_type(mpi.COMM_TYPE_SHARED)
    if node.Get_size() < 2:
        raise RuntimeError("the ranks are on different machines")
    shared = mpi.Win.Allocate_shared(SIZE, 1, comm=node)
    shared.Lock_all(mpi.MODE_NOCHECK)
    seconds = look(shared, node)
    shared.Unlock_all()
    shared.Free()
    return SIZE / seconds


def look(shared: Any, node: Any) -> float:
    """Write this rank's part of a shared window, and return the seconds to read the other rank's part."""
    me = node.Get_rank()
    mine, theirs = (np.frombuffer(shared.Shared_query(rank)[0], np.uint8) for rank in (me, 1 - me))
    mine[:] = 10 + me
    shared.Sync()
    node.Barrier()
    shared.Sync()
    read = np.empty(SIZE, np.uint8)
    seconds = best(lambda: np.copyto(read, theirs), node)
    assert np.all(read == 11 - me), "shared memory has wrong content"
    node.Barrier()
    return seconds


def main() -> None:
    """Measure the communication, and print the result on rank 0."""
    signal.alarm(int(sys.argv[1]))  # end even if the parent process was killed
    mpi = find_mpi()
    comm = mpi.COMM_WORLD
    report: dict[str, Any] = {"ranks": comm.Get_size()}
    if comm.Get_size() == 2:
        report["latency"], report["messages"] = messages(comm)
        try:
            report["shared"], report["trouble"] = window(mpi, comm), ""
        except (mpi.Exception, RuntimeError) as error:
            report["shared"], report["trouble"] = 0.0, " ".join(str(error).split())[:200]
    if comm.Get_rank() == 0:
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
