"""Statistics of the memory of GPUs, for the namespace `flow.cuda`; without a GPU they are 0, because tensors are in host memory."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, NamedTuple

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional.devices import checked_gpu
from jobflow.runtime.device import cuda_facts
from jobflow.runtime.device.cuda_facts import PoolBytes
from jobflow.tensors.gpus import gpu_count, open_gpu
from jobflow.tensors.state import state

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu


class Properties(NamedTuple):
    """The properties of a device."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int


def opened(what: str, device: Any) -> EagerGpu | None:
    """Return the GPU that the argument of `cuda.<what>` names, by default the current one; None if this process can use no GPU.

    Raises: PlacementError for another argument, and for a GPU that does not exist.
    """
    return open_gpu(state(), checked_gpu(what, device).index, f"cuda.{what} at {user_line()}")


def get_device_properties(device: Any = None) -> Properties:
    """Return name, memory in bytes, number of multiprocessors and compute capability of the GPU.

    Without a GPU, they describe the host memory and the CPU of this machine, with the capability 0.0.
    """
    gpu = opened("get_device_properties", device)
    if gpu is not None:
        return Properties(*cuda_facts.properties(gpu.index))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return Properties(f"host memory ({platform.machine()})", memory, os.cpu_count() or 1, 0, 0)


def _bytes(what: str, device: Any) -> PoolBytes:
    gpu = opened(what, device)
    return PoolBytes(0, 0) if gpu is None else gpu.memory()


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of tensors on the GPU."""
    return _bytes("memory_allocated", device).used


def max_memory_allocated(device: Any = None) -> int:
    """Return the largest number of bytes of tensors on the GPU since the start, or since `reset_peak_memory_stats`."""
    gpu = opened("max_memory_allocated", device)
    return 0 if gpu is None else gpu.peak().used


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the GPU's allocator has reserved."""
    return _bytes("memory_reserved", device).reserved


def max_memory_reserved(device: Any = None) -> int:
    """Return the largest number of bytes that the GPU's allocator had reserved."""
    gpu = opened("max_memory_reserved", device)
    return 0 if gpu is None else gpu.peak().reserved


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return the statistics of the GPU's allocator by PyTorch's names, in bytes; empty without a GPU."""
    gpu = opened("memory_stats", device)
    if gpu is None:
        return {}
    now, peak = gpu.memory(), gpu.peak()
    return {
        "allocated_bytes.all.current": now.used,
        "allocated_bytes.all.peak": peak.used,
        "reserved_bytes.all.current": now.reserved,
        "reserved_bytes.all.peak": peak.reserved,
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return a description of the memory in use on the GPU."""
    gpu, name = opened("memory_summary", device), checked_gpu("memory_summary", device)
    if gpu is None:
        return f"device {name}: 0 bytes in use, because tensors are in host memory"
    return "\n".join([f"device {name}:", *(f"  {key}: {value}" for key, value in memory_stats(device).items())])


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total), the memory of the GPU in bytes; without a GPU, the memory of this machine."""
    gpu = opened("mem_get_info", device)
    if gpu is not None:
        return cuda_facts.memory_info(gpu.index)
    total = get_device_properties(device).total_memory
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}) else total
    return free, total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit the memory that tensors use to a fraction of the GPU's memory; without a GPU, do nothing.

    Raises: ArgumentError unless `fraction` is a number from 0 to 1.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise ArgumentError(f"cuda.set_per_process_memory_fraction at {user_line()}: fraction must be a number from 0 to 1; got {fraction!r}")
    gpu = opened("set_per_process_memory_fraction", device)
    if gpu is not None:
        cuda_facts.limit_pool(gpu.index, fraction)


def empty_cache() -> None:
    """Return the memory that no tensor uses from the allocator to the GPUs."""
    here = state()
    for gpu in here.gpus.values() if gpu_count(here) else ():
        gpu.arrivals.clear()
        cuda_facts.free_cached(gpu.index)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Set the largest numbers of bytes to the present numbers."""
    gpu = opened("reset_peak_memory_stats", device)
    if gpu is not None:
        gpu.reset_peak()


def reset_max_memory_allocated(device: Any = None) -> None:
    """Set the largest numbers of bytes to the present numbers."""
    reset_peak_memory_stats(device)
