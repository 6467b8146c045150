"""One case of `partings` on processes: `diverging.py CASE [shared|messages|nodes]`; every rank prints its error as a Python literal."""

from __future__ import annotations

import sys
import time

import partings

from jobflow.runtime.world import launched as launch
from jobflow.runtime.world import mpi
from jobflow.runtime.world.mpi import MpiWorld

started = mpi.guard()
assert started is not None
how = sys.argv[2]
nodes = [rank // 2 for rank in range(started.size)] if how == "nodes" else None
world = MpiWorld(started, multi=True, shared=how != "messages", nodes=nodes)
world.ranks[0].comm.barrier()
began = time.monotonic()
text = getattr(partings, sys.argv[1])(world.ranks[0])
took = time.monotonic() - began
print((started.rank, took, text), flush=True)
if text:
    time.sleep(0.7)  # until all have said it
    launch.abort(started)  # the only end of a job in which ranks have parted
