"""The safetensors format: the length n of the header in 8 little-endian bytes, n bytes of JSON header, then the tensors' bytes.

For each tensor, the header contains {"dtype": "F32", "shape": [2, 3], "data_offsets": [start, stop]}; offsets count from the end of the header.
Elements are little-endian and in C order. Any reader of the format can read these files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.types import bfloat16
from jobflow.storage.remote import AnyPath, RemotePath
from jobflow.storage.untrusted import HEADER, Limit, json_tree, open_regular, shape_of, whole

Array = np.ndarray[Any, Any]

_NUMPY = {"BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64"}
_NUMPY |= {"U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_NAMES = {numpy: name for name, numpy in _NUMPY.items()}
#: commas of a header; a parsed value takes up to a hundred times the bytes of its text
ITEMS = Limit("JOBFLOW_MAX_HEADER_ITEMS", 5_000_000, "items")
#: Bytes of the first request to a store, which usually cover the header.
_FIRST = 2**16
#: Tensors begin at multiples of this, so that a file can be mapped into memory.
ALIGNMENT = 8


@dataclass(frozen=True)
class TensorInfo:
    """The type of a tensor in a file, and the offset of its first byte."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def storable(name: str, array: Any) -> Array:
    """Convert an array to the stored form: little-endian, C order; raise CheckpointError if the format lacks its element type."""
    values = np.asarray(array)
    if values.dtype.name not in _NAMES:
        raise CheckpointError(
            f'tensor "{name}": a checkpoint cannot store elements of type {values.dtype}; convert them to one of {", ".join(_NAMES)}'
        )
    return np.asarray(values, dtype=values.dtype.newbyteorder("<"), order="C")


def _numpy(name: str) -> np.dtype[Any]:
    """Return the little-endian NumPy type of this name; raise DtypeError if the type needs a package that is not installed."""
    dtype = bfloat16.numpy if name == bfloat16.name else np.dtype(name)
    return dtype.newbyteorder("<")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy type of this name in the machine's byte order; raise CheckpointError if the format lacks the type."""
    if name not in _NAMES:
        raise CheckpointError(f"element type {name!r} is not supported; the format has {', '.join(_NAMES)}")
    return _numpy(name).newbyteorder("=")


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array as a view."""
    return array.reshape(-1).view(np.uint8).data


def header_of(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[str]]:
    """Return the bytes before the data in a file of these storable arrays, and the names of the arrays in file order."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # wide elements first, so that all tensors are aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    stop = 0
    for name in order:
        array = tensors[name]
        start, stop = stop, stop + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, order


def encoded(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file of these storable arrays: the header, then each array."""
    header, order = header_of(tensors, metadata)
    yield header
    for name in order:
        yield bytes_of(tensors[name])


@dataclass(frozen=True)
class Header:
    """The tensors of a file with their offsets, the file's length, the hash of the bytes before the data, and the metadata."""

    infos: Mapping[str, TensorInfo]
    size: int
    sha256: str
    metadata: Mapping[str, str]


def read_header(path: AnyPath) -> dict[str, TensorInfo]:
    """Return the tensors of a file by name, with types and offsets; raise CheckpointError if the file is damaged."""
    return dict(opened(path).infos)


def opened(path: AnyPath) -> Header:
    """Read a file's header; raise CheckpointError if the file is missing, damaged, or longer than its tensors."""
    return _header(path, lambda: _beginning(path))


def parsed(content: bytes, name: str) -> Header:
    """Return the header of the file with this content; raise CheckpointError as `opened` does."""

    def beginning() -> tuple[int, bytes, bytes]:
        return len(content), content[:8], content[8 : 8 + _length(name, content[:8], len(content))]

    return _header(name, beginning)


def _header(path: AnyPath | str, beginning: Callable[[], tuple[int, bytes, bytes]]) -> Header:
    try:
        size, start, text = beginning()
        ITEMS.check(text.count(b","), "its header", ValueError)
        header = json_tree(text)
        if not isinstance(header, dict):
            raise ValueError("its header must be a map of tensors by name")
        infos = {name: _info(name, entry, 8 + len(text)) for name, entry in header.items() if name != "__metadata__"}
        metadata = header.get("__metadata__", {})
        if not isinstance(metadata, dict):
            raise ValueError("the metadata in its header must be a map of strings")
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("the metadata in its header contains values that are not strings")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is not a safetensors file ({error})") from error
    _check_offsets(path, infos, 8 + len(text), size)
    return Header(infos, size, hashlib.sha256(start + text).hexdigest(), metadata)


def _beginning(path: AnyPath) -> tuple[int, bytes, bytes]:
    """Return the length of a file, its first 8 bytes, and the text of its header."""
    if isinstance(path, RemotePath):
        size = path.stat().st_size
        first = path.span(0, min(size, _FIRST))
        length = _length(path, first[:8], size)
        return size, first[:8], first[8 : 8 + length] + path.span(len(first), 8 + length)
    with open_regular(path, CheckpointError) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        return size, start, file.read(_length(path, start, size))


def _length(path: AnyPath | str, start: bytes, size: int) -> int:
    if len(start) < 8:
        raise ValueError(f"it has {size} bytes, fewer than the 8 bytes of the length of its header")
    (length,) = struct.unpack("<Q", start)
    if length > size - 8:
        raise ValueError(f"its header needs {length} bytes, but the file has {size} bytes")
    HEADER.check(length, f"{path}: its header", CheckpointError)
    return int(length)


def _check_offsets(path: AnyPath | str, infos: Mapping[str, TensorInfo], start: int, size: int) -> None:
    """Raise CheckpointError unless the tensors fill the file without gaps."""
    at = start
    for name, info in sorted(infos.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        stop = info.start + info.nbytes
        if stop > size:
            raise CheckpointError(f'{path} is damaged: it ends at byte {size}, before tensor "{name}", bytes {info.start} to {stop}')
        if info.start != at:
            raise CheckpointError(f'{path} is damaged: tensor "{name}" begins at byte {info.start}, but the data before it ends at byte {at}')
        at = stop
    if at != size:
        raise CheckpointError(f"{path} is damaged: its tensors end at byte {at}, but the file ends at byte {size}")


def _info(name: str, entry: Any, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f'tensor "{name}" in its header must have dtype, shape and data_offsets; got {entry!r:.80}')
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in _NUMPY:
        raise ValueError(f"unknown element type {entry['dtype']!r:.80}")
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError(f'the data_offsets of tensor "{name}" must be two offsets; got {offsets!r:.80}')
    start, stop = (whole(at, "an offset") for at in offsets)
    info = TensorInfo(shape_of(entry["shape"]), _numpy(_NUMPY[entry["dtype"]]), data_start + start)
    if info.nbytes != stop - start:
        raise ValueError(f"the offsets {entry['data_offsets']} do not match the size of a tensor {entry['dtype']}{entry['shape']}")
    return info


def read_tensor(path: AnyPath, info: TensorInfo) -> Array:
    """Read a tensor as a writable array in the machine's byte order."""
    if isinstance(path, RemotePath):
        content = path.span(info.start, info.start + info.nbytes)
        array = np.frombuffer(content[: len(content) // info.dtype.itemsize * info.dtype.itemsize], info.dtype)
    else:
        with open_regular(path, CheckpointError) as file:
            file.seek(info.start)
            array = np.fromfile(file, info.dtype, math.prod(info.shape))
    if array.nbytes != info.nbytes:
        raise CheckpointError(f"{path} is damaged: it ends {info.nbytes - array.nbytes} bytes too early, at byte {info.start + array.nbytes}")
    return _native(array, info)


def array_in(content: bytes, info: TensorInfo) -> Array:
    """Return a tensor of a file with this content as a writable array in the machine's byte order."""
    return _native(np.frombuffer(content, info.dtype, math.prod(info.shape), info.start), info)


def _native(array: Array, info: TensorInfo) -> Array:
    """Return the elements of a tensor in the machine's byte order, as a writable array."""
    if info.dtype.kind == "b":  # a NumPy array of booleans must contain only the bytes 0 and 1
        array = array.view(np.uint8) != 0
    return array.reshape(info.shape).astype(info.dtype.newbyteorder("="), copy=not array.flags.writeable)
