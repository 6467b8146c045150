"""Batches of samples, read ahead by threads.

Threads, not processes: a program that has started MPI must not fork, and NumPy and file reading let other threads run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import dtype_of, float32, int64, type_of
from jobflow.eager.run import run
from jobflow.eager.tensor import Tensor
from jobflow.ops.slices import Concat
from jobflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler


def default_collate(samples: Sequence[Any]) -> Any:
    """A batch of samples: arrays, tensors and numbers are stacked, tuples and dicts are batched entry by entry, the rest is listed."""
    first = samples[0]
    if isinstance(first, Tensor):
        if first.layout is None and first.traced is None:
            return _tensor(_stacked([x.array for x in samples]))
        return run(Concat(0), *(x.unsqueeze(0) for x in samples))
    if isinstance(first, np.ndarray | np.generic):
        return _tensor(_stacked(samples))
    if isinstance(first, bool | int | float):
        dtype = bool if isinstance(first, bool) else int64.numpy if isinstance(first, int) else float32.numpy
        return _tensor(np.array(samples, dtype))
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        if len({len(sample) for sample in samples}) > 1:
            raise ArgumentError(f"default_collate at {user_line()}: the samples of a batch have different numbers of entries")
        made = [default_collate(column) for column in zip(*samples, strict=True)]
        return type(first)(*made) if hasattr(first, "_fields") else type(first)(made)
    return list(samples)


def _stacked(arrays: Sequence[Any]) -> np.ndarray[Any, Any]:
    other = next((np.shape(array) for array in arrays if np.shape(array) != np.shape(arrays[0])), None)
    if other is not None:
        shapes = f"{np.shape(arrays[0])} and {other}"
        raise ShapeError(f"default_collate at {user_line()}: the samples of a batch have the shapes {shapes}; pad them, or pass collate_fn=")
    return np.stack(arrays)


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    try:
        dtype_of(array.dtype)
    except (KeyError, TypeError):
        raise ArgumentError(f"default_collate at {user_line()}: there are no tensors of {array.dtype}; convert it, or pass collate_fn=") from None
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
        self.streams = not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__")
        if self.streams and (shuffle or sampler is not None or batch_sampler is not None):
            raise ArgumentError(
                f"{what}: a dataset without __getitem__ and __len__ has an order of its own; leave out shuffle, sampler, batch_sampler"
            )
        if batch_sampler is not None and (batch_size not in (None, 1) or shuffle or sampler is not None or drop_last):
            raise ArgumentError(f"{what}: batch_sampler says all about batches; leave out batch_size, shuffle, sampler and drop_last")
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
        self.collate_fn = collate_fn or (default_collate if self.batch_sampler is not None or batch_size is not None else _as_tensors)

    def __len__(self) -> int:
        if self.streams:
            raise TypeError("a loader of a dataset without length has none")
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if self.streams:
            return self._streamed()
        numbers = iter(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        return map(self._read, numbers) if self.num_workers == 0 else self._ahead(numbers)

    def _read(self, numbers: Any) -> Any:
        return self.collate_fn([self.dataset[i] for i in numbers] if self.batch_sampler is not None else self.dataset[numbers])

    def _streamed(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        if self.batch_size is None:
            yield from map(self.collate_fn, samples)
            return
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield self.collate_fn(batch)

    def _ahead(self, numbers: Iterator[Any]) -> Iterator[Any]:
        """Batches in order, read by threads; those not asked for any more are not begun."""
        waiting: deque[Future[Any]] = deque()
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="loader")
        try:
            while True:
                for own in islice(numbers, self.num_workers * self.prefetch_factor - len(waiting)):
                    waiting.append(pool.submit(copy_context().run, self._read, own))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _as_tensors(sample: Any) -> Any:
    """A single sample, its arrays as tensors."""
    if isinstance(sample, np.ndarray):
        return _tensor(sample)
    if isinstance(sample, tuple | list):
        return type(sample)(map(_as_tensors, sample))
    return sample
