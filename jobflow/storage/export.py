"""Conversion between checkpoints, .npz files, .safetensors files and directories of OneFlow, with one tensor in memory at a time.

A .npz is a zip file with one .npy file per tensor. A legacy directory has one directory per variable, with raw little-endian data in `out` and the
type as text in `meta`. Both formats contain tensors only, without the saved JSON tree (step, position, ...).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.types import TensorType, bfloat16
from jobflow.storage.checkpoint_reader import LEGACY_TYPES, Checkpoint, LegacyTensor, Stored, load, variable_type
from jobflow.storage.difference import selected
from jobflow.storage.file_system import files_of
from jobflow.storage.local_drafts import DONE, Folder, is_occupied, temporary_path
from jobflow.storage.npy import FileArray, in_archive
from jobflow.storage.remote import AnyPath, RemotePath, path_of
from jobflow.storage.safetensors import TensorInfo, bytes_of, header_of, read_header, read_tensor, storable
from jobflow.storage.safetensors_index import ENDING as INDEX_ENDING
from jobflow.storage.safetensors_index import read_index
from jobflow.storage.store import save
from jobflow.storage.untrusted import mapped

Array = np.ndarray[Any, Any]
_LEGACY_NAMES = {name: kind for kind, name in LEGACY_TYPES.items() if name != "char"}
_NPY = ".npy"


# ---- out -----------------------------------------------------------------------------------------------------------------------------


def to_npz(source: Checkpoint, path: str | os.PathLike[str], patterns: Sequence[str] = ("*",), *, replace: bool = False) -> list[str]:
    """Write tensors to one .npz file atomically, and return the names of the bfloat16 tensors.

    NumPy has no bfloat16, so these tensors are written as float32.
    """
    names = selected(patterns, source)
    to_file(path, replace, lambda file: _write_npz(file, source, names))
    return [name for name in names if source.stored[name].type.dtype is bfloat16]


def to_safetensors(source: Checkpoint, path: str | os.PathLike[str], patterns: Sequence[str] = ("*",), *, replace: bool = False) -> list[str]:
    """Write tensors to one .safetensors file atomically; return [], because no element type is converted."""
    names = selected(patterns, source)
    to_file(path, replace, lambda file: _write_safetensors(file, source, names))
    return []


def _write_safetensors(path: Path, source: Checkpoint, names: Sequence[str]) -> None:
    """Write the tensors `names` to a file, with one tensor in memory at a time; the header depends on the types only."""
    types = {name: source.stored[name].type for name in names}
    empty = {name: np.broadcast_to(np.zeros((), type.dtype.numpy), type.shape) for name, type in types.items()}
    header, order = header_of(empty)
    files_of().write(path, chain([header], (bytes_of(storable(name, source[name])) for name in order)))


def to_file(path: str | os.PathLike[str], replace: bool, write: Callable[[Path], None]) -> None:
    """Write a temporary file, and rename it to the path in one step; raise CheckpointError if the path exists and must not be replaced."""
    target = _local(path, "export")
    if target.is_dir() or (target.exists() and not replace):
        raise CheckpointError(f"export to {target}: this path already exists; pass another name, or --force to replace a file")
    _atomically(target, lambda folder: write(folder / target.name), lambda folder: os.replace(folder / target.name, target))


def _local(path: str | os.PathLike[str], what: str) -> Path:
    target = path_of(path, absolute=True)
    if isinstance(target, RemotePath):
        raise CheckpointError(f"{what} to {target}: only checkpoints can be written to a store; write to a local path and copy the result")
    return target


def _write_npz(path: Path, source: Checkpoint, names: Sequence[str]) -> None:
    with open(path, "xb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in names:
                array = source[name]
                if array.dtype.name == bfloat16.name:
                    array = array.astype(np.float32)
                with archive.open(name + _NPY, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def to_legacy(source: Checkpoint, path: str | os.PathLike[str], patterns: Sequence[str] = ("*",)) -> None:
    """Write tensors to a new legacy directory atomically; raise CheckpointError for the reasons of `save_legacy`."""
    save_legacy(source, {name: source.stored[name].type for name in selected(patterns, source)}, path)


def save_legacy(arrays: Mapping[str, Array], types: Mapping[str, TensorType], path: str | os.PathLike[str]) -> None:
    """Write the arrays named in `types` to a new legacy directory atomically.

    Raises: CheckpointError if the path exists, or for names and types that the format cannot represent.
    """
    target = _local(path, "conversion")
    if is_occupied(target):
        raise CheckpointError(f"conversion to {target}: this path already exists; pass a path that does not exist, or an empty directory")
    kinds = {name: _legacy_kind(name, type) for name, type in types.items()}
    _atomically(target, lambda folder: _write_legacy(folder, arrays, kinds), lambda folder: os.replace(folder, target))


def _legacy_kind(name: str, type: TensorType) -> str:
    if "/" in name or "\0" in name or name in (".", "..", DONE):
        raise CheckpointError(
            f'tensor "{name}": a legacy checkpoint needs a directory of this name, and the name is not valid; omit the tensor (--names)'
        )
    if type.dtype.numpy.name not in _LEGACY_NAMES:
        raise CheckpointError(f'tensor "{name}" is {type}; a legacy checkpoint supports only {", ".join(_LEGACY_NAMES)}; omit the tensor (--names)')
    return _LEGACY_NAMES[type.dtype.numpy.name]


def _write_legacy(folder: Path, source: Mapping[str, Array], kinds: Mapping[str, str]) -> None:
    files = files_of()
    for name, kind in kinds.items():
        array = source[name]
        meta = "shape {\n" + "".join(f"  dim: {n}\n" for n in array.shape) + f"}}\ndata_type: {kind}\n"
        files.make_directory(folder / name)
        files.write(folder / name / "out", [bytes_of(np.asarray(array, array.dtype.newbyteorder("<"), order="C"))])
        files.write(folder / name / "meta", [meta.encode()])
        files.sync_directory(folder / name)
    files.write(folder / DONE, [])
    files.sync_directory(folder)


def _atomically(target: Path, write: Callable[[Path], None], publish: Callable[[Path], None]) -> None:
    """Call `write` with a temporary directory, then `publish` to move the result in one step; remove the directory after a failure.

    The directory has the name of a draft, so the next save removes it if this process dies.
    """
    files = files_of()
    folder = temporary_path(target)
    try:
        files.make_directory(folder)
        write(folder)
        publish(folder)
        files.sync_directory(target.parent)
    except OSError as error:
        raise CheckpointError(f"{target} could not be written: {error}") from error
    finally:
        Folder(target, folder).discard(files)  # no effect after publication


# ---- in ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NpzTensor(Stored):
    """An array in a .npz file."""

    name: str
    file: AnyPath
    array: FileArray

    @property
    def type(self) -> TensorType:
        return variable_type(f'{self.file}: array "{self.name}"', self.array.shape, self.array.dtype)

    def numpy(self) -> Array:
        """Read the array and check the zip file's checksum."""
        array: Array = self.array.read()
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def mapped(self) -> Array:
        """Return a memory map of an uncompressed array, without a check of the zip file's checksum; read and check a compressed array."""
        return self.array.mapped()


def open_any(path: str | os.PathLike[str] | RemotePath, types: Mapping[str, TensorType] | None = None) -> Checkpoint:
    """Open a checkpoint, a legacy directory, a .npz or a .safetensors file, or the index of several .safetensors files.

    `types` maps names to types for legacy variables without `meta`.
    """
    source = path_of(path)
    if not source.is_file():
        return load(source, types)
    if source.suffix == ".safetensors":
        return Checkpoint(source, {name: SafeTensor(name, source, info) for name, info in read_header(source).items()}, {})
    if source.name.endswith(INDEX_ENDING):
        return Checkpoint(source, {name: SafeTensor(name, file, info) for name, (file, info) in read_index(source).items()}, {})
    return Checkpoint(source, {array.name: NpzTensor(array.name, source, array) for array in in_archive(source, CheckpointError)}, {})


@dataclass(frozen=True)
class SafeTensor(Stored):
    """A tensor in a .safetensors file; the format has no hashes."""

    name: str
    file: AnyPath
    info: TensorInfo

    @property
    def type(self) -> TensorType:
        return variable_type(f'{self.file}: tensor "{self.name}"', self.info.shape, self.info.dtype)

    def numpy(self) -> Array:
        return read_tensor(self.file, self.info)


def to_checkpoint(source: Checkpoint, path: str | os.PathLike[str], patterns: Sequence[str] = ("*",)) -> None:
    """Write the tensors and the JSON tree of a source as a checkpoint with one shard per tensor, atomically."""
    names = selected(patterns, source)
    for name in names:  # check all hashes before the first byte is written
        source.stored[name].numpy()
    save(path, {name: _mapped(source.stored[name]) for name in names}, source.extra)


def _mapped(stored: Stored) -> Array:
    if isinstance(stored, NpzTensor):
        return stored.mapped()
    if isinstance(stored, LegacyTensor) and stored.type.nbytes:
        return mapped(stored.file, CheckpointError).view(stored.type.dtype.numpy.newbyteorder("<")).reshape(stored.type.shape)
    return stored.numpy()
