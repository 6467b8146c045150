"""Reading files that users provide: regular files of a limited size, and texts of a limited depth.

What a reader, a configuration or a checkpoint names may be a pipe that nobody writes to, a file of petabytes, or JSON that is nested 100,000
deep.  Whoever reads such a file opens it here and says, as `fault`, which error tells of what is wrong with it.  Each limit can be set anew
by a variable of the environment, which the message names.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, FileError
from jobflow.storage.remote import AnyPath, RemotePath, local_copy

#: makes the error that tells what is wrong with a file, from a text that begins with the file's name
Fault = Callable[[str], Exception]

#: how deep maps and lists stand inside each other at most, in everything that is read
DEPTH = 200
#: axes that an array in a file has at most: NumPy's own limit
AXES = 64
#: elements along an axis, and bytes of an array, that a machine can count
LARGEST = 2**63 - 1
#: bytes that are read at a time
_PIECE = 2**20
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Limit:
    """The most that something read from a file may have, in bytes unless `unit` says otherwise; `variable` sets another limit."""

    variable: str
    default: int
    unit: str = "bytes"

    @property
    def most(self) -> int:
        """The limit in force.  ConfigError if the variable holds no size."""
        text = os.environ.get(self.variable, "").strip()
        if not text:
            return self.default
        found = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(i?B)?", text, re.IGNORECASE)
        if found is None:
            raise ConfigError(f"{self.variable} is {text!r}; give a number of {self.unit}, such as {self.default} or 8G")
        return int(found[1]) * _UNITS[found[2].upper()]

    def check(self, size: int, what: str, fault: Fault) -> None:
        """Raise the fault unless `size` is within the limit; `what` begins the message."""
        if size > self.most:
            raise fault(f"{what} has {size:,} {self.unit}, and at most {self.most:,} are read; {self.variable} sets another limit")


#: a YAML file; those are read into memory many times their size
CONFIGURATION = Limit("JOBFLOW_MAX_CONFIGURATION", 2**20)
#: a manifest, or the header of a file of tensors
HEADER = Limit("JOBFLOW_MAX_HEADER", 2**28)
#: one row of a table, or one record
RECORD = Limit("JOBFLOW_MAX_RECORD", 2**26)
#: what lies in memory as a whole: unpacked arrays, texts of characters
MEMORY = Limit("JOBFLOW_MAX_UNPACKED", 2**33)
#: an image; Pillow's own limit
IMAGE = Limit("JOBFLOW_MAX_PIXELS", 89_478_485, "pixels")


def open_regular(path: str | AnyPath, fault: Fault = FileError) -> BinaryIO:
    """A regular file, or a copy of an object in a store, opened for reading; never waits.

    Raises: the fault for a pipe, a device or a folder; OSError as `open` does.
    """
    if isinstance(path, RemotePath):
        path = local_copy(path)
    _check_kind(os.stat(path).st_mode, path, fault)  # before it is opened: to open a device may do something
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_kind(os.fstat(handle).st_mode, path, fault)  # it may have been exchanged in between
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
        raise fault(f"{path}: it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file")


#: what tells a file from one that has taken its place, or that has been written since
Mark = tuple[int, int, int] | str


def mark_of(status: os.stat_result) -> Mark:
    """That of the file which has this status."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def content(path: str | AnyPath, limit: Limit, fault: Fault = FileError) -> bytes:
    """All bytes of a file or an object; the fault if there are more than the limit, whatever its size was when it was opened."""
    if isinstance(path, RemotePath):
        return read_at_most(io.BytesIO(path.span(0, limit.most + 1)), limit, f"{path}: it", fault)
    with open_regular(path, fault) as file:
        limit.check(os.fstat(file.fileno()).st_size, f"{path}: it", fault)
        return read_at_most(file, limit, f"{path}: it", fault)


def read_at_most(file: Any, limit: Limit, what: str, fault: Fault) -> bytes:
    """What is left to read; the fault if it is more than the limit, of which no more than that has been read."""
    found = bytearray()
    while piece := file.read(_PIECE):
        found += piece
        if len(found) > limit.most:
            raise fault(f"{what} has more than {limit.most:,} {limit.unit}, the most that are read; {limit.variable} sets another limit")
    return bytes(found)


def mapped(path: str | AnyPath, fault: Fault = FileError) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a file, which are read when they are looked at."""
    with open_regular(path, fault) as file:
        size = os.fstat(file.fileno()).st_size
        return np.asarray(np.memmap(file, np.uint8, "r")) if size else np.empty(0, np.uint8)


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def depth_of(text: bytes) -> int:
    """How deep maps and lists stand inside each other in a JSON text."""
    plain = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    steps = np.isin(plain, (ord("["), ord("{"))).astype(np.int8) - np.isin(plain, (ord("]"), ord("}"))).astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def json_tree(text: bytes, depth: int = DEPTH) -> Any:
    """The tree of a JSON text.  ValueError, without parsing, if it is nested deeper than `depth`; and for what is no JSON."""
    found = depth_of(text)
    if found > depth:
        raise ValueError(f"it is nested {found:,} deep, and at most {depth} are read")
    tree = json.loads(text.decode("utf-8-sig"))
    if _SURROGATE.search(text):  # half a character, which can be neither printed nor the name of a file
        json.dumps(tree, ensure_ascii=False).encode()
    return tree


def whole(number: Any, what: str = "a number") -> int:
    """A whole number of at least 0 that a machine can count.  ValueError for all else that may stand in its place."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST:
        raise ValueError(f"{what} is {number!r:.40}, not a whole number from 0 to {LARGEST}")
    return number


def shape_of(sizes: Any) -> tuple[int, ...]:
    """The shape of an array.  ValueError unless it is a list of sizes that an array can have."""
    if not isinstance(sizes, list | tuple) or len(sizes) > AXES:
        raise ValueError(f"{sizes!r:.80} is not a shape: a list of at most {AXES} sizes")
    return tuple(whole(size, "a size") for size in sizes)


def plain_name(name: Any) -> str:
    """The name of a file in a folder.  ValueError for one that leads anywhere else."""
    if not isinstance(name, str) or not name or name in (".", "..") or "\0" in name or Path(name).name != name:
        raise ValueError(f"{name!r:.80} is not the name of a file in this folder")
    return name
