"""Expressions as in-place NumPy calls, block by block, so that blocks stay in the cache from one call to the next.

`compiled` lowers expressions to steps of one call each, and assigns each value a slot.  A slot is the memory of an output, if its value is not
read any more, or scratch.  `block_calls` turns the steps into calls for one block after another.

Boolean values are integers 0 or 1 of the width of the other values.  A selection is arithmetic on bit patterns: y ^ (x ^ y) c, with c = 1 for x.
This arithmetic is four times as fast as a masked copy with a random mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import cut
from jobflow.core.types import Array, DType, bool_, dtype_of
from jobflow.expressions import language as f
from jobflow.expressions.error_function import erf, erfc
from jobflow.expressions.language import Expression, in_order, make
from jobflow.kernels import blas
from jobflow.kernels.cpu.blocks import blocks
from jobflow.kernels.cpu.numpy_formulas import cast, formula_of
from jobflow.ops.op import Binder, Call

#: elements per block: the arrays of one block of Adam (w, m, v, g and one of scratch) stay in a second-level cache of 1 MB
BLOCK = 32 * 1024
#: the same for formulas of few arrays, where fewer, longer calls save more time
LONG_BLOCK, FEW = 64 * 1024, 4

#: a function, and a selector of its arguments, including its output, from the list of slots
SlotCall = tuple[Callable[..., Any], Callable[[Sequence[Array]], Any]]


# Expressions of primitives that are one call each -------------------------------------------------------------------


def _simple(outputs: Sequence[Expression]) -> list[Expression]:
    """Lower expressions to primitives of one call each; every output is a separate step."""
    results: list[Expression] = []
    for y in _of_single_calls(outputs):
        results.append(y if y.arguments and y not in results else make("positive", (y,), y.dtype))
    return results


def _of_single_calls(outputs: Sequence[Expression], simple: Collection[Expression] = ()) -> list[Expression]:
    """Lower expressions to primitives of one call each; the expressions in `simple` are already lowered."""
    readers = Counter(y for x in in_order(outputs) for y in x.arguments)
    lowered = {x: x for x in simple}
    for x in in_order(outputs):
        if x in lowered:
            continue
        arguments = [lowered[y] for y in x.arguments]
        formula = formula_of(x.primitive, x.dtype)
        if x.primitive == "cast":
            lowered[x] = cast(arguments[0], x.dtype)
        elif formula is not None:
            expanded = formula(*arguments)
            (lowered[x],) = [expanded] if expanded.primitive == x.primitive else _of_single_calls([expanded], {*in_order(arguments)})
        elif x.primitive == "multiply" and arguments[1].primitive == "reciprocal" and readers[x.arguments[1]] == 1 and x.arguments[1] not in simple:
            lowered[x] = f.divide(arguments[0], *arguments[1].arguments)
        else:
            lowered[x] = make(x.primitive, tuple(arguments), x.dtype, x.attribute)
    return [lowered[x] for x in outputs]


def _written(function: Callable[..., Array]) -> Callable[..., None]:
    """Wrap `function(xp, x)`, which returns an array, as a function of x and the array to which the result is written."""

    def write(x: Array, z: Array) -> None:
        z[...] = function(np, x)

    return write


def _maximum(x: Array, y: Array, z: Array) -> None:
    np.maximum(x, y, out=z)


def _minimum(x: Array, y: Array, z: Array) -> None:
    np.minimum(x, y, out=z)


def _convert(x: Array, z: Array) -> None:
    np.copyto(z, x, casting="unsafe")


#: replacements of NumPy functions whose positional output is deprecated
POSITIONAL: dict[str, Callable[..., Any]] = {"maximum": _maximum, "minimum": _minimum}
#: primitives whose function is not NumPy's function of the same name; booleans are integers here
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **POSITIONAL,
    "cast": _convert,
    "positive": _convert,
    "erf": _written(erf),
    "erfc": _written(erfc),
    **{f"logical_{name}": getattr(np, f"bitwise_{name}") for name in ("and", "or", "xor")},
}


# Slots -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompiledFormula:
    """A formula as NumPy calls for one block of elements.

    The arguments of the calls are slots: indices in a list of arrays.  The list contains the elements, the scalars, the outputs, rows of scratch,
    and the constants.  Integer views of the slots in `viewed` follow.
    """

    elements: int
    scalars: int
    rows: int
    constants: tuple[Array, ...]
    viewed: tuple[int, ...]
    bits: Any
    steps: tuple[SlotCall, ...]
    #: True if some calls require vectors
    of_vectors: bool

    @cached_property
    def alone(self) -> SlotCall | None:
        """The only step of the formula; None for several steps, or if the step needs scratch, integer views or vectors."""
        return self.steps[0] if len(self.steps) == 1 and not (self.rows or self.viewed or self.of_vectors) else None

    @property
    def length(self) -> int:
        """The number of elements per block."""
        return LONG_BLOCK if self.elements + self.rows <= FEW else BLOCK


def compiled(outputs: Sequence[Expression], elements: int, scalars: int, over: Mapping[int, Sequence[int]]) -> CompiledFormula | None:
    """Compile expressions into calls; their inputs are `elements` arrays of elements, then `scalars` scalars.

    Output k may share memory with the inputs over[k] and with no other input.  The result is None if element types are mixed, apart from booleans and
    casts.
    """
    results, dtype = _simple(outputs), outputs[0].dtype
    steps = [x for x in in_order(results) if x.arguments]
    if any(x.dtype is not dtype and x.dtype is not bool_ for x in steps) or any(x.dtype is not dtype for x in results):
        return None
    first_output = elements + scalars
    last = {y: i for i, x in enumerate(steps) for y in x.arguments} | dict.fromkeys(results, len(steps))
    leaves = [x for x in in_order(results) if not x.arguments]
    slots = {x: int(str(x.attribute)) for x in leaves if x.primitive in ("element", "number")}
    read = {slot: last[x] for x, slot in slots.items()}
    for k, value in enumerate(results):
        _compute_in_output(first_output + k, value, max((read.get(i, -1) for i in over.get(k, ())), default=-1), steps, last, slots)
    scratch = _Scratch(first_output + len(results))
    spare = _assign_scratch(steps, last, slots, scratch)
    others = [x for x in leaves if x not in slots]
    slots |= {x: scratch.first + scratch.rows + i for i, x in enumerate(others)}
    bits = _Bits(dtype, scratch.first + scratch.rows + len(others))
    calls = [_slot_call(x, [bits.slot(x, y, slots[y]) for y in (*x.arguments, x)], spare.get(i)) for i, x in enumerate(steps)]
    calls += [(_convert, itemgetter(slots[x], first_output + k)) for k, x in enumerate(results) if slots[x] != first_output + k]
    constants = tuple(_constant(x, dtype, bits.dtype) for x in others)
    return CompiledFormula(elements, scalars, scratch.rows, constants, tuple(bits.viewed), bits.dtype, tuple(calls), bool(spare))


def _compute_in_output(
    output: int, value: Expression, free: int, steps: list[Expression], last: dict[Expression, int], slots: dict[Expression, int]
) -> None:
    """Assign the memory of an output to its value, and to a chain of operands that the value is computed from.

    Only steps from `free` on may write there, because earlier steps read the memory.
    """
    while value not in slots and free <= (at := steps.index(value)):
        slots[value] = output
        ending = [x for x in value.arguments if x.arguments and last[x] == at and x not in slots]
        if not ending:
            return
        value = ending[0]


def _assign_scratch(steps: list[Expression], last: dict[Expression, int], slots: dict[Expression, int], scratch: _Scratch) -> dict[int, int]:
    """Assign scratch rows to the steps that have no slot; return the additional row of each weighted sum, by step."""
    spare: dict[int, int] = {}
    for i, step in enumerate(steps):
        dying = {slots[x] for x in step.arguments if x in slots and last[x] == i and slots[x] >= scratch.first}
        if step.primitive == "weighted_sum":  # its result must not share memory with its additional row
            _, x, _, y = step.arguments
            spare[i] = slots[x] if x is not y and slots.get(x) in dying else scratch.take()
        scratch.free += [slot for slot in sorted(dying) if slot != spare.get(i)]
        if step not in slots:
            slots[step] = scratch.take()
        scratch.free += [spare[i]] if i in spare else []
    return spare


class _Scratch:
    """The scratch rows of a formula; their slots begin at `first`."""

    def __init__(self, first: int) -> None:
        self.first, self.rows = first, 0
        self.free: list[int] = []

    def take(self) -> int:
        self.rows += not self.free
        return self.free.pop() if self.free else self.first + self.rows - 1


class _Bits:
    """The slots of integer views of other slots; they follow all other slots, and a view has the same width as the elements."""

    def __init__(self, dtype: DType, total: int) -> None:
        self.of, self.dtype, self.total = dtype, np.dtype(f"i{dtype.itemsize}"), total
        self.viewed: dict[int, int] = {}

    def slot(self, step: Expression, x: Expression, slot: int) -> int:
        """Return the slot through which `step` accesses the value x, which is stored in `slot`.

        Computed booleans, and operands of steps on bit patterns, are accessed through an integer view.  Other values are accessed directly.
        """
        truth = x.dtype is bool_ and x.primitive != "element"
        pattern = step.primitive.startswith("bits ") and x.dtype is self.of
        return self.viewed.setdefault(slot, self.total + len(self.viewed)) if truth or pattern else slot


def _slot_call(step: Expression, slots: Sequence[int], spare: int | None) -> SlotCall:
    if spare is not None:
        return blas.mixed, itemgetter(*slots, spare)
    name = step.primitive.removeprefix("bits ")
    return FUNCTIONS.get(name) or getattr(np, name), itemgetter(*slots)


def _constant(x: Expression, dtype: DType, whole: Any) -> Array:
    if x.primitive == "bits":
        return np.asarray(x.attribute, whole).view(dtype.numpy)
    return np.asarray(x.attribute, whole if x.dtype is bool_ else x.dtype.numpy)


# Blocks -------------------------------------------------------------------------------------------------------------


def block_calls(
    program: CompiledFormula, device: Binder, elements: Sequence[Array], scalars: Sequence[Array], outputs: Sequence[Array], backwards: bool = False
) -> list[Call]:
    """Return the calls for NumPy arrays that broadcast to the shape of the outputs, and scalars without axes.

    With `backwards` the last block comes first, because after a backward pass the end of the gradients is still in the cache.
    """
    shape, length = outputs[0].shape, program.length
    if not program.of_vectors and (len(program.steps) == 1 or outputs[0].size <= length):
        rows = _rows(program, device, outputs[0].size, outputs[0].dtype)
        return _block(program, [*elements, *scalars, *outputs, *(row.reshape(shape) for row in rows), *program.constants])
    arrays = [*outputs, *(a if a.shape == shape else np.broadcast_to(a, shape) for a in elements)]
    parts = list(_parts(arrays, length))
    if backwards:
        parts.reverse()
    most = max((part[0].size for part in parts), default=0)
    rows = _rows(program, device, most, outputs[0].dtype)
    calls: list[Call] = []
    for part in parts:
        new, old = part[: len(outputs)], part[len(outputs) :]
        calls += _block(program, [*old, *scalars, *new, *(row[: new[0].size].reshape(new[0].shape) for row in rows), *program.constants])
    return calls


def _rows(program: CompiledFormula, device: Binder, length: int, dtype: Any) -> Sequence[Array]:
    """Allocate the scratch rows of a block of this length."""
    return list(device.scratch((program.rows, length), dtype_of(dtype))) if program.rows else ()


def _parts(arrays: Sequence[Array], length: int) -> Iterator[Sequence[Array]]:
    """Yield arrays of one shape block by block, as vectors if all are contiguous."""
    if not all(a.flags.c_contiguous for a in arrays):
        yield from blocks(arrays, length)
        return
    vectors = [a.reshape(-1) for a in arrays]
    size = vectors[0].size
    for start, stop in cut(size, -(-size // length)) if size else ():
        yield [a[start:stop] for a in vectors]


def _block(program: CompiledFormula, arrays: list[Array]) -> list[Call]:
    arrays += [arrays[i].view(program.bits) for i in program.viewed]
    if not program.of_vectors:
        return [(function, arguments(arrays)) for function, arguments in program.steps]
    calls: list[Call] = []
    for function, arguments in program.steps:
        if function is blas.mixed:
            calls += blas.mixed(*arguments(arrays))
        else:
            calls.append((function, arguments(arrays)))
    return calls
