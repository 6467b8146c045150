"""manifest.json: what a checkpoint holds, where, and how to know that it is whole.

{"format": "jobflow checkpoint", "version": 1,
 "tensors": {"dense-weight": {"shape": [10, 512], "dtype": "float32", "file": "tensors-00001.safetensors", "sha256": "..."}},
 "extra": {"seed": 7}, "sha256": "of all of this without this line"}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobflow.errors import CheckpointError

NAME = "manifest.json"
FORMAT = "jobflow checkpoint"
VERSION = 1


@dataclass(frozen=True)
class Entry:
    """One tensor: its type, the file that holds it under its name, and the hash of its little-endian bytes."""

    shape: tuple[int, ...]
    dtype: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds; `extra` is a JSON tree of the caller's."""

    tensors: Mapping[str, Entry]
    extra: Mapping[str, Any]

    def text(self) -> str:
        """The file's content; CheckpointError if `extra` is no JSON tree."""
        tensors = {name: {"shape": list(e.shape), "dtype": e.dtype, "file": e.file, "sha256": e.sha256} for name, e in self.tensors.items()}
        body: dict[str, Any] = {"format": FORMAT, "version": VERSION, "tensors": tensors, "extra": self.extra}
        try:
            body["sha256"] = _hash(body)
            same = json.loads(json.dumps(self.extra)) == self.extra
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"the extra values of a checkpoint must be text, numbers, lists and dicts: {error}") from error
        if not same:
            raise CheckpointError(
                f"the extra values of a checkpoint must come back as they are: lists, no tuples, and text as keys; got {self.extra!r}"
            )
        return json.dumps(body, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest in the file `path`; CheckpointError if it is damaged or of a later version."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            version, given = body["version"], body.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        if body.get("format") != FORMAT or version != VERSION:
            raise CheckpointError(f"{path} is a {body.get('format')!r} of version {version!r}; this release reads {FORMAT!r} of version {VERSION}")
        if _hash(body) != given:
            raise CheckpointError(f"{path} is damaged: its content does not match its hash")
        tensors = {name: Entry(tuple(e["shape"]), e["dtype"], e["file"], e["sha256"]) for name, e in body["tensors"].items()}
        for name, entry in tensors.items():
            if Path(entry.file).name != entry.file:
                raise CheckpointError(f'{path}: tensor "{name}" lies in {entry.file!r}, which is no file of this checkpoint')
        return cls(tensors, body["extra"])


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
