"""A data parallel loop as written for PyTorch: `torch_loop.py`, on each rank, or `torch_loop.py spawn`, which starts two ranks."""

from __future__ import annotations

import os
import sys

import jobflow as torch
import jobflow.distributed as dist
import jobflow.multiprocessing as mp
from jobflow import nn
from jobflow.nn.parallel import DistributedDataParallel
from jobflow.utils.data import DataLoader, TensorDataset
from jobflow.utils.data.distributed import DistributedSampler


def train(rank: int, size: int) -> None:
    """Train on the rank's share of the batch, and print the mean loss."""
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8 // size, sampler=sampler, pin_memory=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model), device_ids=[local_rank], output_device=local_rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.to(device, non_blocking=True)), y.to(device))
            loss.backward()
            optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    dist.barrier()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.5f}", flush=True)
    dist.destroy_process_group()


def by_environment() -> None:
    """Join the ranks that a launcher started."""
    dist.init_process_group("nccl", init_method="env://")
    train(dist.get_rank(), dist.get_world_size())


def spawned(rank: int, size: int) -> None:
    """Join the ranks that `spawn` started."""
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    train(rank, size)


def fail(rank: int) -> None:
    """End with an error on rank 1."""
    if rank == 1:
        raise ValueError("no luck")


if __name__ == "__main__":
    case = sys.argv[1] if len(sys.argv) > 1 else ""
    if case == "spawn":
        mp.spawn(spawned, args=(2,), nprocs=2, join=True)
    elif case == "fail":
        mp.spawn(fail, nprocs=2)
    else:
        by_environment()
