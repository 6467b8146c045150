"""Exchange of tensors with other libraries without copies: the DLPack protocol."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, user_line
from jobflow.core.types import Array, bfloat16, dtype_of, type_of
from jobflow.functional import gpu_exchange
from jobflow.functional.devices import checked_device, marked
from jobflow.functional.dispatch import method
from jobflow.functional.typed import Tensor
from jobflow.functional.values import value_of
from jobflow.tensors.gpus import duplicate, gpu_of

__all__ = ["from_dlpack", "to_dlpack"]

#: DLPack's device type of the CPU
_CPU = 1
#: name of a capsule -> the offset in bytes of the type code in its structure
_OFFSETS = {b"dltensor_versioned": 52, b"dltensor": 20}
#: bytes from the device to the type code in the structure
_DEVICE = 12
#: DLPack's type codes
_UNSIGNED, _BFLOAT = 1, 4


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a local tensor in the memory of a tensor of another library, or of a DLPack capsule.

    With `copy=True`, the tensor has a copy of the elements.
    Memory of a GPU stays there.
    Raises: ArgumentError for an object without DLPack, or in memory that this process cannot use; DtypeError for an element type that jobflow lacks.
    """
    what = f"from_dlpack at {user_line()}"
    target = checked_device("from_dlpack", device)
    if copy is not None and not isinstance(copy, bool | np.bool_):
        raise ArgumentError(f"{what}: copy must be True, False or None; got {copy!r}")
    source = _GpuCapsule.of(ext_tensor)
    if gpu_exchange.is_on_gpu(source):
        array = gpu_exchange.array_of(source, what)
        return marked(Tensor.new(type_of(array), None, duplicate(array) if copy else array), target)
    array = _array(ext_tensor, what)
    try:
        dtype_of(array.dtype)
    except KeyError:
        raise DtypeError(f"{what}: elements of type {array.dtype} are not supported; convert the tensor first") from None
    array = array.copy() if copy else array
    return marked(Tensor.new(type_of(array), None, array), target)


def to_dlpack(tensor: Tensor) -> Any:
    """Return a DLPack capsule of the memory of a local tensor; other libraries consume it once.

    Raises: JobError for a global or traced tensor, and for a tensor that requires gradients.
    """
    if not hasattr(tensor, "tensor_type"):
        raise ArgumentError(f"to_dlpack at {user_line()}: tensor must be a tensor; got {type(tensor).__name__}")
    return capsule(tensor)


def capsule(x: Tensor, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
    """Return a DLPack capsule of the memory of a local tensor, for `numpy.from_dlpack` and `torch.from_dlpack`.

    Raises: JobError for a global or traced tensor, for a tensor that requires gradients, and for read-only memory; ArgumentError for another
    device, stream or version.
    """
    what = f"__dlpack__ at {user_line()}"
    if x.layout is not None:
        raise JobError(f"{what}: the tensor {x.tensor_type} is global ({x.layout}); use to_local() or numpy()")
    if x.requires_grad:
        raise JobError(f"{what}: the tensor {x.tensor_type} requires gradients, which other libraries do not record; use detach()")
    if copy is not None and not isinstance(copy, bool | np.bool_):
        raise ArgumentError(f"{what}: copy must be True, False or None; got {copy!r}")
    if max_version is not None and not (_is_pair(max_version) and all(0 <= n < 2**31 for n in max_version)):
        raise ArgumentError(f"{what}: max_version must be None or a pair of numbers such as (1, 0); got {max_version!r}")
    if x.traced is None and gpu_of(x.array) is not None:
        return gpu_exchange.capsule(x, what, stream, max_version, dl_device, copy)
    if not (stream is None or (isinstance(stream, int) and stream == -1)) or not (
        dl_device is None or (_is_pair(dl_device) and tuple(dl_device) == (_CPU, 0))
    ):
        raise ArgumentError(f"{what}: the tensor is in host memory; got stream={stream!r}, dl_device={dl_device!r}; omit them")
    array = value_of(x, "__dlpack__")
    stored = array.view(np.uint16) if x.dtype is bfloat16 else array
    try:
        result = stored.__dlpack__(max_version=max_version, copy=copy)
    except (BufferError, ValueError) as error:
        raise JobError(f"{what}: the tensor {x.tensor_type} cannot be exported ({error}); clone() it first") from None
    if x.dtype is bfloat16:
        _kind(result).value = _BFLOAT
    return result


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(n, int) for n in value)


def capsule_device(x: Tensor) -> tuple[int, int]:
    """Return the DLPack device of a tensor as (type, number): (1, 0) for the host, (2, number) for a GPU."""
    gpu = None if x.traced is not None else gpu_of(x.array)
    return (_CPU, 0) if gpu is None else (gpu_exchange.CUDA_DEVICES[0], gpu.index)


class _Producer:
    """A capsule in host memory as an object that NumPy accepts."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


class _GpuCapsule:
    """A capsule in the memory of a GPU as an object that CuPy accepts."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    @staticmethod
    def of(source: Any) -> Any:
        """Return an unused capsule in the memory of a GPU as an object; return other sources unchanged."""
        if type(source).__name__ != "PyCapsule":
            return source
        for name, offset in _OFFSETS.items():
            if _is_valid(source, name):
                kind, number = (ctypes.c_int32 * 2).from_address(_pointer(source, name) + offset - _DEVICE)
                return _GpuCapsule(source, (kind, number)) if kind in gpu_exchange.CUDA_DEVICES else source
        return source

    def __dlpack__(self, **options: Any) -> Any:
        gpu_exchange.wait_for_producer()
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _array(source: Any, what: str) -> Array:
    """Return the elements of a tensor of another library, or of a capsule, as an array."""
    try:
        exported = source if type(source).__name__ == "PyCapsule" else _exported(source)
        kind = _kind(exported)
        is_bfloat = kind.value == _BFLOAT
        if is_bfloat:
            kind.value = _UNSIGNED
        is_old = _is_valid(exported, b"dltensor")
        array = np.from_dlpack(_Producer(exported))
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{what}: a {type(source).__name__} cannot be imported ({error}); pass an unused capsule or a tensor on the CPU"
        ) from None
    if is_old:  # NumPy returns a read-only array, because the older structure has no flag for it
        array = np.asarray(_Writable(array))
    return array.view(bfloat16.numpy) if is_bfloat else array


class _Writable:
    """The memory of a read-only array as an object that NumPy converts to a writable array."""

    def __init__(self, array: Array) -> None:
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _exported(source: Any) -> Any:
    if int(source.__dlpack_device__()[0]) != _CPU:
        raise BufferError(f"the memory is on the DLPack device {source.__dlpack_device__()}")
    try:
        return source.__dlpack__(max_version=(1, 0))
    except TypeError:  # the library is older than DLPack 1.0
        return source.__dlpack__()


def _kind(capsule: Any) -> ctypes.c_uint8:
    """Return the type code in a capsule, such as 1 for unsigned integers, as a reference to memory; raise ValueError for a consumed capsule."""
    for name, offset in _OFFSETS.items():
        if _is_valid(capsule, name):
            return ctypes.c_uint8.from_address(_pointer(capsule, name) + offset)
    raise ValueError("the capsule contains no tensor, or was consumed")


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class DlpackMethods:
    """Methods of tensors for the DLPack protocol."""

    __slots__ = ()

    __dlpack__ = method(capsule)
    __dlpack_device__ = method(capsule_device)
