"""All laws of communicators, driven by rank 0: `comm_laws.py shared|messages|nodes [pairs]`."""

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
cases = list(contract.all_cases("pairs" in sys.argv))
for law, argument in cases:
    world.call(law, [argument] * world.size)
print(f"{len(cases)} laws hold on {world.size} ranks")
world.close()
