"""Lazy arguments of jobs: each rank reads only its own part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from jobflow.core.types import Array


class Lazy(ABC):
    """An array of at least one axis that is read as far as it is asked for; `value[slices]` is an ndarray.

    Under several clients each rank asks for its own part of an argument, so most of it is never read in a process.  Clients compare
    `fingerprint` instead of content: two that are equal stand for equal arrays.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What it stands for: equal texts, equal content."""

    @abstractmethod
    def part(self, slices: tuple[slice, ...]) -> Array:
        """The elements of these slices, one for each axis, with bounds inside the shape and steps of 1."""

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Array:
        given = key if isinstance(key, tuple) else (key,)
        whole = (slice(None),) * (len(self.shape) - len(given))
        bounds = [s.indices(n)[:2] for s, n in zip((*given, *whole), self.shape, strict=True)]
        return self.part(tuple(slice(a, max(a, b)) for a, b in bounds))

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self[:]
        return found if dtype is None else found.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<{self.dtype}[{','.join(map(str, self.shape))}] to be read>"


class Rows(Lazy):
    """Some rows of a lazy array."""

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
    """An argument with all that is lazy in it read: an array, or a list of them."""
    if isinstance(value, Lazy):
        return value[:]
    return [whole(each) for each in value] if isinstance(value, list) else value


def is_lazy(value: Any) -> bool:
    """True for a lazy array, and for a list with one in it."""
    return isinstance(value, Lazy) or (isinstance(value, list) and any(isinstance(each, Lazy) for each in value))
