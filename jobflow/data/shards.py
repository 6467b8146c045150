"""Batches for sharded reading: a rank reads only the rows of its layout, when a job is called."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.data.ahead import Pool
from jobflow.data.batch import Batch, Ordered, Position, Stretch
from jobflow.data.waiting import Coming, notice_if_long
from jobflow.typing.lazy import Lazy

#: requested fields of the last batch, by batch size and rows
Requests = dict[int, dict[Stretch, set[str]]]


class Window:
    """The prefetched batches; this process reads only the requested rows."""

    def __init__(self, data: Ordered, pool: Pool, requests: Requests) -> None:
        self.data, self.pool, self._requests = data, pool, requests
        self._open: deque[Shards] = deque()
        self.lock = threading.RLock()

    def open(self, begin: Position, after: Position, size: int, fields: Sequence[str]) -> Ready:
        """Return the next batch, and start to read the rows that were requested from the last batch of this size."""
        shards = Shards(self, begin, size, fields)
        self._open.append(shards)
        for rows, names in self._requests.get(size, {}).items():
            shards.prepare(rows, frozenset(names))
        batch = self.data.described(begin, after, size, {name: Shard(shards, name) for name in fields})
        return Ready(batch, partial(self.enter, shards))

    def enter(self, shards: Shards) -> None:
        """Remove a batch from the window, because it becomes the current batch."""
        self._open = deque(each for each in self._open if each is not shards)

    def note(self, used: Shards, rows: Stretch, name: str) -> None:
        """Record that rows of the batch `used` were requested, and prefetch these rows of later batches."""
        self._requests[used.size] = used.requested
        for shards in self._open:
            if shards.size == used.size:
                shards.prepare(rows, frozenset((name,)))


@dataclass(frozen=True)
class Ready:
    """A batch with lazy arguments; `enter` marks the batch as the current one."""

    batch: Batch
    enter: Callable[[], None]

    def result(self) -> Batch:
        self.enter()
        return self.batch


class Shards:
    """The pending and completed reads of one batch, and the rows requested from the batch."""

    def __init__(self, window: Window, begin: Position, size: int, fields: Sequence[str]) -> None:
        self.window, self.begin, self.size, self.fields = window, begin, size, fields
        self.requested: dict[Stretch, set[str]] = {}
        self._coming: dict[tuple[Stretch, str], Coming[dict[str, Array]]] = {}
        #: of whole samples: disjoint rows in ascending order, with all their fields
        self._whole: list[tuple[Stretch, dict[str, Array]]] = []
        self._reading_whole = threading.Lock()

    def prepare(self, rows: Stretch, names: frozenset[str]) -> None:
        """Start to read rows of fields, unless these reads have started."""
        missing = frozenset(name for name in names if (rows, name) not in self._coming)
        if missing:
            future = self.window.pool.ask(partial(self._read, rows, missing), partial(self.window.data.text, self.begin, rows))
            self._coming.update({(rows, name): future for name in missing})

    def take(self, rows: Stretch, name: str) -> Array:
        """Return rows of a field, which are read now unless they are prefetched; later batches prefetch the same rows."""
        with self.window.lock:
            known = (rows, name) in self._coming
            self.requested.setdefault(rows, set()).add(name)
            self.window.note(self, rows, name)
        if known:
            future = self._coming[rows, name]
            if not future.cancelled():  # cancelled by `close` while this batch is in use
                return future.result()[name]
        data = self.window.data
        with notice_if_long(partial(data.text, self.begin, rows)):
            arrays = self._read(rows, (name,))
        result: Coming[dict[str, Array]] = Coming(partial(data.text, self.begin, rows))
        result.set_result(arrays)
        self._coming[rows, name] = result  # a second access returns the same rows even if the reader's data changed
        return arrays[name]

    def _read(self, rows: Stretch, names: Collection[str]) -> dict[str, Array]:
        """Read the fields `names` of rows.

        If `samples.whole` is True, read each row only once and with all fields, because user code may return different samples at each read.
        """
        data = self.window.data
        if not data.samples.whole:
            return data.read(self.begin, rows, names)
        with self._reading_whole:
            end = rows[0]
            for start, stop in [*(each for each, _ in self._whole), (rows[1], rows[1])]:
                gap = (end, min(start, rows[1]))
                if gap[0] < gap[1]:
                    self._whole.append((gap, data.read(self.begin, gap, self.fields)))
                end = max(end, stop)
            self._whole.sort(key=itemgetter(0))
            pieces = [(start, arrays) for (start, stop), arrays in self._whole if start < rows[1] and stop > rows[0]]
            parts = {name: [arrays[name][max(rows[0] - start, 0) : rows[1] - start] for start, arrays in pieces] for name in names}
        return {name: each[0] if len(each) == 1 else np.concatenate(each) for name, each in parts.items()}

    def fingerprint(self, name: str) -> str:
        data = self.window.data
        numbers = hashlib.sha256(data.numbers(self.begin, (0, self.size)).tobytes()).hexdigest()
        return f"{data.samples.fingerprint}/{name}/{self.begin}/{numbers}"


class Shard(Lazy):
    """A lazy array of a batch: one field, whose rows are read at access."""

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
        array = self._shards.take((rows.start, rows.stop), self._name)
        return array[(slice(None), *others)]
