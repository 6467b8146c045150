"""Samplers, which define the order of samples.

The order comes from `jobflow.data.Order` and depends only on seed and epoch, so that all ranks have the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from jobflow.core.errors import ArgumentError, user_line
from jobflow.data.sample_order import Order
from jobflow.runtime.world import launched as launch
from jobflow.tensors.state import state

Item = TypeVar("Item")
Index = TypeVar("Index", covariant=True)


def batched(items: Iterable[Item], size: int, drop_last: bool) -> Iterator[list[Item]]:
    """Yield lists of `size` successive items; drop a shorter last list if `drop_last`."""
    left = iter(items)
    while (batch := list(islice(left, size))) and not (drop_last and len(batch) < size):
        yield batch


class Sampler(Generic[Index]):
    """An iterable of sample indices, or of batches of indices; subclasses define `__iter__`."""

    def __iter__(self) -> Iterator[Index]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequentialSampler(Sampler[int]):
    """A sampler of the indices 0, 1 ... len(data_source) - 1, in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _Shuffled(Sampler[int]):
    """Base class of samplers with a new order in every epoch.

    Each iteration is the next epoch, or the epoch that `set_epoch` selects.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = state().local_generator.seed if seed is None else seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def order(self, count: int) -> list[int]:
        order: list[int] = Order(self.seed, count).indices(self.epoch, 0, count).tolist()
        self.epoch += 1
        return order


class RandomSampler(_Shuffled):
    """A sampler of all indices of `data_source`, in a new random order in every epoch."""

    def __init__(self, data_source: Sized, seed: int | None = None) -> None:
        super().__init__(seed)
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class SubsetRandomSampler(_Shuffled):
    """A sampler of the elements of `indices`, in a new random order in every epoch."""

    def __init__(self, indices: Sequence[int], seed: int | None = None) -> None:
        super().__init__(seed)
        self.indices = list(indices)

    def __iter__(self) -> Iterator[int]:
        return (self.indices[i] for i in self.order(len(self.indices)))

    def __len__(self) -> int:
        return len(self.indices)


class BatchSampler(Sampler[list[int]]):
    """A sampler of lists of `batch_size` indices from another sampler; a shorter last list is dropped if `drop_last`."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False) -> None:
        if type(batch_size) is not int or batch_size < 1:
            raise ArgumentError(f"BatchSampler at {user_line()}: batch_size must be an int >= 1; got {batch_size!r}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return batched(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


class DistributedSampler(Sampler[int]):
    """A sampler of this rank's share of the indices; the shares of all ranks have equal size.

    With n = num_replicas, the share has the positions rank, rank + n, rank + 2n ... in the order.  By default, n is the number of ranks of the
    program, and `rank` is this rank.  If n does not divide the number of indices, the order is extended by its first indices, or truncated with
    `drop_last`.  With `shuffle`, the order is random and depends on `seed` and on the epoch passed to `set_epoch`.
    Raises: ArgumentError for a `rank` out of range.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        started = launch.launched()
        self.num_replicas = num_replicas if num_replicas is not None else 1 if started is None else started.size
        self.rank = rank if rank is not None else 0 if started is None else started.rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(f"DistributedSampler at {user_line()}: rank {self.rank} is out of range for {self.num_replicas} replicas")
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0
        each = len(dataset) / self.num_replicas
        self.num_samples = math.floor(each) if drop_last else math.ceil(each)
        self.total_size = self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which the random order of the next iterations depends."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = Order(self.seed, len(self.dataset), self.shuffle)
        places = np.arange(self.rank, self.total_size, self.num_replicas) % max(order.samples, 1)
        return iter(order.at(self.epoch, places).tolist())

    def __len__(self) -> int:
        return self.num_samples
