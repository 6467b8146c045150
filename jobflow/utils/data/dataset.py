"""Datasets, which are objects with `len(data)` and `data[i]`, or iterables."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Generic, TypeVar

import numpy as np

from jobflow.core.errors import ArgumentError, user_line
from jobflow.data.sample_order import Order
from jobflow.functional.sampling import Generator
from jobflow.functional.tensor_class import Tensor
from jobflow.utils.data import checks

Sample = TypeVar("Sample", covariant=True)


class Dataset(Generic[Sample]):
    """A dataset with samples by index.  Subclasses define `__getitem__` and `__len__`; functions for datasets accept plain sequences, too."""

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Sample]):
    """A stream of samples.  Subclasses define `__iter__`."""

    def __iter__(self) -> Iterator[Sample]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class ChainDataset(IterableDataset[Any]):
    """A stream of the samples of several streams, one after another.  Raises: ArgumentError for a dataset that is not an IterableDataset."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        what = f"ChainDataset at {user_line()}"
        self.datasets = checks.listed(what, "datasets", datasets)
        other = next((each for each in self.datasets if not isinstance(each, IterableDataset)), None)
        if other is not None:
            raise ArgumentError(f"{what}: datasets must contain only IterableDatasets; got a {type(other).__name__}; use ConcatDataset")

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        return sum(len(each) for each in self.datasets)


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """A dataset of rows of tensors; sample i is the tuple of row i of each tensor.

    Raises: ArgumentError without tensors, for other objects, for a tensor without axes, or for different numbers of rows.

    Examples:
        >>> data = flow.utils.data.TensorDataset(flow.zeros(10, 3), flow.arange(10))
        >>> x, y = data[4]
        >>> x.shape, y
        (jobflow.Size([3]), tensor(4, dtype=jobflow.int64))
    """

    def __init__(self, *tensors: Tensor) -> None:
        what = f"TensorDataset at {user_line()}"
        other = next((x for x in tensors if not isinstance(x, Tensor)), None)
        if other is not None:
            raise ArgumentError(f"{what}: the arguments must be tensors; got a {type(other).__name__}; convert it with flow.tensor")
        sizes = [x.tensor_type.shape[:1] for x in tensors]
        if not tensors or len(set(sizes)) > 1 or not sizes[0]:
            raise ArgumentError(f"{what}: the tensors must have the same number of rows; got {[list(x.tensor_type.shape) for x in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(x[index] for x in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].tensor_type.shape[0]


class StackDataset(Dataset[Any]):
    """A dataset whose sample i contains sample i of each dataset: a tuple, or a dict for datasets passed by name.

    Raises: ArgumentError without datasets, for datasets by position and by name together, or for different lengths.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        what = f"StackDataset at {user_line()}"
        if bool(args) == bool(kwargs):
            raise ArgumentError(f"{what}: pass datasets either by position or by name; got {len(args)} by position and {len(kwargs)} by name")
        self.datasets: Any = args or kwargs
        sizes = [checks.length(what, "each dataset", each) for each in (args or kwargs.values())]
        if len(set(sizes)) > 1:
            raise ArgumentError(f"{what}: the datasets must have the same length; got {sizes}")
        self._size = sizes[0]

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: each[index] for name, each in self.datasets.items()}
        return tuple(each[index] for each in self.datasets)

    def __len__(self) -> int:
        return self._size


class ConcatDataset(Dataset[Any]):
    """A dataset of the samples of all `datasets`, in order; `cumulative_sizes` are the positions after each dataset.

    Raises: ArgumentError without datasets, or for a dataset without length.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        what = f"ConcatDataset at {user_line()}"
        self.datasets = checks.listed(what, "datasets", datasets)
        if not self.datasets:
            raise ArgumentError(f"{what}: datasets must contain at least one dataset")
        if any(isinstance(each, IterableDataset) for each in self.datasets):
            raise ArgumentError(f"{what}: an IterableDataset has no samples by index; use ChainDataset")
        self.cumulative_sizes = list(accumulate(checks.length(what, "each dataset", each) for each in self.datasets))

    def __getitem__(self, index: int) -> Any:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"ConcatDataset: sample {index} is out of range for {len(self)} samples")
        which = bisect_right(self.cumulative_sizes, number)
        return self.datasets[which][number - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class Subset(Dataset[Any]):
    """A dataset whose sample i is dataset[indices[i]]; for a list of indices, the dataset receives a list."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = checks.listed(f"Subset at {user_line()}", "indices", indices)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[[self.indices[i] for i in index] if isinstance(index, list) else self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[float], generator: Generator | None = None, *, seed: int | None = None) -> list[Subset]:
    """Return disjoint subsets of a dataset with the sizes `lengths`, or with fractions of the dataset that add up to 1.

    Fractions are rounded down; the first subsets have one of the remaining samples each.  The samples are in a random order, which depends only
    on the size of the dataset, and on `seed` (0 by default) or `generator`.
    Raises: ArgumentError unless the lengths add up to the size of the dataset.
    """
    what = f"random_split at {user_line()}"
    checks.generator(what, generator, seed)
    size = checks.length(what, "dataset", dataset)
    sizes = _sizes(what, checks.listed(what, "lengths", lengths), size)
    key, epoch = (seed or 0, 0) if generator is None else (generator.core.seed, generator.core.next())
    order = Order(key, size).indices(epoch, 0, size).tolist()
    return [Subset(dataset, order[stop - length : stop]) for stop, length in zip(accumulate(sizes), sizes, strict=True)]


def _sizes(what: str, lengths: list[Any], size: int) -> list[int]:
    """Return the sizes of the subsets of `size` samples from sizes or fractions."""
    if any(isinstance(each, bool) or not isinstance(each, int | float | np.integer | np.floating) or not each >= 0 for each in lengths):
        raise ArgumentError(f"{what}: lengths must be numbers of samples, or fractions that add up to 1; got {lengths}")
    if math.isclose(sum(lengths), 1):
        sizes = [math.floor(size * each) for each in lengths]
        for i in range(size - sum(sizes)):
            sizes[i % len(sizes)] += 1
        return sizes
    if sum(lengths) != size or any(each != int(each) for each in lengths):
        raise ArgumentError(f"{what}: lengths {lengths} add up to {sum(lengths)}, but the dataset has {size} samples; pass lengths that add up to it")
    return [int(each) for each in lengths]
