"""manifest.json: the tensors of a checkpoint, their files, and the hashes by which a reader detects damage.

{
 "format": "jobflow checkpoint", "version": 2,
 "tensors": {
  "dense-weight": {"shape": [10, 512], "dtype": "float32", "shards": [
   {"box": [[0, 5], [0, 512]], "file": "tensors-00000-00001.safetensors", "sha256": "..."},
   {"box": [[5, 10], [0, 512]], "file": "tensors-00001-00001.safetensors", "sha256": "..."}]}
 },
 "files": {"tensors-00000-00001.safetensors": {"bytes": 10240, "header": "sha256 of the bytes before the data"}, ...},
 "extra": {"seed": 7},
 "sha256": "of the whole content without this line"
}

The boxes of a tensor's shards are disjoint and cover the tensor. A file stores a box of a tensor under the tensor's name. A large box is hashed in
blocks. Each block is a shard whose data begins at the byte offset `at` of the stored box.
Version 1 has one file per tensor and no shards: "tensors": {"w": {"shape", "dtype", "file", "sha256"}}.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.layout import Span
from jobflow.storage.remote import AnyPath
from jobflow.storage.untrusted import DEPTH, HEADER, content, json_tree, plain_name, shape_of, whole

NAME = "manifest.json"
FORMAT = "jobflow checkpoint"
VERSION = 2
#: maximum number of pairs of shards that are compared; checkpoints written by ranks have far fewer
MOST_PAIRS = 10**7
Spans = tuple[Span, ...]


class NewerFormatError(CheckpointError):
    """A checkpoint of a newer version of the format, which need not be damaged."""


@dataclass(frozen=True)
class Shard:
    """A box of a tensor: its file, the hash of its little-endian bytes, and their offset in the file's tensor of this name."""

    box: Spans
    file: str
    sha256: str
    at: int = 0

    def tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"box": [list(span) for span in self.box], "file": self.file, "sha256": self.sha256}
        return tree | {"at": self.at} if self.at else tree

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Shard:
        box = tuple((whole(a), whole(b)) for a, b in tree["box"])
        return cls(box, plain_name(tree["file"]), text_of(tree["sha256"]), whole(tree.get("at", 0)))


@dataclass(frozen=True)
class Entry:
    """The shape, element type and shards of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    shards: tuple[Shard, ...]

    @property
    def whole(self) -> Spans:
        return tuple((0, n) for n in self.shape)


@dataclass(frozen=True)
class FileEntry:
    """The length of a file, and the hash of its bytes before the data."""

    bytes: int
    header: str


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint; `extra` is the caller's JSON tree, and `files` is empty in version 1."""

    tensors: Mapping[str, Entry]
    extra: Mapping[str, Any]
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    def text(self) -> str:
        """Return the text of the manifest file; raise CheckpointError if `extra` is not a JSON tree."""
        check_extra(self.extra)
        body = self._body()
        tensors = (f"  {_json(name)}: {_tensor_text(tree)}" for name, tree in body["tensors"].items())
        files = (f"  {_json(name)}: {_json(tree)}" for name, tree in body["files"].items())
        return (
            f'{{\n "format": {_json(FORMAT)}, "version": {VERSION},\n "tensors": {_lines(tensors)},\n "files": {_lines(files)},\n'
            f' "extra": {_json(self.extra)},\n "sha256": "{digest(body)}"\n}}\n'
        )

    def _body(self) -> dict[str, Any]:
        tensors = {name: {"shape": list(e.shape), "dtype": e.dtype, "shards": [s.tree() for s in e.shards]} for name, e in self.tensors.items()}
        return {
            "format": FORMAT,
            "version": VERSION,
            "tensors": tensors,
            "files": {name: asdict(entry) for name, entry in self.files.items()},
            "extra": self.extra,
        }

    @classmethod
    def read(cls, path: AnyPath) -> Manifest:
        """Read the manifest in the file `path`; raise CheckpointError if the file is damaged, or has an unknown format or version."""
        try:
            text = content(path, HEADER, CheckpointError)
            body = json_tree(text)
            version = body["version"]
            if body.get("format") != FORMAT or version not in (1, VERSION):
                is_newer = body.get("format") == FORMAT and type(version) is int and version > VERSION
                raise (NewerFormatError if is_newer else CheckpointError)(
                    f"{path} is a {body.get('format')!r} of version {version!r}; this release reads {FORMAT!r} of versions 1 and {VERSION}"
                )
            recorded = body.pop("sha256")
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except CheckpointError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        if digest(body) != recorded:
            raise CheckpointError(f"{path} is damaged: its content does not match its hash")
        read = cls._of(body, path)
        if version == VERSION and read.text().encode() != text:  # the hash covers the values only, not their formatting
            raise CheckpointError(f"{path} is damaged: its formatting has changed since it was saved")
        return read

    @classmethod
    def _of(cls, body: Mapping[str, Any], path: AnyPath) -> Manifest:
        try:
            tensors = {name: _entry(tree, body["version"]) for name, tree in body["tensors"].items()}
            files = {plain_name(name): FileEntry(whole(tree["bytes"]), text_of(tree["header"])) for name, tree in body.get("files", {}).items()}
            extra = body["extra"]
            if not isinstance(extra, dict):
                raise TypeError(f'"extra" is a {type(extra).__name__}, not a dict')
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is damaged: an entry is missing or invalid ({type(error).__name__}: {error}); load another checkpoint"
            ) from error
        check_shards(tensors, f"{path}: ")
        return cls(tensors, extra, files)


def _entry(tree: Mapping[str, Any], version: int) -> Entry:
    shape, dtype = shape_of(tree["shape"]), text_of(tree["dtype"])
    if version == 1:
        return Entry(shape, dtype, (Shard.of({**tree, "box": [[0, n] for n in shape]}),))
    return Entry(shape, dtype, tuple(Shard.of(shard) for shard in tree["shards"]))


def text_of(value: Any) -> str:
    """Return the value if it is a string; raise ValueError otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a string")
    return value


def check_shards(tensors: Mapping[str, Entry], where: str = "") -> None:
    """Raise CheckpointError for the first tensor that its shards do not cover exactly once."""
    for name, entry in tensors.items():
        if problem := gap(entry):
            raise CheckpointError(f'{where}tensor "{name}" {problem}')


def gap(entry: Entry) -> str | None:
    """Describe why a tensor's boxes do not cover each element exactly once, or are too many to check; return None for correct boxes."""
    for shard in entry.shards:
        if len(shard.box) != len(entry.shape) or any(not 0 <= a <= b <= n for (a, b), n in zip(shard.box, entry.shape, strict=True)):
            return f"has a shard {box_text(shard.box)}, which exceeds its shape {list(entry.shape)}"
    boxes = [shard.box for shard in entry.shards]
    try:
        both = _overlap(boxes)
    except ValueError as error:
        return f"has too many shards to check: {error}"
    if both is not None:
        return f"has the shards {box_text(both[0])} and {box_text(both[1])}, which overlap"
    held, size = sum(map(volume, boxes)), math.prod(entry.shape)
    return None if held == size else f"has {size} elements, but its shards have {held}: {', '.join(map(box_text, boxes)) or 'no shards'}"


def _overlap(boxes: Iterable[Spans]) -> tuple[Spans, Spans] | None:
    """Return two overlapping boxes, or None; raise ValueError if more than MOST_PAIRS pairs would have to be compared."""
    active: list[Spans] = []
    pairs = 0
    for box in sorted(box for box in boxes if volume(box)):
        active = [other for other in active if not box or other[0][1] > box[0][0]]
        pairs += len(active)
        if pairs > MOST_PAIRS:
            raise ValueError(f"{pairs:,} pairs of boxes exceed the maximum of {MOST_PAIRS:,}")
        for other in active:
            if all(a < d and c < b for (a, b), (c, d) in zip(box, other, strict=True)):
                return other, box
        active.append(box)
    return None


def volume(box: Spans) -> int:
    """Return the number of elements of a box."""
    return math.prod(stop - start for start, stop in box)


def box_text(box: Spans) -> str:
    """Return a box as text, such as [0:4, 2:8]."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]"


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless `extra` is a JSON tree that equals itself after writing and reading."""
    try:
        text = json.dumps(extra)
        same = _same(json_tree(text.encode(), DEPTH - 1), extra)  # the manifest adds one level
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the extra values of a checkpoint must be strings, numbers, lists and dicts: {error}") from error
    if not same:
        raise CheckpointError(
            f"the extra values of a checkpoint change in a conversion to JSON and back: {extra!r}; use lists instead of tuples, and strings as keys"
        )


def _same(a: Any, b: Any) -> bool:
    """Return True for equal values; NaN equals NaN, because a loss may be NaN."""
    if isinstance(a, dict) and isinstance(b, Mapping):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b or (a != a and b != b))


def digest(body: Mapping[str, Any]) -> str:
    """Return a hash of a JSON tree that does not depend on its formatting."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _json(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False)


def _tensor_text(tree: Mapping[str, Any]) -> str:
    """Return the JSON text of a tensor, with one line per shard if there are several."""
    if len(tree["shards"]) == 1:
        return _json(tree)
    shards = ",\n".join(f"   {_json(shard)}" for shard in tree["shards"])
    return f'{{"shape": {_json(tree["shape"])}, "dtype": {_json(tree["dtype"])}, "shards": [\n{shards}]}}'


def _lines(lines: Iterable[str]) -> str:
    text = ",\n".join(lines)
    return f"{{\n{text}\n }}" if text else "{}"
