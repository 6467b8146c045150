"""The namespace `flow.cuda`: queries of the GPUs of this process, and PyTorch's switches for GPUs.

Only jobs run on GPUs.  With a GPU present, tensors and graphs reject the device "cuda"; without a GPU, the device "cuda" uses host memory.  The
switches check their arguments and have no effect on host memory: operations are synchronous, and no memory of a GPU is in use.
"""

from __future__ import annotations

import os
import platform
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

from jobflow.core.errors import ArgumentError, JobError, PlacementError, user_line
from jobflow.core.lazy_imports import add_aliases
from jobflow.functional import sampling
from jobflow.functional.classes import tensor_classes
from jobflow.functional.devices import checked_device
from jobflow.functional.devices import device as _device
from jobflow.runtime.device import cuda_device
from jobflow.tensors.state import state

FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, ShortTensor, IntTensor, LongTensor, CharTensor, ByteTensor, BoolTensor = tensor_classes(
    __name__, "cuda"
)


def device_count() -> int:
    """Return the number of GPUs visible to this process."""
    return cuda_device.available()


def is_available() -> bool:
    """Return True if this process has at least one GPU."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return True if this process has at least one GPU."""
    return is_available()


def init() -> None:
    """Do nothing; devices are initialized when they are first used."""


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True, because bfloat16 is supported on every device."""
    return True


def get_arch_list() -> list[str]:
    """Return an empty list, because kernels are compiled when they are first used."""
    return []


# -------------------------------------------------------------------- the current device


def _gpu(what: str, requested: Any) -> _device:
    """Return the device "cuda" that the argument names, by default the current one.  Raises: PlacementError for another argument."""
    chosen = checked_device(f"cuda.{what}", "cuda" if requested is None else requested)
    assert chosen is not None
    if chosen.type != "cuda":
        raise PlacementError(f'cuda.{what} at {user_line()}: device={requested!r} is not a GPU; use "cuda", "cuda:0" or an index')
    return chosen


def current_device() -> int:
    """Return the index of the GPU that "cuda" names: the index that `set_device` received, by default the number of this rank."""
    index = _gpu("current_device", None).index
    assert index is not None
    return index


def set_device(device: Any) -> None:
    """Set the GPU that "cuda" without an index names.  Raises: PlacementError unless `device` is an index or a device "cuda"."""
    state().cuda_index = _gpu("set_device", device).index


class device:
    """A `with` block in which "cuda" without an index names the GPU `device`; None and negative indices change nothing."""

    def __init__(self, device: Any) -> None:
        ignored = device is None or (type(device) is int and device < 0)
        self.index = None if ignored else _gpu("device", device).index

    def __enter__(self) -> Self:
        here = state()
        self.before = here.cuda_index
        if self.index is not None:
            here.cuda_index = self.index
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state().cuda_index = self.before


class Properties(NamedTuple):
    """The properties of a device."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int


def get_device_properties(device: Any = None) -> Properties:
    """Return name, memory in bytes and number of processors of the device "cuda", which are those of this machine's host memory and CPU."""
    _gpu("get_device_properties", device)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return Properties(f"host memory ({platform.machine()})", memory, os.cpu_count() or 1, 0, 0)


def get_device_name(device: Any = None) -> str:
    """Return the name of the device "cuda", such as "host memory (x86_64)"."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability of the device as (major, minor); (0, 0) without a GPU."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Return True unless both arguments name the same device."""
    return _gpu("can_device_access_peer", device) != _gpu("can_device_access_peer", peer_device)


# -------------------------------------------------------------------- random numbers


def manual_seed(seed: int) -> None:
    """Set the seed as `flow.manual_seed` does: tensors of all devices have one generator.  Raises: ArgumentError unless `seed` is an integer."""
    sampling.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Set the seed as `flow.manual_seed` does.  Raises: ArgumentError unless `seed` is an integer."""
    sampling.manual_seed(seed)


def seed() -> None:
    """Set a random seed, as `flow.seed` does."""
    sampling.seed()


def seed_all() -> None:
    """Set a random seed, as `flow.seed` does."""
    sampling.seed()


def initial_seed() -> int:
    """Return the current seed."""
    return sampling.initial_seed()


def get_rng_state(device: Any = "cuda") -> Any:
    """Return the state of the random generator, which all devices share."""
    _gpu("get_rng_state", device)
    return sampling.get_rng_state()


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Restore a state of `get_rng_state`."""
    _gpu("set_rng_state", device)
    sampling.set_rng_state(new_state)


def get_rng_state_all() -> list[Any]:
    """Return the states of all GPUs; without a GPU, the only state."""
    return [sampling.get_rng_state()]


def set_rng_state_all(new_states: Any) -> None:
    """Restore states of `get_rng_state_all`."""
    if not isinstance(new_states, list | tuple) or not new_states:
        raise ArgumentError(f"cuda.set_rng_state_all at {user_line()}: new_states must be a list of tensors; got {new_states!r}")
    sampling.set_rng_state(new_states[0])


# -------------------------------------------------------------------- memory


def _none_in_use(name: str, doc: str) -> Any:
    def query(device: Any = None) -> int:
        _gpu(name, device)
        return 0

    query.__name__ = query.__qualname__ = name
    query.__doc__ = f"{doc}; 0, because tensors are in host memory."
    return query


memory_allocated = _none_in_use("memory_allocated", "Return the bytes of tensors on the GPU")
max_memory_allocated = _none_in_use("max_memory_allocated", "Return the largest number of bytes of tensors on the GPU")
memory_reserved = _none_in_use("memory_reserved", "Return the bytes that the GPU's allocator has reserved")
max_memory_reserved = _none_in_use("max_memory_reserved", "Return the largest number of bytes that the GPU's allocator had reserved")
memory_cached = _none_in_use("memory_cached", "Return the bytes that the GPU's allocator has reserved")
max_memory_cached = _none_in_use("max_memory_cached", "Return the largest number of bytes that the GPU's allocator had reserved")
utilization = _none_in_use("utilization", "Return the percentage of time in which the GPU computed")


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Return the statistics of the GPU's allocator; empty, because tensors are in host memory."""
    _gpu("memory_stats", device)
    return {}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return a description of the memory in use on the GPU."""
    return f"device {_gpu('memory_summary', device)}: 0 bytes in use, because tensors are in host memory"


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total), the memory of this machine in bytes, because the device "cuda" uses host memory."""
    total = get_device_properties(device).total_memory
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}) else total
    return free, total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Do nothing.  Raises: ArgumentError unless `fraction` is a number from 0 to 1."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise ArgumentError(f"cuda.set_per_process_memory_fraction at {user_line()}: fraction must be a number from 0 to 1; got {fraction!r}")
    _gpu("set_per_process_memory_fraction", device)


def empty_cache() -> None:
    """Do nothing; no memory of a GPU is cached."""


def ipc_collect() -> None:
    """Do nothing; no memory of a GPU is shared."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Do nothing; the statistics are 0."""
    _gpu("reset_peak_memory_stats", device)


def reset_max_memory_allocated(device: Any = None) -> None:
    """Do nothing; the statistics are 0."""
    _gpu("reset_max_memory_allocated", device)


# -------------------------------------------------------------------- streams


def synchronize(device: Any = None) -> None:
    """Do nothing; operations have ended when they return."""
    _gpu("synchronize", device)


class Stream:
    """A queue of operations; operations run immediately, in the order of the program."""

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device, self.priority = _gpu("Stream", device), priority

    def synchronize(self) -> None:
        """Do nothing; operations have ended when they return."""

    def query(self) -> bool:
        """Return True, because all operations have ended."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Do nothing; operations of other streams have ended."""

    def wait_event(self, event: Any) -> None:
        """Do nothing; the event has happened."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event, a new one by default, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class Event:
    """A point in time; with `enable_timing`, `elapsed_time` returns the time between two of them."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False) -> None:
        self.enable_timing = enable_timing
        self.time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Record the current time."""
        self.time = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to `end_event`.  Raises: JobError unless both were recorded with `enable_timing`."""
        ends = self, end_event
        if not all(isinstance(event, Event) and event.enable_timing and event.time is not None for event in ends):
            raise JobError(f"Event.elapsed_time at {user_line()}: both events must be recorded; pass enable_timing=True, and call record() first")
        return (end_event.time - self.time) * 1000  # type: ignore[operator]

    def query(self) -> bool:
        """Return True, because all operations have ended."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Do nothing; the event has happened."""

    def synchronize(self) -> None:
        """Do nothing; the event has happened."""


class stream(Stream):
    """A `with` block whose operations run on `stream`, in the order of the program."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        if stream is not None and not isinstance(stream, Stream):
            raise ArgumentError(f"cuda.stream at {user_line()}: stream must be a cuda.Stream; got {stream!r}")
        self.stream = stream


def current_stream(device: Any = None) -> Stream:
    """Return the stream of the device."""
    return Stream(device)


def default_stream(device: Any = None) -> Stream:
    """Return the stream of the device."""
    return Stream(device)


def set_stream(stream: Any) -> None:
    """Do nothing; operations run in the order of the program."""


add_aliases(__name__, "jobflow.cuda")
