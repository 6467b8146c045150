"""Reading of checkpoints: tensors, or parts of them, by name; data is checked against its hash when it is read.

Directories of the legacy system are recognised: one directory per variable with the raw data in `out` and, in later releases, its type in `meta`.
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
#: what `meta` files call element types; NumPy has no other name for the first, which is therefore only read
LEGACY_TYPES = {
    "kChar": "char",
    "kFloat": "float32",
    "kDouble": "float64",
    "kInt8": "int8",
    "kInt32": "int32",
    "kInt64": "int64",
    "kUInt8": "uint8",
    "kFloat16": "float16",
}


def variable_type(what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> TensorType:
    """Return the type of a tensor or an array in a file; raise CheckpointError, beginning with `what`, for types that variables cannot have."""
    try:
        return TensorType(shape, dtype_of(dtype.newbyteorder("=")))
    except (KeyError, TypeError):
        raise CheckpointError(f"{what} is of type {dtype}, which no variable can have") from None


class Stored(ABC):
    """A tensor in files, the first of which is `file`."""

    name: str
    file: AnyPath

    @property
    def file_path(self) -> str:
        """The path of the file as text."""
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
    def says_type(self) -> bool:
        """True if the files contain the type."""
        return True

    @abstractmethod
    def numpy(self) -> Array:
        """Read the tensor; raise CheckpointError if it is damaged."""

    def read(self, box: Box) -> Array:
        """Read a box as a new array; raise CheckpointError if the data read for it is damaged."""
        inside: Any = (*box.slices, ...)
        return np.array(self.numpy()[inside])


class Opened:
    """The files of a checkpoint; a header is read and checked on first use."""

    def __init__(self, root: AnyPath, found: Manifest, mark: Mark | None) -> None:
        self.root = root
        self.manifest = found
        self._mark = mark
        self._headers: dict[str, safetensors.Header] = {}
        #: what each file should hold: name -> boxes
        self._parts: dict[str, dict[str, list[Spans]]] = {file: {} for file in found.files}
        for name, entry in found.tensors.items():
            for shard in entry.shards:
                self._parts.setdefault(shard.file, {}).setdefault(name, []).append(shard.box)

    def header(self, file: str) -> safetensors.Header:
        """Return the header of a file; raise CheckpointError if the file is missing, or its length or header differs from the manifest."""
        if file not in self._headers:
            with self.reading():
                self._headers[file] = self._header(file)
        return self._headers[file]

    def _header(self, file: str) -> safetensors.Header:
        found = safetensors.opened(self.root / file)
        self._check_tensors(file, found)
        entry = self.manifest.files.get(file)
        if entry is not None and found.size != entry.bytes:
            raise CheckpointError(f"{self.root / file} is damaged: it has {found.size} bytes, but had {entry.bytes}")
        if entry is not None and found.sha256 != entry.header:
            raise CheckpointError(f"{self.root / file} is damaged: its header, from byte 0 on, does not match its hash")
        return found

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context for reading a file; an error becomes ReplacedError if another checkpoint, or none, has taken its place."""
        try:
            yield
        except (ReplacedError, StoreError):
            raise
        except (CheckpointError, OSError) as error:
            now = _mark(self.root)
            if now == self._mark:
                raise
            what = "removed" if now is None else "replaced by another one"
            raise ReplacedError(f"checkpoint {self.root} was {what} while it was being read; load it again, or load the newest one") from error

    def _check_tensors(self, file: str, found: safetensors.Header) -> None:
        """Raise CheckpointError unless the file contains exactly the parts listed in the manifest."""
        for name, boxes in self._parts[file].items():
            dtype = self.manifest.tensors[name].dtype
            shape = tuple(max(b for _, b in spans) - min(a for a, _ in spans) for spans in zip(*boxes, strict=True))
            place = found.places.get(name)
            if place is None or (place.shape, place.dtype.name) != (shape, dtype):
                has = f"{place.dtype.name}{list(place.shape)}" if place else "nothing of that name"
                raise CheckpointError(f'{self.root / file}: tensor "{name}" should be {dtype}{list(shape)}, but the file has {has}')

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
    def place(self) -> safetensors.Place:
        """The position of the data in the file; reads the header on first use."""
        place = self.opened.header(self.file_path.name).places[self.name]
        own = replace(place, shape=tuple(stop - start for start, stop in self.box), start=place.start + self.at)
        if self.at + own.nbytes > place.nbytes:
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}" is damaged: its box {box_text(self.box)} lies outside of it')
        return own

    def numpy(self) -> Array:
        """Read the data; raise CheckpointError if it does not match its hash."""
        with self.opened.reading():
            return self._numpy(self.place)

    def _numpy(self, place: safetensors.Place) -> Array:
        try:
            found = safetensors.read_tensor(self.file_path, place)
        except StoreError:
            raise
        except OSError as error:
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}", {self._where(place)}, cannot be read: {error}') from error
        if hashlib.sha256(safetensors.bytes_of(safetensors.storable(self.name, found))).hexdigest() != self.sha256:
            raise CheckpointError(f'{self.file_path}: tensor "{self.name}" is damaged: its content, {self._where(place)}, does not match its hash')
        return found

    def _where(self, place: safetensors.Place) -> str:
        return f"box {box_text(self.box)} at bytes {place.start} to {place.start + place.nbytes} of the file"


@dataclass(frozen=True)
class StoredTensor(Stored):
    """A tensor of a checkpoint, in one shard per rank that wrote it; at most one shard is in memory besides the result."""

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
    """A file `out` of raw little-endian data; `given` is its type from the caller, for files without `meta`."""

    name: str
    file: AnyPath
    given: TensorType | None = None

    @property
    def says_type(self) -> bool:
        return (self.file.parent / "meta").exists()

    @property
    def type(self) -> TensorType:
        meta = self.file.parent / "meta"
        if self.says_type:
            return _legacy_type(meta)
        if self.given is None:
            raise CheckpointError(f'{self.file}: the type of tensor "{self.name}" is not known: there is no file {meta}; pass types={{name: type}}')
        return self.given

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
    """Arrays by name, read on demand.  `extra` is the saved JSON tree; `single` is True for the directory of one legacy variable."""

    path: AnyPath
    stored: Mapping[str, Stored]
    extra: Mapping[str, Any]
    single: bool = False
    #: differs if anything in it does; "" of what has no manifest
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
    """Open the checkpoint in the directory `path`.

    `types` maps names to types for a legacy directory without `meta` files.  Data is checked when it is read.
    Raises: CheckpointError if there is no checkpoint, or if files are missing or contradict each other; with check=False only on first use.
    """
    root = path_of(path)
    mark = _mark(root)  # before it is read: one that comes in between is another one
    if mark is not None:
        return _load(root, check, mark)
    if not root.is_dir():
        raise CheckpointError(f"checkpoint {root}: there is no such directory")
    return _load_legacy(root, types or {})


def _mark(root: AnyPath) -> Mark | None:
    """Return the identity of the checkpoint at this path now, or None."""
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
    found = Manifest.read(root / manifest.NAME)
    opened = Opened(root, found, mark)
    if check:
        opened.check()
    stored: dict[str, Stored] = {}
    for name, entry in found.tensors.items():
        shards = tuple(StoredShard(name, shard.box, shard.at, shard.sha256, root / shard.file, opened) for shard in entry.shards)
        stored[name] = StoredTensor(name, shards[0].file_path if shards else root, entry, shards)
    return Checkpoint(root, stored, found.extra, digest=hashlib.sha256(found.text().encode()).hexdigest())


def unreadable(path: AnyPath) -> str | None:
    """Return the reason why the checkpoint in `path` cannot be opened; None if it can, or if `path` has no manifest.

    Raises: ReplacedError and StoreError, which do not describe the present checkpoint.
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
    """Read every byte of a checkpoint and return its problems, tensor by tensor; an empty list if it is intact.

    Raises: ReplacedError and StoreError, which do not describe the present checkpoint.
    """
    try:
        found = load(path)
    except (ReplacedError, StoreError):
        raise
    except (CheckpointError, OSError) as error:
        yield str(error)
        return
    for stored in found.stored.values():
        for part in stored.shards if isinstance(stored, StoredTensor) else (stored,):
            try:
                part.numpy()
            except (ReplacedError, StoreError):
                raise
            except (CheckpointError, OSError) as error:
                yield str(error)
            except MemoryError:
                yield f'{part.file_path}: tensor "{part.name}" is larger than memory'


def _load_legacy(root: AnyPath, types: Mapping[str, TensorType]) -> Checkpoint:
    if (root / "out").is_file():
        return Checkpoint(root, {root.name: LegacyTensor(root.name, root / "out", types.get(root.name))}, {}, single=True)
    try:
        names = sorted(entry.name for entry in root.iterdir() if (entry / "out").is_file())
    except FileNotFoundError:  # it has gone since
        raise CheckpointError(f"checkpoint {root}: there is no such directory") from None
    if not names:
        raise CheckpointError(f"checkpoint {root}: there is neither a {manifest.NAME} nor a directory per variable in it")
    return Checkpoint(root, {name: LegacyTensor(name, root / name / "out", types.get(name)) for name in names}, {})


def _legacy_type(meta: AnyPath) -> TensorType:
    text = content(meta, HEADER, CheckpointError).decode(errors="replace")
    kind = re.search(r"data_type:\s*(\w+)", text)
    if kind is None or kind[1] not in LEGACY_TYPES:
        raise CheckpointError(f"{meta}: the element type {kind[1] if kind else 'is missing and'} is not one of {', '.join(LEGACY_TYPES)}")
    try:
        shape = shape_of([int(n) for n in re.findall(r"\bdim:\s*(\d{1,20})", text)])
    except ValueError as error:
        raise CheckpointError(f"{meta}: {error}") from None
    return TensorType(shape, dtype_named(LEGACY_TYPES[kind[1]]))
