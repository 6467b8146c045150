"""The choice of the world and devices of a program."""

from __future__ import annotations

from jobflow.core.notices import notice
from jobflow.runtime.device import cupy_device as cuda
from jobflow.runtime.device.device import Device
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world.mpi import MpiWorld, cpu_device
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import World


def start_world(tag: str, asked: int | None, *, multi: bool = False) -> World:
    """The world of this process; `asked` devices of kind `tag`, one if None.  A process that serves ends in here.

    Under mpiexec there is one rank per process, whatever was asked for; otherwise one rank per device, on threads.
    """
    make = gpu_device if tag == "gpu" else cpu_device
    started = launch.launched()
    first = started is None or started.rank == 0  # notices are for the job, not for each of its ranks
    if tag == "gpu" and first and not cuda.available():
        notice('there is no GPU: "gpu" placements run on CPU ranks')
    if started is not None:
        if asked is not None and asked != started.size and first:
            notice(f"the program asks for {asked} devices but {started.launcher} started {started.size} ranks: it runs on {started.size}")
        world = MpiWorld(started, make, multi=multi)
        if not world.is_client:
            world.serve()
        return world
    devices = [make(i) for i in range(asked or 1)]
    return SoloWorld(devices[0]) if len(devices) == 1 else ThreadsWorld(devices)


def gpu_device(local: int) -> Device:
    """The same as `cpu_device`, on the node's GPUs, where it has any: ranks beyond their number share."""
    found = cuda.available()
    return cuda.CudaDevice(local % found) if found else cpu_device(local)
