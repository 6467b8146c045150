"""Batches of samples in an order, from any position, with prefetching threads.

    batches = Batches(samples, Order(seed, len(samples), shuffle=True), batch_size=64)
    with batches.start(Position(epoch=3, sample=128)) as reading:
        for batch in reading:
            train(*batch.arguments.values())
            save(batch.position_after)

The samples of a batch are a function of (seed, epoch, position). A resumed run therefore reads exactly the remaining data. With several clients
the arguments are lazy: a rank reads only the rows of its layout. Rows requested from one batch are prefetched for the next ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DataError, counted
from jobflow.core.types import Array
from jobflow.data.ahead import END, Pending, Pool, Reading
from jobflow.data.batch import BEGINNING, Batch, Ordered, Position
from jobflow.data.sample_order import Order
from jobflow.data.samples import Samples, Stream, checked_name
from jobflow.data.shards import Requests, Window
from jobflow.data.stacking import stacked
from jobflow.runtime.world import launched as launch


class Batches:
    """Batches of samples in `order`, or of a stream in the order of the stream.

    `threads` threads read `prefetch` batches ahead; prefetch=0 reads a batch when it is requested. `drop_last` omits the last samples of an epoch
    if they do not fill a batch. `fields` selects the fields and their order; the default is all fields. With `sharded` the arguments are lazy, and
    a rank reads only its rows; this is the default if every rank is a client.
    Without `order`, the samples are in ascending order. Raises: ArgumentError for numbers out of range, an unknown field, or an order that does not
    match the samples.

    Examples:
        >>> samples = flow.data.open_reader("digits", split="validation")
        >>> for batch in flow.data.Batches(samples, batch_size=64).start(epochs=1):
        ...     print(batch.size)
        ...
        64
        64
        64
        8
    """

    def __init__(
        self,
        samples: Samples | Stream,
        order: Order | None = None,
        batch_size: int = 1,
        drop_last: bool = False,
        prefetch: int = 2,
        *,
        threads: int | None = None,
        fields: Sequence[str] | None = None,
        sharded: bool | None = None,
    ) -> None:
        if batch_size < 1 or prefetch < 0:
            raise ArgumentError(f"Batches: batch_size must be at least 1 and prefetch at least 0, not {batch_size} and {prefetch}")
        self.samples, self.batch_size, self.drop_last, self.prefetch = samples, batch_size, drop_last, prefetch
        self.fields = [checked_name(name, samples.fields, "Batches: field") for name in (samples.fields if fields is None else fields)]
        self.threads = 0 if prefetch == 0 else min(prefetch, os.cpu_count() or 1, 4) if threads is None else threads
        self.order = order
        self._requests: Requests = {}
        if isinstance(samples, Stream):
            self.sharded, self.threads = False, min(self.threads, 1)
            if order is not None:
                raise ArgumentError("Batches: a stream of samples has a fixed order; omit order")
            return
        self.order = order or Order(0, len(samples), shuffle=False)
        self.sharded = several_clients() if sharded is None else sharded
        if self.order.samples != len(samples):
            raise ArgumentError(f"Batches: order has {self.order.samples} samples, but samples has {len(samples)}")
        if drop_last and len(samples) < batch_size:
            raise ArgumentError(
                f"Batches: {counted(len(samples), 'sample')} do not fill a batch of {batch_size}, and drop_last omits them; reduce batch_size"
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        if isinstance(self.samples, Stream):
            raise TypeError("a stream has no length; iterate over its batches")
        return len(self.samples) // self.batch_size if self.drop_last else -(-len(self.samples) // self.batch_size)

    def start(self, position: Position | tuple[int, int] = BEGINNING, epochs: int | None = None) -> Reading[Batch]:
        """Return an iterator over the batches from a position (epoch, sample); close it, or use it in a `with` block.

        `epochs` counts the epochs, including the current one; with None, epochs repeat endlessly. Raises: ArgumentError for a position out of range.
        """
        at, samples = Position(*position), self.samples
        if isinstance(samples, Samples) and not (at.epoch >= 0 and 0 <= at.sample <= len(samples)):
            raise ArgumentError(f"Batches: {at} is out of range; an epoch has {counted(len(samples), 'sample')}")
        pool = Pool(self.threads)
        if isinstance(samples, Stream):
            return Reading(self._streamed(samples, at, epochs, pool), self.prefetch, pool)
        assert self.order is not None
        plan = self._sharded if self.sharded else self._whole
        return Reading(plan(Ordered(samples, self.order), at, epochs, pool), self.prefetch, pool)

    def _whole(self, data: Ordered, at: Position, epochs: int | None, pool: Pool) -> Iterator[Pending[Batch]]:
        for begin, after, size in self._stretches(len(data.samples), at, epochs):
            yield pool.ask(partial(data.batch, begin, after, size, self.fields), partial(data.text, begin, (0, size)))

    def _sharded(self, data: Ordered, at: Position, epochs: int | None, pool: Pool) -> Iterator[Pending[Batch]]:
        window = Window(data, pool, self._requests)
        for begin, after, size in self._stretches(len(data.samples), at, epochs):
            yield window.open(begin, after, size, self.fields)

    def _streamed(self, data: Stream, at: Position, epochs: int | None, pool: Pool) -> Iterator[Pending[Batch]]:
        batches = streamed(data, self.fields, self.batch_size, self.drop_last, at, epochs)
        while True:
            yield pool.ask(partial(next, batches, END), lambda: f"the next {counted(self.batch_size, 'sample')} of {data}")

    def _stretches(self, count: int, at: Position, epochs: int | None) -> Iterator[tuple[Position, Position, int]]:
        """Yield (start, start of the next batch, size) of each batch."""
        least = self.batch_size if self.drop_last else 1
        epoch, sample = at
        while epochs is None or epoch < at.epoch + epochs:
            while count - sample >= least:
                stop = min(sample + self.batch_size, count)
                after = Position(epoch, stop) if count - stop >= least else Position(epoch + 1, 0)
                yield Position(epoch, sample), after, stop - sample
                sample = stop
            epoch, sample = epoch + 1, 0


def order_of(samples: Samples | Stream, seed: int, shuffle: bool) -> Order | None:
    """Return the order of the samples, permuted by `seed` in each epoch with `shuffle`; None for a stream, which has a fixed order.

    Raises: ArgumentError for a stream with `shuffle`.
    """
    if not isinstance(samples, Stream):
        return Order(seed, len(samples), shuffle)
    if shuffle:
        raise ArgumentError(f"{samples}: a stream of samples cannot be shuffled; set shuffle to false")
    return None


def several_clients() -> bool:
    """Return True if there are several processes and all of them call jobs."""
    started = launch.launched()
    environment = scope.current().root.environment
    return started is not None and started.size > 1 and environment is not None and environment.client == "multi"


def streamed(stream: Stream, names: Sequence[str], size: int, drop_last: bool, at: Position, epochs: int | None) -> Iterator[Batch]:
    """Yield the batches of a stream from position `at`; preceding samples are read and skipped."""
    epoch, sample = at
    while epochs is None or epoch < at.epoch + epochs:
        samples = iter(stream.samples(epoch))
        skipped = sum(1 for _ in islice(samples, sample))
        if skipped < sample:
            raise DataError(f"{stream}: epoch {epoch} has {counted(skipped, 'sample')}, so reading cannot resume after sample {sample}")
        rows = list(islice(samples, size))
        if not sample and len(rows) < (size if drop_last else 1):
            left = f", which do not fill a batch of {size} and are omitted by drop_last" if drop_last else ""
            raise DataError(f"{stream}: epoch {epoch} has {counted(len(rows), 'sample')}{left}")
        while rows and not (drop_last and len(rows) < size):
            follows = list(islice(samples, size if drop_last else 1))  # `position_after` depends on whether another batch follows
            ends = len(follows) < (size if drop_last else 1)
            after = Position(epoch + 1, 0) if ends else Position(epoch, sample + len(rows))
            yield _batch(stream, rows, names, Position(epoch, sample), after)
            sample += len(rows)
            rows = follows if drop_last else [*follows, *islice(samples, size - len(follows))] if follows else []
        epoch, sample = epoch + 1, 0


def _batch(stream: Stream, rows: Sequence[Mapping[str, Array]], names: Sequence[str], begin: Position, after: Position) -> Batch:
    what, numbers = f"{stream}: epoch {begin.epoch}, sample", range(begin.sample, begin.sample + len(rows))
    arguments = stacked(rows, stream.fields, names, what, numbers)
    return Batch(arguments, len(rows), begin, after, lambda: np.asarray(numbers), lambda row: f"{what} {numbers[row]}")
