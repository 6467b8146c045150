"""Batches of which each rank reads only the rows that its layout needs, when a job is called."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.data.ahead import Pool
from jobflow.data.batch import Batch, Ordered, Position, Stretch
from jobflow.data.waiting import Coming, notice_if_long
from jobflow.typing.lazy import Lazy

#: by the size of batches, which rows of which fields the last one of that size was asked for
Wanted = dict[int, dict[Stretch, set[str]]]


class Window:
    """The batches that are being read, of whose rows this process reads only what is asked for."""

    def __init__(self, data: Ordered, pool: Pool, wanted: Wanted) -> None:
        self.data, self.pool, self._wanted = data, pool, wanted
        self._open: deque[Shards] = deque()
        self.lock = threading.RLock()

    def open(self, begin: Position, after: Position, size: int, fields: Sequence[str]) -> Ready:
        """A batch that will be needed: begin to read what the last one of its size was asked for."""
        shards = Shards(self, begin, size)
        self._open.append(shards)
        for rows, names in self._wanted.get(size, {}).items():
            shards.prepare(rows, frozenset(names))
        batch = self.data.described(begin, after, size, {name: Shard(shards, name) for name in fields})
        return Ready(batch, partial(self.enter, shards))

    def enter(self, shards: Shards) -> None:
        """This batch is the one in use now."""
        self._open = deque(each for each in self._open if each is not shards)

    def note(self, used: Shards, rows: Stretch, name: str) -> None:
        """These rows of the batch in use were asked for, so they will be of those after it."""
        self._wanted[used.size] = used.asked
        for shards in self._open:
            if shards.size == used.size:
                shards.prepare(rows, frozenset((name,)))


@dataclass(frozen=True)
class Ready:
    """A batch whose arguments read themselves; `enter` says that it is the one in use."""

    batch: Batch
    enter: Callable[[], None]

    def result(self) -> Batch:
        self.enter()
        return self.batch


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
            data, begin = self.window.data, self.begin
            future = self.window.pool.ask(partial(data.read, begin, rows, missing), partial(data.text, begin, rows))
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
        data = self.window.data
        with notice_if_long(partial(data.text, self.begin, rows)):
            found = data.read(self.begin, rows, (name,))
        kept: Coming[dict[str, Array]] = Coming(partial(data.text, self.begin, rows))
        kept.set_result(found)
        self._coming[rows, name] = kept  # a batch that is looked at again is the same, whatever its reader would give now
        return found[name]

    def fingerprint(self, name: str) -> str:
        data = self.window.data
        numbers = hashlib.sha256(data.numbers(self.begin, (0, self.size)).tobytes()).hexdigest()
        return f"{data.samples.fingerprint}/{name}/{self.begin}/{numbers}"


class Shard(Lazy):
    """A field of a batch."""

    def __init__(self, shards: Shards, name: str) -> None:
        field = shards.window.data.samples.fields[name]
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
