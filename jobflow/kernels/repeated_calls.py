"""Calls that are prepared once for arrays of some shapes, and then only given their arrays.

An operation that runs at once is bound each time it runs.  Where its arrays have no gaps, its calls differ from those of the time before only in
where the arrays lie, and to prepare them takes longer than small arrays take to compute.  So they are prepared on arrays that stand for the real
ones, and it is noted which part of which array each call takes.  Calls that hold arrays in another way than as arguments are prepared each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType
from jobflow.kernels.loop_space import address
from jobflow.ops.op import Binder, Binding, Call, Op

#: elements of all arrays; of more, to compute takes longer than to prepare
MOST = 64 * 1024
#: shapes for which an operation keeps its calls
SHAPES_KEPT = 64
#: what has no arrays inside
_PLAIN = (int, float, str, np.generic, np.dtype, type, slice, ModuleType, Op, np.ufunc, type(np.copyto), MethodDescriptorType, type(None))


class _Own(threading.local):
    """What a Python thread has for itself."""

    def __init__(self) -> None:
        self.known: dict[object, Binding] = {}


class RepeatedCalls:
    """Prepares what `prepare` does; Python threads may share it."""

    def __init__(self, prepare: Binding) -> None:
        self._prepare = prepare
        self._own = _Own()  # calls may write into arrays that were made for them

    def __call__(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        known = self._own.known
        key = tuple([a.shape if a.flags.c_contiguous else None for a in (*inputs, *outputs)])
        found = known.get(key)
        if found is None:
            if len(known) == SHAPES_KEPT:
                known.clear()
            found = known[key] = self._prepare if None in key else _repeated(self._prepare, inputs, outputs)
        return found(device, inputs, outputs)


def _repeated(prepare: Binding, inputs: Sequence[Array], outputs: Sequence[Array]) -> Binding:
    """What prepares calls for arrays of these shapes without gaps."""
    sizes = [a.size for a in (*inputs, *outputs)]
    if 0 in sizes or sum(sizes) > MOST:
        return prepare
    device = _NoDevice()
    read, made = ([np.empty(a.shape, a.dtype) for a in some] for some in (inputs, outputs))
    calls = prepare(device, read, made)
    try:
        return _GivenCalls([*read, *made, *device.scratched], device.scratched, calls).of
    except _NotKnown:
        return prepare


class _NotKnown(Exception):
    """What a call takes may hold arrays."""


class _NoDevice:
    """Memory for calls that never run."""

    xp: Any = np

    def __init__(self) -> None:
        self.scratched: list[Array] = []

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.scratched.append(np.empty(shape, dtype.numpy))
        return self.scratched[-1]


class _GivenCalls:
    """What a call takes has a number: from 0 on the arrays and parts of arrays that are given, from -1 down all else, which stays as it is."""

    def __init__(self, arrays: Sequence[Array], scratch: Sequence[Array], calls: Sequence[Call]) -> None:
        self._arrays = arrays
        self._scratch = [(a.shape, a.dtype) for a in scratch]
        self._numbers: dict[object, int] = {}
        #: which array, and how it is looked at
        self._looks: list[tuple[int, Callable[[Array], Array] | None]] = []
        self._values: list[Any] = []
        steps = [self._step(*call) for call in calls]
        self._calls = [(function, self._arguments(numbers)) for function, numbers in steps]

    def of(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        arrays = [*inputs, *outputs, *[np.empty(shape, dtype) for shape, dtype in self._scratch]]
        given = [arrays[k] if look is None else look(arrays[k]) for k, look in self._looks] + self._values
        return [(function, arguments(given)) for function, arguments in self._calls]

    def _arguments(self, numbers: Sequence[int]) -> Callable[[list[Any]], Any]:
        places = [n if n >= 0 else len(self._looks) - 1 - n for n in numbers]
        return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1) if places else slice(0))

    def _step(self, function: Any, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], list[int]]:
        if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, np.ndarray):
            function, arguments = getattr(np.ndarray, function.__name__), (function.__self__, *arguments)
        if not _is_plain(function):
            raise _NotKnown
        return function, [self._number(x) for x in arguments]

    def _number(self, x: Any) -> int:
        for k, whole in enumerate(self._arrays if isinstance(x, np.ndarray) else ()):
            offset = address(x) - address(whole)
            if 0 <= offset < whole.nbytes:
                part = (k, offset, x.shape, x.strides, x.dtype)
                if part not in self._numbers:
                    self._numbers[part] = len(self._looks)
                    self._looks.append((k, _look(x, whole, offset)))
                return self._numbers[part]
        if not isinstance(x, np.ndarray) and not _is_plain(x):
            raise _NotKnown
        self._values.append(x)
        return -len(self._values)


def _look(x: Array, whole: Array, offset: int) -> Callable[[Array], Array] | None:
    """What makes x of an array that it is a part of; None if it is all of it, as it is."""
    if x.dtype == whole.dtype and x.size == whole.size and x.flags.c_contiguous:
        return None if x.shape == whole.shape else methodcaller("reshape", x.shape)
    part: Any = np.ndarray
    return partial(part, x.shape, x.dtype, offset=offset, strides=x.strides)


def _is_plain(x: Any) -> bool:
    """Whether it holds no arrays."""
    if isinstance(x, tuple):
        return all(map(_is_plain, x))
    if isinstance(x, partial):
        return not x.keywords and all(map(_is_plain, (x.func, *x.args)))
    if isinstance(x, MethodType | BuiltinFunctionType):
        return _is_plain(x.__self__)
    return isinstance(x, _PLAIN) or (isinstance(x, FunctionType) and x.__closure__ is None and not x.__dict__)
