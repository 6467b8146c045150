"""Batches of samples, read ahead by threads.

Threads, not processes: a program that has started MPI must not fork, and NumPy and file reading let other threads run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DataError, ShapeError, user_line
from jobflow.core.types import Array, dtype_of, float32, int64, type_of
from jobflow.data.ahead import END, Pending, Pool, Reading
from jobflow.data.conversion import converted, is_number
from jobflow.data.samples import Samples, Stream
from jobflow.data.waiting import numbered, one_by_one
from jobflow.eager.run import run
from jobflow.eager.tensor import Tensor
from jobflow.ops.slices import Concat
from jobflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, batched


def default_collate(samples: Sequence[Any]) -> Any:
    """A batch of samples: arrays, tensors and numbers are stacked, tuples and dicts are batched entry by entry, the rest is listed.

    Numbers become bool, int64 or float32, arrays their common type; a value that this type cannot hold is an error.
    """
    return _collated(samples, "")


def _collated(samples: Sequence[Any], entry: str) -> Any:
    """The batch of the entries of samples that `entry` names, as in `["x"][0]`."""
    first = samples[0]
    if isinstance(first, Tensor):
        if first.layout is None and first.traced is None:
            return _tensor(_stacked([x.array for x in samples], entry))
        return run(Concat(0), *(x.unsqueeze(0) for x in samples))
    if isinstance(first, np.ndarray | np.generic):
        return _tensor(_stacked(samples, entry))
    if isinstance(first, bool | int | float):
        kinds = set(map(type, samples))
        common = np.dtype(bool) if kinds == {bool} else int64.numpy if kinds <= {bool, int} else float32.numpy
        return _tensor(_stacked([np.asarray(sample) for sample in samples], entry, common))
    if isinstance(first, Mapping):
        return {key: _collated([sample[key] for sample in samples], f"{entry}[{key!r}]") for key in first}
    if isinstance(first, tuple | list):
        if len({len(sample) for sample in samples}) > 1:
            raise ArgumentError(f"default_collate at {user_line()}: the samples of a batch have different numbers of entries")
        made = [_collated(column, f"{entry}[{i}]") for i, column in enumerate(zip(*samples, strict=True))]
        return type(first)(*made) if hasattr(first, "_fields") else type(first)(made)
    return list(samples)


def _stacked(samples: Sequence[Any], entry: str, dtype: np.dtype[Any] | None = None) -> Array:
    """Arrays as rows of one array of this type, by default their common type."""
    arrays = [np.asarray(sample) for sample in samples]
    if len(shapes := dict.fromkeys(array.shape for array in arrays)) > 1:
        first, other, *_ = shapes
        raise ShapeError(
            f"default_collate at {user_line()}: the samples of a batch have the shapes {first} and {other}; pad them, or pass collate_fn="
        )
    kinds = {array.dtype for array in arrays}
    if dtype is None:
        dtype = np.result_type(*kinds) if len(kinds) > 1 else next(iter(kinds))
    return np.stack(arrays if kinds == {dtype} else [_converted(array, dtype, row, entry) for row, array in enumerate(arrays)])


def _converted(array: Array, dtype: np.dtype[Any], row: int, entry: str) -> Array:
    """An entry of the sample at `row` of a batch in the batch's type."""
    what, advice = f"sample {row} of the batch{entry}", "convert it, or pass collate_fn="
    try:
        if not is_number(array.dtype):
            raise DataError(f"{what} is of type {array.dtype}; {advice}")
        return converted(array, dtype, lambda index: what, advice)
    except DataError as error:
        found = ArgumentError(f"default_collate at {user_line()}: {error}")
        found.row = row
        raise found from None


def _tensor(array: Array) -> Tensor:
    try:
        dtype_of(array.dtype)
    except (KeyError, TypeError):
        raise ArgumentError(f"default_collate at {user_line()}: tensors cannot hold {array.dtype}; convert it, or pass collate_fn=") from None
    return Tensor(type_of(array), None, array)


class DataLoader:
    """Iterates over batches of `dataset`.

    `sampler` or `shuffle` order the samples, `batch_sampler` says which are a batch, `batch_size=None` gives them one by one.
    `num_workers` threads read up to `prefetch_factor` batches ahead each; 0 reads in the calling thread.  An error in reading is raised
    where the batch would have come.
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
            raise ArgumentError(
                f"{what}: the dataset {type(dataset).__name__} has neither __len__ beside __getitem__ nor __iter__: where it ends is unknown"
            )
        if self.streams and (shuffle or sampler is not None or batch_sampler is not None):
            raise ArgumentError(f"{what}: a dataset without __getitem__ and __len__ has its own order; omit shuffle, sampler, batch_sampler")
        if batch_sampler is not None and (batch_size not in (None, 1) or shuffle or sampler is not None or drop_last):
            raise ArgumentError(f"{what}: batch_sampler determines all batches; omit batch_size, shuffle, sampler and drop_last")
        if sampler is not None and shuffle:
            raise ArgumentError(f"{what}: give sampler or shuffle, not both")
        if num_workers < 0 or prefetch_factor < 1:
            raise ArgumentError(f"{what}: num_workers is at least 0 and prefetch_factor at least 1; got {num_workers} and {prefetch_factor}")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.sampler = sampler
        if sampler is None and not self.streams:
            self.sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None and not self.streams:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        #: epochs begun, for datasets whose samples differ between them
        self._begun = 0
        self.collate_fn = collate_fn or (default_collate if self.batch_sampler is not None or batch_size is not None else _as_tensors)

    def __len__(self) -> int:
        if self.streams:
            raise TypeError("a loader of a dataset without length has none")
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)

    def __iter__(self) -> Iterator[Any]:
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
        if isinstance(self.dataset, Samples) and self.collate_fn is default_collate:  # which reads many faster than one by one
            return {name: _tensor(rows) for name, rows in self.dataset.read(numbers, epoch).items()}
        samples = [self.dataset[number] for _, number in one_by_one(numbers, "sample {}".format)]
        try:
            return self.collate_fn(samples)
        except ArgumentError as error:
            if error.row is not None:
                error.args = (f"{error}; it is sample {numbers[error.row]} of the dataset {type(self.dataset).__name__}",)
            raise

    def _streamed(self, epoch: int, pool: Pool) -> Iterator[Pending[Any]]:
        samples = iter(self.dataset.samples(epoch) if isinstance(self.dataset, Stream) else self.dataset)
        found = map(self.collate_fn, samples if self.batch_size is None else batched(samples, self.batch_size, self.drop_last))
        while True:
            yield pool.ask(partial(next, found, END), lambda: f"the next samples of the dataset {type(self.dataset).__name__}")


def _as_tensors(sample: Any) -> Any:
    """A single sample, its arrays as tensors."""
    if isinstance(sample, np.ndarray):
        return _tensor(sample)
    if isinstance(sample, Mapping):
        return {key: _as_tensors(value) for key, value in sample.items()}
    if isinstance(sample, tuple | list):
        return type(sample)(map(_as_tensors, sample))
    return sample
