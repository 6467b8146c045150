"""All laws of communicators, driven by rank 0: `comm_laws.py shared|messages|nodes`."""

from __future__ import annotations

import sys

import contract

from jobflow.runtime.world import mpi
from jobflow.runtime.world.mpi import MpiWorld

started = mpi.guard()
assert started is not None
how = sys.argv[1]
nodes = [rank // 2 for rank in range(started.size)] if how == "nodes" else None
world = MpiWorld(started, shared=how != "messages", nodes=nodes)
if not world.is_client:
    world.serve()
done = 0
for law, argument in contract.all_cases():
    world.call(law, [argument] * world.size)
    done += 1
print(f"{done} laws hold on {world.size} ranks")
world.close()
