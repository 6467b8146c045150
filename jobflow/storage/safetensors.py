"""The safetensors format: 8 bytes little-endian length n, n bytes of JSON header, then the tensors' bytes.

The header says for each tensor {"dtype": "F32", "shape": [2, 3], "data_offsets": [start, stop]}, counted from the header's end.
Numbers are little-endian and in C order.  Any reader of the format can read these files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.types import bfloat16
from jobflow.storage.remote import AnyPath, RemotePath
from jobflow.storage.untrusted import HEADER, json_tree, open_regular, shape_of, whole

Array = np.ndarray[Any, Any]

_NUMPY = {"BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64"}
_NUMPY |= {"U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_NAMES = {numpy: name for name, numpy in _NUMPY.items()}
#: Bytes that a store is asked for first: a header and what follows it, mostly.
_FIRST = 2**16
#: Tensors begin at multiples of this, so that a file can be mapped into memory.
ALIGNMENT = 8


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: its type and its first byte in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def storable(name: str, array: Any) -> Array:
    """`array` as it is written: little-endian, C order; CheckpointError if the format has no such numbers."""
    given = np.asarray(array)
    if given.dtype.name not in _NAMES:
        raise CheckpointError(f'tensor "{name}": a checkpoint cannot hold elements of type {given.dtype}; convert them to one of {", ".join(_NAMES)}')
    return np.asarray(given, dtype=given.dtype.newbyteorder("<"), order="C")


def _numpy(name: str) -> np.dtype[Any]:
    """The element type as a file holds it; DtypeError if it needs a package that is not there."""
    found = bfloat16.numpy if name == bfloat16.name else np.dtype(name)
    return found.newbyteorder("<")


def dtype_of(name: str) -> np.dtype[Any]:
    """The element type called `name`, in the machine's byte order; CheckpointError if the format has none."""
    if name not in _NAMES:
        raise CheckpointError(f"elements of type {name!r}: the format has {', '.join(_NAMES)}")
    return _numpy(name).newbyteorder("=")


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array without copying them."""
    return array.reshape(-1).view(np.uint8).data


def header_of(tensors: Mapping[str, Array]) -> tuple[bytes, list[str]]:
    """What precedes the numbers in a file that holds these storable arrays, and the order in which they follow."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # wide elements first: all stay aligned
    header: dict[str, Any] = {}
    stop = 0
    for name in order:
        array = tensors[name]
        start, stop = stop, stop + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, order


def encoded(tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The parts of a file that holds these storable arrays."""
    header, order = header_of(tensors)
    yield header
    for name in order:
        yield bytes_of(tensors[name])


@dataclass(frozen=True)
class Header:
    """What lies where in a file, how long it is, and the hash of what precedes the numbers."""

    places: Mapping[str, Place]
    size: int
    sha256: str


def read_header(path: AnyPath) -> dict[str, Place]:
    """What lies where in a file; CheckpointError if the file is damaged or shorter than its header says."""
    return dict(opened(path).places)


def opened(path: AnyPath) -> Header:
    """A file's header; CheckpointError if the file is damaged, or if its tensors are not all that is in it."""
    try:
        size, start, text = _beginning(path)
        header = json_tree(text)
        places = {name: _place(entry, 8 + len(text)) for name, entry in header.items() if name != "__metadata__"}
        if not all(isinstance(value, str) for value in header.get("__metadata__", {}).values()):
            raise ValueError("its metadata is not all text")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{path} is damaged: it is not a safetensors file ({error})") from error
    _check_places(path, places, 8 + len(text), size)
    return Header(places, size, hashlib.sha256(start + text).hexdigest())


def _beginning(path: AnyPath) -> tuple[int, bytes, bytes]:
    """How long a file is, its first 8 bytes, and the text of its header."""
    if isinstance(path, RemotePath):
        size = path.stat().st_size
        first = path.span(0, min(size, _FIRST))
        length = _length(path, first[:8], size)
        return size, first[:8], first[8 : 8 + length] + path.span(len(first), 8 + length)
    with open_regular(path, CheckpointError) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        return size, start, file.read(_length(path, start, size))


def _length(path: AnyPath, start: bytes, size: int) -> int:
    (length,) = struct.unpack("<Q", start)
    if length > size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    HEADER.check(length, f"{path}: its header", CheckpointError)
    return int(length)


def _check_places(path: AnyPath, places: Mapping[str, Place], start: int, size: int) -> None:
    """CheckpointError unless tensors follow one another without gaps, up to the end of the file."""
    at = start
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        stop = place.start + place.nbytes
        if stop > size:
            raise CheckpointError(f'{path} is damaged: it ends at byte {size}, before tensor "{name}", bytes {place.start} to {stop}')
        if place.start != at:
            raise CheckpointError(f'{path} is damaged: tensor "{name}" begins at byte {place.start}, and what precedes it ends at byte {at}')
        at = stop
    if at != size:
        raise CheckpointError(f"{path} is damaged: its tensors end at byte {at}, and the file at byte {size}")


def _place(entry: Mapping[str, Any], origin: int) -> Place:
    if entry["dtype"] not in _NUMPY:
        raise ValueError(f"unknown element type {entry['dtype']!r}")
    start, stop = (whole(at, "an offset") for at in entry["data_offsets"])
    place = Place(shape_of(entry["shape"]), _numpy(_NUMPY[entry["dtype"]]), origin + start)
    if place.nbytes != stop - start:
        raise ValueError(f"offsets {entry['data_offsets']} for {entry['dtype']}{entry['shape']}")
    return place


def read_tensor(path: AnyPath, place: Place) -> Array:
    """The array at `place`, in the machine's byte order and writable."""
    if isinstance(path, RemotePath):
        content = path.span(place.start, place.start + place.nbytes)
        found = np.frombuffer(content[: len(content) // place.dtype.itemsize * place.dtype.itemsize], place.dtype)
    else:
        with open_regular(path, CheckpointError) as file:
            file.seek(place.start)
            found = np.fromfile(file, place.dtype, math.prod(place.shape))
    if found.nbytes != place.nbytes:
        raise CheckpointError(f"{path} is damaged: it ends {place.nbytes - found.nbytes} bytes too early, at byte {place.start + found.nbytes}")
    return found.reshape(place.shape).astype(place.dtype.newbyteorder("="), copy=not found.flags.writeable)
