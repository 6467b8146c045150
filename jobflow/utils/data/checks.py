"""Checks of the arguments of loaders, samplers and datasets."""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing import get_all_start_methods
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError
from jobflow.core.types import Array
from jobflow.functional.sampling import Generator
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.state import state

#: the largest seed of a worker, before its number is added
MASK = (1 << 62) - 1


def flags(what: str, **named: Any) -> None:
    """Raise ArgumentError unless each value is True or False."""
    for name, value in named.items():
        if type(value) is not bool:
            raise ArgumentError(f"{what}: {name} must be True or False; got {value!r}")


def callables(what: str, **named: Any) -> None:
    """Raise ArgumentError unless each value is callable or None."""
    for name, value in named.items():
        if value is not None and not callable(value):
            raise ArgumentError(f"{what}: {name} must be a function or None; got {value!r}")


def whole(what: str, name: str, value: Any, least: int) -> int:
    """Return the integer `value`; raise ArgumentError for another type, or below `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise ArgumentError(f"{what}: {name} must be an int >= {least}; got {value!r}")
    result: int = value.__index__()
    return result


def generator(what: str, value: Any, seed: Any = None) -> None:
    """Raise ArgumentError unless `value` is a Generator or None, `seed` an integer or None, and at least one of them None."""
    if value is not None and not isinstance(value, Generator):
        raise ArgumentError(f"{what}: generator must be a jobflow.Generator or None; got {value!r}; pass an integer as seed=")
    if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__")):
        raise ArgumentError(f"{what}: seed must be an integer or None; got {seed!r}")
    if value is not None and seed is not None:
        raise ArgumentError(f"{what}: pass either generator or seed={seed}, not both")


def length(what: str, name: str, value: Any) -> int:
    """Return len(value); raise ArgumentError for an object without length."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        raise ArgumentError(f"{what}: {name} must have a length; got {type(value).__name__}") from None


def listed(what: str, name: str, value: Any) -> list[Any]:
    """Return list(value); raise ArgumentError for a string or an object that is not iterable."""
    if isinstance(value, str | bytes) or not (isinstance(value, Iterable) or hasattr(value, "__getitem__")):
        raise ArgumentError(f"{what}: {name} must be a sequence; got {value!r}")
    try:
        return list(value)
    except TypeError:  # such as an array without axes
        raise ArgumentError(f"{what}: {name} must be a sequence; got {value!r}") from None


def seed(generator: Generator | None, epoch: int) -> int:
    """Return the seed of worker 0 in an epoch, from the generator, or from the seed of local random tensors."""
    own = state().local_generator.seed if generator is None else generator.core.seed
    number = epoch if generator is None else generator.core.next()
    return (own * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) & MASK


def order(what: str, streams: bool, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool) -> None:
    """Raise ArgumentError for arguments of a loader that do not determine one order of the samples."""
    if streams and (shuffle or sampler is not None or batch_sampler is not None):
        raise ArgumentError(f"{what}: a dataset without __getitem__ and __len__ determines the order; omit shuffle, sampler, batch_sampler")
    if batch_sampler is not None and (batch_size not in (None, 1) or shuffle or sampler is not None or drop_last):
        raise ArgumentError(f"{what}: batch_sampler determines all batches; omit batch_size, shuffle, sampler and drop_last")
    if sampler is not None and shuffle:
        raise ArgumentError(f"{what}: pass either sampler or shuffle, not both")
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None and not hasattr(value, "__iter__") and not hasattr(value, "__getitem__"):
            raise ArgumentError(f"{what}: {name} must be an iterable of indices; got {value!r}")
    if batch_size is None and drop_last:
        raise ArgumentError(f"{what}: batch_size=None returns single samples; omit drop_last")
    if batch_size is not None:
        whole(what, "batch_size", batch_size, 1)


def workers(what: str, num_workers: Any, prefetch_factor: Any, persistent: bool, timeout: Any, context: Any) -> None:
    """Raise ArgumentError for invalid options of the workers of a loader, and for options that need workers with `num_workers` = 0."""
    whole(what, "num_workers", num_workers, 0)
    if prefetch_factor is not None:
        whole(what, "prefetch_factor", prefetch_factor, 1)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < float("inf"):
        raise ArgumentError(f"{what}: timeout must be a number of seconds >= 0; got {timeout!r}")
    if context is not None and not hasattr(context, "Process") and context not in _start_methods():
        raise ArgumentError(f"{what}: multiprocessing_context must be one of {', '.join(_start_methods())}; got {context!r}")
    if not num_workers:
        needed = {"prefetch_factor": prefetch_factor, "persistent_workers": persistent or None, "multiprocessing_context": context}
        unused = next((name for name, value in needed.items() if value is not None), None)
        if unused is not None:
            raise ArgumentError(f"{what}: {unused}={needed[unused]!r} needs workers; pass num_workers of at least 1, or omit {unused}")


def _start_methods() -> list[str]:
    return get_all_start_methods()


def weights(what: str, values: Any) -> Array:
    """Return weights as float64[n]; raise ArgumentError for other shapes, and for values that are not finite, negative or all zero."""
    try:
        array = np.array(values.numpy() if isinstance(values, Tensor) else values, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what}: weights must be a sequence of numbers; got {values!r}") from None
    if array.ndim != 1 or not array.size:
        raise ArgumentError(f"{what}: weights must be a sequence of numbers; got the shape {array.shape}")
    if not np.isfinite(array).all() or (array < 0).any() or not array.any():
        raise ArgumentError(f"{what}: weights must be finite and >= 0, and not all zero; got {np.array2string(array, threshold=8)}")
    return array
