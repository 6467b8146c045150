"""The rank that runs a graph on the GPU of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jobflow.core.errors import PlacementError
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.comm.solo_communicator import SingleRankGroup
from jobflow.runtime.comm.transports import host_communicator
from jobflow.runtime.world.world import Rank
from jobflow.tensors.gpus import device_name, gpu_of
from jobflow.tensors.state import EagerState

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu


def rank_on(here: EagerState, ranks: Sequence[int], gpu: EagerGpu | None) -> Rank:
    """Return this rank, numbered within `ranks`, with a GPU as its device, or the host for None; all these ranks must call this function.

    Ranks on GPUs exchange tensors through the memory of the hosts.
    """
    host, index = here.rank.comm.group(ranks), list(ranks).index(here.rank.index)
    if gpu is None:
        return Rank(index, len(ranks), here.device, host)
    gpu.activate()
    comm: Communicator = SingleRankGroup(gpu.device.allocate, 0, host)
    if len(ranks) > 1:
        comm = host_communicator(host, gpu.device)
    return Rank(index, len(ranks), gpu.device, comm)


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
