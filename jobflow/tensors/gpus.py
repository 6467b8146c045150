"""The GPUs of eager tensors: the GPU that holds a tensor, and functions of arrays on any device.

A tensor on a GPU has a CuPy array in place of a NumPy array.  This array alone selects the device on which operations of the tensor run.
`EagerState.gpus` contains the GPUs that tensors have used so far.  While it is empty, operations do not search for GPUs.

The operations of a GPU run in the order of the program on the stream of its device.  This stream is the current stream of each thread that
uses the GPU, also for CuPy.  Operations return before the GPU has computed them, and only reads of elements wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import PlacementError, counted, user_line
from jobflow.core.layout import Layout, Placement
from jobflow.core.types import Array, DType
from jobflow.ops.op import Op
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.world.environment import launched
from jobflow.tensors.state import EagerState, state

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu
    from jobflow.tensors.tensor import TensorBase

# -------------------------------------------------------------------- the GPU of a tensor


def gpu_count(here: EagerState) -> int:
    """Return the number of GPUs that this process can use; CUDA_VISIBLE_DEVICES can hide some."""
    if here.gpu_count is None:
        here.gpu_count = cuda.available()
    return here.gpu_count


def own_index(here: EagerState) -> int:
    """Return the number of the GPU of this rank: its number on the machine, modulo the number of GPUs."""
    number = here.rank.index
    if launched() is not None:
        from jobflow.runtime.world.rendezvous import local_rank  # programs of one process need no rendezvous

        number = local_rank()
    return number % max(gpu_count(here), 1)


def open_gpu(here: EagerState, index: int | None, what: str) -> EagerGpu | None:
    """Return GPU number `index` of this process, or the GPU of this rank for None; return None if this process can use no GPU.

    `what` names the caller.  Raises: PlacementError for a GPU that does not exist.
    """
    count = gpu_count(here)
    if not count:
        return None
    number = own_index(here) if index is None else index
    known: EagerGpu | None = here.gpus.get(number)
    if known is not None:
        return known
    if number >= count:
        raise PlacementError(
            f"{what}: the device cuda:{number} does not exist, because this process can use {counted(count, 'GPU')}; use a number from 0 to "
            f"{count - 1}, or change CUDA_VISIBLE_DEVICES"
        )
    from jobflow.tensors.eager_gpu import EagerGpu  # programs without a GPU need no kernels for it

    with scope.lock():
        if number not in here.gpus:
            device = here.rank.device
            if device.tag != "gpu" or getattr(device, "index", None) != number:
                device = cuda.CudaDevice(number)
            device.activate()
            here.gpus[number] = EagerGpu(device)
    opened: EagerGpu = here.gpus[number]
    return opened


def gpu_of_layout(here: EagerState, layout: Layout | None) -> EagerGpu | None:
    """Return the GPU that holds this rank's piece of a tensor with this layout; None for the host."""
    if layout is None or layout.placement.tag != "cuda" or here.rank.index not in layout.placement.ranks:
        return None
    return open_gpu(here, None, f"placement({layout.placement.tag!r}) at {user_line()}")


def gpu_of(array: Any) -> EagerGpu | None:
    """Return the GPU that holds an array; None for a NumPy array, and for the missing array of a traced tensor."""
    if type(array) is np.ndarray or array is None or isinstance(array, np.ndarray | np.generic):
        return None
    here = state()
    known: EagerGpu | None = here.gpus.get(array.device.id)
    return open_gpu(here, array.device.id, f"a tensor at {user_line()}") if known is None else known


def gpu_of_operation(op: Op, arrays: Sequence[Any]) -> EagerGpu | None:
    """Return the GPU that holds these operands, activated; None if the host holds all of them.

    Raises: PlacementError for operands on several devices.
    """
    devices = {-1 if isinstance(array, np.ndarray) else array.device.id for array in arrays if array is not None}
    if devices <= {-1}:
        return None
    if len(devices) > 1:
        names = [device_name(array) for array in arrays]
        raise PlacementError(f"{op.word()}: the inputs are on different devices ({', '.join(names)}); move them to one device with x.to(device)")
    gpu = gpu_of(next(array for array in arrays if array is not None))
    assert gpu is not None
    gpu.activate()
    return gpu


def anchor_of(x: TensorBase) -> Placement | EagerGpu | None:
    """Return the placement of a global tensor, or the GPU of a local tensor; None for a local tensor on the host."""
    return gpu_of(getattr(x, "_array", None)) if x.layout is None else x.layout.placement


def device_name(array: Any) -> str:
    """Return the name of the device that holds an array, such as "cuda:0"."""
    return "cpu" if isinstance(array, np.ndarray) else f"cuda:{array.device.id}"


# -------------------------------------------------------------------- arrays on any device


def as_numpy(array: Array) -> Array:
    """Return the array itself if it is a NumPy array, otherwise a NumPy copy; wait for the GPU in this case."""
    gpu = gpu_of(array)
    return array if gpu is None else gpu.download(array)


def on_device(gpu: EagerGpu | None, array: Array, direct: bool = False) -> Array:
    """Return the array itself if it is on this GPU, or on the host for None; otherwise return a copy there.  `direct` is as in `upload`."""
    if gpu is None:
        return as_numpy(array)
    if isinstance(array, np.ndarray):
        return gpu.upload(array, direct)
    return array if array.device.id == gpu.index else gpu.received(array)


def placed(here: EagerState, array: Array, layout: Layout | None) -> Array:
    """Return this rank's piece of a tensor with this layout, on the device of its placement."""
    if layout is None or layout.placement.tag != "cuda":
        return array if isinstance(array, np.ndarray) else as_numpy(array)
    return on_device(gpu_of_layout(here, layout), array)


def write(target: Array, source: Array) -> None:
    """Copy the elements of `source` to `target`, which may be on different devices, cast to the element type of `target`."""
    gpu = gpu_of(target)
    if gpu is None:
        target[...] = as_numpy(source)
    else:
        gpu.write(target, source)


def duplicate(array: Array) -> Array:
    """Return a copy of an array on the same device, in row-major order on a GPU."""
    gpu = gpu_of(array)
    if gpu is None:
        return array.copy()
    gpu.activate()
    copy = gpu.empty(tuple(array.shape), array.dtype)
    with gpu.device.lock:
        copy[...] = array
    return copy


def in_rows(array: Array) -> Array:
    """Return the array itself if its elements are contiguous in row-major order, otherwise a copy that is."""
    if isinstance(array, np.ndarray):
        return np.asarray(array, order="C")
    return array if array.flags.c_contiguous else duplicate(array)


def zeros(like: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """Return zeros on the device of the array `like`."""
    gpu = gpu_of(like)
    if gpu is None:
        return np.zeros(shape, dtype.numpy)
    gpu.activate()
    array = gpu.empty(shape, dtype.numpy)
    with gpu.device.lock:
        array.fill(0)
    return array


def fill(array: Array, number: Any) -> None:
    """Set all elements of an array to a number."""
    gpu = gpu_of(array)
    if gpu is None:
        array.fill(number)
        return
    gpu.activate()
    with gpu.device.lock:
        array.fill(number)


def array_at(buffer: Array, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Array:
    """Return an array in the bytes `buffer`, from byte `offset` on."""
    if isinstance(buffer, np.ndarray):
        return np.ndarray(shape, dtype, buffer, offset, strides)
    gpu = gpu_of(buffer)
    assert gpu is not None
    array: Array = gpu.xp.ndarray(shape, dtype, memptr=buffer.data + offset, strides=strides)
    return array


def address(array: Array) -> int:
    """Return the address of the first element, in the memory of the device that holds the array."""
    start: int = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr
    return start


def may_share_memory(a: Array, b: Array) -> bool:
    """Return True if two arrays may have elements in the same memory; arrays on different devices have none."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a.device.id != b.device.id:
        return False
    (first, last), (begin, end) = byte_bounds(a), byte_bounds(b)
    return first < end and begin < last


def byte_bounds(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of the elements, and of the byte after the last."""
    if not array.size:
        return 0, 0
    first = address(array)
    last = first + array.itemsize
    for step, n in zip(array.strides, array.shape, strict=True):
        if step < 0:
            first += step * (n - 1)
        else:
            last += step * (n - 1)
    return first, last
