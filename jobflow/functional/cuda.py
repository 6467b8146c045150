"""The namespace `flow.cuda`: queries of the GPUs of this process, and PyTorch's switches for GPUs.

CUDA_VISIBLE_DEVICES selects the GPUs of a process.  "cuda" without an index is the GPU of this rank: its number on the machine (LOCAL_RANK),
modulo the number of GPUs.  Without a GPU, the device "cuda" uses host memory, and the switches check their arguments only.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.lazy_imports import add_aliases
from jobflow.functional import sampling
from jobflow.functional.classes import tensor_classes
from jobflow.functional.cuda_streams import Event as Event
from jobflow.functional.cuda_streams import Stream as Stream
from jobflow.functional.cuda_streams import current_stream as current_stream
from jobflow.functional.cuda_streams import default_stream as default_stream
from jobflow.functional.cuda_streams import set_stream as set_stream
from jobflow.functional.cuda_streams import stream as stream
from jobflow.functional.cuda_streams import synchronize as synchronize
from jobflow.functional.devices import checked_gpu
from jobflow.functional.memory_statistics import Properties as Properties
from jobflow.functional.memory_statistics import empty_cache as empty_cache
from jobflow.functional.memory_statistics import get_device_properties as get_device_properties
from jobflow.functional.memory_statistics import max_memory_allocated as max_memory_allocated
from jobflow.functional.memory_statistics import max_memory_cached as max_memory_cached
from jobflow.functional.memory_statistics import max_memory_reserved as max_memory_reserved
from jobflow.functional.memory_statistics import mem_get_info as mem_get_info
from jobflow.functional.memory_statistics import memory_allocated as memory_allocated
from jobflow.functional.memory_statistics import memory_cached as memory_cached
from jobflow.functional.memory_statistics import memory_reserved as memory_reserved
from jobflow.functional.memory_statistics import memory_stats as memory_stats
from jobflow.functional.memory_statistics import memory_summary as memory_summary
from jobflow.functional.memory_statistics import opened
from jobflow.functional.memory_statistics import reset_max_memory_allocated as reset_max_memory_allocated
from jobflow.functional.memory_statistics import reset_peak_memory_stats as reset_peak_memory_stats
from jobflow.functional.memory_statistics import set_per_process_memory_fraction as set_per_process_memory_fraction
from jobflow.runtime.device import cuda_device, cuda_facts
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


def current_device() -> int:
    """Return the index of the GPU that "cuda" names: the index that `set_device` received, by default the GPU of this rank."""
    index = checked_gpu("current_device", None).index
    assert index is not None
    return index


def set_device(device: Any) -> None:
    """Set the GPU that "cuda" without an index names.

    Raises: PlacementError unless `device` is an index or a device "cuda", and for a GPU that does not exist.
    """
    opened("set_device", device)
    state().cuda_index = checked_gpu("set_device", device).index


class device:
    """A `with` block in which "cuda" without an index names the GPU `device`; None and negative indices change nothing."""

    def __init__(self, device: Any) -> None:
        ignored = device is None or (type(device) is int and device < 0)
        self.index = None if ignored else checked_gpu("device", device).index
        #: the index before each active block
        self.before: list[int | None] = []

    def __enter__(self) -> Self:
        here = state()
        self.before.append(here.cuda_index)
        if self.index is not None:
            here.cuda_index = self.index
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state().cuda_index = self.before.pop()


def get_device_name(device: Any = None) -> str:
    """Return the name of the GPU, such as "NVIDIA H100 80GB HBM3"; without a GPU, such as "host memory (x86_64)"."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability of the device as (major, minor); (0, 0) without a GPU."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Return True if one GPU can read the memory of the other; without GPUs, True unless both arguments name the same device."""
    what = "can_device_access_peer"
    pair = opened(what, device), opened(what, peer_device)
    if pair[0] is None or pair[1] is None:
        return checked_gpu(what, device) != checked_gpu(what, peer_device)
    return cuda_facts.can_access_peer(pair[0].index, pair[1].index)


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
    checked_gpu("get_rng_state", device)
    return sampling.get_rng_state()


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Restore a state of `get_rng_state`."""
    checked_gpu("set_rng_state", device)
    sampling.set_rng_state(new_state)


def get_rng_state_all() -> list[Any]:
    """Return the states of all GPUs; without a GPU, the only state."""
    return [sampling.get_rng_state()]


def set_rng_state_all(new_states: Any) -> None:
    """Restore states of `get_rng_state_all`."""
    if not isinstance(new_states, list | tuple) or not new_states:
        raise ArgumentError(f"cuda.set_rng_state_all at {user_line()}: new_states must be a list of tensors; got {new_states!r}")
    sampling.set_rng_state(new_states[0])


def utilization(device: Any = None) -> int:
    """Return 0 without a GPU.  Raises: JobError for a GPU, whose load is not known."""
    if opened("utilization", device) is not None:
        raise JobError(f"cuda.utilization at {user_line()}: the load of a GPU is not known to the program; use nvidia-smi")
    return 0


def ipc_collect() -> None:
    """Do nothing; no memory of a GPU is shared between processes."""


add_aliases(__name__, "jobflow.cuda")
