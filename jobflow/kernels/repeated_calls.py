"""Calls that are prepared once for arrays of some types, and then only given their arrays.

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

from jobflow.core.types import Array, DType, TensorType
from jobflow.kernels.loop_space import address
from jobflow.ops.op import Binder, Binding, Call, Op

#: elements of all arrays; of more, to compute takes longer than to prepare
MOST = 64 * 1024
#: what has no arrays inside
_PLAIN = (int, float, str, np.generic, np.dtype, type, slice, ModuleType, Op, np.ufunc, type(np.copyto), MethodDescriptorType, type(None))


def repeated(prepare: Binding, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Binding:
    """What prepares the same calls for arrays of these types, sooner; Python threads may share it."""
    sizes = [type.size for type in (*inputs, *outputs)]
    return prepare if 0 in sizes or sum(sizes) > MOST else _Repeated(prepare, inputs, outputs)


class _Own(threading.local):
    """What a Python thread has for itself, for calls may write into arrays that were made for them."""

    found: Binding | None = None


class _Repeated:
    def __init__(self, prepare: Binding, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        self._prepare, self._types = prepare, (inputs, outputs)
        self._own = _Own()

    def __call__(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        found = self._own.found
        if found is None:
            found = self._own.found = self._given()
        for a in inputs:
            if not a.flags.c_contiguous:
                return self._prepare(device, inputs, outputs)
        return found(device, inputs, outputs)

    def _given(self) -> Binding:
        device = _NoDevice()
        read, made = ([np.empty(type.shape, type.dtype.numpy) for type in types] for types in self._types)
        try:
            return _GivenCalls(self._prepare(device, read, made), [*read, *made], device.scratched).of
        except _NotKnown:
            return self._prepare


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
    """What a call takes has a number: first come the arrays, then parts of them; counted from -1 down, all else, which stays as it is."""

    def __init__(self, calls: Sequence[Call], operands: Sequence[Array], scratch: Sequence[Array]) -> None:
        self._arrays: tuple[Array, ...] = (*operands, *scratch)
        self._scratch = [(a.shape, a.dtype) for a in scratch]
        self._numbers = {_part(k, a, 0): k for k, a in enumerate(self._arrays)}
        #: of which array, and what makes the part of it
        self._looks: list[tuple[int, Callable[[Array], Array]]] = []
        self._values: list[Any] = []
        steps = [self._step(*call) for call in calls]
        self._calls = [(function, self._arguments(numbers)) for function, numbers in steps]
        self._arrays = ()  # their memory is not needed any more

    def of(self, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        given = [*inputs, *outputs, *[np.empty(shape, dtype) for shape, dtype in self._scratch]]
        given += [look(given[k]) for k, look in self._looks]
        given += self._values
        return [(function, arguments(given)) for function, arguments in self._calls]

    def _arguments(self, numbers: Sequence[int]) -> Callable[[list[Any]], Any]:
        places = [n if n >= 0 else len(self._numbers) - 1 - n for n in numbers]
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
                part = _part(k, x, offset)
                if part not in self._numbers:
                    self._numbers[part] = len(self._numbers)
                    self._looks.append((k, _look(x, whole, offset)))
                return self._numbers[part]
        if not isinstance(x, np.ndarray) and not _is_plain(x):
            raise _NotKnown
        self._values.append(x)
        return -len(self._values)


def _part(number: int, x: Array, offset: int) -> object:
    """What tells x from other parts of the array with this number."""
    return number, offset, x.shape, x.strides, x.dtype


def _look(x: Array, whole: Array, offset: int) -> Callable[[Array], Array]:
    """What makes x of the array that it is a part of."""
    if x.dtype == whole.dtype and x.size == whole.size and x.flags.c_contiguous:
        return methodcaller("reshape", x.shape)
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
