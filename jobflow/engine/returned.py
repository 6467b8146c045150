"""The result of a job call in the form of its return annotation: arrays, lists of arrays, callbacks or futures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from jobflow.core.errors import JobError, user_line
from jobflow.core.types import Array
from jobflow.typing.results import Results

#: a returned tensor: a whole array, or a list with one array per device
Delivered = Any
#: the conversion of result arrays, which `show_as` replaces
_show: list[Callable[[Array], Array]] = [lambda array: array]


def show_as(show: Callable[[Array], Array]) -> None:
    """Set the function that converts the arrays of later results in this process."""
    _show[0] = show


class LocalBlob(NDArrayOperatorsMixin):
    """A returned tensor of a job without return annotation.

    A blob behaves like its array (`mean()`, indexing, arithmetic, `np.array(x)`), but is compared and printed as an object.
    """

    def __init__(self, value: Delivered) -> None:
        self._value = value

    def numpy(self, parallel_id: int | None = None) -> Array:
        """Return the whole array, or the array of device `parallel_id`; arrays of a mirrored tensor are concatenated.

        Raises: JobError for a tensor list.
        """
        if parallel_id is not None:
            return self.numpy_list()[parallel_id]
        return array(self._flat)

    def numpy_list(self) -> list[Array]:
        """Return a list with one array per device, or with one array for a logical tensor."""
        return arrays(self._flat)

    def numpy_lists(self) -> list[list[Array]]:
        """Return one list of arrays per device; raise JobError unless the result is a tensor list."""
        if not self._has_lists:
            raise JobError(f"numpy_lists() at {user_line()}: the result is not a tensor list; call numpy() or numpy_list()")
        return list(self._value)

    @property
    def _flat(self) -> Delivered:
        if self._has_lists:
            raise JobError(f"result at {user_line()}: each device has a list of arrays; call numpy_lists()")
        return self._value

    @property
    def _has_lists(self) -> bool:
        return isinstance(self._value, list) and isinstance(self._value[0], list)

    def ndarray(self) -> Array:
        """An alias of `numpy`."""
        return self.numpy()

    def ndarray_list(self) -> list[Array]:
        """An alias of `numpy_list`."""
        return self.numpy_list()

    def parallel_num(self) -> int:
        """Return the number of arrays in `numpy_list`."""
        return len(self.numpy_list())

    @property
    def is_dynamic(self) -> bool:
        """True if the devices' arrays differ in shape."""
        return len({a.shape for a in self.numpy_list()}) > 1

    # arithmetic uses the array, comparison the identity of the object
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*(x.numpy() if isinstance(x, LocalBlob) else x for x in inputs), **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.numpy(), name)

    def __len__(self) -> int:
        return len(self.numpy())

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __float__(self) -> float:
        return float(self.numpy().item())


class Future:
    """The result of a job without return annotation; `get` returns its value, and waits for a GPU that computes it."""

    def __init__(self, value: Callable[[], Any]) -> None:
        self._read = value

    def get(self) -> Any:
        """Return the nested result, with a LocalBlob per tensor."""
        return self._read()

    def async_get(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with the nested result."""
        callback(self._read())

    def __iter__(self) -> Iterator[Any]:
        raise JobError(f"iteration at {user_line()}: the result of a job without return annotation is a future; write a, b = job(...).get()")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f'{name} at {user_line()}: the result of a job without return annotation has no "{name}"; '
            f"write job(...).get().{name}, or annotate -> tp.Numpy"
        )


def whole(value: Delivered) -> Array:
    """Return the array of a logical tensor, or the arrays of all devices concatenated along axis 0."""
    if not isinstance(value, list):
        return value
    return np.concatenate([np.atleast_1d(a) for a in value]) if len(value) > 1 else value[0]


def array(value: Delivered) -> Array:
    """Return the result of `whole`, converted by the function of `show_as`."""
    return _show[0](whole(value))


def arrays(value: Delivered) -> list[Array]:
    """Return one array per device, or a list of one for a logical tensor, converted by the function of `show_as`."""
    return [_show[0](each) for each in (value if isinstance(value, list) else [value])]


def trimmed(value: Delivered, axis: int | None) -> Delivered:
    """Return the rows before the first -1 along `axis`; return the value unchanged without an axis."""
    if axis is None:
        return value
    if isinstance(value, list):
        return [trimmed(each, axis) for each in value]
    first = np.take(value, 0, axis=1 - axis)
    return np.take(value, np.arange(np.count_nonzero(first >= 0)), axis=axis)


def deliver(results: Results, values: Callable[[], Sequence[Delivered]]) -> Any:
    """Convert the returned tensors of a call to the form of the return annotation.

    The first of `values` are the results.  Futures and functions call `values` when they are first read, which waits for a GPU.
    """
    match results.mode:
        case "callback":
            read = _once(results, values)
            return lambda handler: handler(read())
        case "future":
            return Future(_once(results, values))
    return _built(results, values())


def _once(results: Results, values: Callable[[], Sequence[Delivered]]) -> Callable[[], Any]:
    """Return a function that returns the result of a call, which is read and converted once."""
    built: list[Any] = []
    source = [values]

    def read() -> Any:
        if not built:
            built.append(_built(results, source[0]()))
            source.clear()  # it refers to the program
        return built[0]

    return read


def _built(results: Results, values: Sequence[Delivered]) -> Any:
    axes = results.dynamic_axes or (None,) * len(results.kinds)
    leaves = [_leaf(kind, trimmed(value, axis)) for kind, value, axis in zip(results.kinds, values[: len(results.kinds)], axes, strict=True)]
    return results.build(leaves)


def _leaf(kind: str, value: Delivered) -> Any:
    if kind == "local":
        return LocalBlob(value)
    if kind == "lists":
        return value
    return arrays(value) if kind == "list" else array(value)
