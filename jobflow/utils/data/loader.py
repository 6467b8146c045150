"""Loading of batches, prefetched by threads.

The workers are threads, because a program that has started MPI must not fork.  NumPy and file reading release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.data.ahead import END, Pending, Pool, Reading
from jobflow.data.samples import Samples, Stream
from jobflow.data.waiting import numbered, one_by_one
from jobflow.tensors.state import refuse_tracing
from jobflow.utils.data.collate import as_tensor, as_tensors, default_collate
from jobflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, batched


class DataLoader:
    """An iterable of batches of `dataset`.

    `sampler` or `shuffle` order the samples, `batch_sampler` groups them into batches, `batch_size=None` returns single samples.  `collate_fn`
    makes a batch of a list of samples, by default `default_collate`.  `drop_last` drops an incomplete last batch.
    `num_workers` threads prefetch up to `prefetch_factor` batches each; with 0, the calling thread reads the batches.  The iteration raises an error
    of a worker in place of the batch that the worker read.
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
        drop_last: bool = False,
        *,
        prefetch_factor: int = 2,
    ) -> None:
        what = f"DataLoader at {user_line()}"
        self.streams = isinstance(dataset, Stream) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__")
        if self.streams and not isinstance(dataset, Stream) and not hasattr(dataset, "__iter__"):
            raise ArgumentError(f"{what}: the dataset {type(dataset).__name__} must have __getitem__ and __len__, or __iter__")
        if self.streams and (shuffle or sampler is not None or batch_sampler is not None):
            raise ArgumentError(f"{what}: a dataset without __getitem__ and __len__ determines the order; omit shuffle, sampler, batch_sampler")
        if batch_sampler is not None and (batch_size not in (None, 1) or shuffle or sampler is not None or drop_last):
            raise ArgumentError(f"{what}: batch_sampler determines all batches; omit batch_size, shuffle, sampler and drop_last")
        if sampler is not None and shuffle:
            raise ArgumentError(f"{what}: pass either sampler or shuffle, not both")
        if num_workers < 0 or prefetch_factor < 1:
            raise ArgumentError(f"{what}: num_workers must be at least 0 and prefetch_factor at least 1; got {num_workers} and {prefetch_factor}")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
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
        plan = self._streamed(epoch, pool) if numbers is None else self._planned(numbers, epoch, pool)
        return Reading(plan, self.num_workers * self.prefetch_factor, pool)

    def _planned(self, numbers: Iterator[Any], epoch: int, pool: Pool) -> Iterator[Pending[Any]]:
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

    def _streamed(self, epoch: int, pool: Pool) -> Iterator[Pending[Any]]:
        samples = iter(self.dataset.samples(epoch) if isinstance(self.dataset, Stream) else self.dataset)
        batches = map(self.collate_fn, samples if self.batch_size is None else batched(samples, self.batch_size, self.drop_last))
        while True:
            yield pool.ask(partial(next, batches, END), lambda: f"the next samples of the dataset {type(self.dataset).__name__}")
