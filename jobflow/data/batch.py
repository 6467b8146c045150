"""A batch of samples and its position in the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import NamedTuple

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobflowError, counted
from jobflow.core.layout import cut
from jobflow.core.types import Array
from jobflow.data.sample_order import Order
from jobflow.data.samples import Samples
from jobflow.data.waiting import numbered
from jobflow.typing.lazy import Lazy, Rows


class Position(NamedTuple):
    """A position in the data: the epoch, and the number of preceding samples in that epoch."""

    epoch: int = 0
    sample: int = 0


BEGINNING = Position()


@dataclass(frozen=True, eq=False)
class Batch:
    """Arrays by field with `size` rows each; the last batch of an epoch may be smaller."""

    arguments: Mapping[str, Array | Lazy]
    size: int
    #: start of this batch and of the next batch
    position: Position
    position_after: Position
    number: Callable[[], Array]
    #: description of the sample of a row and its source, for messages
    where: Callable[[int], str] = "row {}".format

    @contextmanager
    def told(self) -> Iterator[None]:
        """Add a description of the sample to an error in the block that names a row of this batch."""
        try:
            yield
        except JobflowError as error:
            if error.row is not None and 0 <= error.row < self.size:
                error.args = (f"{error} This is {self.where(error.row)}.", *error.args[1:])
                error.row = None
            raise

    @cached_property
    def numbers(self) -> Array:
        """The sample numbers as int64[size]; for streams, the positions in the epoch."""
        return self.number()

    @property
    def ends_epoch(self) -> bool:
        return self.position_after.epoch > self.position.epoch


#: rows of a batch: (start, stop)
Stretch = tuple[int, int]


@dataclass(frozen=True)
class Ordered:
    """Samples with an order, from which methods read rows of batches.

    `begin` is the position of a batch, and `rows` is a range (start, stop) of rows in this batch.
    """

    samples: Samples
    order: Order

    def numbers(self, begin: Position, rows: Stretch) -> Array:
        """Return the sample numbers of these rows of the batch."""
        return self.order.indices(begin.epoch, begin.sample + rows[0], begin.sample + rows[1])

    def read(self, begin: Position, rows: Stretch, names: Iterable[str]) -> dict[str, Array]:
        """Return the fields `names` of these rows of the batch."""
        names = list(names)
        arrays = self.samples.read(self.numbers(begin, rows), begin.epoch, names)
        return {name: arrays[name] for name in names}

    def text(self, begin: Position, rows: Stretch) -> str:
        """Describe the rows for messages."""
        return f"{numbered(self.numbers(begin, rows))} of {self.samples}, epoch {begin.epoch}"

    def batch(self, begin: Position, after: Position, size: int, fields: Iterable[str]) -> Batch:
        """Read the whole batch of `size` samples."""
        return self.described(begin, after, size, self.read(begin, (0, size), fields))

    def described(self, begin: Position, after: Position, size: int, arguments: Mapping[str, Array | Lazy]) -> Batch:
        """Return a Batch with the arrays `arguments` and descriptions of its samples."""
        numbers = partial(self.numbers, begin, (0, size))
        return Batch(arguments, size, begin, after, numbers, lambda row: self.samples.where(int(numbers()[row])))


def per_device(value: Array | Lazy, count: int) -> list[Array | Lazy]:
    """Split an argument into one part per device, with row counts that differ by at most one.

    Raises: ArgumentError if the batch has fewer rows than devices.
    """
    if value.shape[0] < count:
        raise ArgumentError(
            f"a batch of {counted(value.shape[0], 'sample')} cannot be split over {count} devices; pass at least one sample per device"
        )
    return [Rows(value, a, b) if isinstance(value, Lazy) else value[a:b] for a, b in cut(value.shape[0], count)]
