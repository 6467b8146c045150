"""The format of recorded cases, for both sides: one JSON line per case, and one file with the bytes of all arrays.

Other values than JSON's are an object with one key: {"tensor": [start, dtype, shape, strides]}, {"tuple": [...]}, {"dtype": "float32"}, ...
A tensor is stored with the memory of its strides, so that transposed and expanded arguments are restored as such.
bfloat16 is stored as float32.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: of the names of dtypes that both know, those that gradients are compared in, and all others
EXACT = "float64"
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
STORED_AS = {"bfloat16": "float32"}


class Bytes:
    """The bytes of arrays, each content once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.starts: dict[bytes, int] = {}
        self.length = 0

    def add(self, array: np.ndarray) -> int:
        data = array.tobytes()
        if data not in self.starts:
            self.starts[data] = self.length
            self.parts.append(data)
            self.length += len(data)
        return self.starts[data]


def plain(value: Any) -> Any:
    """A number, text or nothing as JSON; floats that JSON has not as {"float": "nan"}."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


Lines = Sequence[dict[str, Any]]


def write(path: Path, lines: Lines, data: Bytes) -> None:
    path.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    path.with_suffix(".bin").write_bytes(b"".join(data.parts))


def read(path: Path) -> tuple[list[dict[str, Any]], bytes]:
    lines = [json.loads(line) for line in path.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
    return lines, path.with_suffix(".bin").read_bytes()


def write_entries(path: Path, entries: dict[str, list[dict[str, Any]]], data: Bytes) -> None:
    """All records as one file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in (("cases.json", json.dumps(entries, separators=(",", ":")).encode()), ("numbers.bin", b"".join(data.parts))):
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # the date of a ZipInfo is always the same


def read_entries(path: Path) -> tuple[dict[str, list[dict[str, Any]]], bytes]:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("cases.json")), archive.read("numbers.bin")


def moved(tree: Any, data: bytes, to: Bytes) -> Any:
    """A tree with its arrays elsewhere."""
    if isinstance(tree, list):
        return [moved(part, data, to) for part in tree]
    if not isinstance(tree, dict):
        return tree
    parts = {word: moved(part, data, to) for word, part in tree.items() if word not in ("tensor", "array")}
    for word in ("tensor", "array"):
        if word in tree:
            start, dtype, shape, strides = tree[word]
            span = math.prod(shape) if strides is None or 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            memory = np.frombuffer(data, np.dtype(STORED_AS.get(dtype, dtype)), span, start)
            parts = {word: [to.add(memory), dtype, shape, strides], **parts}
    return parts


def array_of(data: bytes, tensor: Sequence[Any]) -> np.ndarray:
    """The array that {"tensor": ...} stands for, with its strides, in memory of its own."""
    start, dtype, shape, strides = tensor
    kind = np.dtype(STORED_AS.get(dtype, dtype))
    if strides is None or 0 in shape:
        return np.frombuffer(data, kind, math.prod(shape), start).reshape(shape).copy()
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = np.frombuffer(data, kind, span, start).copy()
    return np.lib.stride_tricks.as_strided(memory, shape, [s * kind.itemsize for s in strides])


def weights(shape: Sequence[int], number: int) -> np.ndarray:
    """Return the factors of outputs in the loss, so that every element has a different gradient."""
    return np.cos(np.arange(math.prod(shape), dtype=np.float64) * 0.7 + 1.3 + number).reshape(shape)


def tensors_in(tree: Any) -> Iterator[Any]:
    """The tensors of an encoded argument or result, in order."""
    if isinstance(tree, dict):
        if "tensor" in tree:
            yield tree
        else:
            for part in tree.values():
                yield from tensors_in(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from tensors_in(part)


# -------------------------------------------------------------------- optimizers and schedules

OPTIMIZER_STEPS, SCHEDULE_STEPS = 6, 24
#: what schedules that are given a function are given
FUNCTIONS = {"halves": lambda t: 0.5**t, "falls": lambda t: 1 / (1 + t)}
#: what a schedule that watches a number is told, step by step
METRICS = [1.0, 0.9, 0.9, 0.95, 0.85, 0.85, 0.85, 0.7, 0.75, 0.8, 0.8, 0.6, 0.6, 0.6, 0.6, 0.59999, 0.6, 0.3, 0.3, 0.4, 0.4, 0.4, -1.0, -1.0]
