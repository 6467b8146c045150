"""CuPy for machines without a GPU: NumPy behind CuPy's names, with CuPy's checks.

It has the names of data/cupy_names.txt. Its arrays do not mix with NumPy's. They belong to the device that is current
at their creation, and raise on another one. It also detects races: every allocation records the stream of its last
write, and use on another stream without synchronization raises. `modules(gpus)` returns the modules for `sys.modules`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import itertools
import math
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fake_streams import CUDARuntimeError, Device, Event, Gpus, Memory, Stream, capturing, copied, current, current_stream, refuse_in_capture

ALIGNMENT = 512
#: bytes of a GPU
MEMORY = 1 << 36
NAMES: dict[str, list[str]] = {}
for line in (Path(__file__).with_name("data") / "cupy_names.txt").read_text().splitlines():
    if not line.startswith("#"):
        first, *rest = line.split()
        NAMES[first] = rest
#: element types that atomic additions take, and those that atomic extremes take too
ADDED_AT, EXTREMES_AT = "iIQefdFD", "lq"

#: functions that write into their first argument
WRITING = ("cupy.copyto", "cupy.put", "cupy.fill_diagonal")


def called(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """TypeError unless CuPy's function of this name may be called so."""
    parameters = NAMES[name]
    if parameters == ["type"]:
        return
    if parameters[:1] == ["ufunc"]:
        allowed, most = ["out", "casting", "dtype"], int(parameters[1]) + int(parameters[2])
    else:
        allowed, most = parameters, len(parameters)
    if len(arguments) > most and not any(p.startswith("*") for p in parameters):
        raise TypeError(f"{name} takes {most} arguments, {len(arguments)} were given")
    unknown = [option for option in options if option not in allowed]
    if unknown:
        raise TypeError(f"{name} has no parameters {unknown}")


def raw(item: Any) -> Any:
    """Return the NumPy value of an argument."""
    if isinstance(item, ndarray):
        item.memory.use(current.stream)
        return item.inner
    if isinstance(item, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(item, list | tuple):
        return type(item)(raw(x) for x in item)
    return item


def wrapped(value: Any, inputs: Any = ()) -> Any:
    """NumPy's answer as an array of this module; views keep the memory of the array that they look at."""
    if isinstance(value, ndarray) or not isinstance(value, np.ndarray | np.generic):
        return type(value)(wrapped(x, inputs) for x in value) if type(value) in (list, tuple) else value
    if isinstance(value, np.generic):
        return _new(np.asarray(value))
    for source in inputs:
        if isinstance(source, ndarray) and (value is source.inner or np.may_share_memory(value, source.inner)):
            return ndarray._of(value, source.memory)
    return _new(value)


def _room(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Memory that begins where a GPU's would, full of rubbish."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    whole = np.full(size + ALIGNMENT, 0xFF, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size].view(dtype).reshape(shape)


def _new(value: np.ndarray[Any, Any]) -> ndarray:
    refuse_in_capture("an allocation")
    copy = _room(value.shape, value.dtype)
    copy[...] = value
    memory = Memory(current.device)
    memory.write(current.stream)
    return ndarray._of(copy, memory)


def _call(name: str, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """One kernel launch on the current stream."""
    if name == "cupy.copyto" and (stream := capturing()) is not None:
        stream.run(lambda: _call(name, function, arguments, options))
        return None
    refuse_in_capture(f"{name}, a kernel of CuPy,")
    called(name, arguments, options)
    ufunc = NAMES[name][:1] == ["ufunc"]
    outputs = [*(arguments[int(NAMES[name][1]) :] if ufunc else ()), options.get("out"), *(arguments[:1] if name in WRITING else ())]
    with np.errstate(all="ignore"):
        value = function(*map(raw, arguments), **{key: raw(item) for key, item in options.items()})
    for output in outputs:
        if isinstance(output, ndarray):
            output.memory.write(current.stream)
            value = None if name in WRITING else output
    return wrapped(value, (*arguments, *itertools.chain(*(a for a in arguments if isinstance(a, list | tuple)))))


class ufunc:
    """A function of elements; unlike NumPy's it has no `where`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._function = getattr(np, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _call(f"cupy.{self.name}", self._function, arguments, options)

    def at(self, array: ndarray, indices: Any, values: Any = None) -> None:
        char_codes = ADDED_AT + (EXTREMES_AT if self.name in ("maximum", "minimum") else "")
        if array.dtype.char not in char_codes and not (array.dtype.char == "L" and np.dtype("L").itemsize == 8):
            raise TypeError(f"cupy.{self.name}.at does not support {array.dtype} as data type")
        self._function.at(raw(array), raw(indices), raw(values))
        array.memory.write(current.stream)

    def reduce(self, array: ndarray, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return wrapped(self._function.reduce(raw(array), axis, dtype, raw(out), keepdims))


class UnownedMemory:
    """Memory at an address that the caller owns, or that nothing reads and writes."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class OwnMemory(UnownedMemory):
    """An allocation outside of the pool, which other ranks can open."""

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size, np.uint8)
        super().__init__(self._bytes.ctypes.data, size, self._bytes, current.device)


def open_handle(handle: bytes) -> int:
    """Return the address in a handle; a process cannot open memory of another one here."""
    process, address = map(int, handle.split())
    if process != os.getpid():
        raise CUDARuntimeError("cudaErrorMapBufferObjectFailed: mapping of buffer object failed")
    return address


class MemoryPointer:
    """An address in unowned memory."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.ptr, self.memory, self.owner = mem.ptr + offset, Memory(mem.device_id), mem.owner


class Flags:
    """Of an array."""

    def __init__(self, flags: Any) -> None:
        self.c_contiguous, self.f_contiguous, self.owndata = flags.c_contiguous, flags.f_contiguous, flags.owndata


class Pointer:
    """The address of an array in an allocation, which is one array of bytes."""

    def __init__(self, address: int, whole: Any, memory: Memory) -> None:
        self.ptr, self.whole, self.memory = address, whole, memory

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.ptr + offset, self.whole, self.memory)


def _operator(name: str) -> Any:
    def operate(self: ndarray, *others: Any) -> Any:
        for other in others:
            if not isinstance(other, ndarray | bool | int | float | np.generic):
                raise TypeError(f"Unsupported type {type(other)}")
        if name.startswith("__i") and name != "__invert__":
            value = getattr(self, "__" + name[3:])(*others)
            if not np.can_cast(value.dtype, self.dtype, "same_kind"):
                raise TypeError(f"output {self.dtype} cannot hold {value.dtype}")
            self[...] = value
            return self
        with np.errstate(all="ignore"):
            value = getattr(self.inner, name)(*map(raw, others))
        raw(self)
        return value if value is NotImplemented else wrapped(value)

    return operate


class ndarray:
    """An array on a device."""

    __array_priority__ = 100

    def __init__(self, shape: Any, dtype: Any = float, memptr: Pointer | MemoryPointer | None = None, strides: Any = None) -> None:
        if memptr is None:
            self.inner, self.memory = _room(shape, dtype), Memory(current.device)
            return
        self.memory = memptr.memory
        if isinstance(memptr, MemoryPointer):
            interface = {"version": 3, "data": (memptr.ptr, False), "shape": tuple(shape), "typestr": np.dtype(dtype).str, "strides": strides}
            self.inner = np.asarray(types.SimpleNamespace(__array_interface__=interface, owner=memptr.owner)).view(dtype)
            return
        first = memptr.ptr - memptr.whole.ctypes.data
        self.inner = np.ndarray(shape, dtype, memptr.whole, first, strides)

    @classmethod
    def _of(cls, inner: np.ndarray[Any, Any], memory: Memory) -> ndarray:
        array = cls.__new__(cls)
        array.inner, array.memory = inner, memory
        return array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(self.inner.__array_interface__)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly.")

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was given an array of a GPU")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or any(isinstance(x, np.ndarray) for x in inputs):
            raise TypeError(f"numpy.{function.__name__} was given arrays of a GPU and of the host")
        return ufunc(function.__name__)(*inputs, **options)  # a NumPy scalar on the left

    def __getattr__(self, name: str) -> Any:
        if f"ndarray.{name}" not in NAMES:
            raise AttributeError(f"cupy.ndarray has no attribute {name!r}")
        inner = self.inner
        if name in ("T", "mT", "real", "imag"):
            return wrapped(getattr(inner, name), (self,))
        if not callable(getattr(inner, name)):
            return getattr(inner, name)
        return lambda *arguments, **options: self._method(name, arguments, options)

    def _method(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        called(f"ndarray.{name}", arguments, options)
        out = options.get("out")
        with np.errstate(all="ignore"):
            value = getattr(raw(self), name)(*map(raw, arguments), **{key: raw(item) for key, item in options.items()})
        for written in (self if name in ("fill", "sort", "put", "partition") else None, out):
            if written is not None:
                written.memory.write(current.stream)
        return wrapped(value, (self,)) if out is None else out

    def __getitem__(self, key: Any) -> ndarray:
        whole = key if isinstance(key, tuple) else (key,)
        plain = all(k is None or k is Ellipsis or isinstance(k, slice | int | np.integer) for k in whole)
        # an index into every axis gives an array without axes, not a number
        key = (*whole, ...) if plain and Ellipsis not in whole else whole
        part = wrapped(raw(self)[raw(key)], (self,) if plain else ())
        if plain and self.inner.ndim == 1 and self.inner.dtype == np.uint8:
            part.memory = self.memory.divided()  # a buffer of an allocator is memory of its own
        return part

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray | list | tuple):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        if (stream := capturing()) is not None:
            stream.run(lambda: self.__setitem__(key, value))
            return
        target = self[key] if not isinstance(key, ndarray) else None
        if isinstance(value, ndarray) and target is not None and value.ndim > target.ndim:
            raise ValueError("input operand has more dimensions than allowed by the axis remapping")
        self.inner[raw(key)] = raw(value)
        self.memory.write(current.stream)

    def get(self, stream: Stream | None = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        where = current.stream if stream is None else stream.ptr
        with Device(self.memory.device):
            self.memory.use(where)
        if out is None:
            out = np.empty(self.shape, self.dtype)
        elif not isinstance(out, np.ndarray) or out.dtype != self.dtype or out.shape != self.shape or not out.flags.c_contiguous:
            raise ValueError("out must be a contiguous numpy.ndarray of this shape and element type")
        copied(where, out, self.inner)
        if blocking:
            Memory.finish(where)
        return out

    def set(self, array: Any, stream: Stream | None = None) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if array.dtype != self.dtype or array.shape != self.shape:
            raise TypeError(f"{self.dtype}{self.shape} array cannot be set to {array.dtype}{array.shape} array")
        if not self.inner.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        with Device(self.memory.device):
            self.memory.write(0 if stream is None else stream.ptr)
        copied(0 if stream is None else stream.ptr, self.inner, array)

    @property
    def data(self) -> Pointer:
        whole = self.inner.base if isinstance(self.inner.base, np.ndarray) else self.inner
        return Pointer(self.inner.ctypes.data if self.inner.size else 0, whole, self.memory)

    @property
    def device(self) -> Device:
        return Device(self.memory.device)

    @property
    def flags(self) -> Flags:
        return Flags(self.inner.flags)

    def _waited(self) -> Any:
        """The one number that the host needs: it waits for the stream."""
        value = raw(self).item()
        Memory.finish(current.stream)
        return value

    def __bool__(self) -> bool:
        return bool(self._waited())

    def __int__(self) -> int:
        return int(self._waited())

    def __float__(self) -> float:
        return float(self._waited())

    __index__ = __int__

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
for word in BINARY:
    for prefix in ("", "r", "i"):
        setattr(ndarray, f"__{prefix}{word}__", _operator(f"__{prefix}{word}__"))
for word in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"):
    setattr(ndarray, f"__{word}__", _operator(f"__{word}__"))


# Functions ----------------------------------------------------------------------------------------------------------

#: what takes arrays of the host as well
FROM_HOST = ("array", "asarray")
#: what gives no array
PLAIN = ("result_type", "promote_types", "can_cast", "iinfo", "finfo", "isscalar", "ndim", "size", "shape", "issubdtype")


def _function(name: str) -> Any:
    function = getattr(np, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if name in PLAIN:
            return function(*raw(arguments), **options)
        return _call(f"cupy.{name}", function, arguments, options)

    return call


def _special(name: str, function: Any, x: ndarray, out: ndarray | None = None) -> ndarray:
    """A function of cupyx.scipy.special: half precision is computed in double."""
    called(name, (x,) if out is None else (x, out), {})
    if out is None:
        out = _new(np.empty(x.shape, np.float64 if x.dtype == np.float16 else x.dtype))
    out[...] = _new(function(raw(x).astype(float)))
    return out


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    if isinstance(a, ndarray):
        return a if dtype is None or a.dtype == np.dtype(dtype) else wrapped(raw(a).astype(dtype))
    return _new(np.asarray(a, dtype))


def array(obj: Any, dtype: Any = None, copy: bool = True) -> ndarray:
    return wrapped(raw(obj).astype(dtype or obj.dtype)) if isinstance(obj, ndarray) else _new(np.array(obj, dtype))


def asnumpy(a: Any, stream: Stream | None = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return ndarray(shape, dtype)


class PinnedMemoryPointer:
    """Page-locked memory, which is the base of an array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array, self.__array_interface__ = array, array.__array_interface__


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    return np.asarray(PinnedMemoryPointer(np.full(shape, 77).astype(dtype))).view(dtype)


def memory_at(address: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return the memory at a pointer that a library receives."""
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype) if count else np.empty(0, dtype)


def linear_algebra() -> dict[str, Any]:
    """Return the functions and errors of cupy.linalg that NumPy has too."""
    names = [name.rpartition(".")[2] for name in NAMES if name.startswith("cupy.linalg.")]
    members = {name: getattr(np.linalg, name, None) for name in names}
    return {name: member if isinstance(member, type) else _of_matrices(name, member) for name, member in members.items() if callable(member)}


def _of_matrices(name: str, function: Any) -> Any:
    def plain(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        return tuple(result) if isinstance(result, tuple) else result

    return lambda *arguments, **options: _call(f"cupy.linalg.{name}", plain, arguments, options)


def special_functions() -> dict[str, Any]:
    return {name: functools.partial(_special, f"special.{name}", np.vectorize(getattr(math, name), [float])) for name in ("erf", "erfc")}


def members() -> dict[str, Any]:
    """Return the functions and types of NumPy's module whose names CuPy has too."""
    members_by_name = {}
    for full, parameters in NAMES.items():
        owner, _, name = full.rpartition(".")
        if owner == "cupy" and name in dir(np):
            member = getattr(np, name)
            plain = not callable(member) or isinstance(member, type)
            members_by_name[name] = member if plain else ufunc(name) if parameters[:1] == ["ufunc"] else _function(name)
    return members_by_name


def _as_strided(x: ndarray, *arguments: Any, **options: Any) -> ndarray:
    called("stride_tricks.as_strided", (x, *arguments), options)
    return ndarray._of(np.lib.stride_tricks.as_strided(x.inner, *arguments, **options), x.memory)


def modules(gpus: int) -> dict[str, types.ModuleType]:
    """Return the modules of `import cupy` on a simulated machine with this number of GPUs, without NCCL."""
    Gpus.count = gpus
    names = ("cupy", "cupy.cuda", "cupy.cuda.nccl", "cupyx", "cupyx.scipy", "cupyx.scipy.special", "cupy_backends.cuda.libs.nvrtc")
    cupy, cuda, nccl, cupyx, scipy, special, nvrtc = all_modules = [types.ModuleType(name) for name in names]
    tricks = types.SimpleNamespace(as_strided=_as_strided)
    vars(cupy).update(members(), lib=types.SimpleNamespace(stride_tricks=tricks), linalg=types.SimpleNamespace(**linear_algebra()))
    sizes = dict.fromkeys(("free_bytes", "used_bytes", "total_bytes", "get_limit"), lambda: 0)
    pool = types.SimpleNamespace(**sizes, free_all_blocks=lambda: None)
    vars(cupy).update(get_default_memory_pool=lambda: pool)
    vars(cupy).update(asarray=asarray, array=array, asnumpy=asnumpy, empty=empty, ndarray=ndarray, cuda=cuda)
    runtime = types.SimpleNamespace(
        runtimeGetVersion=lambda: 13000,
        getDeviceCount=lambda: Gpus.count,
        deviceGetPCIBusId=lambda index: f"0000:{index:02x}:00.0",
        memGetInfo=lambda: (MEMORY, MEMORY),
        streamCaptureModeThreadLocal=1,
        CUDARuntimeError=CUDARuntimeError,
        ipcGetMemHandle=lambda ptr: f"{os.getpid()} {ptr}".encode(),
        ipcOpenMemHandle=open_handle,
        ipcCloseMemHandle=lambda ptr: None,
    )
    memory = types.SimpleNamespace(OutOfMemoryError=MemoryError)
    vars(cuda).update(Device=Device, Stream=Stream, Event=Event, runtime=runtime, memory=memory, is_available=lambda: Gpus.count > 0)
    vars(cuda).update(
        get_current_stream=current_stream,
        Memory=OwnMemory,
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        PinnedMemoryPointer=PinnedMemoryPointer,
    )
    vars(nccl).update(available=False)  # not in vars(cuda) before it is imported, as with CuPy
    vars(cupyx).update(empty_pinned=empty_pinned, scipy=scipy)
    vars(scipy).update(special=special)
    vars(special).update(special_functions())
    vars(nvrtc).update(getVersion=lambda: (13, 0))
    for module in all_modules:
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    return {module.__name__: module for module in all_modules}
