"""The choice of the world and devices of a program."""

from __future__ import annotations

from jobflow.core.notices import notice
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import cpu_device
from jobflow.runtime.world.environment import launched
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.world import World


def start_world(tag: str, requested: int | None, *, multi: bool = False) -> World:
    """Return the world of this process with `requested` devices of kind `tag`, or one device if None.

    A serving process never returns from this call.  Under mpiexec there is one rank per process, independent of `requested`.  Otherwise
    there is one rank per device, on threads.
    """
    make = gpu_device if tag == "gpu" else cpu_device
    started = launched()
    first = started is None or started.rank == 0  # one notice per job
    if tag == "gpu" and first and not cuda.available():
        notice('there is no GPU: "gpu" placements run on CPU ranks')
    if started is not None:
        from jobflow.runtime.world.mpi import MpiWorld  # each kind of world is imported where it is used

        if requested is not None and requested != started.size and first:
            notice(f"the program requests {requested} devices but {started.launcher} started {started.size} ranks: it runs on {started.size}")
        world = MpiWorld(started, make, multi=multi)
        if not world.is_client:
            world.serve()
        return world
    devices = [make(i) for i in range(requested or 1)]
    if len(devices) == 1:
        return SoloWorld(devices[0])
    from jobflow.runtime.world.threads import ThreadsWorld

    return ThreadsWorld(devices)


def gpu_device(local: int) -> Device:
    """Return GPU number `local` of the node, modulo the number of GPUs; return a CPU device if there is no GPU."""
    count = cuda.available()
    return cuda.CudaDevice(local % count) if count else cpu_device(local)
