"""The files that each rank writes for a checkpoint; rank 0 polls the directory for them.

tensors-00002-00001.safetensors     data of rank 2
part-00002.json                     the manifest of its part; written after all of its files are on the disk
failed-00002                        instead of a part: the reason of a failure
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.types import Array
from jobflow.runtime.comm.waits import listed
from jobflow.storage import safetensors
from jobflow.storage.drafts import Draft
from jobflow.storage.file_system import Files
from jobflow.storage.local_drafts import PART
from jobflow.storage.manifest import Entry, FileEntry, Manifest, Shard, Spans, check_shards, digest
from jobflow.storage.remote import AnyPath, RemotePath, StoreError
from jobflow.storage.untrusted import HEADER, content, json_tree, whole

#: Maximum bytes of tensors in one file, unless a single tensor is larger.
SHARD = 2**31
#: Maximum bytes of a block with one hash, which is the smallest unit of a read.
BLOCK = 2**26
#: Seconds without a new file after which rank 0 gives up waiting for a rank.
LIMIT = 600.0
#: Seconds between polls of a directory, and of a store: the first pause and the longest pause.
_PAUSES, _REMOTE_PAUSES = (0.002, 0.1), (0.02, 1.0)


class OtherRankError(CheckpointError):
    """A failure of another rank, which the message names."""


@dataclass(frozen=True)
class Piece:
    """A box of a tensor and its data on one rank."""

    box: Spans
    array: Array


@dataclass(frozen=True)
class Part:
    """The shards and files written by one rank."""

    shards: Mapping[str, Sequence[Shard]]
    files: Mapping[str, FileEntry]

    def text(self) -> str:
        body: dict[str, Any] = {
            "shards": {name: [shard.tree() for shard in shards] for name, shards in self.shards.items()},
            "files": {name: asdict(entry) for name, entry in self.files.items()},
        }
        return json.dumps(body | {"sha256": digest(body)})

    @classmethod
    def read(cls, path: AnyPath) -> Part:
        """Read the manifest of a part; raise CheckpointError if it is damaged."""
        try:
            body = json_tree(content(path, HEADER, CheckpointError))
            recorded = body.pop("sha256")
            shards = {name: [Shard.of(tree) for tree in trees] for name, trees in body["shards"].items()}
            files = {name: FileEntry(whole(tree["bytes"]), tree["header"]) for name, tree in body["files"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        if digest(body) != recorded:
            raise CheckpointError(f"{path} is damaged: its content does not match its hash")
        return cls(shards, files)


def part_name(rank: int) -> str:
    return f"{PART}{rank:05d}.json"


def failed_name(rank: int) -> str:
    return f"failed-{rank:05d}"


def prefix(rank: int) -> str:
    """Return the prefix of the names of a rank's files."""
    return f"tensors-{rank:05d}-"


def write(draft: Draft, start: str, pieces: Mapping[str, Piece], files: Files) -> Part:
    """Write pieces into files with the prefix `start`, sync them to the disk, and return their part."""
    shards: dict[str, list[Shard]] = {}
    written: dict[str, FileEntry] = {}
    for number, group in enumerate(_groups(pieces), 1):
        file = draft.name_of(f"{start}{number:05d}.safetensors")
        arrays = {name: pieces[name].array for name in group}
        header, _ = safetensors.header_of(arrays)
        _raise_failure(draft)
        size = files.write(draft.folder / file, safetensors.encoded(arrays))
        written[file] = FileEntry(size, hashlib.sha256(header).hexdigest())
        for name in group:
            shards[name] = list(_hashed(pieces[name], file))
    return Part(shards, written)


def _raise_failure(draft: Draft) -> None:
    """Raise OtherRankError if another rank has failed, because the checkpoint cannot be completed."""
    for rank, text in failures(draft).items():
        raise OtherRankError(f"rank {rank}: {text}")


def _groups(pieces: Mapping[str, Piece]) -> Iterator[list[str]]:
    """Yield the tensor names of each file; a file has at most SHARD bytes unless a single tensor is larger."""
    group: list[str] = []
    held = 0
    for name, piece in pieces.items():
        if group and held + piece.array.nbytes > SHARD:
            yield group
            group, held = [], 0
        group.append(name)
        held += piece.array.nbytes
    if group:
        yield group


def _hashed(piece: Piece, file: str) -> Iterator[Shard]:
    """Yield the shards of a piece as blocks with separate hashes, so that reading some rows does not require the whole piece."""
    at = 0
    for box in blocks(piece.box, piece.array.dtype.itemsize):
        inside = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, piece.box, strict=True))
        block = piece.array[(*inside, ...)]
        yield Shard(box, file, hashlib.sha256(safetensors.bytes_of(block)).hexdigest(), at)
        at += block.nbytes


def blocks(box: Spans, itemsize: int) -> Iterator[Spans]:
    """Yield consecutive parts of a box in C order, of at most BLOCK bytes unless a single row is larger."""
    nbytes = math.prod(b - a for a, b in box) * itemsize
    axis = next((axis for axis, (a, b) in enumerate(box) if b - a > 1), None)
    if nbytes <= BLOCK or axis is None:
        yield box
        return
    start, stop = box[axis]
    rows = max(BLOCK // (nbytes // (stop - start)), 1)
    for a in range(start, stop, rows):
        yield from blocks((*box[:axis], (a, min(a + rows, stop)), *box[axis + 1 :]), itemsize)


def deliver(draft: Draft, rank: int, part: Part, files: Files) -> None:
    """Write the manifest of this rank's part, which signals to rank 0 that its files are on the disk."""
    files.put(_at(draft, part_name(rank)), part.text().encode())


def mark_failure(draft: Draft, rank: int, error: BaseException, files: Files) -> None:
    """Write a file that signals a failure to the other ranks; ignore errors of this write."""
    path = _at(draft, failed_name(rank))
    with suppress(OSError):
        files.put(path, (str(error) or type(error).__name__).encode())
        return
    with suppress(OSError):  # a full disk may still have room for a name
        files.write(path, [])


def has_failed(draft: Draft, rank: int) -> bool:
    """Return True if a rank has signalled a failure; return False if the store does not answer."""
    with suppress(StoreError):
        return _at(draft, failed_name(rank)).exists()
    return False


def failures(draft: Draft) -> dict[int, str]:
    """Return the reasons of all signalled failures by rank."""
    names = sorted(name for name in draft.names() if name.startswith("failed-") and not name.endswith(".new"))
    return {
        int(name.removeprefix("failed-")): _at(draft, name).read_bytes().decode() or "unknown reason, because its file could not be written"
        for name in names
    }


def gather(draft: Draft, ranks: Sequence[int], limit: float = LIMIT) -> list[Part]:
    """Wait for the parts of these ranks and return them.

    Raises: OtherRankError if a rank has failed, or after `limit` seconds without a new file; CheckpointError for incomplete files of a part.
    """
    expected, count = {part_name(rank): rank for rank in ranks}, -1
    pause, longest = _REMOTE_PAUSES if isinstance(draft.folder, RemotePath) else _PAUSES
    deadline = time.monotonic() + limit
    while True:
        names = draft.names() if ranks else []
        missing = sorted(rank for name, rank in expected.items() if name not in names)
        if not missing:
            return [_delivered(draft, rank) for rank in ranks]
        _raise_failure(draft)
        if len(names) != count:
            count, deadline = len(names), time.monotonic() + limit
        if time.monotonic() > deadline:
            raise OtherRankError(
                f"{listed(missing)} {'has' if len(missing) == 1 else 'have'} written no new file for {limit:g} s; check the rank, or raise the limit"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, longest)


def _delivered(draft: Draft, rank: int) -> Part:
    """Read a rank's part; raise CheckpointError unless its files are visible here with the recorded lengths."""
    part = Part.read(_at(draft, part_name(rank)))
    for file, entry in part.files.items():
        path, size = draft.folder / file, None
        with suppress(FileNotFoundError):
            size = path.stat().st_size
        if size != entry.bytes:
            actual = "is missing" if size is None else f"has {size}"
            raise CheckpointError(f"rank {rank} wrote {entry.bytes} bytes to {path}, but the file {actual}; use a directory that all ranks share")
    return part


def publish(draft: Draft, tensors: Mapping[str, tuple[tuple[int, ...], str]], parts: Sequence[Part], extra: Mapping[str, Any], files: Files) -> None:
    """Combine the parts of all ranks into a manifest, and publish the draft; `tensors` maps names to shapes and element types."""
    shards: dict[str, list[Shard]] = {name: [] for name in tensors}
    for part in parts:
        for name, added in part.shards.items():
            shards[name].extend(added)
    entries = {name: Entry(shape, dtype, tuple(sorted(shards[name], key=lambda s: s.box))) for name, (shape, dtype) in tensors.items()}
    check_shards(entries)
    draft.publish(Manifest(entries, extra, {file: entry for part in parts for file, entry in part.files.items()}).text(), files)


def _at(draft: Draft, name: str) -> AnyPath:
    return draft.folder / draft.name_of(name)
