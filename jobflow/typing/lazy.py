"""Lazy arguments of jobs: arrays, for example in files, from which each rank reads only its shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from jobflow.core.types import Array


class Lazy(ABC):
    """An array of at least one axis that is read on demand; `value[slices]` is an ndarray.

    With several clients, each rank reads only its shard of an argument.  Clients compare `fingerprint` instead of the content: equal fingerprints
    mean equal arrays.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A string that identifies the content: arrays with equal fingerprints are equal."""

    @abstractmethod
    def part(self, slices: tuple[slice, ...]) -> Array:
        """Read the elements of these slices, one slice per axis, with bounds inside the shape and steps of 1."""

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Array:
        keys = key if isinstance(key, tuple) else (key,)
        whole = (slice(None),) * (len(self.shape) - len(keys))
        bounds = [s.indices(n)[:2] for s, n in zip((*keys, *whole), self.shape, strict=True)]
        return self.part(tuple(slice(a, max(a, b)) for a, b in bounds))

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self[:]
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<{self.dtype}[{','.join(map(str, self.shape))}] to be read>"


class Rows(Lazy):
    """A lazy array of the rows from `start` to `stop` (exclusive) of another lazy array."""

    def __init__(self, value: Lazy, start: int, stop: int) -> None:
        self.shape, self.dtype = (stop - start, *value.shape[1:]), value.dtype
        self._value, self._start = value, start

    @property
    def fingerprint(self) -> str:
        return f"{self._value.fingerprint}[{self._start}:{self._start + self.shape[0]}]"

    def part(self, slices: tuple[slice, ...]) -> Array:
        rows, *others = slices
        return self._value.part((slice(rows.start + self._start, rows.stop + self._start), *others))


def whole(value: Any) -> Any:
    """Return `value` (an array or a list of arrays) with every lazy array replaced by the array read from it."""
    if isinstance(value, Lazy):
        return value[:]
    return [whole(each) for each in value] if isinstance(value, list) else value


def is_lazy(value: Any) -> bool:
    """Return True for a lazy array or a list that contains a lazy array."""
    return isinstance(value, Lazy) or (isinstance(value, list) and any(isinstance(each, Lazy) for each in value))
