"""Loading of batches, prefetched by threads.

The workers are threads, because a program that has started MPI must not fork.  NumPy and file reading release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from jobflow.core.errors import ArgumentError, DataError, user_line
from jobflow.data.ahead import END, Pending, Pool, Reading
from jobflow.data.samples import Samples, Stream
from jobflow.data.waiting import Coming, numbered, one_by_one
from jobflow.functional.switches import checked_bool
from jobflow.tensors.state import refuse_tracing
from jobflow.utils.data.collate import as_tensor, as_tensors, default_collate
from jobflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, batched

Batch = TypeVar("Batch")


class _Limited(Generic[Batch]):
    """A read in progress that raises an error after `seconds`."""

    def __init__(self, pending: Coming[Batch], seconds: float) -> None:
        self.pending, self.seconds = pending, seconds

    def result(self) -> Batch:
        try:
            return self.pending.result(self.seconds)
        except TimeoutError:
            if self.pending.done():
                raise  # an error of the dataset itself
            raise DataError(
                f"DataLoader at {user_line()}: reading {self.pending.what()} takes longer than timeout={self.seconds} seconds; increase timeout, "
                f"or look for a dataset that waits"
            ) from None


class DataLoader:
    """An iterable of batches of `dataset`.

    `sampler` or `shuffle` order the samples, `batch_sampler` groups them into batches, `batch_size=None` returns single samples.  `collate_fn`
    makes a batch of a list of samples, by default `default_collate`.  `drop_last` drops an incomplete last batch.
    `num_workers` threads prefetch up to `prefetch_factor` batches each; with 0, the calling thread reads the batches.  The iteration raises an error
    of a worker in place of the batch that the worker read.  With a `timeout`, a batch that takes more seconds raises DataError.
    The workers share the memory of the program, so `pin_memory`, `persistent_workers` and `multiprocessing_context` have no effect.
    Raises: ArgumentError for arguments that contradict each other or are out of range, and for an object that is not a dataset.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        *,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        what = f"DataLoader at {user_line()}"
        for name, value in (("pin_memory", pin_memory), ("persistent_workers", persistent_workers), ("drop_last", drop_last), ("in_order", in_order)):
            checked_bool("DataLoader", name, value)
        _check_workers(what, num_workers, prefetch_factor, timeout, multiprocessing_context)
        prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.streams = isinstance(dataset, Stream) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__")
        if self.streams and not isinstance(dataset, Stream) and not hasattr(dataset, "__iter__"):
            raise ArgumentError(f"{what}: the dataset {type(dataset).__name__} must have __getitem__ and __len__, or __iter__")
        if self.streams and (shuffle or sampler is not None or batch_sampler is not None):
            raise ArgumentError(f"{what}: a dataset without __getitem__ and __len__ determines the order; omit shuffle, sampler, batch_sampler")
        if batch_sampler is not None and (batch_size not in (None, 1) or shuffle or sampler is not None or drop_last):
            raise ArgumentError(f"{what}: batch_sampler determines all batches; omit batch_size, shuffle, sampler and drop_last")
        if sampler is not None and shuffle:
            raise ArgumentError(f"{what}: pass either sampler or shuffle, not both")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.num_workers, self.prefetch_factor, self.timeout = num_workers, prefetch_factor, timeout
        self.pin_memory, self.persistent_workers, self.multiprocessing_context = pin_memory, persistent_workers, multiprocessing_context
        self.sampler = sampler
        if sampler is None and not self.streams:
            self.sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None and not self.streams:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        #: number of started epochs, for datasets whose samples differ between epochs
        self._begun = 0
        self.collate_fn = collate_fn or (default_collate if self.batch_sampler is not None or batch_size is not None else as_tensors)

    def __len__(self) -> int:
        if self.streams:
            raise TypeError("len(DataLoader): the dataset has no length; count the batches while iterating")
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)

    def __iter__(self) -> Iterator[Any]:
        refuse_tracing("DataLoader", "data cannot be read", "pass batches as arguments")
        epoch = getattr(self.sampler, "epoch", self._begun)
        self._begun += 1
        numbers = None if self.streams else iter(self.sampler if self.batch_sampler is None else self.batch_sampler)
        pool = Pool(min(self.num_workers, 1) if self.streams else self.num_workers)
        reads = self._streamed(epoch, pool) if numbers is None else self._planned(numbers, epoch, pool)
        plan: Iterator[Pending[Any]] = reads
        if self.timeout and self.num_workers:
            plan = (_Limited(pending, self.timeout) for pending in reads)
        return Reading(plan, self.num_workers * self.prefetch_factor, pool)

    def _planned(self, numbers: Iterator[Any], epoch: int, pool: Pool) -> Iterator[Coming[Any]]:
        for own in numbers:
            yield pool.ask(partial(self._read, own, epoch), partial(self._text, own))

    def _text(self, numbers: Any) -> str:
        return f"{numbered([numbers] if self.batch_sampler is None else numbers)} of the dataset {type(self.dataset).__name__}"

    def _read(self, numbers: Any, epoch: int) -> Any:
        if self.batch_sampler is None:
            return self.collate_fn(self.dataset[numbers])
        if isinstance(self.dataset, Samples) and self.collate_fn is default_collate:  # these datasets read many samples faster in one call
            return {name: as_tensor(rows) for name, rows in self.dataset.read(numbers, epoch).items()}
        samples = [self.dataset[number] for _, number in one_by_one(numbers, "sample {}".format)]
        try:
            return self.collate_fn(samples)
        except ArgumentError as error:
            if error.row is not None:
                error.args = (f"{error}; it is sample {numbers[error.row]} of the dataset {type(self.dataset).__name__}",)
            raise

    def _streamed(self, epoch: int, pool: Pool) -> Iterator[Coming[Any]]:
        samples = iter(self.dataset.samples(epoch) if isinstance(self.dataset, Stream) else self.dataset)
        batches = map(self.collate_fn, samples if self.batch_size is None else batched(samples, self.batch_size, self.drop_last))
        while True:
            yield pool.ask(partial(next, batches, END), lambda: f"the next samples of the dataset {type(self.dataset).__name__}")


def _check_workers(what: str, num_workers: Any, prefetch_factor: Any, timeout: Any, context: Any) -> None:
    """Raise ArgumentError for options of workers that are out of range."""
    for name, value, least in (("num_workers", num_workers, 0), ("prefetch_factor", 1 if prefetch_factor is None else prefetch_factor, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError(f"{what}: {name} must be an integer of at least {least}; got {value!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < float("inf"):
        raise ArgumentError(f"{what}: timeout must be a number of seconds of at least 0; got {timeout!r}")
    if not (context is None or context in ("fork", "spawn", "forkserver") or hasattr(context, "get_start_method")):
        raise ArgumentError(f"{what}: multiprocessing_context must be a start method, such as 'spawn'; got {context!r}")
