"""Workers of a `DataLoader`: threads, each with a number, a seed and a view of the dataset."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DataError, user_line
from jobflow.data.ahead import END, Pending, Pool
from jobflow.data.waiting import Coming

T = TypeVar("T")

_thread = threading.local()


@dataclass(frozen=True)
class WorkerInfo:
    """The number `id` of a worker among `num_workers` workers, its seed, and the dataset that it reads.

    The seed differs between workers and epochs.  If the loader has a `worker_init_fn`, or an IterableDataset, the dataset is a shallow copy.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """Return the information of the worker that runs the caller; None outside of the workers of a `DataLoader`."""
    info: WorkerInfo | None = getattr(_thread, "info", None)
    return info


class Worker:
    """A worker of one iteration over a loader: one thread of its pool."""

    def __init__(self, info: WorkerInfo, begin: Callable[[int], Any] | None) -> None:
        self.info = info
        self._begin = begin
        #: the batches of a stream, which begins at the first batch
        self.batches: Iterator[Any] | None = None

    def run(self, call: Callable[[Any], T]) -> T:
        """Return `call(dataset)`, in the thread of this worker; call `worker_init_fn` before the first call."""
        _thread.info = self.info
        begin, self._begin = self._begin, None
        if begin is not None:
            begin(self.info.id)
        return call(self.info.dataset)

    def next_batch(self, batches: Callable[[Any], Iterator[T]]) -> T:
        """Return the next element of `batches(dataset)`, or `END`."""
        return self.run(partial(self._next, batches))

    def _next(self, batches: Callable[[Any], Iterator[T]], dataset: Any) -> T:
        if self.batches is None:
            self.batches = batches(dataset)
        return next(self.batches, END)


def workers(count: int, dataset: Any, seed: int, begin: Callable[[int], Any] | None, copies: bool) -> list[Worker]:
    """Return the workers of one iteration; each has a shallow copy of the dataset if `copies`."""
    return [Worker(WorkerInfo(i, count, seed + i, copy.copy(dataset) if copies else dataset), begin) for i in range(count)]


class _Limited(Generic[T]):
    """A read in progress that raises an error after `seconds`."""

    def __init__(self, pending: Coming[T], seconds: float) -> None:
        self.pending, self.seconds = pending, seconds

    def result(self) -> T:
        try:
            return self.pending.result(self.seconds)
        except TimeoutError:
            if self.pending.done():
                raise  # an error of the dataset itself
            raise DataError(
                f"DataLoader at {user_line()}: reading {self.pending.what()} takes longer than timeout={self.seconds} seconds; increase timeout, "
                f"or find the cause of the delay in the dataset"
            ) from None


def within(pending: Coming[T], seconds: float) -> Pending[T]:
    """Return the read in progress with a limit on the time for which its caller waits; 0 seconds are no limit."""
    return _Limited(pending, seconds) if seconds else pending


class Turns:
    """The batches of several workers, which alternate; a worker without further batches is omitted.

    Each worker reads `ahead` batches ahead.  The object is its own pending read: `result` is the next batch.
    """

    def __init__(
        self, workers: Sequence[Worker], pool: Pool, ahead: int, batches: Callable[[Any], Iterator[Any]], what: Callable[[], str], timeout: float
    ) -> None:
        self._pool, self._batches, self._what, self._timeout = pool, batches, what, timeout
        self._line = deque((worker, deque(self._ask(worker) for _ in range(ahead + 1))) for worker in workers)

    def _ask(self, worker: Worker) -> Pending[Any]:
        return within(self._pool.ask(partial(worker.next_batch, self._batches), self._what, worker.info.id), self._timeout)

    def result(self) -> Any:
        """Return the next batch, or `END`."""
        while self._line:
            worker, pending = self._line.popleft()
            batch = pending.popleft().result()
            if batch is not END:
                pending.append(self._ask(worker))
                self._line.append((worker, pending))
                return batch
        return END
