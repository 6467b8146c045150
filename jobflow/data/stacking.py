"""Single samples as rows of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import DataError, did_you_mean
from jobflow.core.types import Array, float32
from jobflow.data.samples import Field, own_dtype


def fields_of(sample: Mapping[str, Any], what: str) -> dict[str, Field]:
    """The fields that a sample has; Python's floats are float32, its ints int64."""
    if not isinstance(sample, Mapping) or not sample:
        raise DataError(f"{what} is {_shown(sample)}; samples are dicts of arrays or numbers, by field")
    return {str(name): _field(value, f'{what}, field "{name}"') for name, value in sample.items()}


def _field(value: Any, what: str) -> Field:
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Field((), float32)
    array = _array(value, what)
    return Field(array.shape, own_dtype(array.dtype, what))


def _array(value: Any, what: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{what} is no array: {error}") from None
    if array.dtype.kind in "OUSMm":
        raise DataError(f"{what} is {_shown(value)}; make numbers of it")
    return array


def stacked(
    samples: Sequence[Mapping[str, Any]], fields: Mapping[str, Field], names: Sequence[str], what: str, numbers: Sequence[int]
) -> dict[str, Array]:
    """Rows of samples; `what` and a number name one that does not fit."""
    found = {name: np.empty((len(samples), *fields[name].shape), fields[name].dtype.numpy) for name in names}
    for row, sample in enumerate(samples):
        for name in names:
            found[name][row] = _value(sample, name, fields, f"{what} {numbers[row]}")
    return found


def _value(sample: Mapping[str, Any], name: str, fields: Mapping[str, Field], what: str) -> Any:
    if not isinstance(sample, Mapping):
        raise DataError(f"{what} is {_shown(sample)}; samples are dicts of arrays or numbers, by field")
    if name not in sample:
        raise DataError(f'{what} has no field "{name}"{did_you_mean(name, map(str, sample)) or "."} It has {", ".join(map(str, sample))}.')
    field, value = fields[name], sample[name]
    array = _array(value, f'{what}, field "{name}"')
    if array.shape != field.shape:
        raise DataError(f'{what}, field "{name}" has the shape {list(array.shape)}, the first sample {list(field.shape)}; all samples have one shape')
    if not np.can_cast(array.dtype, field.dtype.numpy, "same_kind"):
        raise DataError(f'{what}, field "{name}" is {array.dtype}, in the first sample {field.dtype.name}; all samples have one type')
    return array


def _shown(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__}: {text if len(text) < 60 else text[:57] + '...'}"
