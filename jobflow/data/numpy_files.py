"""The reader of NumPy files, which are mapped: they may be larger than memory."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from jobflow.data.samples import Columns, Split, checked_name
from jobflow.errors import DataError
from jobflow.types import Array

WHAT = 'reader "numpy"'
#: of the header before each file in a ZIP archive, and where it says how long its two texts are
ZIP_HEADER, ZIP_LENGTHS = 30, slice(26, 30)


class NumpyFiles(Columns):
    """The arrays of an .npz file, of a folder of .npy files, or of one .npy file; row i of each is sample i.

    `fields` says which array each field is (`{images: x_train, labels: y_train}`); without it every array is a field of its own name.
    Numbers are multiplied by `scale` and converted to `dtypes`, by field.  Files are mapped, so only rows that are asked for are read;
    arrays that `np.savez_compressed` packed are unpacked into memory.  Every `validation_every`-th row is for validation.
    """

    def __init__(
        self,
        path: str,
        fields: dict[str, str] | None = None,
        dtypes: dict[str, str] | None = None,
        scale: dict[str, float] | None = None,
        split: Split = "all",
        validation_every: int = 10,
    ) -> None:
        file = Path(path)
        arrays = _arrays(file)
        if fields is not None:
            arrays = {field: arrays[checked_name(name, arrays, f'{WHAT}: {file}: field "{field}": array')] for field, name in fields.items()}
        super().__init__(arrays, dtypes, scale, (split, validation_every), f"{WHAT}: {file}")


def _arrays(path: Path) -> dict[str, Array]:
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        if not files:
            raise DataError(f"{WHAT}: there is no .npy file in {path.absolute()}")
        return {file.stem: mapped_array(file) for file in files}
    if not path.is_file():
        raise DataError(f"{WHAT}: there is no file or folder {path.absolute()}")
    if path.suffix != ".npz":
        return {path.stem: mapped_array(path)}
    try:
        return dict(_members(path))
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{WHAT}: {path} is no undamaged .npz file: {error}") from None


def _members(path: Path) -> Iterator[tuple[str, Array]]:
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type != zipfile.ZIP_STORED:
                with archive.open(member) as packed:
                    yield name, _read(packed, f"{path}: {name}")
                continue
            file.seek(member.header_offset)
            lengths = np.frombuffer(file.read(ZIP_HEADER)[ZIP_LENGTHS], "<u2")
            yield name, mapped_array(path, member.header_offset + ZIP_HEADER + int(lengths.sum()), member.file_size)


def mapped_array(path: Path, start: int = 0, size: int | None = None) -> Array:
    """The array that a file, or `size` bytes in it from `start` on, has in NumPy's format, as a view of the file."""
    stop = path.stat().st_size if size is None else start + size
    with path.open("rb") as file:
        file.seek(start)
        shape, in_columns, dtype = _header(file, f"{path}{f' at byte {start}' if start else ''}")
        offset = file.tell()
    needed = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if stop - offset != needed:
        raise DataError(f"{WHAT}: {path} is damaged: {dtype}{list(shape)} at byte {offset} needs {needed} bytes, but there are {stop - offset}")
    if needed == 0:
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", offset, shape, "F" if in_columns else "C"))


def _header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
        shape, in_columns, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    except (ValueError, EOFError) as error:
        raise DataError(f"{WHAT}: {what} is no array in NumPy's format: {error}") from None
    if dtype.hasobject:
        raise DataError(f"{WHAT}: {what} holds Python objects; save an array of numbers")
    return shape, in_columns, dtype


def _read(file: IO[bytes], what: str) -> Array:
    try:
        found: Array = npy.read_array(file, allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{WHAT}: {what} cannot be read: {error}") from None
    return found
