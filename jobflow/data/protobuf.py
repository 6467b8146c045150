"""As much of protobuf's wire format as records need: messages as fields, and packed numbers as arrays.

A message is a row of fields: a tag, the varint `number << 3 | kind`, and a value: a varint (kind 0), 8 bytes (1), a varint length and
as many bytes (2), or 4 bytes (5).  A varint has 7 bits in each byte, the lowest first; the last byte is below 128.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobflow.types import Array

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
FIXED = {EIGHT: 8, FOUR: 4}


class Damaged(ValueError):
    """Bytes that are no message; `at` is where."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where the next thing begins."""
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    raise Damaged("a number does not end", at)


def fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, kind, from, to) of each field of the message in data[at:stop]."""
    while at < stop:
        tag, begin = varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            end = varint(data, begin)[1]
        elif kind == BYTES:
            size, begin = varint(data, begin)
            end = begin + size
        elif kind in FIXED:
            end = begin + FIXED[kind]
        else:
            raise Damaged(f"a field of kind {kind}", at)
        if tag >> 3 == 0 or end > stop:
            raise Damaged("a field that reaches beyond its message" if end > stop else "a field without number", at)
        yield tag >> 3, kind, begin, end
        at = end


def varints(data: bytes) -> Array:
    """The numbers in a row of varints, as int64[n]."""
    found = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(found < 128)
    if not len(found):
        return np.empty(0, np.int64)
    if not len(ends) or ends[-1] != len(found) - 1:
        raise Damaged("a number does not end", len(found))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise Damaged("a number of more than 64 bits", int(starts[lengths.argmax()]))
    shifts = (7 * (np.arange(len(found)) - np.repeat(starts, lengths))).astype(np.uint64)
    return np.add.reduceat((found & 127).astype(np.uint64) << shifts, starts).view(np.int64)
