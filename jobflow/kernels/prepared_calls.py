"""Calls that are prepared once for arrays of some types and strides, and later run on the memory of other arrays.

Binding prepares the calls of an operation, and takes longer than computing for small arrays.  The calls of two runs differ only in the addresses
of the arrays.  Operations are therefore bound once, to stand-ins of the same types and strides.  An argument that is a view of a stand-in, or
points into one, is recorded as an operand and an offset.  Operations whose calls contain arrays in another way are bound each time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any, Protocol

import numpy as np

from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.argument_block import COMPILED, ArgumentBlock, address
from jobflow.kernels.blas import AddingProduct
from jobflow.ops.op import Binder, Binding, Call, Op

#: most bytes of all operands for which stand-ins are allocated
MOST_BYTES = 1 << 30
#: most calls of one operation to cache; more take too much memory compared with the time of binding
MOST_CALLS = 2048
#: bytes; smaller scratch arrays come from malloc, which is faster than the device's allocator
SMALL = 1 << 16
#: alignment of stand-ins in bytes
_ALIGNMENT = 64
#: types whose instances contain no arrays
_PLAIN = (int, float, str, np.generic, np.dtype, type, slice, ModuleType, Op, np.ufunc, type(np.copyto), MethodDescriptorType, type(None))
#: the type of ctypes functions, which includes compiled functions
_FOREIGN: Any = COMPILED.__base__


class OneOperationDevice(Binder, Protocol):
    """A device whose scratch arrays belong to one operation at a time; `begin_instruction` makes all of them available again."""

    def begin_instruction(self) -> None: ...


def prepare(bind: Binding, inputs: Sequence[Array], outputs: Sequence[Array]) -> PreparedCalls | None:
    """Prepare the calls for arrays with the shapes, types and strides of these arrays; return None if the calls must be bound each time.

    The result is None if an array is empty, or for more than `MOST_BYTES` bytes or `MOST_CALLS` calls.  The result is also None if an argument may
    contain arrays in an unknown way.

    An output that is one of the inputs must be that input in every run.  Only one Python thread may run the calls, because they may write into
    arrays allocated for them.
    """
    sizes = [a.nbytes for a in (*inputs, *outputs)]
    if 0 in sizes or sum(sizes) > MOST_BYTES:
        return None
    stands = [_stand_in(a) for a in inputs]
    aliases = [next((s for a, s in zip(inputs, stands, strict=True) if a is output), None) for output in outputs]
    targets = [_stand_in(a) if s is None else s for a, s in zip(outputs, aliases, strict=True)]
    device = _NoDevice()
    calls = bind(device, stands, targets)
    if len(calls) > MOST_CALLS:
        return None
    try:
        return PreparedCalls(calls, [*stands, *targets], device.arrays)
    except _UnknownArgument:
        return None


def byte_range(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of an array and of the byte after its last."""
    if array.flags.c_contiguous:
        start = address(array)
        return start, start + array.nbytes
    low, high = np.lib.array_utils.byte_bounds(array)
    return int(low), int(high)


def _stand_in(array: Array) -> Array:
    """Allocate an array of the same shape, type and strides."""
    low, high = byte_range(array)
    memory = np.empty(high - low + 2 * _ALIGNMENT, np.uint8)
    start = -address(memory) % _ALIGNMENT + address(array) - low
    return np.ndarray(array.shape, array.dtype, memory, start, array.strides)


class _UnknownArgument(Exception):
    """An error for an argument of a call that may contain arrays in an unknown way."""


class _NoDevice:
    """A device that allocates scratch arrays for calls that never run."""

    xp: Any = np

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.arrays.append(np.empty(shape, dtype.numpy))
        return self.arrays[-1]


class PreparedCalls:
    """Calls whose arguments are indices in one list: operands, scratch arrays, views of both, argument blocks, and constants."""

    def __init__(self, calls: Sequence[Call], operands: Sequence[Array], scratch: Sequence[Array]) -> None:
        self._operands = [*operands, *sorted(scratch, key=lambda a: a.nbytes >= SMALL)]
        self._ranges = [byte_range(a) for a in self._operands]
        self._small = [(a.shape, a.dtype) for a in scratch if a.nbytes < SMALL]
        self._large = [(a.shape, dtype_of(a.dtype)) for a in scratch if a.nbytes >= SMALL]
        #: the arguments after the operands, in the order of the list
        self._parts: list[tuple[int, Callable[[Array], Any]]] = []
        self._blocks: list[_OpenBlock] = []
        self._values: list[Any] = []
        self._known: dict[object, tuple[int, int]] = {_part(k, 0, a): (_OPERAND, k) for k, a in enumerate(self._operands)}
        steps = [self._step(*call) for call in calls]
        sizes = (len(self._operands), len(self._parts), len(self._blocks), len(self._values))
        starts = [sum(sizes[:kind]) for kind in range(len(sizes))]
        self._calls = [(function, _getter([starts[kind] + n for kind, n in arguments])) for function, arguments in steps]
        #: True if only compiled functions run, which report no floating point errors
        self._compiled = all(isinstance(function, COMPILED) for function, _ in steps)
        #: the function and its block, if the calls are a single compiled function without scratch
        self._alone = (steps[0][0], self._blocks[0].at) if self._compiled and len(steps) == 1 and not scratch else None
        self._operands, self._known = [], {}  # frees the memory of the stand-ins

    def run(self, device: OneOperationDevice, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the outputs from these inputs with the prepared calls."""
        if self._alone is not None:
            function, block = self._alone
            function(block([address(a) for a in (*inputs, *outputs)]))
            return
        arguments: list[Any] = [*inputs, *outputs]
        arguments += [np.empty(shape, dtype) for shape, dtype in self._small]
        if self._large:
            device.begin_instruction()
            arguments += [device.scratch(shape, dtype) for shape, dtype in self._large]
        if self._blocks:
            addresses = [address(a) for a in arguments]
            arguments += [view(arguments[k]) for k, view in self._parts]
            arguments += [block.at(addresses) for block in self._blocks]
        else:
            arguments += [view(arguments[k]) for k, view in self._parts]
        arguments += self._values
        (_run if self._compiled else _run_quietly)(self._calls, arguments)

    def _step(self, function: Any, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], list[tuple[int, int]]]:
        if isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, np.ndarray):
            function, arguments = getattr(np.ndarray, function.__name__), (function.__self__, *arguments)
        elif isinstance(function, AddingProduct):
            self._values.append(function)
            return AddingProduct.on, [(_VALUE, len(self._values) - 1), *map(self._argument, (*arguments, *function.arrays))]
        if not (_is_plain(function) or isinstance(function, _FOREIGN)):
            raise _UnknownArgument
        return function, [self._argument(x) for x in arguments]

    def _argument(self, x: Any) -> tuple[int, int]:
        """Record an argument of a call; return its kind (such as operand or constant) and its index within this kind.

        Raises: _UnknownArgument if the argument may contain arrays in an unknown way.
        """
        if isinstance(x, ArgumentBlock):
            self._blocks.append(_OpenBlock(x, self._locate))
            return _BLOCK, len(self._blocks) - 1
        is_array, is_foreign = isinstance(x, np.ndarray), isinstance(x, ctypes._SimpleCData | ctypes.Array)
        if is_array or is_foreign:
            operand = self._locate(address(x) if is_array else ctypes.addressof(x))
            if operand is not None:
                return self._part(x, *operand) if is_array else self._foreign_part(x, *operand)
        elif not _is_plain(x):
            raise _UnknownArgument
        self._values.append(x)
        return _VALUE, len(self._values) - 1

    def _locate(self, start: int) -> tuple[int, int] | None:
        """Return the operand that contains this address, and the offset in bytes from its first element; None if no operand contains it."""
        for k, (low, high) in enumerate(self._ranges):
            if low <= start < high:
                return k, start - address(self._operands[k])
        return None

    def _foreign_part(self, x: Any, k: int, offset: int) -> tuple[int, int]:
        """Record a ctypes number or vector that shares the memory of operand k; return its kind and its index within this kind."""
        kind: Any = type(x)
        self._parts.append((k, lambda whole: kind.from_address(address(whole) + offset)))
        return _PART, len(self._parts) - 1

    def _part(self, x: Array, k: int, offset: int) -> tuple[int, int]:
        key = _part(k, offset, x)
        if key not in self._known:
            self._parts.append((k, _view_of(x, self._operands[k], offset)))
            self._known[key] = _PART, len(self._parts) - 1
        return self._known[key]


_OPERAND, _PART, _BLOCK, _VALUE = range(4)


def _run(calls: Sequence[tuple[Callable[..., Any], Callable[[list[Any]], Any]]], arguments: list[Any]) -> None:
    for function, chosen in calls:
        function(*chosen(arguments))


#: suppresses warnings of NumPy; as a decorator, `errstate` takes half the time of a `with` block
_run_quietly = np.errstate(all="ignore")(_run)


class _OpenBlock:
    """An argument block as bytes, filled with the addresses of the operands of a run."""

    def __init__(self, argument: ArgumentBlock, locate: Callable[[int], tuple[int, int] | None]) -> None:
        self._words: list[int] = argument.block.tolist()
        #: arrays allocated for the call, such as tables of distances
        self._own: list[Array] = []
        #: index of a word, the operand that it points into, and the offset in bytes from the operand's first element
        self._open: list[tuple[int, int, int]] = []
        for index, array in zip(argument.indices, argument.arrays, strict=True):
            operand = locate(address(array))
            if operand is None:
                self._own.append(array)
            else:
                self._open.append((index, operand[0], operand[1] + self._words[index] - address(array)))
        count = len(self._open)
        if self._open == [(k, k, 0) for k in range(count)]:  # the first words are the operands in order
            self._count, self._head = count, struct.Struct(f"{count}q").pack
            self._tail = struct.pack(f"{len(self._words) - count}q", *self._words[count:])
            self.at = self._at_operands
        else:
            self._pack = struct.Struct(f"{len(self._words)}q").pack
            self.at = self._at_offsets

    def _at_operands(self, addresses: Sequence[int]) -> bytes:
        return self._head(*addresses[: self._count]) + self._tail

    def _at_offsets(self, addresses: Sequence[int]) -> bytes:
        words = self._words.copy()
        for index, operand, offset in self._open:
            words[index] = addresses[operand] + offset
        return self._pack(*words)


def _getter(indices: Sequence[int]) -> Callable[[list[Any]], Any]:
    """Return a function that selects the arguments with these indices from the list, as a sequence."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return itemgetter(slice(indices[0], indices[0] + 1) if indices else slice(0))


def _part(operand: int, offset: int, x: Array) -> object:
    """Return a key that is equal for identical views of an operand."""
    return operand, offset, x.shape, x.strides, x.dtype


def _view_of(x: Array, whole: Array, offset: int) -> Callable[[Array], Array]:
    """Return a function that returns the view `x` of an operand, whose stand-in is `whole`."""
    part: Any = np.ndarray if whole.flags.c_contiguous else _part_with_gaps
    if whole.flags.c_contiguous and x.dtype == whole.dtype and x.size == whole.size and x.flags.c_contiguous:
        return methodcaller("reshape", x.shape)
    return partial(part, x.shape, x.dtype, offset=offset, strides=x.strides)


def _part_with_gaps(shape: tuple[int, ...], dtype: Any, whole: Array, *, offset: int, strides: tuple[int, ...]) -> Array:
    """Return a view of an array that NumPy does not accept as a buffer; the array must outlive the view."""
    interface = {"version": 3, "shape": shape, "typestr": f"|V{dtype.itemsize}", "strides": strides, "data": (address(whole) + offset, False)}
    return np.asarray(_ArrayInterface(interface)).view(dtype)


class _ArrayInterface:
    """An object with the attribute `__array_interface__`, from which NumPy creates a view of existing memory."""

    def __init__(self, interface: dict[str, object]) -> None:
        self.__array_interface__ = interface


def _is_plain(x: Any) -> bool:
    """Return True if x certainly contains no arrays."""
    if isinstance(x, tuple):
        return all(map(_is_plain, x))
    if isinstance(x, partial):
        return not x.keywords and all(map(_is_plain, (x.func, *x.args)))
    if isinstance(x, MethodType | BuiltinFunctionType):
        return _is_plain(x.__self__)
    return isinstance(x, _PLAIN) or (isinstance(x, FunctionType) and x.__closure__ is None and not x.__dict__)
