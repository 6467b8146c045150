"""An all_reduce between MPI ranks, timed on order: mpiexec -n 2 python reduce.py jobflow|mpi.

A round's "steps" are the bytes of the array; the answer holds the seconds of each of `TIMES` reductions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import worker
from mpi4py import MPI

import jobflow as flow
from jobflow.core.layout import SUM
from jobflow.engine.session import current_session
from jobflow.runtime.world.world import Rank, World

TIMES = 20


@dataclass
class Reduce:
    """A command for the ranks: sum an array of so many bytes, again and again."""

    nbytes: int
    through_mpi: bool

    def __call__(self, rank: Rank, _: Any) -> list[float]:
        reduce = self._through_mpi() if self.through_mpi else self._through_jobflow(rank)
        seconds = []
        for _ in range(TIMES + 3):
            MPI.COMM_WORLD.Barrier()
            start = time.perf_counter()
            reduce()
            seconds.append(time.perf_counter() - start)
        return seconds[3:]

    def _through_mpi(self) -> Callable[[], None]:
        source, target = np.ones(self.nbytes // 4, np.float32), np.empty(self.nbytes // 4, np.float32)
        return lambda: MPI.COMM_WORLD.Allreduce(source, target)

    def _through_jobflow(self, rank: Rank) -> Callable[[], None]:
        source = memory_of(rank, self.nbytes)
        source[...] = 1
        target = np.empty_like(source)
        calls = rank.comm.bind_all_reduce(tuple(range(rank.size)), source, target, SUM)
        rank.comm.seal()

        def reduce() -> None:
            for f, a in calls:
                f(*a)

        return reduce


def memory_of(rank: Rank, nbytes: int) -> Any:
    """Memory for an array of so many bytes that the ranks share; allocated once for each size."""
    buffers = rank.memory.setdefault("reduce", {})
    if nbytes not in buffers:
        buffers[nbytes] = rank.comm.allocate(nbytes).view(np.float32)
    return buffers[nbytes]


def main() -> None:
    flow.config.cpu_device_num(MPI.COMM_WORLD.size)
    world: World = current_session().start()

    def round_(nbytes: int) -> list[float]:
        return np.max(world.call(Reduce(nbytes, sys.argv[1] == "mpi")), axis=0).tolist()

    worker.obey({"round": lambda nbytes: {"seconds": round_(nbytes)}})


if __name__ == "__main__":
    main()
