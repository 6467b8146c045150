"""Arrays in NumPy's own format: a .npy file, or the members of a .npz file, which is a zip file of .npy files.

Opening reads headers only. Data is memory-mapped, or read on demand with a check of the zip file's checksum.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.storage.remote import AnyPath
from jobflow.storage.untrusted import MEMORY, Fault, Mark, mark_of, open_regular, shape_of

#: the fixed size of a zip member's header, and the offset of the lengths of its name and extra field in the header
_ZIP_HEADER, _ZIP_LENGTHS = 30, 26


@dataclass(frozen=True)
class FileArray:
    """An array in a .npy file, which may be a `member` of a zip file; its data begins at offset `start` of the .npy file."""

    path: AnyPath
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    start: int
    member: zipfile.ZipInfo | None
    fault: Fault
    #: the identity of the file when its header was read
    mark: Mark

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def order(self) -> Any:
        return "F" if self.fortran_order else "C"

    @property
    def is_packed(self) -> bool:
        """True if the array is compressed."""
        return self.member is not None and self.member.compress_type != zipfile.ZIP_STORED

    def read(self) -> Array:
        """Read the array; raise `fault` if the zip file's checksum does not match, or the array exceeds the size limit."""
        if self.member is None:
            return np.array(self.mapped(), order="K")
        MEMORY.check(self.member.file_size, f'{self.path}: array "{self.name}"', self.fault)
        with self._opened() as file:
            try:
                with zipfile.ZipFile(file) as archive, archive.open(self.member) as packed:
                    content = bytearray(packed.read())
                return np.frombuffer(content, self.dtype, math.prod(self.shape), self.start).reshape(self.shape, order=self.order)
            except Exception as error:  # decompressors raise many types for a damaged stream
                raise self.fault(f'{self.path}: array "{self.name}" is damaged: {error}') from error

    def mapped(self) -> Array:
        """Return a memory map of an uncompressed array, without a check of the zip file's checksum; read and check a compressed array."""
        if self.is_packed or not self.nbytes:
            return self.read() if self.is_packed else np.empty(self.shape, self.dtype)
        with self._opened() as file:
            return np.asarray(np.memmap(file, self.dtype, "r", self._offset(file) + self.start, self.shape, self.order))

    def _opened(self) -> BinaryIO:
        """Open the file again; raise `fault` if it was replaced or written since its header was read."""
        file = open_regular(self.path, self.fault)
        if mark_of(os.fstat(file.fileno())) != self.mark:
            file.close()
            raise self.fault(f"{self.path} was replaced or written during the read; read the file again")
        return file

    def _offset(self, file: BinaryIO) -> int:
        """Return the offset of the .npy file in the zip file; 0 without a zip file."""
        if self.member is None:
            return 0
        file.seek(self.member.header_offset + _ZIP_LENGTHS)
        name, extra = struct.unpack("<HH", file.read(4))
        return int(self.member.header_offset + _ZIP_HEADER + name + extra)


def in_file(path: AnyPath, fault: Fault) -> FileArray:
    """Return the array in a .npy file."""
    with open_regular(path, fault) as file:
        status = os.fstat(file.fileno())
        array = _described(file, path, path.stem, None, fault, mark_of(status))
    _check_size(array, status.st_size, f"{path}")
    return array


def in_archive(path: AnyPath, fault: Fault) -> list[FileArray]:
    """Return the arrays in a .npz file; raise `fault` if the file is damaged."""
    with open_regular(path, fault) as file:
        status = os.fstat(file.fileno())
        try:
            with zipfile.ZipFile(file) as archive:
                return list(_members(archive, path, status, fault))
        except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError, struct.error, OSError) as error:
            if isinstance(error, type(fault(""))):
                raise
            raise fault(f"{path} is not a complete .npz file: {error}") from error


def _members(archive: zipfile.ZipFile, path: AnyPath, status: os.stat_result, fault: Fault) -> Iterator[FileArray]:
    size = status.st_size
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as file:
            array = _described(file, path, name, member, fault, mark_of(status))
        stored = member.compress_type == zipfile.ZIP_STORED
        if stored and (member.compress_size != member.file_size or member.header_offset + member.file_size > size):
            raise fault(f'{path}: array "{name}" is damaged: its size of {member.file_size:,} bytes does not match the archive of {size:,} bytes')
        _check_size(array, member.file_size, f'{path}: array "{name}"')
        yield array


def _described(file: Any, path: AnyPath, name: str, member: zipfile.ZipInfo | None, fault: Fault, mark: Mark) -> FileArray:
    what = f"{path}" if member is None else f'{path}: array "{name}"'
    try:
        version = npy.read_magic(file)
        shape, fortran_order, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
        shape = shape_of(shape)
    except Exception as error:  # NumPy parses the header as Python, which may raise any type
        raise fault(f"{what} is not an array in NumPy's format: {error}") from error
    if dtype.hasobject:
        raise fault(f"{what} contains Python objects; save arrays of numbers")
    return FileArray(path, name, shape, dtype, fortran_order, file.tell(), member, fault, mark)


def _check_size(array: FileArray, size: int, what: str) -> None:
    """Raise the array's `fault` unless header and data together have `size` bytes."""
    if size - array.start != array.nbytes:
        where = f"{array.dtype}{list(array.shape)} at byte {array.start}"
        raise array.fault(f"{what} is damaged: {where} needs {array.nbytes} bytes, but the file has {size - array.start}")
