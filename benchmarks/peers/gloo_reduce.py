"""An all_reduce of PyTorch over gloo, timed on order: python gloo_reduce.py RANK RANKS RENDEZVOUS, one process per rank."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
import worker

TIMES = 20


def seconds(nbytes: int) -> list[float]:
    """Of each of some reductions of so many bytes."""
    array = torch.ones(nbytes // 4)
    durations = []
    for _ in range(TIMES + 3):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(array)
        durations.append(time.perf_counter() - start)
    return durations[3:]


def main() -> None:
    rank, ranks, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    worker.obey({"round": lambda nbytes: {"seconds": seconds(nbytes)}}, answers=rank == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
