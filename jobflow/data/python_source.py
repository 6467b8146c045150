"""The reader "python", for the result of a Python function: a sequence of samples, or a stream."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DataError, JobflowError
from jobflow.core.imports import IMPORT_PATH, ImportFailedError, function_named
from jobflow.core.types import Array
from jobflow.data.samples import Columns, Field, Samples, Stream
from jobflow.data.stacking import fields_of, stacked
from jobflow.data.waiting import at, one_by_one

WHAT = 'reader "python"'
_END = object()


def python_source(function: str, arguments: dict[str, Any] | None = None, names: list[str] | None = None) -> Samples | Stream:
    """Return the samples of a Python `function`, "module:name", called with `arguments`.

    A dict of arrays is a table with one sample per row. The elements of an object with `len` and `[i]` are samples. Another iterable is a
    stream: the function is called again for each epoch, with the epoch as `epoch` if it has that parameter. A sample is a dict of arrays and
    numbers by field, a tuple, or a single array; `names` sets the fields of tuples and arrays.
    """
    if not re.fullmatch(IMPORT_PATH, function):
        raise ArgumentError(f'{WHAT}: function is "{function}"; write "module:function"')
    try:
        source = function_named(function)
    except ImportFailedError as error:
        raise ArgumentError(f"{WHAT}: {error}") from error.__cause__
    keywords = dict(arguments or {})
    counts = "epoch" not in keywords and "epoch" in inspect.signature(source).parameters
    what = f"{WHAT}: {function}"

    def make(epoch: int) -> Any:
        with calling(what):
            return source(**keywords, epoch=epoch) if counts else source(**keywords)

    return samples_of(make(0), names, what, make)


def samples_of(data: Any, names: Sequence[str] | None = None, what: str = "samples", again: Callable[[int], Any] | None = None) -> Samples | Stream:
    """Convert a dict of arrays, a sequence of samples, or an iterable, which becomes a stream; return samples and streams unchanged.

    `names` sets the fields of samples that are tuples or single arrays. `again(epoch)` returns the iterable for an epoch. `what` names the samples in
    messages.
    Raises: DataError for an object of another type, or without samples.
    """
    if isinstance(data, Samples | Stream):
        return data
    if isinstance(data, Mapping):
        return Columns({str(name): _array(column, f'{what}, field "{name}"') for name, column in data.items()}, what=what)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Listed(data, names, what)
    if isinstance(data, Iterable):
        return Iterated(data, names, what, again)
    raise DataError(f"{what} is a {type(data).__name__}; return a dict of arrays, a sequence of samples, or an iterable")


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Convert exceptions of user code in the block to errors that name the samples `what`."""
    try:
        yield
    except JobflowError:
        raise
    except Exception as error:
        raise DataError(f"{what}: {type(error).__name__}: {error}") from error


class Listed(Samples):
    """Samples from the elements of a sequence, read one at a time."""

    whole = True

    def __init__(self, data: Any, names: Sequence[str] | None, what: str) -> None:
        self._data, self._names, self.what, self._lock = data, names, what, threading.Lock()
        if not len(data):
            raise DataError(f"{what}: there are no samples")
        super().__init__(fields_of(self._sample(0), f"{what}: sample 0"), len(data))

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        sample_numbers = numbers.tolist()
        with self._lock:  # a user's sequence need not be thread-safe
            samples = [self._sample(number) for _, number in one_by_one(numbers.tolist(), "sample {}".format)]
        return stacked(samples, self.fields, names, f"{self.what}: sample", sample_numbers)

    def _sample(self, number: int) -> Mapping[str, Any]:
        what = f"{self.what}: sample {number}"
        with calling(what):
            sample = self._data[number]
        return _named(sample, self._names, what)


class Iterated(Stream):
    """A stream of the elements of an iterable."""

    def __init__(self, data: Iterable[Any], names: Sequence[str] | None, what: str, again: Callable[[int], Any] | None) -> None:
        self.what, self._names, self._again = what, names, again
        self._once: Iterator[Any] | None = None
        self._data: Iterable[Any] = data
        with calling(f"{what}: sample 0"):
            first = iter(data)
            sample = next(first, None)
        if sample is None:
            raise DataError(f"{what}: there are no samples")
        self.fields: Mapping[str, Field] = fields_of(_named(sample, names, f"{what}: sample 0"), f"{what}: sample 0")
        if first is data and again is None:
            self._once = _chained(sample, first)

    def samples(self, epoch: int) -> Iterator[Mapping[str, Array]]:
        elements, number = iter(self._elements(epoch)), 0
        while True:
            where = f"epoch {epoch}, sample {number}"
            what = f"{self.what}: {where}"
            at(partial(str, where))
            with calling(what):
                sample = next(elements, _END)
            if sample is _END:
                return
            yield _named(sample, self._names, what)
            number += 1

    def _elements(self, epoch: int) -> Iterable[Any]:
        if self._again is not None:
            return self._again(epoch)
        if self._data is not iter(self._data):
            return self._data
        if self._once is None:
            raise DataError(f"{self.what}: an iterator supports one epoch only; pass a function that creates it, or a sequence")
        once, self._once = self._once, None
        return once


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _named(sample: Any, names: Sequence[str] | None, what: str) -> Mapping[str, Any]:
    if isinstance(sample, Mapping):
        return sample
    entries = sample if isinstance(sample, tuple | list) else (sample,)
    if names is None:
        raise DataError(f"{what} is a {type(sample).__name__}; return dicts by field, or set names for its {len(entries)} entries")
    if len(entries) != len(names):
        raise DataError(f"{what} has {len(entries)} entries, but names are {list(names)}; pass one name per entry")
    return dict(zip(names, entries, strict=True))


def _array(column: Any, what: str) -> Array:
    try:
        array = np.asarray(column)
    except ValueError as error:  # rows of different lengths
        raise DataError(f"{what} is not an array of numbers: {error}; all rows must have equal shapes") from None
    if array.dtype.kind in "OUSMm" or not array.ndim:
        raise DataError(f"{what} is {array.dtype} of shape {list(array.shape)}; return an array of numbers with one row per sample")
    return array
