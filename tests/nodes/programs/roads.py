"""Print the shared files that a rank maps, and the bytes on the cable of its node during two all-reduces, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.core.layout import Reduction
from jobflow.runtime.world.start import start_world
from jobflow.runtime.world.world import Rank

SIZE = 1 << 19


def work(rank: Rank, near: Sequence[int]) -> dict[str, Any]:
    """Reduce an array over the ranks of the node, and one over all ranks."""
    within = reduced(rank, near) if len(near) > 1 else 0
    rank.comm.barrier()
    return {"near": near, "within": within, "between": reduced(rank, range(rank.size)), "files": shared_files()}


def reduced(rank: Rank, ranks: Sequence[int]) -> int:
    """Return the bytes that the cable of this node sends while the ranks reduce an array of SIZE float64."""
    source, target = np.full(SIZE, rank.index + 1, np.float64), np.zeros(SIZE)
    calls = rank.comm.bind_all_reduce(ranks, source, target, Reduction.SUM)
    rank.comm.seal()
    rank.comm.barrier()
    before = sent()
    for function, arguments in calls:
        function(*arguments)
    assert np.all(target == sum(ranks) + len(ranks))
    return sent() - before


def sent() -> int:
    """Return the bytes that this node has sent to other nodes."""
    rows = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(row[9]) for row in rows if row[0] != "lo:")


def shared_files() -> list[str]:
    """Return the files of memory that this process and others can write."""
    rows = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted({f"{row[3]} {row[4]}" for row in rows if row[1].endswith("ws") or row[1] == "rw-s"})


world = start_world("cpu", None, multi=True)
me = world.ranks[0]
print(json.dumps({"rank": me.index, **world.call(work, [world.map.ranks_of(rank) for rank in range(world.size)])[me.index]}), flush=True)
