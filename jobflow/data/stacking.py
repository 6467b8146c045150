"""Functions that stack single samples into arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.errors import DataError, did_you_mean
from jobflow.core.types import Array, float32
from jobflow.data.conversion import converted
from jobflow.data.samples import Field, own_dtype


def fields_of(sample: Mapping[str, Any], what: str) -> dict[str, Field]:
    """Return the fields of a sample (Python floats are float32, ints int64); raise DataError unless `sample` is a non-empty mapping."""
    if not isinstance(sample, Mapping) or not sample:
        raise DataError(f"{what} is {_shown(sample)}; samples must be dicts of arrays or numbers, by field")
    return {str(name): field_of(value, partial('{}, field "{}"'.format, what, name)) for name, value in sample.items()}


def stacked(
    samples: Sequence[Mapping[str, Any]], fields: Mapping[str, Field], names: Sequence[str], what: str, numbers: Sequence[int]
) -> dict[str, Array]:
    """Stack samples into one array per field; `what` and the sample number identify a sample in messages."""
    for row, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise DataError(f"{what} {numbers[row]} is {_shown(sample)}; samples must be dicts of arrays or numbers, by field")
        for name in names:
            if name not in sample:
                near, present = did_you_mean(name, map(str, sample)) or ".", ", ".join(map(str, sample))
                raise DataError(f'{what} {numbers[row]} has no field "{name}"{near} It has {present}.')
    return {name: stack([sample[name] for sample in samples], fields[name], partial(_place, what, numbers, name)) for name in names}


def _place(what: str, numbers: Sequence[int], name: str, row: int) -> str:
    return f'{what} {numbers[row]}, field "{name}"'


def stack(values: Sequence[Any], field: Field, what: Callable[[int], str]) -> Array:
    """Stack the values of one field into an array; `what(row)` describes a value in messages."""
    rows = np.empty((len(values), *field.shape), field.dtype.numpy)
    for row, value in enumerate(values):
        array = _array(value, what, row)
        if array.shape != field.shape:
            text = f"has shape {list(array.shape)}, but the first sample has {list(field.shape)}; all samples must have equal shapes"
            raise DataError(f"{what(row)} {text}")
        if array.dtype != rows.dtype and not np.can_cast(array.dtype, rows.dtype, "same_kind"):
            raise DataError(f"{what(row)} is {array.dtype}, but {field.dtype.name} in the first sample; all samples must have equal types")
        rows[row] = converted(array, rows.dtype, partial(_same_place, what, row), "convert all samples to a type that can represent all values")
    return rows


def _same_place(what: Callable[[int], str], row: int, index: tuple[int, ...]) -> str:
    return what(row)


def field_of(value: Any, what: Callable[[int], str]) -> Field:
    """Return the shape and element type of a field from its first value; Python floats are float32, ints int64."""
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Field((), float32)
    array = _array(value, what, 0)
    return Field(array.shape, own_dtype(array.dtype, what(0)))


def _array(value: Any, what: Callable[[int], str], row: int) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{what(row)} is not an array: {error}") from None
    if array.dtype.kind in "OUSMm":
        raise DataError(f"{what(row)} is {_shown(value)}; convert it to numbers")
    return array


def _shown(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__}: {text if len(text) < 60 else text[:57] + '...'}"
