"""Samplers, which define the order of samples.

`jobflow.data.Order` determines the order from seed and epoch, so all ranks have the same order.  DistributedSampler has PyTorch's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import numpy as np

from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import type_of
from jobflow.data.sample_order import Order
from jobflow.expressions import philox
from jobflow.functional.sampling import Generator
from jobflow.functional.switches import checked_bool
from jobflow.functional.tensor_class import Tensor
from jobflow.runtime.world import launched as launch
from jobflow.tensors.state import state
from jobflow.utils.data import checks

#: the distance between the seeds of the orders within one epoch
_FURTHER = 0x9E3779B97F4A7C15
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
        checks.length(f"SequentialSampler at {user_line()}", "data_source", data_source)
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _Shuffled(Sampler[int]):
    """Base class of samplers with a new order in every epoch.

    Each iteration is the next epoch, or the epoch that `set_epoch` selects.  With a generator, it is the next random operation of the generator.
    """

    def __init__(self, seed: int | None, generator: Generator | None) -> None:
        checks.generator(f"{type(self).__name__} at {user_line()}", generator, seed)
        self.generator = generator
        self.seed = state().local_generator.seed if seed is None else seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def _next(self) -> tuple[int, int]:
        """Return the seed and the epoch of an iteration that begins."""
        epoch = self.epoch
        self.epoch += 1
        return (self.seed, epoch) if self.generator is None else (self.generator.core.seed, self.generator.core.next())


def shuffled(seed: int, epoch: int, count: int) -> list[int]:
    """Return the order of `count` samples in an epoch."""
    order: list[int] = Order(seed, count).indices(epoch, 0, count).tolist()
    return order


def _words(seed: int, epoch: int, count: int) -> Any:
    """Return random integers as uint64[count]."""
    words = philox.words(np, philox.key_of(seed, "samples"), np.arange(count, dtype=np.uint64), epoch).astype(np.uint64)
    return words[0] << np.uint64(32) | words[1]


class RandomSampler(_Shuffled):
    """A sampler of all indices of `data_source`, in a new random order in every epoch.

    `num_samples` is the number of indices, by default len(data_source); further indices are those of further random orders.  With `replacement`,
    each index is sampled independently.  `seed` or `generator` determine the order, by default the seed of local random tensors.
    Raises: ArgumentError for invalid arguments.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None, *, seed: int | None = None
    ) -> None:
        super().__init__(seed, generator)
        what = f"RandomSampler at {user_line()}"
        checks.flags(what, replacement=replacement)
        checks.length(what, "data_source", data_source)
        if num_samples is not None:
            checks.whole(what, "num_samples", num_samples, 1)
            if not len(data_source):
                raise ArgumentError(f"{what}: num_samples is {num_samples}, but data_source has no samples; pass num_samples=None")
        self.data_source, self.replacement, self._num_samples = data_source, replacement, num_samples

    @property
    def num_samples(self) -> int:
        """The number of indices of an epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        (seed, epoch), count, size = self._next(), self.num_samples, len(self.data_source)
        if self.replacement:
            return iter((_words(seed, epoch, count) % np.uint64(max(size, 1))).astype(np.int64).tolist())
        orders = (shuffled(seed + i * _FURTHER, epoch, size) for i in range(math.ceil(count / size) if size else 0))
        return islice(chain.from_iterable(orders), count)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Shuffled):
    """A sampler of the elements of `indices`, in a new random order in every epoch.

    `seed` or `generator` determine the order, by default the seed of local random tensors.
    """

    def __init__(self, indices: Sequence[int], generator: Any = None, *, seed: int | None = None) -> None:
        super().__init__(seed, generator)
        self.indices = checks.listed(f"SubsetRandomSampler at {user_line()}", "indices", indices)

    def __iter__(self) -> Iterator[int]:
        order = shuffled(*self._next(), len(self.indices))
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Shuffled):
    """A sampler of `num_samples` indices of `weights`, in proportion to the weights.

    Without `replacement`, the indices of an epoch differ.  `seed` or `generator` determine them, by default the seed of local random tensors.
    Raises: ArgumentError for weights that are not finite, negative or all zero, or for too few weights other than zero without replacement.
    """

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Any = None, *, seed: int | None = None
    ) -> None:
        super().__init__(seed, generator)
        what = f"WeightedRandomSampler at {user_line()}"
        checks.flags(what, replacement=replacement)
        self.num_samples, self.replacement = checks.whole(what, "num_samples", num_samples, 1), replacement
        self._values = checks.weights(what, weights)
        usable = int(np.count_nonzero(self._values))
        if not replacement and num_samples > usable:
            raise ArgumentError(
                f"{what}: num_samples={num_samples} exceeds the {usable} weights other than zero; pass fewer samples, or replacement=True"
            )

    @property
    def weights(self) -> Tensor:
        """The weights as a float64 tensor."""
        return Tensor(type_of(self._values), None, self._values)

    def __iter__(self) -> Iterator[int]:
        seed, epoch = self._next()
        count = self.num_samples if self.replacement else len(self._values)
        uniform = (_words(seed, epoch, count) >> np.uint64(11)) * 2.0**-53  # in [0, 1)
        if self.replacement:
            sums = self._values.cumsum()
            last = np.flatnonzero(self._values)[-1]  # a product may be rounded up to the sum
            return iter(np.minimum(np.searchsorted(sums, uniform * sums[-1], side="right"), last).tolist())
        arrivals = np.full(count, np.inf)  # of Poisson processes with the weights as rates
        np.divide(-np.log1p(-uniform), self._values, out=arrivals, where=self._values > 0)
        return iter(np.argsort(arrivals, kind="stable")[: self.num_samples].tolist())

    def __len__(self) -> int:
        return self.num_samples


def number_of(samples: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches of `samples` samples."""
    whole, rest = divmod(samples, batch_size)
    return whole + (rest > 0 and not drop_last)


class BatchSampler(Sampler[list[int]]):
    """A sampler of lists of `batch_size` indices from another sampler; a shorter last list is dropped if `drop_last`."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False) -> None:
        what = f"BatchSampler at {user_line()}"
        checks.flags(what, drop_last=drop_last)
        if not hasattr(sampler, "__iter__") and not hasattr(sampler, "__getitem__"):
            raise ArgumentError(f"{what}: sampler must be an iterable of indices; got {sampler!r}")
        self.sampler, self.batch_size, self.drop_last = sampler, checks.whole(what, "batch_size", batch_size, 1), drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return batched(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        return number_of(len(self.sampler), self.batch_size, self.drop_last)


def _permutation(count: int, seed: int) -> list[int]:
    """Return PyTorch's random permutation of `count` indices for this seed: swaps chosen by the 32-bit numbers of a Mersenne Twister."""
    samples = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, max(count - 1, 0), dtype=np.uint32).astype(np.int64)
    partners = samples % np.arange(count, 1, -1) + np.arange(max(count - 1, 0))
    order = list(range(count))
    for i, partner in enumerate(partners.tolist()):
        order[i], order[partner] = order[partner], order[i]
    return order


class DistributedSampler(Sampler[int]):
    """A sampler of this rank's share of the indices; the shares of all ranks have equal size.

    With n = num_replicas, the share has the positions rank, rank + n, rank + 2n ... in the order.  By default, n is the number of ranks of the
    program, and `rank` is this rank.  If n does not divide the number of indices, the order is extended by its first indices, or truncated with
    `drop_last`.  With `shuffle`, the order is random and depends on `seed` and on the epoch passed to `set_epoch`, as in PyTorch.
    Raises: ArgumentError for a `rank` out of range, or for another type of an argument.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        started = launch.launched()
        self.num_replicas = num_replicas if num_replicas is not None else 1 if started is None else started.size
        self.rank = rank if rank is not None else 0 if started is None else started.rank
        for name, value in (("num_replicas", self.num_replicas), ("rank", self.rank), ("seed", seed)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise ArgumentError(f"DistributedSampler at {user_line()}: {name} must be an integer; got {value!r}")
        if not hasattr(dataset, "__len__"):
            raise ArgumentError(f"DistributedSampler at {user_line()}: dataset must have a length; got {dataset!r}")
        for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
            checked_bool("DistributedSampler", name, value)
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
        count = len(self.dataset)
        order = _permutation(count, self.seed + self.epoch) if self.shuffle else list(range(count))
        return (order[i % count] for i in range(self.rank, self.total_size, self.num_replicas))

    def __len__(self) -> int:
        return self.num_samples
