"""Exchange of tensors on GPUs with other libraries without copies: DLPack and `__cuda_array_interface__`."""

from __future__ import annotations

from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DtypeError, JobError, user_line
from jobflow.core.types import Array, dtype_of
from jobflow.functional.dispatch import attribute
from jobflow.functional.typed import Tensor
from jobflow.runtime.device import cuda_facts
from jobflow.tensors.gpus import duplicate, gpu_of, open_gpu
from jobflow.tensors.state import state
from jobflow.tensors.tensor import note_export

#: DLPack's device types of GPUs: CUDA memory, and managed CUDA memory
CUDA_DEVICES = (2, 13)


def is_on_gpu(source: Any) -> bool:
    """Return True for a tensor, also of another library, whose memory is on a GPU."""
    if hasattr(source, "__dlpack_device__"):
        return int(source.__dlpack_device__()[0]) in CUDA_DEVICES
    return hasattr(source, "__cuda_array_interface__")


def array_of(source: Any, what: str) -> Array:
    """Return an array in the memory of a tensor of another library on a GPU.

    Raises: ArgumentError without a GPU, and for an object that CuPy refuses; DtypeError for an element type that jobflow lacks.
    """
    device = source.__dlpack_device__()[1] if hasattr(source, "__dlpack_device__") else None
    gpu = open_gpu(state(), device, what)
    if gpu is None:
        where = "a GPU" if device is None else f"the DLPack device {source.__dlpack_device__()}"
        raise ArgumentError(f"{what}: the memory of the {type(source).__name__} is on {where}, but this process can use no GPU; copy it to the host")
    gpu.activate()
    try:
        with scope.lock(), gpu.device.lock:  # in this order, because the source may be a tensor of jobflow
            array: Array = cuda_facts.from_foreign(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"{what}: a {type(source).__name__} cannot be imported ({error}); pass an unused tensor on a GPU") from None
    try:
        dtype_of(array.dtype)
    except (KeyError, TypeError):
        raise DtypeError(f"{what}: elements of type {array.dtype} are not supported; convert the tensor first") from None
    return array


def wait_for_producer() -> None:
    """Wait for all operations on the current GPU, because a capsule does not name the stream that writes its memory."""
    cuda_facts.wait_for_device()


def capsule(x: Tensor, what: str, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> Any:
    """Return a DLPack capsule of the memory of a tensor on a GPU, ordered before later operations on `stream`.

    Raises: ArgumentError for another device; JobError for an element type that CuPy does not export.
    """
    gpu = gpu_of(x.array)
    assert gpu is not None
    if dl_device is not None and tuple(dl_device) != (CUDA_DEVICES[0], gpu.index):
        raise ArgumentError(f"{what}: the tensor is on {gpu}; got dl_device={dl_device!r}; omit it, or move the tensor first")
    gpu.activate()
    try:
        if not copy:
            note_export(x)
        array = duplicate(x.array) if copy else x.array  # CuPy makes no copies on a GPU
        with gpu.device.lock:
            return array.__dlpack__(stream=stream, max_version=max_version)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise JobError(f"{what}: the tensor {x.tensor_type} cannot be exported ({error}); convert or clone() it first") from None


def _interface(x: Tensor) -> Any:
    """The memory of a local tensor on a GPU, for libraries that read this attribute; other tensors lack the attribute."""
    gpu = None if x.layout is not None or x.traced is not None else gpu_of(x.array)
    if gpu is None or x.requires_grad:
        reason = "requires gradients, which other libraries do not record; use detach()" if gpu is not None else "is not a local tensor on a GPU"
        raise AttributeError(f"__cuda_array_interface__ at {user_line()}: the tensor {x.tensor_type} {reason}")
    gpu.activate()
    note_export(x)
    return x.array.__cuda_array_interface__


class GpuExchangeMethods:
    """Attributes of tensors for libraries on GPUs."""

    __slots__ = ()

    __cuda_array_interface__ = attribute(_interface)
