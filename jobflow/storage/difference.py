"""Comparison of two checkpoints tensor by tensor, with at most two tensors in memory.

The absolute difference is max |a - b|, the relative difference max |a - b| / max(|a|, |b|), both over unequal elements. Two NaN are equal; the
difference of a NaN and a number is infinite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.core import filters
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, did_you_mean, patterns_like
from jobflow.storage.checkpoint_reader import Checkpoint, Stored

Array = np.ndarray[Any, Any]
#: elements converted to float64 at a time
BLOCK = 2**20


@dataclass(frozen=True)
class Difference:
    """A difference between two checkpoints in the tensor `name`.

    `first` and `second` are the types, None if the tensor is missing. `unequal` counts the differing elements if the types are equal.
    """

    name: str
    first: str | None
    second: str | None
    unequal: int = 0
    absolute: float = 0.0
    relative: float = 0.0

    @property
    def of_type(self) -> bool:
        """True if the tensor is missing in one checkpoint, or if the types differ; its elements were not compared."""
        return self.first != self.second


def selected(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the names that match any pattern, such as `encoder*` or `*-m`; raise CheckpointError for a pattern without a match."""
    values = dict.fromkeys(names)
    if (pattern := filters.unmatched(patterns, values)) is not None:
        raise CheckpointError(f'no tensor matches "{pattern}"{did_you_mean(pattern, patterns_like(pattern, values))}')
    return list(filters.selected(patterns, values))


def type_text(stored: Stored) -> str:
    """Return the type as a string, such as `float32[2,3]`; the legacy type char is shown as int8."""
    type = stored.type
    return f"{type.dtype.numpy.name}[{','.join(map(str, type.shape))}]"


def differences(
    first: Checkpoint, second: Checkpoint, patterns: Sequence[str] = ("*",), *, rtol: float = 0.0, atol: float = 0.0
) -> Iterator[Difference]:
    """Yield a difference for every unequal tensor, in the order of `first`; without tolerances the comparison is bitwise.

    With tolerances, elements are equal if |a - b| <= atol + rtol max(|a|, |b|).
    Raises: CheckpointError if a tensor is damaged.
    """
    for name in selected(patterns, [*first, *(name for name in second if name not in first)]):
        a, b = (type_text(side.stored[name]) if name in side else None for side in (first, second))
        difference = Difference(name, a, b) if a != b else _between(name, a, first[name], second[name], rtol, atol)
        if difference is not None:
            yield difference


def _between(name: str, type: str | None, a: Array, b: Array, rtol: float, atol: float) -> Difference | None:
    unequal, absolute, relative = 0, 0.0, 0.0
    x, y = a.reshape(-1), b.reshape(-1)
    for start in range(0, x.size, BLOCK):
        n, more, ratio = _block(x[start : start + BLOCK], y[start : start + BLOCK], rtol, atol)
        unequal, absolute, relative = unequal + n, max(absolute, more), max(relative, ratio)
    return Difference(name, type, type, unequal, absolute, relative) if unequal else None


def _block(x: Array, y: Array, rtol: float, atol: float) -> tuple[int, float, float]:
    """Return the number of differing elements, the largest absolute and the largest relative difference."""
    differ = np.flatnonzero((_bits(x) != _bits(y)).any(axis=1))
    if not differ.size:
        return 0, 0.0, 0.0
    x, y = x[differ], y[differ]
    absolute, scale = _distance(x, y)
    far = absolute > atol + rtol * scale if rtol or atol else np.ones(x.shape, bool)
    if not far.any():
        return 0, 0.0, 0.0
    absolute, scale = absolute[far], scale[far]
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(absolute == 0, 0.0, np.where(np.isfinite(absolute), absolute / scale, np.inf))
    return int(far.sum()), float(absolute.max()), float(relative.max())


def _bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8).reshape(x.size, x.dtype.itemsize)


def _distance(x: Array, y: Array) -> tuple[Array, Array]:
    """Return |x - y| and max(|x|, |y|) as float64; integers are subtracted as integers, so that large integers keep all digits."""
    if x.dtype.kind in "iu":
        wide = np.uint64 if x.dtype.kind == "u" else np.int64
        high, low = np.maximum(x, y).astype(wide), np.minimum(x, y).astype(wide)
        return (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64), np.maximum(abs(high.astype(np.float64)), abs(low.astype(np.float64)))
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        absolute = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, abs(x - y))
    absolute[np.isnan(absolute)] = np.inf
    return absolute, np.fmax(abs(x), abs(y))


def extra_differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, first value, second value) for every unequal leaf of two JSON trees; None stands for a missing leaf."""
    for key in [*first, *(key for key in second if key not in first)]:
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from extra_differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}", a, b
