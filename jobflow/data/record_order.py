"""The records of part files, in the order in which the legacy reader gives them: a function of the seed and of how many came before.

    part-0  part-1  ...      one after another, again and again; with `after_epoch` the files in another order from the second epoch on
    shuffle                  a buffer is filled first; each record that follows takes the place of one drawn from it, which is given

Where records lie is found while they are given, so nothing waits until whole files have been looked through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from jobflow.core.remote import AnyPath, path_of
from jobflow.core.types import Array
from jobflow.core.untrusted import mapped
from jobflow.data.files import fault_of
from jobflow.data.ofrecord import spans_of
from jobflow.data.sample_order import Order
from jobflow.expressions import philox

WHAT = "ofrecord_reader"
fault = fault_of(WHAT)
#: how many places in the buffer are drawn at a time
DRAWN = 1024


class RecordPlace(NamedTuple):
    """A record: the bytes from `start` to `stop` of a part file, and how many were given before it."""

    part: int
    start: int
    stop: int
    number: int


@dataclass(frozen=True, eq=False)
class RecordFiles:
    """`count` part files of a folder, and the order of their records."""

    folder: str
    count: int = 1
    prefix: str = "part-"
    suffix_length: int = -1
    shuffle: bool = False
    buffer: int = 1024
    after_epoch: bool = False
    seed: int = 0

    def file(self, part: int) -> AnyPath:
        """The file of a part: its number behind the prefix, with zeros before it up to `suffix_length` digits."""
        return path_of(self.folder) / f"{self.prefix}{part:0{max(self.suffix_length, 1)}d}"

    @cached_property
    def _contents(self) -> dict[int, Array]:
        return {}

    def content(self, part: int) -> Array:
        """The bytes of a part."""
        if part not in self._contents:
            file = self.file(part)
            if not file.is_file():
                raise fault(f"there is no file {file.absolute()}; of data_part_num {self.count} parts it is number {part}")
            self._contents[part] = mapped(file, fault)
        return self._contents[part]

    def record(self, place: RecordPlace) -> bytes:
        """A record's bytes."""
        found: bytes = self.content(place.part)[place.start : place.stop].tobytes()
        return found

    def where(self, place: RecordPlace) -> str:
        """For messages: where a record lies."""
        return f"{WHAT}: {self.file(place.part)}, record at byte {place.start}"

    def batches(self, size: int) -> Iterator[list[RecordPlace]]:
        """Batches of this size, without end; they run across the ends of epochs."""
        spans = self._shuffled() if self.shuffle else self._in_order()
        numbered = (RecordPlace(*span, number) for number, span in enumerate(spans))
        while True:
            yield list(islice(numbered, size))

    def _in_order(self) -> Iterator[tuple[int, int, int]]:
        order = Order(self.seed, self.count, shuffle=True)
        for epoch in count():
            parts = order.indices(epoch, 0, self.count).tolist() if self.after_epoch and epoch else range(self.count)
            found = 0
            for part in parts:
                for start, stop in spans_of(self.file(part), self.content(part), fault):
                    found += 1
                    yield part, start, stop
            if not found:
                raise fault(f"there is no record in the {self.count} files of {path_of(self.folder).absolute()}")

    def _shuffled(self) -> Iterator[tuple[int, int, int]]:
        spans = self._in_order()
        buffer = list(islice(spans, self.buffer))
        key = philox.key_of(self.seed, "shuffle buffer")
        for block in count():
            drawn = philox.words(np, key, np.arange(DRAWN, dtype=np.uint64), block)[0] % np.uint32(len(buffer))
            for at, fresh in zip(drawn.tolist(), spans, strict=False):
                yield buffer[at]
                buffer[at] = fresh
