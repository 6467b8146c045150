"""A batch of samples, and its place among the others."""

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
    """So many samples of an epoch have been taken."""

    epoch: int = 0
    sample: int = 0


BEGINNING = Position()


@dataclass(frozen=True, eq=False)
class Batch:
    """Arrays by field, of `size` samples; the last batch of an epoch may have fewer than others."""

    arguments: Mapping[str, Array | Lazy]
    size: int
    #: where it begins, and where the next one does
    position: Position
    position_after: Position
    number: Callable[[], Array]
    #: for messages: which sample a row is, and where it lies
    where: Callable[[int], str] = "row {}".format

    @contextmanager
    def told(self) -> Iterator[None]:
        """An error in the block that is about a row of this batch names the sample."""
        try:
            yield
        except JobflowError as error:
            if error.row is not None and 0 <= error.row < self.size:
                error.args = (f"{error} This is {self.where(error.row)}.", *error.args[1:])
                error.row = None
            raise

    @cached_property
    def numbers(self) -> Array:
        """Which samples it has, as int64[size]; of streams, how many came before."""
        return self.number()

    @property
    def ends_epoch(self) -> bool:
        return self.position_after.epoch > self.position.epoch


#: rows of a batch: from, to
Stretch = tuple[int, int]


@dataclass(frozen=True)
class Ordered:
    """Samples in an order: rows of the batch that begins at a position."""

    samples: Samples
    order: Order

    def numbers(self, begin: Position, rows: Stretch) -> Array:
        """Which samples they are."""
        return self.order.indices(begin.epoch, begin.sample + rows[0], begin.sample + rows[1])

    def read(self, begin: Position, rows: Stretch, names: Iterable[str]) -> dict[str, Array]:
        """Their fields of these names."""
        names = list(names)
        found = self.samples.read(self.numbers(begin, rows), begin.epoch, names)
        return {name: found[name] for name in names}

    def text(self, begin: Position, rows: Stretch) -> str:
        """For messages: what `read` reads."""
        return f"{numbered(self.numbers(begin, rows))} of {self.samples}, epoch {begin.epoch}"

    def batch(self, begin: Position, after: Position, size: int, fields: Iterable[str]) -> Batch:
        """A whole batch, read."""
        return self.described(begin, after, size, self.read(begin, (0, size), fields))

    def described(self, begin: Position, after: Position, size: int, arguments: Mapping[str, Array | Lazy]) -> Batch:
        """The batch with these arguments."""
        numbers = partial(self.numbers, begin, (0, size))
        return Batch(arguments, size, begin, after, numbers, lambda row: self.samples.where(int(numbers()[row])))


def per_device(value: Array | Lazy, count: int) -> list[Array | Lazy]:
    """An argument as a list with one part for each device, as equal as can be."""
    if value.shape[0] < count:
        raise ArgumentError(f"a batch of {counted(value.shape[0], 'sample')} cannot be divided among {count} devices: each needs one")
    return [Rows(value, a, b) if isinstance(value, Lazy) else value[a:b] for a, b in cut(value.shape[0], count)]
