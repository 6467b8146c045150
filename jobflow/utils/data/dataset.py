"""Datasets, which are objects with `len(data)` and `data[i]`, or iterables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

from jobflow.core.errors import ArgumentError, user_line
from jobflow.data.sample_order import Order
from jobflow.functional.tensor_class import Tensor

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


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """A dataset of rows of tensors; sample i is the tuple of row i of each tensor.

    Raises: ArgumentError without tensors, for a tensor without axes, or for different numbers of rows.
    """

    def __init__(self, *tensors: Tensor) -> None:
        sizes = [x.tensor_type.shape[:1] for x in tensors]
        if not tensors or len(set(sizes)) > 1 or not sizes[0]:
            raise ArgumentError(
                f"TensorDataset at {user_line()}: the tensors must have the same number of rows; got {[list(x.tensor_type.shape) for x in tensors]}"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(x[index] for x in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].tensor_type.shape[0]


class ConcatDataset(Dataset[Any]):
    """A dataset of the samples of all `datasets`, in order."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        self.stops = list(accumulate(len(each) for each in self.datasets))

    def __getitem__(self, index: int) -> Any:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"ConcatDataset: sample {index} is out of range for {len(self)} samples")
        which = bisect_right(self.stops, number)
        return self.datasets[which][number - (self.stops[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.stops[-1] if self.stops else 0


class Subset(Dataset[Any]):
    """A dataset whose sample i is dataset[indices[i]]."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = list(indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[int], seed: int = 0) -> list[Subset]:
    """Return disjoint subsets of a dataset with the sizes `lengths`.

    The samples are in a random order, which depends only on `seed` and the size of the dataset.
    Raises: ArgumentError unless the lengths add up to the size of the dataset.
    """
    if sum(lengths) != len(dataset):
        raise ArgumentError(
            f"random_split at {user_line()}: lengths {list(lengths)} add up to {sum(lengths)}, but the dataset has {len(dataset)} samples"
        )
    order, stops = Order(seed, len(dataset)).indices(0, 0, len(dataset)).tolist(), list(accumulate(lengths))
    return [Subset(dataset, order[stop - length : stop]) for stop, length in zip(stops, lengths, strict=True)]
