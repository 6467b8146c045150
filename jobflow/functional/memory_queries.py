"""Queries of the memory and the kind of tensors, most of which have the same answer for all tensors."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import JobError, user_line
from jobflow.functional import devices as where
from jobflow.functional.casting import named
from jobflow.functional.dispatch import attribute, method
from jobflow.functional.global_tensors import is_cuda, stride
from jobflow.functional.promotion import cast
from jobflow.functional.switches import is_complex, is_conj, is_inference, is_signed
from jobflow.functional.typed import Tensor
from jobflow.runtime.device import cuda_facts
from jobflow.tensors.gpus import address
from jobflow.tensors.state import running


def is_pinned(x: Tensor, device: Any = None) -> bool:
    """Return True for a tensor on the host in page-locked memory; see `pin_memory`."""
    return x.traced is None and cuda_facts.is_pinned(x.array)


def share_memory_(x: Tensor) -> Tensor:
    """Return x unchanged; threads, which load data and compile programs, share all memory."""
    return x


def is_shared(x: Tensor) -> bool:
    """Return False: other processes cannot address the memory of x."""
    return False


def record_stream(x: Tensor, stream: Any) -> None:
    """Do nothing; operations have ended when they return."""


def data_ptr(x: Tensor) -> int:
    """Return the address of the first element of a local tensor, or of this rank's piece of a global tensor.

    Raises: JobError during tracing.
    """
    if x.traced is not None:
        raise JobError(f"data_ptr at {user_line()}: a tensor has no address while {running()} runs; call data_ptr() outside")
    return address(x.array)


def get_device(x: Tensor) -> int:
    """Return the index of the tensor's GPU; -1 on the host."""
    return (where.device_of(x).index or 0) if is_cuda(x) and x.layout is None else -1


def is_same_size(x: Tensor, other: Tensor) -> bool:
    """Return True if both tensors have the same shape."""
    return bool(x.tensor_type.shape == other.tensor_type.shape)


def is_set_to(x: Tensor, tensor: Tensor) -> bool:
    """Return True if both local tensors have the same elements in memory: the same address, shape and strides."""
    return bool(x.shape == tensor.shape and data_ptr(x) == data_ptr(tensor) and x.array.strides == tensor.array.strides)


def to_dense(x: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    """Return x, which is dense, converted to element type `dtype`."""
    return x if dtype is None else cast(x, named("to_dense", dtype))


def dim_order(x: Tensor) -> tuple[int, ...]:
    """Return the axes of a local tensor, from the largest stride to the smallest."""
    steps = stride(x)
    return tuple(sorted(range(x.ndim), key=lambda axis: (-steps[axis], axis)))


def _never(doc: str) -> Any:
    def query(x: Tensor) -> bool:
        return False

    query.__doc__ = doc
    return attribute(query)


def is_cpu(x: Tensor) -> bool:
    """True if the tensor's device or placement is "cpu"."""
    return not is_cuda(x)


class UntypedStorage:
    """The memory of a local tensor and its views, as bytes."""

    def __init__(self, x: Tensor) -> None:
        root = x
        while root.base is not None:
            root = root.base[0]
        self._array = root.array
        self.device = where.device_of(x)

    def data_ptr(self) -> int:
        """Return the address of the first byte."""
        return address(self._array)

    def nbytes(self) -> int:
        """Return the number of bytes."""
        return int(self._array.nbytes)

    def size(self) -> int:
        """Return the number of bytes."""
        return self.nbytes()

    def __len__(self) -> int:
        return self.nbytes()


def untyped_storage(x: Tensor) -> UntypedStorage:
    """Return the memory of a local tensor, which its views share.  Raises: JobError for a global tensor, and during tracing."""
    if x.layout is not None or x.traced is not None:
        raise JobError(f"untyped_storage at {user_line()}: only local tensors with values have a storage; use to_local()")
    return UntypedStorage(x)


def storage(x: Tensor) -> Any:
    """Raise JobError: storages with an element type do not exist; `untyped_storage` returns the bytes."""
    raise JobError(f"storage at {user_line()}: storages have no element type; use untyped_storage() for the bytes, or reshape(-1) for the elements")


def version_of(x: Tensor) -> int:
    """The number of writes to the memory of the tensor."""
    return int(x.version)


class MemoryMethods:
    """Methods of tensors: queries of memory and kind."""

    __slots__ = ()

    _version = attribute(version_of)
    data_ptr = method(data_ptr)
    dim_order = method(dim_order)
    get_device = method(get_device)
    is_complex = method(is_complex)
    is_conj = method(is_conj)
    is_cpu = attribute(is_cpu)
    is_inference = method(is_inference)
    is_meta = _never("False: every tensor has elements, or is traced.")
    is_mps = _never("False: there are no devices of this kind.")
    is_pinned = method(is_pinned)
    is_quantized = _never("False: there are no quantized element types.")
    is_same_size = method(is_same_size)
    is_set_to = method(is_set_to)
    is_shared = method(is_shared)
    is_signed = method(is_signed)
    is_sparse = _never("False: every tensor is dense.")
    is_xpu = _never("False: there are no devices of this kind.")
    record_stream = method(record_stream)
    share_memory_ = method(share_memory_)
    storage = method(storage)
    to_dense = method(to_dense)
    untyped_storage = method(untyped_storage)
