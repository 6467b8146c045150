"""Launches of printed kernels that are prepared once, and later run on the memory of other arrays with the same strides.

To bind an operation, its kernel is chosen, printed and looked up, which takes longer than to launch it.  The launches of two runs differ only in
addresses.  An operation is therefore bound once, to stand-ins: arrays without memory at unused addresses.  An argument that is an address near
a stand-in becomes an operand and an offset.  Operations with other calls, such as calls of libraries, are bound at each run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType
from jobflow.kernels.cuda.compiled_text import NumberArgument
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.ops.op import Binding, Call

#: the first address of stand-ins, larger than addresses of memory and smaller than those of index operands
FIRST = 1 << 58
#: the distance of stand-ins in bytes
SPACING = 1 << 44
#: bytes; kernels are chosen by the alignment of the operands up to this size
ALIGNMENT = 256

#: replaces an address in a launch: the position of the argument, the operand, and the offset in bytes from its first element
Slot = tuple[int, int, int]


class _StandIns:
    """The resources for binding to stand-ins: it counts operands, and scratch arrays after them."""

    #: operations of eager programs differ in numbers, such as the rate of a schedule
    passes_numbers = True

    def __init__(self, xp: Any, index: int) -> None:
        self.xp, self.index = xp, index
        self.scratches: list[tuple[tuple[int, ...], DType]] = []
        self._count = 0

    def array(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None, residue: int) -> Array:
        """Return the next stand-in; its address has the remainder `residue` modulo `ALIGNMENT`."""
        self._count += 1
        cuda = self.xp.cuda
        memory = cuda.UnownedMemory(_base(self._count - 1) + residue, SPACING // 4, None, self.index)
        array: Array = self.xp.ndarray(shape, dtype, memptr=cuda.MemoryPointer(memory, 0), strides=strides)
        return array

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.scratches.append((shape, dtype))
        return self.array(shape, dtype.numpy, None, 0)


def _base(operand: int) -> int:
    return FIRST + operand * SPACING + SPACING // 2


class PreparedLaunches:
    """The launches of an operation for operands with some strides and alignment."""

    def __init__(self, launches: Sequence[tuple[Call, Sequence[Slot]]], scratches: Sequence[tuple[tuple[int, ...], DType]]) -> None:
        self._launches, self._scratches = launches, scratches
        #: held during a run, because a launch keeps its arguments
        self._lock = threading.Lock()

    def run(self, operands: Sequence[Array], scratch: Callable[[tuple[int, ...], DType], Array], enqueuing: AbstractContextManager[Any]) -> None:
        """Launch the kernels on these operands; `scratch` allocates memory of the GPU, which the stream may reuse afterwards.

        The lock `enqueuing` of the GPU is held during the launches.
        """
        arrays = [*operands, *(scratch(shape, dtype) for shape, dtype in self._scratches)]
        addresses = [array.data.ptr for array in arrays]
        with self._lock, enqueuing:
            for (function, (grid, block, arguments)), slots in self._launches:
                replaced = list(arguments)
                for position, operand, offset in slots:
                    replaced[position] = np.int64(addresses[operand] + offset)
                function(grid, block, tuple(replaced))


def prepare(bind: Binding, xp: Any, index: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> PreparedLaunches | None:
    """Prepare the launches for arrays with the shapes, types, strides and alignment of these arrays of GPU number `index`.

    The result is None for calls other than launches of printed kernels, and for empty arrays.  An output that is one of the inputs must be that
    input in every run; other operands must not share memory with it.
    """
    operands = [*inputs, *outputs]
    if not all(a.size for a in operands):
        return None
    stand_ins = _StandIns(xp, index)
    stands = [stand_ins.array(tuple(a.shape), a.dtype, tuple(a.strides), a.data.ptr % ALIGNMENT) for a in operands]
    for k in range(len(inputs), len(operands)):
        stands[k] = next((s for a, s in zip(inputs, stands, strict=False) if a is operands[k]), stands[k])
    calls = bind(stand_ins, stands[: len(inputs)], stands[len(inputs) :])
    addresses = [int(s.data.ptr) for s in stands]
    addresses += [_base(k) for k in range(len(stands), len(stands) + len(stand_ins.scratches))]
    launches: list[tuple[Call, Sequence[Slot]]] = []
    for function, arguments in calls:
        if not isinstance(function, KernelLaunch):
            return None
        slots = _slots(arguments[2], addresses)
        if slots is None:
            return None
        launches.append(((function, arguments), slots))
    return PreparedLaunches(launches, stand_ins.scratches)


def _slots(arguments: Sequence[Any], addresses: Sequence[int]) -> list[Slot] | None:
    """Return the arguments of a launch that are addresses near a stand-in; None if an argument is neither an integer nor a stand-in."""
    slots: list[Slot] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, NumberArgument):
            continue
        if isinstance(argument, np.integer):
            value = int(argument)
        elif hasattr(argument, "data") and hasattr(argument.data, "ptr"):
            value = int(argument.data.ptr)
        else:
            return None
        operand = (value - FIRST) // SPACING
        if 0 <= operand < len(addresses):
            slots.append((position, operand, value - addresses[operand]))
        elif not isinstance(argument, np.integer):
            return None
    return slots
