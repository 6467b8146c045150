"""Facts of a GPU and of CuPy's memory pool, for `flow.cuda`."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple


class GpuProperties(NamedTuple):
    """The properties of a GPU; `total_memory` is in bytes."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int


class PoolBytes(NamedTuple):
    """The bytes of arrays in use, and the bytes that the pool has reserved."""

    used: int
    reserved: int


class FreeMemory(NamedTuple):
    """The bytes that the program can still allocate, the bytes of the GPU, and the limit of the program's memory, 0 without one."""

    free: int
    total: int
    limit: int


def _cupy() -> Any:
    return importlib.import_module("cupy")


def properties(index: int) -> GpuProperties:
    """Return the properties of GPU number `index` of this process."""
    facts = _cupy().cuda.runtime.getDeviceProperties(index)
    name = facts["name"]
    return GpuProperties(
        name.decode() if isinstance(name, bytes) else str(name),
        int(facts["totalGlobalMem"]),
        int(facts.get("multiProcessorCount", 0)),
        int(facts["major"]),
        int(facts["minor"]),
    )


def can_access_peer(index: int, other: int) -> bool:
    """Return True if GPU number `index` can read the memory of GPU number `other`."""
    return index != other and bool(_cupy().cuda.runtime.deviceCanAccessPeer(index, other))


def pool_bytes(index: int) -> PoolBytes:
    """Return the bytes in CuPy's memory pool of GPU number `index`."""
    cupy = _cupy()
    with cupy.cuda.Device(index):
        pool = cupy.get_default_memory_pool()
        return PoolBytes(int(pool.used_bytes()), int(pool.total_bytes()))


def free_cached(index: int) -> None:
    """Return the unused memory of CuPy's pool to GPU number `index`."""
    cupy = _cupy()
    with cupy.cuda.Device(index):
        cupy.get_default_memory_pool().free_all_blocks()


def limit_pool(index: int, fraction: float) -> None:
    """Limit CuPy's pool to a fraction of the memory of GPU number `index`."""
    cupy = _cupy()
    with cupy.cuda.Device(index):
        cupy.get_default_memory_pool().set_limit(size=int(fraction * properties(index).total_memory))


def memory_info(index: int) -> tuple[int, int]:
    """Return the free and the total memory of GPU number `index`, in bytes."""
    cupy = _cupy()
    with cupy.cuda.Device(index):
        free, total = cupy.cuda.runtime.memGetInfo()
    return int(free), int(total)


def free_memory(index: int) -> FreeMemory:
    """Return the memory of GPU number `index` that the program can allocate: free memory, and unused memory of CuPy's pool, up to its limit."""
    cupy = _cupy()
    free, total = memory_info(index)
    with cupy.cuda.Device(index):
        pool = cupy.get_default_memory_pool()
        free, limit = free + int(pool.free_bytes()), int(pool.get_limit())
        return FreeMemory(min(free, max(limit - int(pool.used_bytes()), 0)) if limit else free, total, limit)


def timed_event() -> Any:
    """Return an event of the current GPU that records its time."""
    return _cupy().cuda.Event()


def milliseconds(first: Any, last: Any) -> float:
    """Return the milliseconds between two events that have happened."""
    return float(_cupy().cuda.get_elapsed_time(first, last))


def wait_for_device() -> None:
    """Wait until the operations on all streams of the current GPU have ended."""
    _cupy().cuda.runtime.deviceSynchronize()


def from_foreign(source: Any) -> Any:
    """Return an array in the memory of an object with `__dlpack__` or `__cuda_array_interface__`, on the current GPU and stream."""
    cupy = _cupy()
    return cupy.from_dlpack(source) if hasattr(source, "__dlpack__") else cupy.asarray(source)


def is_pinned(array: Any) -> bool:
    """Return True for a NumPy array in page-locked memory."""
    if "cupy" not in sys.modules:  # a program without a GPU does not import CuPy
        return False
    pinned, base = _cupy().cuda.PinnedMemoryPointer, array
    while base is not None:
        if isinstance(base, pinned):
            return True
        base = getattr(base, "base", None)
    return False
