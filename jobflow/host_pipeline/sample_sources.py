"""The samples of readers in the body of a job and their order, a function of the seed and the number of preceding samples.

    part-0  part-1  ...      the records of files in sequence, repeatedly; with `after_epoch` the order of the files changes from the second
                             epoch on
    shuffle                  a buffer is filled first; each later sample replaces a random sample of the buffer, which is returned

Records are located while they are read, so a run does not wait for a scan of whole files. Sources with an index, `Indexed`, have a random
order instead of a buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import counted
from jobflow.core.types import Array
from jobflow.data.files import fault_of
from jobflow.data.ofrecord import spans_of
from jobflow.data.sample_order import Order
from jobflow.expressions import philox
from jobflow.storage.remote import AnyPath
from jobflow.storage.untrusted import Fault, mapped

#: number of samples or buffer positions sampled at a time
DRAWN = 1024


class Source(ABC):
    """A source of samples, which yields the positions of the samples of each batch."""

    @abstractmethod
    def batches(self, size: int) -> Iterator[list[Any]]:
        """Yield batches of `size` sample positions endlessly; `number` of a position counts the preceding samples."""

    @abstractmethod
    def where(self, place: Any) -> str:
        """Describe the position of a sample for messages."""


class Drawn(NamedTuple):
    """A sample position: the index of the sample, and the number of preceding samples."""

    at: int
    number: int


class RecordPlace(NamedTuple):
    """A record position: the bytes from `start` to `stop` of file `part`, and the number of preceding records."""

    part: int
    start: int
    stop: int
    number: int


@dataclass(frozen=True)
class PartFiles(Sequence[AnyPath]):
    """The part files of a folder, named by a prefix and a number padded with zeros to `suffix_length` digits."""

    folder: AnyPath
    parts: int = 1
    prefix: str = "part-"
    suffix_length: int = -1

    def __len__(self) -> int:
        return self.parts

    def __getitem__(self, part: Any) -> Any:
        return self.folder / f"{self.prefix}{range(self.parts)[part]:0{max(self.suffix_length, 1)}d}"


@dataclass(frozen=True, eq=False)
class RecordFiles(Source):
    """Files of records in order, or shuffled with a buffer of `buffer` groups of `group` records; `spans` locates records."""

    files: Sequence[AnyPath]
    what: str = "ofrecord_reader"
    spans: Callable[[AnyPath, Array, Fault], Iterator[tuple[int, int]]] = spans_of
    shuffle: bool = False
    buffer: int = 1024
    after_epoch: bool = False
    seed: int = 0
    group: int = 1

    @cached_property
    def _contents(self) -> dict[int, Array]:
        return {}

    def content(self, part: int) -> Array:
        """Return the bytes of file number `part`."""
        if part not in self._contents:
            file, fault = self.files[part], fault_of(self.what)
            if not file.is_file():
                raise fault(f"no such file: {file.absolute()} (number {part} of {len(self.files)} files)")
            self._contents[part] = mapped(file, fault)
        return self._contents[part]

    def record(self, place: RecordPlace) -> bytes:
        """Return the bytes of the record at `place`."""
        return self.content(place.part)[place.start : place.stop].tobytes()

    def where(self, place: RecordPlace) -> str:
        return f"{self.what}: {self.files[place.part]}, record at byte {place.start}"

    def batches(self, size: int) -> Iterator[list[RecordPlace]]:
        """Yield batches, which continue across the ends of epochs."""
        spans = chain.from_iterable(self._shuffled()) if self.shuffle else self._in_order()
        numbered = (RecordPlace(*span, number) for number, span in enumerate(spans))
        while True:
            yield list(islice(numbered, size))

    def _in_order(self) -> Iterator[tuple[int, int, int]]:
        parts, fault = len(self.files), fault_of(self.what)
        order = Order(self.seed, parts, shuffle=True)
        for epoch in count():
            records = 0
            for part in order.indices(epoch, 0, parts).tolist() if self.after_epoch and epoch else range(parts):
                for start, stop in self.spans(self.files[part], self.content(part), fault):
                    records += 1
                    yield part, start, stop
            if not records:
                raise fault(f"there is no record in {counted(parts, 'file')} from {self.files[0].absolute()} on; pass files with records")

    def _shuffled(self) -> Iterator[tuple[tuple[int, int, int], ...]]:
        groups = zip(*[self._in_order()] * self.group, strict=False)
        buffer = list(islice(groups, self.buffer))
        key = philox.key_of(self.seed, "shuffle buffer")
        for block in count():
            slots = philox.words(np, key, np.arange(DRAWN, dtype=np.uint64), block)[0] % np.uint32(len(buffer))
            for at, fresh in zip(slots.tolist(), groups, strict=False):
                yield buffer[at]
                buffer[at] = fresh


@dataclass(frozen=True, eq=False)
class Indexed(Source):
    """Samples with an index: `count` samples per epoch, in a different order each time with `shuffle`.

    With `groups`, one number per sample, a batch contains samples of only one group: the first group with enough samples.
    """

    what: str
    count: int
    shuffle: bool = False
    seed: int = 0
    groups: Sequence[int] | None = None

    def batches(self, size: int) -> Iterator[list[Drawn]]:
        samples = enumerate(self._grouped(size) if self.groups else self._in_order())
        while True:
            yield [Drawn(index, number) for number, index in islice(samples, size)]

    def where(self, place: Drawn) -> str:
        return f"{self.what}, sample {place.at}"

    def _in_order(self) -> Iterator[int]:
        order = Order(self.seed, self.count, self.shuffle)
        for epoch in count():
            for start in range(0, self.count, DRAWN):
                yield from order.indices(epoch, start, min(start + DRAWN, self.count)).tolist()

    def _grouped(self, size: int) -> Iterator[int]:
        assert self.groups is not None
        waiting: dict[int, list[int]] = {}
        for index in self._in_order():
            group = waiting.setdefault(self.groups[index], [])
            group.append(index)
            if len(group) == size:
                yield from group
                group.clear()
