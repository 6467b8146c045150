"""Loading: tensors by name, read and checked against their hashes when they are asked for.

Directories of the legacy system are recognised: one directory per variable with the raw numbers in `out` and, in later releases,
their type in `meta`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.checkpoint import manifest, safetensors
from jobflow.errors import CheckpointError, did_you_mean
from jobflow.types import TensorType, dtype_named, dtype_of

Array = np.ndarray[Any, Any]
_LEGACY_TYPES = {
    "kChar": "char",
    "kFloat": "float32",
    "kDouble": "float64",
    "kInt8": "int8",
    "kInt32": "int32",
    "kInt64": "int64",
    "kUInt8": "uint8",
    "kFloat16": "float16",
}


class Stored(ABC):
    """A tensor in a file."""

    name: str
    file_path: Path

    @property
    @abstractmethod
    def type(self) -> TensorType: ...

    @abstractmethod
    def numpy(self) -> Array:
        """Its numbers, read now; CheckpointError if they are damaged."""


@dataclass(frozen=True)
class StoredTensor(Stored):
    """A tensor in a safetensors file of a checkpoint."""

    name: str
    file_path: Path
    place: safetensors.Place
    sha256: str

    @property
    def type(self) -> TensorType:
        return TensorType(self.place.shape, dtype_of(self.place.dtype.newbyteorder("=")))

    def numpy(self) -> Array:
        found = safetensors.read_tensor(self.file_path, self.place)
        if hashlib.sha256(safetensors.bytes_of(safetensors.storable(self.name, found))).hexdigest() != self.sha256:
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}" is damaged: its content does not match its hash')
        return found


@dataclass(frozen=True)
class LegacyTensor(Stored):
    """A file `out` of raw little-endian numbers; `given` is its type as the caller knows it, for files without `meta`."""

    name: str
    file_path: Path
    given: TensorType | None = None

    @property
    def type(self) -> TensorType:
        meta = self.file_path.parent / "meta"
        if meta.exists():
            return _legacy_type(meta)
        if self.given is None:
            raise CheckpointError(
                f'{self.file_path}: nothing says what type tensor "{self.name}" has (there is no file {meta}); pass types={{name: type}}'
            )
        return self.given

    def numpy(self) -> Array:
        type = self.type
        dtype = type.dtype.numpy.newbyteorder("<")
        size = self.file_path.stat().st_size
        if size != type.nbytes:
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}" is {type}, which is {type.nbytes} bytes, but the file has {size}')
        return np.fromfile(self.file_path, dtype, math.prod(type.shape)).reshape(type.shape).astype(type.dtype.numpy, copy=False)


@dataclass(frozen=True)
class Checkpoint(Mapping[str, Array]):
    """Arrays by name, read when asked for.  `extra` is what was saved beside them; `single` if the directory is that of one legacy variable."""

    path: Path
    stored: Mapping[str, Stored]
    extra: Mapping[str, Any]
    single: bool = False

    def __getitem__(self, name: str) -> Array:
        if name not in self.stored:
            raise KeyError(f'checkpoint {self.path} has no tensor "{name}"{did_you_mean(str(name), self.stored)}')
        return self.stored[name].numpy()

    def __contains__(self, name: object) -> bool:
        return name in self.stored  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def load(path: str | os.PathLike[str], types: Mapping[str, TensorType] | None = None) -> Checkpoint:
    """The checkpoint in the directory `path`.

    `types` says what the tensors of a legacy directory without `meta` files are.  CheckpointError if there is no checkpoint, or if
    files are missing or do not agree; the numbers themselves are checked when they are read.
    """
    root = Path(path)
    if not root.is_dir():
        raise CheckpointError(f"checkpoint {root}: there is no such directory")
    if (root / manifest.NAME).exists():
        return _load(root)
    return _load_legacy(root, types or {})


def _load(root: Path) -> Checkpoint:
    found = manifest.Manifest.read(root / manifest.NAME)
    places = {file: safetensors.read_header(root / file) for file in sorted({entry.file for entry in found.tensors.values()})}
    stored: dict[str, Stored] = {}
    for name, entry in found.tensors.items():
        place = places[entry.file].get(name)
        if place is None or (place.shape, place.dtype.name) != (entry.shape, entry.dtype):
            has = f"{place.dtype.name}{list(place.shape)}" if place else "nothing of that name"
            raise CheckpointError(f'{root / entry.file}: tensor "{name}" should be {entry.dtype}{list(entry.shape)}, but the file has {has}')
        stored[name] = StoredTensor(name, root / entry.file, place, entry.sha256)
    return Checkpoint(root, stored, found.extra)


def _load_legacy(root: Path, types: Mapping[str, TensorType]) -> Checkpoint:
    if (root / "out").is_file():
        return Checkpoint(root, {root.name: LegacyTensor(root.name, root / "out", types.get(root.name))}, {}, single=True)
    names = sorted(entry.name for entry in root.iterdir() if (entry / "out").is_file())
    if not names:
        raise CheckpointError(f"checkpoint {root}: there is neither a {manifest.NAME} nor a directory per variable in it")
    return Checkpoint(root, {name: LegacyTensor(name, root / name / "out", types.get(name)) for name in names}, {})


def _legacy_type(meta: Path) -> TensorType:
    text = meta.read_text(encoding="utf-8")
    kind = re.search(r"data_type:\s*(\w+)", text)
    if kind is None or kind[1] not in _LEGACY_TYPES:
        raise CheckpointError(f"{meta}: the element type {kind[1] if kind else 'is missing and'} is not one of {', '.join(_LEGACY_TYPES)}")
    return TensorType(tuple(int(n) for n in re.findall(r"\bdim:\s*(\d+)", text)), dtype_named(_LEGACY_TYPES[kind[1]]))
