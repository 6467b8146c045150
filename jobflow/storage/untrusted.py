"""Safe reading of files that users provide: regular files of a limited size, and JSON of a limited depth.

A path in a reader, a configuration or a checkpoint may name a pipe without a writer, a file of petabytes, or JSON nested 100,000 deep. This
module opens all such files; `fault` constructs the caller's error. Each limit can be set by an environment variable, which the message names.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import FileError, VariableError
from jobflow.storage.remote import AnyPath, RemotePath, local_copy

#: constructor of an error about a file from its message, which begins with the file's name
Fault = Callable[[str], Exception]

#: maximum nesting depth of maps and lists
DEPTH = 200
#: maximum number of axes of an array, as in NumPy
AXES = 64
#: maximum size of an axis, and maximum number of bytes of an array
LARGEST = 2**63 - 1
#: bytes per read
_PIECE = 2**20
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Limit:
    """The maximum size of an input from a file, counted in `unit`; the environment variable named `variable` overrides it."""

    variable: str
    default: int
    unit: str = "bytes"

    @property
    def most(self) -> int:
        """The limit in force; raises VariableError if the environment variable is not a size."""
        text = os.environ.get(self.variable, "").strip()
        if not text:
            return self.default
        match = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(i?B)?", text, re.IGNORECASE)
        if match is None:
            raise VariableError(f"{self.variable} is {text!r}; set it to a number of {self.unit}, such as {self.default} or 8G")
        return int(match[1]) * _UNITS[match[2].upper()]

    def check(self, size: int, what: str, fault: Fault) -> None:
        """Raise the caller's error `fault` if `size` exceeds the limit; `what` begins the message."""
        if size > self.most:
            raise fault(f"{what} has {size:,} {self.unit}, more than the limit of {self.most:,}; set {self.variable} to raise the limit")


#: a YAML file, which takes many times its size in memory
CONFIGURATION = Limit("JOBFLOW_MAX_CONFIGURATION", 2**20)
#: a manifest, or the header of a file of tensors
HEADER = Limit("JOBFLOW_MAX_HEADER", 2**28)
#: one row of a table, or one record
RECORD = Limit("JOBFLOW_MAX_RECORD", 2**26)
#: data that is read into memory as a whole: decompressed arrays and strings
MEMORY = Limit("JOBFLOW_MAX_UNPACKED", 2**33)
#: an image; the default is Pillow's limit
IMAGE = Limit("JOBFLOW_MAX_PIXELS", 89_478_485, "pixels")


def open_regular(path: str | AnyPath, fault: Fault = FileError) -> BinaryIO:
    """Open a regular file, or a local copy of an object in a store, for reading without blocking.

    Raises: the caller's error `fault` for a pipe, a device or a folder; OSError as `open` does.
    """
    if isinstance(path, RemotePath):
        path = local_copy(path)
    _check_kind(os.stat(path).st_mode, path, fault)  # before opening, because opening a device may have an effect
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_kind(os.fstat(handle).st_mode, path, fault)  # the path may have been replaced in between
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def _check_kind(mode: int, path: str | Path, fault: Fault) -> None:
    if not stat.S_ISREG(mode):
        raise fault(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'a special file')}; pass a regular file")


#: the identity of a file, which changes if the file is replaced or written
Mark = tuple[int, int, int] | str


def mark_of(status: os.stat_result) -> Mark:
    """Return a file's inode, size and modification time, which identify its content, from its `os.stat` result."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def content(path: str | AnyPath, limit: Limit, fault: Fault = FileError) -> bytes:
    """Return all bytes of a file or an object; raise `fault` above the limit, even if the file grows during the read."""
    if isinstance(path, RemotePath):
        return read_at_most(io.BytesIO(path.span(0, limit.most + 1)), limit, f"{path}", fault)
    with open_regular(path, fault) as file:
        limit.check(os.fstat(file.fileno()).st_size, f"{path}", fault)
        return read_at_most(file, limit, f"{path}", fault)


def read_at_most(file: Any, limit: Limit, what: str, fault: Fault) -> bytes:
    """Return the remaining bytes of an open file; raise `fault` as soon as they exceed the limit."""
    data = bytearray()
    while piece := file.read(_PIECE):
        data += piece
        if len(data) > limit.most:
            raise fault(f"{what} has more than {limit.most:,} {limit.unit}; set {limit.variable} to raise the limit")
    return bytes(data)


def mapped(path: str | AnyPath, fault: Fault = FileError) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a file as a memory map."""
    with open_regular(path, fault) as file:
        size = os.fstat(file.fileno()).st_size
        return np.asarray(np.memmap(file, np.uint8, "r")) if size else np.empty(0, np.uint8)


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def depth_of(text: bytes) -> int:
    """Return the nesting depth of maps and lists in a JSON text."""
    plain = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    steps = np.isin(plain, (ord("["), ord("{"))).astype(np.int8) - np.isin(plain, (ord("]"), ord("}"))).astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def json_tree(text: bytes, depth: int = DEPTH) -> Any:
    """Parse a JSON text; raise ValueError for invalid JSON, for unpaired surrogates, and for nesting deeper than `depth`."""
    nesting = depth_of(text)
    if nesting > depth:
        raise ValueError(f"the JSON text has {nesting:,} nested levels, more than the limit of {depth}")
    try:
        tree = json.loads(text.decode("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # the only other ValueError of json, whose message proposes to change Python's limit
        raise ValueError(f"the JSON text has a number of more than {sys.get_int_max_str_digits():,} digits") from None
    if _SURROGATE.search(text):  # an unpaired surrogate can neither be printed nor name a file
        json.dumps(tree, ensure_ascii=False).encode()
    return tree


def whole(number: Any, what: str = "a number") -> int:
    """Return `number`; raise ValueError unless it is an integer from 0 to `LARGEST`."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST:
        raise ValueError(f"{what} must be an integer from 0 to {LARGEST}; got {number!r:.40}")
    return number


def shape_of(sizes: Any) -> tuple[int, ...]:
    """Return an array's shape as a tuple; raise ValueError unless `sizes` is a list of valid sizes."""
    if not isinstance(sizes, list | tuple) or len(sizes) > AXES:
        raise ValueError(f"a shape must be a list of at most {AXES} sizes; got {sizes!r:.80}")
    return tuple(whole(size, "a size") for size in sizes)


def plain_name(name: Any) -> str:
    """Return `name`; raise ValueError unless it is a plain file name without a path to another folder."""
    if not isinstance(name, str) or not name or name in (".", "..") or "\0" in name or Path(name).name != name:
        raise ValueError(f"{name!r:.80} is not the name of a file in this folder")
    return name
