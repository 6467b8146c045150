"""The rank that runs a graph on the GPU of its tensors.

A graph of all ranks of the world, each on a GPU of its own, uses NCCL, with the plans and captured graphs of jobs.  Other graphs exchange tensors
through the memory of the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import jobflow.core.scope as scope
from jobflow.core.errors import PlacementError
from jobflow.core.layout import Layout
from jobflow.kernels.target import CPU, Target
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.comm.solo_communicator import SingleRankGroup
from jobflow.runtime.comm.transports import Transport, facts, host_communicator, nccl_or_hosts
from jobflow.runtime.comm.waits import named
from jobflow.runtime.world.world import Rank
from jobflow.tensors.convert import agree
from jobflow.tensors.gpus import device_name, gpu_of
from jobflow.tensors.state import EagerState

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu


def shared_target(here: EagerState, layouts: Iterable[Layout], gpu: EagerGpu | None, what: str) -> Target:
    """Return the target of a program whose tensors have these layouts: a GPU if all ranks of the world take part and exchange through NCCL.

    Otherwise, return the CPU.  `what` names the call in messages.  All ranks of the layouts must call this function.
    """
    placements = {layout.placement for layout in layouts}
    takes_part = {rank for placement in placements for rank in placement.ranks}
    if len(takes_part) < here.rank.size or not any(placement.tag == "cuda" for placement in placements):
        return CPU
    with scope.lock():
        agree(here, here.rank.host_comm, crc32(what.encode()), lambda: what)
        transport = transport_between(here, here.rank.host_comm, gpu)
    return gpu.target if gpu is not None and transport.kind == "nccl" else CPU


def transport_between(here: EagerState, hosts: Communicator, gpu: EagerGpu | None) -> Transport:
    """Return the transport of tensors between the GPUs of some ranks, NCCL or the hosts.

    `gpu` is the GPU of this rank, or None without GPUs.  `hosts` is the host communicator.  Collective over the ranks of `hosts`.
    """
    own = facts(here.device if gpu is None else gpu.device)
    devices = hosts.exchange((own, gpu is not None and _uses_other_device(here.rank, gpu)))
    others = [rank for rank, (_, differs) in zip(hosts.members, devices, strict=True) if differs]
    if others:
        return Transport("host", f"tensors of {named(others)} are on another GPU than those of earlier programs, or belong to an earlier session")
    return nccl_or_hosts([device for device, _ in devices], hosts.members)


def _uses_other_device(rank: Rank, gpu: EagerGpu) -> bool:
    """Return True if the NCCL calls of this rank use a stream of another device than `gpu`."""
    comm = _known_nccl(rank)
    return comm is not None and comm.device is not gpu.device


def rank_on(here: EagerState, ranks: Sequence[int], gpu: EagerGpu | None, target: Target) -> Rank:
    """Return this rank, numbered within `ranks`, with a GPU as its device, or the host for None; all these ranks must call this function.

    Ranks on GPUs use NCCL for a program for GPUs, and otherwise the memory of the hosts; `target` is that of the program.
    """
    host, index = here.rank.host_comm.group(ranks), list(ranks).index(here.rank.index)
    if gpu is None:
        return Rank(index, len(ranks), here.device, host)
    gpu.activate()
    comm: Communicator = SingleRankGroup(gpu.device.allocate, 0, host)
    if len(ranks) > 1:
        comm = host_communicator(host, gpu.device) if target.kind == "cpu" else nccl_of_world(here.rank, gpu).group(ranks)
    return Rank(index, len(ranks), gpu.device, comm)


def nccl_of_world(rank: Rank, gpu: EagerGpu) -> NcclCommunicator:
    """Return the communicator of all ranks through NCCL, which the world closes."""
    comm = _known_nccl(rank)
    if comm is None:
        comm = rank.gpu_comm = NcclCommunicator(rank.comm, gpu.device)
    return comm


def _known_nccl(rank: Rank) -> NcclCommunicator | None:
    """Return the communicator of all ranks through NCCL, if it exists."""
    comm = rank.comm if rank.gpu_comm is None else rank.gpu_comm
    return comm if isinstance(comm, NcclCommunicator) else None


def gpu_of_tensors(what: str, tensors: Iterable[tuple[str, Any]]) -> EagerGpu | None:
    """Return the GPU that holds the arrays of these named tensors; None for the host.

    Raises: PlacementError if the tensors are on several devices; `what` names the caller.
    """
    first: dict[EagerGpu | None, tuple[str, Any]] = {}
    for name, x in tensors:
        if x.layout is None or x.array.size:  # a rank outside of a placement has an empty array on the host
            first.setdefault(gpu_of(x.array), (name, x))
    if len(first) > 1:
        listed = ", ".join(f"{name} {x.tensor_type} on {device_name(x.array)}" for name, x in first.values())
        raise PlacementError(f"{what}: tensors of the graph are on different devices ({listed}); move its modules and inputs to one device")
    return next(iter(first), None)
