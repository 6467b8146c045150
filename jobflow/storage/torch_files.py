"""Files of `torch.save`: a zip archive of a pickle and one record per storage, or (before PyTorch 1.6) pickles followed by the storages.

A file is checked as a whole before memory is allocated for its storages.  Records of an archive are neither compressed nor larger, in total,
than the file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.types import Array, bool_
from jobflow.storage.remote import AnyPath
from jobflow.storage.torch_pickle import Interpreter, StorageRef, TensorRef
from jobflow.storage.untrusted import HEADER, Limit, mapped

#: records of an archive
ENTRIES = Limit("JOBFLOW_MAX_ENTRIES", 200_000, "records")
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_MOST16, _MOST32 = 2**16 - 1, 2**32 - 1


@dataclass(frozen=True)
class TorchFile:
    """The object in a file, with references to tensors, and the arrays of the storages by key."""

    tree: Any
    storages: Mapping[str, Array]

    def array(self, tensor: TensorRef) -> Array:
        """Return the elements of a tensor as a view of its storage."""
        storage = self.storages[tensor.storage.key]
        itemsize = storage.itemsize
        if 0 in tensor.shape:
            return np.empty(tensor.shape, storage.dtype)
        return np.ndarray(tensor.shape, storage.dtype, storage, tensor.offset * itemsize, tuple(step * itemsize for step in tensor.strides))


def read(path: AnyPath) -> TorchFile:
    """Read a file of `torch.save` as `parse` does."""
    return parse(mapped(path, CheckpointError).data, str(path))


def parse(data: memoryview, name: str) -> TorchFile:
    """Read the bytes of a file of `torch.save`; `name` begins the messages.

    Raises: CheckpointError for a damaged file, an object that is not a tensor, number, text or container, or a size above a limit.
    """
    if bytes(data[257:262]) == b"ustar":
        raise CheckpointError(f"{name} is a tar archive of PyTorch before 0.2; load it with PyTorch, and save it again")
    try:
        return _archive(data, name) if bytes(data[:2]) == b"PK" else _pickles(data, name)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, ValueError, struct.error) as error:
        raise CheckpointError(f"{name} is damaged: it is not a file of torch.save ({type(error).__name__}: {error})") from error


def _array(data: memoryview, storage: StorageRef, swapped: bool) -> Array:
    """Return a copy of the elements of a storage."""
    content = np.array(np.frombuffer(data, np.uint8))
    if storage.dtype is bool_:  # a NumPy array of booleans must contain only the bytes 0 and 1
        return content != 0
    if swapped and storage.dtype.itemsize > 1:
        content.view(f"u{storage.dtype.itemsize}").byteswap(inplace=True)
    return content.view(storage.dtype.numpy)


# -------------------------------------------------------------------- archives


def _archive(data: memoryview, name: str) -> TorchFile:
    records = _records(data, name)
    prefixes = [key.removesuffix("/data.pkl") for key in records if key.endswith("/data.pkl") and key.count("/") == 1]
    if len(prefixes) != 1:
        raise CheckpointError(f"{name} is an archive without data.pkl, so torch.save did not write it; pass a file of torch.save")
    (prefix,) = prefixes
    order = bytes(records[f"{prefix}/byteorder"])[:8] if f"{prefix}/byteorder" in records else b"little"
    if order not in (b"little", b"big"):
        raise ValueError(f"its byte order is {order!r}")
    pickle = records[f"{prefix}/data.pkl"]
    HEADER.check(len(pickle), f"{name}: its pickle", CheckpointError)
    content = {key.removeprefix(f"{prefix}/data/"): record for key, record in records.items() if key.startswith(f"{prefix}/data/")}
    interpreter = Interpreter(pickle, name, lambda key: len(content[key]))
    tree = interpreter.run()
    arrays = {key: _array(content[key], storage, order == b"big") for key, storage in interpreter.storages.items()}
    return TorchFile(tree, arrays)


def _records(data: memoryview, name: str) -> dict[str, memoryview]:
    """Return the records of a zip archive by name."""
    count, size, at = _directory(data)
    ENTRIES.check(count, name, CheckpointError)
    directory = data[at : at + size]
    records: dict[str, memoryview] = {}
    at = total = 0
    for _ in range(count):
        key, start, length, at = _entry(directory, at, name)
        total += length
        if key in records or total > len(data):
            raise ValueError("its records have the same name or overlap")
        records[key] = _content(data, start, length)
    return records


def _directory(data: memoryview) -> tuple[int, int, int]:
    """Return the number of records, and the size and offset of the directory of an archive."""
    tail = max(0, len(data) - _MOST16 - 22)
    end = tail + bytes(data[tail:]).rindex(_END)
    count, size, at = struct.unpack_from("<HII", data, end + 10)
    if end >= 20 and bytes(data[end - 20 : end - 16]) == _LOCATOR64:
        (end64,) = struct.unpack_from("<Q", data, end - 12)
        if end64 > len(data) or bytes(data[end64 : end64 + 4]) != _END64:
            raise ValueError("its directory is missing")
        count, size, at = struct.unpack_from("<QQQ", data, end64 + 32)
    if at + size > len(data) or count * _ENTRY.size > size:
        raise ValueError("its directory exceeds the file")
    return count, size, at


def _entry(directory: memoryview, at: int, name: str) -> tuple[str, int, int, int]:
    """Return name, offset and length of a record, and the position after its entry of the directory."""
    signature, _, _, flags, method, _, _, _, packed, length, name_size, extra_size, note_size, _, _, _, start = _ENTRY.unpack_from(directory, at)
    if signature != b"PK\x01\x02":
        raise ValueError("its directory is invalid")
    after = at + _ENTRY.size
    key = bytes(directory[after : after + name_size]).decode()
    extra = directory[after + name_size : after + name_size + extra_size]
    length, packed, start = _wide(extra, [length, packed, start])
    if "/code/" in key:
        raise CheckpointError(f"{name} is a TorchScript archive, which contains code; in PyTorch, save state_dict() with torch.save")
    if method or flags & 1 or packed != length:
        raise CheckpointError(f"{name} is compressed or encrypted, but torch.save writes plain archives; load it with PyTorch, and save it again")
    return key, start, length, after + name_size + extra_size + note_size


def _wide(extra: memoryview, values: list[int]) -> list[int]:
    """Replace values of 0xFFFFFFFF in a directory entry by the 64-bit values in the extra field of type 1."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{size // 8}Q", extra, at + 4))
            return [next(wide, value) if value == _MOST32 else value for value in values]
        at += 4 + size
    return values


def _content(data: memoryview, start: int, length: int) -> memoryview:
    fields = _LOCAL.unpack_from(data, start)
    first = start + _LOCAL.size + fields[-2] + fields[-1]
    if fields[0] != b"PK\x03\x04" or first + length > len(data):
        raise ValueError("a record exceeds the file")
    return data[first : first + length]


# -------------------------------------------------------------------- pickles


def _pickles(data: memoryview, name: str) -> TorchFile:
    interpreter = Interpreter(data, name)
    if bytes(data[:1]) != b"\x80" or interpreter.run() != _MAGIC or interpreter.run() != _PROTOCOL:
        raise CheckpointError(f"{name} is not a file of torch.save; pass a file of torch.save, a safetensors file, or a directory of flow.save")
    system = interpreter.run()
    if not isinstance(system, dict) or type(system.get("little_endian")) is not bool:
        raise ValueError("it does not name its byte order")
    tree, keys = interpreter.run(), interpreter.run()
    if type(keys) is not list or not all(type(key) is str for key in keys) or set(keys) != set(interpreter.storages) or len(keys) != len(set(keys)):
        raise ValueError("its list of storages is invalid")
    parts = {key: _part(interpreter, interpreter.storages[key]) for key in keys}
    return TorchFile(tree, {key: _array(part, interpreter.storages[key], not system["little_endian"]) for key, part in parts.items()})


def _part(interpreter: Interpreter, storage: StorageRef) -> memoryview:
    """Return the bytes of the next storage, which begin after the number of its elements."""
    if interpreter.number("<q") != storage.elements:
        raise ValueError("a storage has another size than its tensors")
    return interpreter.take(storage.nbytes)
