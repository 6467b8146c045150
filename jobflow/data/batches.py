"""Batches: samples in an order, from any position on, read ahead by threads.

    batches = Batches(samples, Order(seed, len(samples), shuffle=True), batch_size=64)
    with batches.start(Position(epoch=3, sample=128)) as reading:
        for batch in reading:
            train(*batch.arguments.values())
            save(batch.position_after)

Which samples a batch has is a function of (seed, epoch, position) alone, so whoever starts where another one stopped sees the rest,
exactly.  Under several clients the arguments are lazy: each rank reads the rows that its layout needs, and what it asked for in
one batch is read ahead for those that follow.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, JobflowError, counted
from jobflow.core.types import Array
from jobflow.data.ahead import Pool
from jobflow.data.order import Order
from jobflow.data.samples import Samples, Stream, checked_name
from jobflow.data.streaming import streamed
from jobflow.data.waiting import Coming, told_if_long
from jobflow.runtime.world import launch
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


def per_device(value: Array | Lazy, count: int) -> list[Array | Lazy]:
    """An argument as a list with one part for each device, as equal as can be."""
    whole, rest = divmod(value.shape[0], count)
    if not whole:
        raise ArgumentError(f"a batch of {counted(value.shape[0], 'sample')} cannot be divided among {count} devices: each needs one")
    starts = [i * whole + min(i, rest) for i in range(count + 1)]
    return [Rows(value, a, b) if isinstance(value, Lazy) else value[a:b] for a, b in zip(starts, starts[1:], strict=False)]


class Batches:
    """Batches of samples in an order; of streams in their own.

    `prefetch` batches are read ahead by `threads` threads; 0 reads when a batch is asked for.  With `drop_last` the samples of an epoch that
    do not fill a batch are left out.  `fields`: those to read, in this order; all by default.  `sharded`: arguments are lazy and each rank
    reads its part; by default so if every rank is a client of its own.
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
            raise ArgumentError(f"Batches: batch_size is at least 1 and prefetch at least 0; got {batch_size} and {prefetch}")
        self.samples, self.batch_size, self.drop_last, self.prefetch = samples, batch_size, drop_last, prefetch
        self.fields = [checked_name(name, samples.fields, "Batches: field") for name in (samples.fields if fields is None else fields)]
        self.threads = 0 if prefetch == 0 else min(prefetch, os.cpu_count() or 1, 4) if threads is None else threads
        self.order = order
        self._wanted: Wanted = {}
        if isinstance(samples, Stream):
            self.sharded, self.threads = False, min(self.threads, 1)
            if order is not None:
                raise ArgumentError("Batches: samples that come one after another have an order of their own: leave out order")
            return
        self.order = order or Order(0, len(samples), shuffle=False)
        self.sharded = several_clients() if sharded is None else sharded
        if self.order.samples != len(samples):
            raise ArgumentError(f"Batches: the order is of {self.order.samples} samples, but there are {len(samples)}")
        if drop_last and len(samples) < batch_size:
            raise ArgumentError(
                f"Batches: {counted(len(samples), 'sample')} do not fill a batch of {batch_size}, and drop_last leaves them out: there is no batch"
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        if isinstance(self.samples, Stream):
            raise TypeError("nobody knows how many batches a stream has")
        return len(self.samples) // self.batch_size if self.drop_last else -(-len(self.samples) // self.batch_size)

    def start(self, position: Position | tuple[int, int] = BEGINNING, epochs: int | None = None) -> Reading:
        """The batches from a position on, of so many epochs (counting that of the position); without end if None."""
        at = Position(*position)
        if isinstance(self.samples, Samples) and not (at.epoch >= 0 and 0 <= at.sample <= len(self.samples)):
            raise ArgumentError(f"Batches: {at} is not in these data, whose epochs have {counted(len(self.samples), 'sample')}")
        pool = Pool(self.threads)
        plan = self._streamed if isinstance(self.samples, Stream) else self._sharded if self.sharded else self._whole
        return Reading(plan(at, epochs, pool), self.prefetch, pool)

    def _stretches(self, at: Position, epochs: int | None) -> Iterator[tuple[Position, Position, int]]:
        """(where it begins, where the next one does, where it ends in its epoch) of each batch."""
        assert isinstance(self.samples, Samples)
        count, size = len(self.samples), self.batch_size
        epoch, sample = at
        while epochs is None or epoch < at.epoch + epochs:
            while sample < count and not (self.drop_last and count - sample < size):
                stop = min(sample + size, count)
                ends = stop == count or (self.drop_last and count - stop < size)
                yield Position(epoch, sample), Position(epoch + 1, 0) if ends else Position(epoch, stop), stop
                sample = stop
            epoch, sample = epoch + 1, 0

    def _batch(self, arguments: Mapping[str, Any], stretch: tuple[Position, Position, int]) -> Batch:
        begin, after, stop = stretch
        assert self.order is not None
        numbers = partial(self.order.indices, begin.epoch, begin.sample, stop)
        return Batch(arguments, stop - begin.sample, begin, after, numbers, partial(self._where, numbers))

    def _where(self, numbers: Callable[[], Array], row: int) -> str:
        assert isinstance(self.samples, Samples)
        return self.samples.where(int(numbers()[row]))

    def _whole(self, at: Position, epochs: int | None, pool: Pool) -> Iterator[Pending]:
        for stretch in self._stretches(at, epochs):
            yield pool.ask(partial(self._read, stretch), partial(self._text, stretch))

    def _text(self, stretch: tuple[Position, Position, int]) -> str:
        assert isinstance(self.samples, Samples) and self.order is not None
        begin, _, stop = stretch
        return read_of(self.samples, self.order.indices(begin.epoch, begin.sample, stop), begin.epoch)

    def _read(self, stretch: tuple[Position, Position, int]) -> Batch:
        assert isinstance(self.samples, Samples) and self.order is not None
        begin, _, stop = stretch
        numbers = self.order.indices(begin.epoch, begin.sample, stop)
        return self._batch(ordered(self.samples.read(numbers, begin.epoch, self.fields), self.fields), stretch)

    def _sharded(self, at: Position, epochs: int | None, pool: Pool) -> Iterator[Pending]:
        assert isinstance(self.samples, Samples) and self.order is not None
        window = Window(self.samples, self.order, pool, self._wanted)
        for stretch in self._stretches(at, epochs):
            begin, _, stop = stretch
            shards = window.open(begin, stop)
            batch = self._batch({name: Shard(shards, name) for name in self.fields}, stretch)
            yield Ready(batch, partial(window.enter, shards))

    def _streamed(self, at: Position, epochs: int | None, pool: Pool) -> Iterator[Pending]:
        assert isinstance(self.samples, Stream)
        found = streamed(self.samples, self.fields, self.batch_size, self.drop_last, at, epochs)
        while True:
            yield pool.ask(
                partial(_next_streamed, found, self.samples), partial(str, f"the next {counted(self.batch_size, 'sample')} of {self.samples}")
            )


def _next_streamed(found: Iterator[tuple[dict[str, Array], int, tuple[int, int], tuple[int, int]]], samples: Stream) -> Batch | None:
    read = next(found, None)
    if read is None:
        return None
    arguments, size, begin, after = read
    numbers = partial(np.arange, begin[1], begin[1] + size)
    return Batch(arguments, size, Position(*begin), Position(*after), numbers, lambda row: f"{samples}: epoch {begin[0]}, sample {begin[1] + row}")


def read_of(samples: Samples, numbers: Array, epoch: int, most: int = 5) -> str:
    """For messages: these samples of an epoch."""
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"sample{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:most]))}{more} of {samples}, epoch {epoch}"


def order_of(samples: Samples | Stream, seed: int, shuffle: bool) -> Order | None:
    """The order in which to take samples; None for a stream, which has its own."""
    if not isinstance(samples, Stream):
        return Order(seed, len(samples), shuffle)
    if shuffle:
        raise ArgumentError(f"{samples}: samples that come one after another cannot be shuffled: set shuffle to false")
    return None


def several_clients() -> bool:
    """True if there are several processes and each of them calls jobs itself."""
    started = launch.launched()
    environment = scope.current().root.environment
    return started is not None and started.size > 1 and environment is not None and environment.client == "multi"


def ordered(rows: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    return {name: rows[name] for name in names}


class Pending(Protocol):
    """A batch that is being read; None where there is no more."""

    def result(self) -> Batch | None: ...


@dataclass(frozen=True)
class Ready:
    """A batch whose arguments read themselves; `enter` says that it is the one in use."""

    batch: Batch
    enter: Callable[[], None]

    def result(self) -> Batch:
        self.enter()
        return self.batch


class Reading(Iterator[Batch]):
    """Batches one after another; an error in reading is raised where the batch would have come.

    Close it, or leave its `with` block, when no more are wanted; the end of the program or the last reference does too.
    """

    def __init__(self, plan: Iterator[Pending], prefetch: int, pool: Pool) -> None:
        self._plan, self._prefetch = plan, prefetch
        self._ahead: deque[Pending] = deque()
        #: seconds that were spent waiting for batches
        self.waited = 0.0
        self._close = weakref.finalize(self, pool.close)

    def __next__(self) -> Batch:
        began = time.perf_counter()
        while self._close.alive and len(self._ahead) <= self._prefetch:
            pending = next(self._plan, None)
            if pending is None:
                break
            self._ahead.append(pending)
        batch = self._take()
        self.waited += time.perf_counter() - began
        if batch is None:
            raise StopIteration
        return batch

    def _take(self) -> Batch | None:
        if not self._close.alive or not self._ahead:
            self.close()
            return None
        try:
            batch = self._ahead.popleft().result()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self.close()
        return batch

    def close(self) -> None:
        """End the threads; there are no more batches."""
        self._close()
        self._ahead.clear()
        self._plan = iter(())

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -------------------------------------------------------------------- each rank its part

#: rows of a batch: from, to
Stretch = tuple[int, int]
#: by the size of batches, which rows of which fields the last one of that size was asked for
Wanted = dict[int, dict[Stretch, set[str]]]


class Window:
    """The batches that are being read, of whose rows this process reads only what is asked for."""

    def __init__(self, samples: Samples, order: Order, pool: Pool, wanted: Wanted) -> None:
        self.samples, self.order, self.pool, self._wanted = samples, order, pool, wanted
        self._open: deque[Shards] = deque()
        self.lock = threading.RLock()

    def open(self, begin: Position, stop: int) -> Shards:
        """A batch that will be needed: begin to read what the last one of its size was asked for."""
        shards = Shards(self, begin, stop - begin.sample)
        self._open.append(shards)
        for rows, names in self._wanted.get(shards.size, {}).items():
            shards.prepare(rows, frozenset(names))
        return shards

    def enter(self, shards: Shards) -> None:
        """This batch is the one in use now."""
        self._open = deque(each for each in self._open if each is not shards)

    def note(self, used: Shards, rows: Stretch, name: str) -> None:
        """These rows of the batch in use were asked for, so they will be of those after it."""
        self._wanted[used.size] = used.asked
        for shards in self._open:
            if shards.size == used.size:
                shards.prepare(rows, frozenset((name,)))

    def read(self, begin: Position, rows: Stretch, names: frozenset[str]) -> dict[str, Array]:
        return self.samples.read(self.numbers(begin, rows), begin.epoch, names)

    def numbers(self, begin: Position, rows: Stretch) -> Array:
        return self.order.indices(begin.epoch, begin.sample + rows[0], begin.sample + rows[1])

    def text(self, begin: Position, rows: Stretch) -> str:
        """For messages: what `read` reads."""
        return read_of(self.samples, self.numbers(begin, rows), begin.epoch)


class Shards:
    """One batch: what is being read of it, and what was asked for."""

    def __init__(self, window: Window, begin: Position, size: int) -> None:
        self.window, self.begin, self.size = window, begin, size
        self.asked: dict[Stretch, set[str]] = {}
        self._coming: dict[tuple[Stretch, str], Coming[dict[str, Array]]] = {}

    def prepare(self, rows: Stretch, names: frozenset[str]) -> None:
        """Begin to read rows of fields, unless that has begun."""
        missing = frozenset(name for name in names if (rows, name) not in self._coming)
        if missing:
            window, begin = self.window, self.begin
            future = window.pool.ask(partial(window.read, begin, rows, missing), partial(window.text, begin, rows))
            self._coming.update({(rows, name): future for name in missing})

    def take(self, rows: Stretch, name: str) -> Array:
        """Rows of a field."""
        with self.window.lock:
            known = (rows, name) in self._coming
            self.asked.setdefault(rows, set()).add(name)
            self.window.note(self, rows, name)
        if known:
            future = self._coming[rows, name]
            if not future.cancelled():  # the reading was closed with this batch in use
                return future.result()[name]
        with told_if_long(partial(self.window.text, self.begin, rows)):
            return self.window.read(self.begin, rows, frozenset((name,)))[name]

    def fingerprint(self, name: str) -> str:
        window, start = self.window, self.begin.sample
        numbers = window.order.indices(self.begin.epoch, start, start + self.size)
        return f"{window.samples.fingerprint}/{name}/{self.begin}/{hashlib.sha256(numbers.tobytes()).hexdigest()}"


class Shard(Lazy):
    """A field of a batch."""

    def __init__(self, shards: Shards, name: str) -> None:
        field = shards.window.samples.fields[name]
        self.shape, self.dtype = (shards.size, *field.shape), field.dtype.numpy
        self._shards, self._name = shards, name

    @property
    def fingerprint(self) -> str:
        return self._shards.fingerprint(self._name)

    def part(self, slices: tuple[slice, ...]) -> Array:
        rows, *others = slices
        if rows.start == rows.stop:
            return np.empty([s.stop - s.start for s in slices], self.dtype)
        found = self._shards.take((rows.start, rows.stop), self._name)
        return found[(slice(None), *others)]
