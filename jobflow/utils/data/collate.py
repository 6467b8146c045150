"""Collation of samples into batches: numbers are stacked, entries of tuples and dicts are batched one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DataError, ShapeError, user_line
from jobflow.core.types import Array, bool_, dtype_of, float32, int64, type_of
from jobflow.data.conversion import converted, is_number
from jobflow.functional.tensor_class import Tensor
from jobflow.ops.slices import Concat
from jobflow.tensors.gpus import as_numpy
from jobflow.tensors.run import run

ADVICE = "convert it, or pass collate_fn="
#: per kind of sample, its classes; the first match counts, because NumPy's strings are also NumPy scalars
KINDS: dict[str, Any] = {
    "text": str | bytes,
    "numbers": Tensor | np.ndarray | np.generic | bool | int | float,
    "fields": Mapping,
    "entries": Sequence,
}


def default_collate(samples: Sequence[Any]) -> Any:
    """Return a batch of samples.

    Arrays, tensors and numbers are stacked along a new first axis, and strings are returned as a list.  Tuples, lists and dicts are batched entry by
    entry.  Python numbers become bool, int64 or float32; arrays are converted to their common type.
    Raises: ArgumentError for an empty batch, samples of different structure, or a type or value that a batch cannot have.  Arrays of different
    shapes raise ShapeError.
    """
    what = f"default_collate at {user_line()}"
    if _kind(samples) not in ("entries", "numbers") or not hasattr(samples, "__len__") or getattr(samples, "ndim", 1) == 0:
        raise ArgumentError(f"{what}: the batch must be a list of samples; got {_described(samples)}")
    if not len(samples):
        raise ArgumentError(f"{what}: the batch has no samples; leave out empty batches, or pass collate_fn=")
    return _collated(list(samples), "")


def rebuilt(first: Any, entries: Sequence[Any]) -> Any:
    """Return `entries` as a namedtuple or list of the class of `first`; other tuples become plain tuples, and other sequences lists."""
    if hasattr(first, "_fields"):
        return type(first)(*entries)
    if isinstance(first, tuple):
        return tuple(entries)
    return type(first)(entries) if isinstance(first, list) else list(entries)


def with_values(first: Mapping[Any, Any], values: Mapping[Any, Any]) -> Any:
    """Return `values` as a mapping of the class of `first`, or as a dict if `first` is immutable."""
    if type(first) is dict or not isinstance(first, MutableMapping):
        return dict(values)
    result = copy.copy(first)
    result.update(values)
    return result


def _kind(sample: Any) -> str:
    return next((kind for kind, classes in KINDS.items() if isinstance(sample, classes)), "")


def _collated(samples: list[Any], entry: str) -> Any:
    """Return the batch of `samples`, which are the entries `entry` of the loader's samples, such as `["x"][0]`."""
    first, kind = samples[0], _kind(samples[0])
    for row, sample in enumerate(samples):
        if not _kind(sample) or isinstance(sample, np.ma.MaskedArray):
            raise _error(row, entry, f"is {_described(sample)}; a sample must be a number, array, string, list, tuple or dict; {ADVICE}")
        if _kind(sample) != kind:
            raise _error(
                row, entry, f"is {_described(sample)}, and sample 0 is {_described(first)}; give all samples one structure, or pass collate_fn="
            )
    if kind == "text":
        return samples
    if kind == "fields":
        _check_same(samples, entry, "fields", Mapping.keys)
        return with_values(first, {key: _collated([sample[key] for sample in samples], f"{entry}[{key!r}]") for key in first})
    if kind == "entries":
        _check_same([x for x in samples if hasattr(x, "_fields")], entry, "fields", lambda x: x._fields)
        _check_same(samples, entry, "entries", len)
        return rebuilt(first, [_collated(list(column), f"{entry}[{i}]") for i, column in enumerate(zip(*samples, strict=True))])
    if any(isinstance(x, Tensor) and (x.layout is not None or x.traced is not None) for x in samples):
        return _joined(samples, entry)
    return as_tensor(_stacked(samples, entry))


def _check_same(samples: Sequence[Any], entry: str, noun: str, property: Callable[[Any], Any]) -> None:
    """Raise ArgumentError for the first sample whose `property` differs from sample 0; `noun` names the property in the message."""
    for row, sample in enumerate(samples):
        own, expected = property(sample), property(samples[0])
        if own != expected:
            shown = [f"{each} {noun}" if isinstance(each, int) else f"the {noun} {', '.join(map(str, each))}" for each in (own, expected)]
            raise _error(row, entry, f"has {shown[0]}, and sample 0 has {shown[1]}; give all samples one structure, or pass collate_fn=")


def _error(row: int, entry: str, text: str, kind: type[ArgumentError] = ArgumentError) -> ArgumentError:
    error = kind(f"default_collate at {user_line()}: sample {row} of the batch{entry} {text}")
    error.row = row
    return error


def _described(x: Any) -> str:
    text = repr(x)
    return f"a value of type {type(x).__name__}" if len(text) > 40 or isinstance(x, np.ndarray) else f"{text} of type {type(x).__name__}"


def _joined(samples: Sequence[Any], entry: str) -> Any:
    """Return global or traced tensors, stacked along a new first axis; raise ArgumentError if one of the samples is local."""
    for row, x in enumerate(samples):
        if not isinstance(x, Tensor) or (x.layout is None and x.traced is None):
            raise _error(row, entry, "is not a global tensor, but other samples are global tensors; convert each sample with to_global")
    return run(Concat(0), *(x.unsqueeze(0) for x in samples))


def _stacked(samples: Sequence[Any], entry: str) -> Array:
    """Convert numbers and arrays to their common type, and stack them along a new first axis."""
    arrays = [as_numpy(x.array) if isinstance(x, Tensor) else np.asarray(x) for x in samples]
    for row, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            text = f"the samples of a batch have the shapes {arrays[0].shape} and {array.shape}; pad them, or pass collate_fn="
            error = ShapeError(f"default_collate at {user_line()}: {text}")
            error.row = row
            raise error
    dtype = _common([x if type(x) in (bool, int, float) else array.dtype for x, array in zip(samples, arrays, strict=True)])
    if all(array.dtype == dtype for array in arrays):
        return np.stack(arrays)
    return np.stack([_converted(array, dtype, row, entry) for row, array in enumerate(arrays)])


def _common(types: Sequence[Any]) -> np.dtype[Any]:
    """Return the common element type of NumPy types and Python numbers, independent of their order.

    Raises: ArgumentError for integer types without a common integer type.
    """
    typed = list({each for each in types if isinstance(each, np.dtype)})
    kinds = {type(each) for each in types} & {bool, int, float}
    dtype: np.dtype[Any] = np.result_type(*typed) if typed else bool_.numpy
    if len(typed) > 1 and dtype.kind == "f" and all(each.kind in "iu" for each in typed):
        raise ArgumentError(f"default_collate at {user_line()}: no integer type can represent {' and '.join(sorted(map(str, typed)))}; {ADVICE}")
    if float in kinds and dtype.kind in "biu":
        return float32.numpy
    return int64.numpy if int in kinds and dtype.kind == "b" else dtype


def _converted(array: Array, dtype: np.dtype[Any], row: int, entry: str) -> Array:
    """Convert `array` to the element type `dtype` of the batch; raise ArgumentError for a value that the type cannot represent.

    `array` is the entry `entry` of the sample at position `row` of the batch.
    """
    what = f"sample {row} of the batch{entry}"
    try:
        if array.dtype.kind == "O" and isinstance(array[()], int):
            raise DataError(f"{what} is {array[()]}, which is beyond int64; {ADVICE}")
        if not is_number(array.dtype):
            raise DataError(f"{what} is of type {array.dtype}; {ADVICE}")
        return converted(array, dtype, lambda index: what, ADVICE)
    except DataError as error:
        located = ArgumentError(f"default_collate at {user_line()}: {error}")
        located.row = row
        raise located from None


def as_tensor(array: Array, what: str = "default_collate") -> Tensor:
    """Return a local tensor that shares the memory of an array; raise ArgumentError if tensors do not support its element type."""
    try:
        dtype_of(array.dtype)
    except (KeyError, TypeError):
        raise ArgumentError(f"{what} at {user_line()}: tensors cannot have the element type {array.dtype}; {ADVICE}") from None
    return Tensor(type_of(array), None, array)


def default_convert(data: Any) -> Any:
    """Return a sample with all NumPy arrays and numbers, also in nested dicts, lists and tuples, replaced by local tensors.

    The tensors share the memory of the arrays.  Arrays of text or Python objects are unchanged.
    Raises: ArgumentError for another array whose element type tensors do not support.
    """
    if isinstance(data, np.ndarray | np.generic) and not isinstance(data, str | bytes):
        array = np.asarray(data)
        return data if array.dtype.kind in "OSU" else as_tensor(array, "default_convert")
    if isinstance(data, Mapping):
        return with_values(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | range):
        return rebuilt(data, [default_convert(entry) for entry in data])
    return data
