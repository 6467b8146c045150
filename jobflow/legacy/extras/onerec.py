"""OneRec files: framed records with checksums, each an example of named tensors in FlatBuffers format.

    frame     "^ONEREC$"  int32 0  int32 n  check  |  n bytes, and zeros up to a multiple of 8  |  check
    example   Example {features: [Feature {name, tensor: Tensor {shape: [int32], data: one of LISTS}}]}        a list is {values: [...]}

Numbers are little-endian. The first `check` is the XXH64 checksum of the preceding 16 bytes, and the second of the n bytes. Checksums are in
canonical big-endian form. A FlatBuffers table starts with the distance back to its table of fields. That table contains the offset of each
field, or 0 for a missing field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DataError
from jobflow.core.extras import optional
from jobflow.core.types import Array
from jobflow.storage.remote import AnyPath
from jobflow.storage.untrusted import RECORD, Fault

WHAT = "onerec_reader"
MAGIC, HEAD, CHECK, ALIGNED = b"^ONEREC$", 16, 8, 8
#: element types of tensors, numbered from 1; strings and bytes are not supported
LISTS = ("int8", "int16", "int32", "int64", "float32", "float64")


def frames_of(file: AnyPath, content: Array, fault: Fault, verify: bool = True) -> Iterator[tuple[int, int]]:
    """Yield the byte positions (start, stop) of the example in each frame of `content`.

    Raises the error of `fault` for a damaged frame, and with `verify` also for a wrong checksum.
    """
    at, size = 0, len(content)
    xxh64 = optional("xxhash", WHAT).xxh64_digest if verify else None
    while at < size:
        frame = partial("{} is damaged: the frame at byte {} {}".format, file, at)
        head = content[at : at + HEAD + CHECK].tobytes()
        if len(head) < HEAD + CHECK:
            raise fault(frame(f"is cut off after {len(head)} of {HEAD + CHECK} bytes"))
        reserved, length = (int.from_bytes(head[i : i + 4], "little", signed=True) for i in (8, 12))
        if head[:8] != MAGIC or reserved or length < 0:
            raise fault(frame(f"starts with {head[:HEAD]!r}, not with {MAGIC!r}, 0 and a length"))
        RECORD.check(length, frame(""), fault)
        start = at + HEAD + CHECK
        end = start + -(-length // ALIGNED) * ALIGNED
        if end + CHECK > size:
            raise fault(frame(f"declares {length} bytes and a checksum, but the file has only {size - start} more bytes"))
        if xxh64 is not None:
            for what, first, last, check in (("its head", at, at + HEAD, at + HEAD), ("its example", start, start + length, end)):
                if xxh64(content[first:last].tobytes()) != content[check : check + CHECK].tobytes():
                    raise fault(frame(f"has a wrong checksum of {what}"))
        yield start, start + length
        at = end + CHECK


@dataclass(frozen=True)
class Table:
    """A FlatBuffers table or vector in a buffer; access outside of the buffer raises DataError."""

    content: bytes
    at: int

    @classmethod
    def root(cls, content: bytes) -> Table:
        """Return the root table of the buffer `content`."""
        return cls(content, 0)._there(0)

    def _number(self, at: int, kind: str = "<u4") -> int:
        return int(self._numbers(at, 1, kind)[0])

    def _numbers(self, at: int, count: int, kind: str) -> Array:
        size = np.dtype(kind).itemsize * count
        if not 0 <= at <= len(self.content) - size:
            raise DataError(f"the example is damaged: {count} numbers from byte {at} on exceed its {len(self.content)} bytes")
        return np.frombuffer(self.content, kind, count, at)

    def _there(self, at: int) -> Table:
        """Return the table or vector whose distance from position `at` is stored at `at`."""
        return replace(self, at=at + self._number(at))

    def field(self, number: int) -> int:
        """Return the byte position of field `number`, or 0 if the field is missing."""
        fields = self.at - self._number(self.at, "<i4")
        entry = 4 + 2 * number
        offset = self._number(fields + entry, "<u2") if entry < self._number(fields, "<u2") else 0
        return self.at + offset if offset else 0

    def table(self, number: int) -> Table:
        """Return the table or vector that field `number` refers to; raise DataError if the field is missing."""
        at = self.field(number)
        if not at:
            raise DataError(f"the example is damaged: the table at byte {self.at} has no field {number}")
        return self._there(at)

    def values(self, kind: str) -> Array:
        """Return the elements of this vector as an array of the NumPy type `kind`."""
        return self._numbers(self.at + 4, self._number(self.at), kind)

    def tables(self) -> Iterator[Table]:
        """Yield the tables that are the elements of this vector."""
        return (self._there(self.at + 4 + 4 * i) for i in range(len(self.values("<u4"))))


def features_of(example: bytes) -> dict[str, Array]:
    """Return the tensors of the encoded `example` by feature name, or None for a feature of strings or bytes.

    Raises: DataError if the example is damaged.
    """
    result: dict[str, Any] = {}
    for feature in Table.root(example).table(0).tables():
        name, tensor = feature.table(0).values("u1").tobytes().decode(), feature.table(1)
        kind = tensor.field(1)
        number = tensor.content[kind] if 0 < kind < len(example) else 0
        if not 1 <= number <= len(LISTS):
            result[name] = None
            continue
        values = tensor.table(2).table(0).values(np.dtype(LISTS[number - 1]).newbyteorder("<").str)
        shape = tuple(tensor.table(0).values("<i4").tolist()) if tensor.field(0) else values.shape
        if min(shape, default=1) < 0 or np.prod(shape, dtype=object) != values.size:
            raise DataError(f'feature "{name}" has {values.size} values, but its shape is {list(shape)}')
        result[name] = values.reshape(shape)
    return result
