"""Reading of checkpoints: whole tensors or boxes of them, by name, with a hash check of the data that is read.

Legacy checkpoints are directories with one directory per variable. Such a directory has the raw data in `out` and, in later releases, the type in
`meta`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, ReplacedError, did_you_mean
from jobflow.core.layout import Box, whole_box
from jobflow.core.types import DType, TensorType, dtype_named, dtype_of
from jobflow.storage import manifest, safetensors
from jobflow.storage.manifest import Manifest, Spans, box_text
from jobflow.storage.remote import AnyPath, RemotePath, StoreError, path_of
from jobflow.storage.untrusted import HEADER, Mark, content, mark_of, open_regular, shape_of

Array = np.ndarray[Any, Any]
#: element types of `meta` files; kChar is only read, because NumPy has no type of this name
LEGACY_TYPES = {
    "kChar": "char",
    "kFloat": "float32",
    "kDouble": "float64",
    "kInt8": "int8",
    "kInt16": "int16",
    "kInt32": "int32",
    "kInt64": "int64",
    "kUInt8": "uint8",
    "kFloat16": "float16",
}


def variable_type(what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> TensorType:
    """Return the type of a stored array as a variable type.

    Raises: CheckpointError with the prefix `what` for types that variables do not support.
    """
    try:
        return TensorType(shape, dtype_of(dtype.newbyteorder("=")))
    except (KeyError, TypeError):
        raise CheckpointError(f"{what} has type {dtype}, which variables do not support; convert it before saving") from None


class Stored(ABC):
    """A tensor in one or more files; `file` is the first of these files."""

    name: str
    file: AnyPath

    @property
    def file_path(self) -> str:
        """The path of the file as a string."""
        return str(self.file)

    @property
    @abstractmethod
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def has_type(self) -> bool:
        """True if the files contain the tensor's type; False for legacy files without `meta`."""
        return True

    @abstractmethod
    def numpy(self) -> Array:
        """Read the tensor; raise CheckpointError if it is damaged."""

    def read(self, box: Box) -> Array:
        """Read a box as a new array; raise CheckpointError if its data is damaged."""
        inside: Any = (*box.slices, ...)
        return np.array(self.numpy()[inside])


class Opened:
    """The files of a checkpoint, whose headers are read and checked on first use."""

    def __init__(self, root: AnyPath, contents: Manifest, mark: Mark | None) -> None:
        self.root = root
        self.manifest = contents
        self._mark = mark
        self._headers: dict[str, safetensors.Header] = {}
        #: file -> tensor name -> boxes, by the manifest
        self._parts: dict[str, dict[str, list[Spans]]] = {file: {} for file in contents.files}
        for name, entry in contents.tensors.items():
            for shard in entry.shards:
                self._parts.setdefault(shard.file, {}).setdefault(name, []).append(shard.box)

    def header(self, file: str) -> safetensors.Header:
        """Return the header of a file; raise CheckpointError if the file is missing, or differs from the manifest in length, header or tensors."""
        if file not in self._headers:
            with self.reading():
                self._headers[file] = self._header(file)
        return self._headers[file]

    def _header(self, file: str) -> safetensors.Header:
        header = safetensors.opened(self.root / file)
        self._check_tensors(file, header)
        entry = self.manifest.files.get(file)
        if entry is not None and header.size != entry.bytes:
            raise CheckpointError(f"{self.root / file} is damaged: it has {header.size} bytes instead of {entry.bytes}")
        if entry is not None and header.sha256 != entry.header:
            raise CheckpointError(f"{self.root / file} is damaged: its header, at byte 0, does not match its hash")
        return header

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert errors of the block to ReplacedError if the checkpoint was replaced or removed during the read."""
        try:
            yield
        except (ReplacedError, StoreError):
            raise
        except (CheckpointError, OSError) as error:
            now = _mark(self.root)
            if now == self._mark:
                raise
            what = "removed" if now is None else "replaced"
            raise ReplacedError(f"checkpoint {self.root} was {what} during the read; load it again, or load the newest checkpoint") from error

    def _check_tensors(self, file: str, header: safetensors.Header) -> None:
        """Raise CheckpointError unless the file has the tensors that the manifest lists, with their shapes and types."""
        for name, boxes in self._parts[file].items():
            dtype = self.manifest.tensors[name].dtype
            shape = tuple(max(b for _, b in spans) - min(a for a, _ in spans) for spans in zip(*boxes, strict=True))
            info = header.infos.get(name)
            if info is None or (info.shape, info.dtype.name) != (shape, dtype):
                has = f"{info.dtype.name}{list(info.shape)}" if info else "no tensor of this name"
                raise CheckpointError(f'{self.root / file}: tensor "{name}" is {dtype}{list(shape)} in the manifest, but the file has {has}')

    def check(self) -> None:
        """Check all headers without reading the data."""
        for file in sorted(self._parts):
            self.header(file)


@dataclass(frozen=True)
class StoredShard:
    """A box of a tensor in a safetensors file."""

    name: str
    box: Spans
    at: int
    sha256: str
    file_path: AnyPath
    opened: Opened = field(repr=False, compare=False)

    @property
    def info(self) -> safetensors.TensorInfo:
        """The type and the byte offset of the data in the file; reading it raises CheckpointError if the shard ends after the data."""
        info = self.opened.header(self.file_path.name).infos[self.name]
        own = replace(info, shape=tuple(stop - start for start, stop in self.box), start=info.start + self.at)
        if self.at + own.nbytes > info.nbytes:
            text = f"its shard ends at byte {self.at + own.nbytes}, but its data has {info.nbytes} bytes"
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}" is damaged: {text}')
        return own

    def numpy(self) -> Array:
        """Read the data; raise CheckpointError if it does not match its hash."""
        with self.opened.reading():
            return self._numpy(self.info)

    def _numpy(self, info: safetensors.TensorInfo) -> Array:
        try:
            array = safetensors.read_tensor(self.file_path, info)
        except StoreError:
            raise
        except OSError as error:
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}", {self._where(info)}, cannot be read: {error}') from error
        if hashlib.sha256(safetensors.bytes_of(safetensors.storable(self.name, array))).hexdigest() != self.sha256:
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}" is damaged: its content, {self._where(info)}, does not match its hash')
        return array

    def _where(self, info: safetensors.TensorInfo) -> str:
        return f"box {box_text(self.box)} at bytes {info.start} to {info.start + info.nbytes} of the file"


@dataclass(frozen=True)
class StoredTensor(Stored):
    """A tensor of a checkpoint in one or more shards; reading keeps at most one shard in memory besides the result."""

    name: str
    file: AnyPath
    entry: manifest.Entry
    shards: tuple[StoredShard, ...]

    @property
    def type(self) -> TensorType:
        return variable_type(f'{self.file}: tensor "{self.name}"', self.entry.shape, safetensors.dtype_of(self.entry.dtype))

    def numpy(self) -> Array:
        return self.read(whole_box(self.entry.shape))

    def read(self, box: Box) -> Array:
        needed = [shard for shard in self.shards if not Box(shard.box, box.whole).meet(box).is_empty]
        if len(needed) == 1 and needed[0].box == box.spans:
            return needed[0].numpy()
        out: Array = np.empty(box.shape, safetensors.dtype_of(self.entry.dtype))
        for shard in needed:
            held = Box(shard.box, box.whole)
            both = held.meet(box)
            to: Any = (*both.within(box), ...)
            of: Any = (*both.within(held), ...)
            out[to] = shard.numpy()[of]
        return out


@dataclass(frozen=True)
class LegacyTensor(Stored):
    """A tensor in a file `out` of raw little-endian data; `declared` is the caller's type for files without `meta`."""

    name: str
    file: AnyPath
    declared: TensorType | None = None

    @property
    def has_type(self) -> bool:
        return (self.file.parent / "meta").exists()

    @property
    def type(self) -> TensorType:
        meta = self.file.parent / "meta"
        if self.has_type:
            return _legacy_type(meta)
        if self.declared is None:
            raise CheckpointError(f'{self.file}: the type of tensor "{self.name}" is unknown, because {meta} is missing; pass types={{name: type}}')
        return self.declared

    def numpy(self) -> Array:
        type = self.type
        dtype = type.dtype.numpy.newbyteorder("<")
        with open_regular(self.file, CheckpointError) as file:
            size = os.fstat(file.fileno()).st_size
            if size != type.nbytes:
                raise CheckpointError(f'{self.file}: tensor "{self.name}" is {type}, which is {type.nbytes} bytes, but the file has {size}')
            return np.fromfile(file, dtype, math.prod(type.shape)).reshape(type.shape).astype(type.dtype.numpy, copy=False)


@dataclass(frozen=True)
class Checkpoint(Mapping[str, Array]):
    """The arrays of a checkpoint by name, read on demand.

    `extra` is the saved JSON tree. `single` is True for the directory of one legacy variable.
    """

    path: AnyPath
    stored: Mapping[str, Stored]
    extra: Mapping[str, Any]
    single: bool = False
    #: the hash of the manifest; "" without a manifest
    digest: str = ""

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


def load(path: str | os.PathLike[str] | RemotePath, types: Mapping[str, TensorType] | None = None, *, check: bool = True) -> Checkpoint:
    """Open the checkpoint in the directory `path`; data is read and checked on access.

    `types` maps names to types for a legacy directory without `meta` files.
    Raises: CheckpointError if there is no checkpoint, or if files are missing or inconsistent (with check=False, raised on access).
    """
    root = path_of(path)
    mark = _mark(root)  # before the read, so that a replacement during the read is detected
    if mark is not None:
        return _load(root, check, mark)
    if not root.is_dir():
        raise CheckpointError(f"checkpoint {root}: there is no such directory; pass the path of a checkpoint")
    return _load_legacy(root, types or {})


def _mark(root: AnyPath) -> Mark | None:
    """Return the identity of the checkpoint's manifest, or None without a manifest."""
    if isinstance(root, RemotePath):
        try:
            return (root / manifest.NAME).stat().mark
        except FileNotFoundError:
            return None
    try:
        return mark_of(os.stat(root / manifest.NAME))
    except OSError:
        return None


def _load(root: AnyPath, check: bool, mark: Mark) -> Checkpoint:
    contents = Manifest.read(root / manifest.NAME)
    opened = Opened(root, contents, mark)
    if check:
        opened.check()
    stored: dict[str, Stored] = {}
    for name, entry in contents.tensors.items():
        shards = tuple(StoredShard(name, shard.box, shard.at, shard.sha256, root / shard.file, opened) for shard in entry.shards)
        stored[name] = StoredTensor(name, shards[0].file_path if shards else root, entry, shards)
    return Checkpoint(root, stored, contents.extra, digest=hashlib.sha256(contents.text().encode()).hexdigest())


def unreadable(path: AnyPath) -> str | None:
    """Return the reason why the checkpoint in `path` cannot be opened; None for a readable checkpoint, or if `path` has no manifest.

    Raises: ReplacedError if the checkpoint was replaced meanwhile; StoreError if the store fails.
    """
    try:
        (path / manifest.NAME).lstat()
        load(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ReplacedError, StoreError):
        raise
    except (CheckpointError, OSError) as error:
        return str(error)
    return None


def problems(path: str | os.PathLike[str] | RemotePath) -> Iterator[str]:
    """Read every byte of a checkpoint and yield one message per damaged tensor, or one message if the checkpoint cannot be opened.

    Raises: ReplacedError if the checkpoint was replaced meanwhile; StoreError if the store fails.
    """
    try:
        checkpoint = load(path)
    except (ReplacedError, StoreError):
        raise
    except (CheckpointError, OSError) as error:
        yield str(error)
        return
    for stored in checkpoint.stored.values():
        for part in stored.shards if isinstance(stored, StoredTensor) else (stored,):
            try:
                part.numpy()
            except (ReplacedError, StoreError):
                raise
            except (CheckpointError, OSError) as error:
                yield str(error)
            except MemoryError:
                yield f'{part.file_path}: tensor "{part.name}" does not fit in memory'


def _load_legacy(root: AnyPath, types: Mapping[str, TensorType]) -> Checkpoint:
    if (root / "out").is_file():
        return Checkpoint(root, {root.name: LegacyTensor(root.name, root / "out", types.get(root.name))}, {}, single=True)
    try:
        names = sorted(entry.name for entry in root.iterdir() if (entry / "out").is_file())
    except FileNotFoundError:  # removed by another process
        raise CheckpointError(f"checkpoint {root}: there is no such directory; pass the path of a checkpoint") from None
    if not names:
        raise CheckpointError(f"checkpoint {root}: the directory contains neither a {manifest.NAME} nor a directory per variable; pass another path")
    return Checkpoint(root, {name: LegacyTensor(name, root / name / "out", types.get(name)) for name in names}, {})


def _legacy_type(meta: AnyPath) -> TensorType:
    text = content(meta, HEADER, CheckpointError).decode(errors="replace")
    kind = re.search(r"data_type:\s*(\w+)", text)
    if kind is None or kind[1] not in LEGACY_TYPES:
        raise CheckpointError(f"{meta}: data_type is {kind[1] if kind else 'missing'}; it must be one of {', '.join(LEGACY_TYPES)}")
    try:
        shape = shape_of([int(n) for n in re.findall(r"\bdim:\s*(\d{1,20})", text)])
    except ValueError as error:
        raise CheckpointError(f"{meta}: {error}") from None
    return TensorType(shape, dtype_named(LEGACY_TYPES[kind[1]]))
