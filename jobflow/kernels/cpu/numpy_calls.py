"""Expressions as NumPy calls in place, block by block, so that blocks stay in the cache from one call to the next.

`compiled` brings expressions into steps that are one call each, and gives each value a place: where it ends up, as far as nothing there is
still read, and else scratch.  `block_calls` makes of that the calls for one block after another.

Truth values are whole numbers of the width of the others, 0 or 1, and a choice is arithmetic on bit patterns: y ^ (x ^ y) c is x where c is
1 and y where it is 0, four times as fast as a masked copy under a random mask.
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
#: the same for formulas of few arrays, where fewer, longer calls pay more
LONG_BLOCK, FEW = 64 * 1024, 4

#: a function, and what takes its arguments, with what it writes, out of all places
Placed = tuple[Callable[..., Any], Callable[[Sequence[Array]], Any]]


# Expressions of primitives that are one call each -------------------------------------------------------------------


def _simple(outputs: Sequence[Expression]) -> list[Expression]:
    """The same, of primitives that are one call each; every output is a step of its own."""
    results: list[Expression] = []
    for y in _of_single_calls(outputs):
        results.append(y if y.arguments and y not in results else make("positive", (y,), y.dtype))
    return results


def _of_single_calls(outputs: Sequence[Expression], simple: Collection[Expression] = ()) -> list[Expression]:
    """`simple` are so already, and left as they are."""
    readers = Counter(y for x in in_order(outputs) for y in x.arguments)
    found = {x: x for x in simple}
    for x in in_order(outputs):
        if x in found:
            continue
        arguments = [found[y] for y in x.arguments]
        formula = formula_of(x.primitive, x.dtype)
        if x.primitive == "cast":
            found[x] = cast(arguments[0], x.dtype)
        elif formula is not None:
            made = formula(*arguments)
            (found[x],) = [made] if made.primitive == x.primitive else _of_single_calls([made], {*in_order(arguments)})
        elif x.primitive == "multiply" and arguments[1].primitive == "reciprocal" and readers[x.arguments[1]] == 1 and x.arguments[1] not in simple:
            found[x] = f.divide(arguments[0], *arguments[1].arguments)
        else:
            found[x] = make(x.primitive, tuple(arguments), x.dtype, x.attribute)
    return [found[x] for x in outputs]


def _written(function: Callable[..., Array]) -> Callable[..., None]:
    """A function with a positional output for one that makes an array."""

    def write(x: Array, z: Array) -> None:
        z[...] = function(np, x)

    return write


def _maximum(x: Array, y: Array, z: Array) -> None:
    np.maximum(x, y, out=z)


def _minimum(x: Array, y: Array, z: Array) -> None:
    np.minimum(x, y, out=z)


def _convert(x: Array, z: Array) -> None:
    np.copyto(z, x, casting="unsafe")


#: instead of functions of NumPy of which a positional output is deprecated
POSITIONAL: dict[str, Callable[..., Any]] = {"maximum": _maximum, "minimum": _minimum}
#: primitives that are another function than NumPy's of their name; truth values are whole numbers here
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **POSITIONAL,
    "cast": _convert,
    "positive": _convert,
    "erf": _written(erf),
    "erfc": _written(erfc),
    **{f"logical_{name}": getattr(np, f"bitwise_{name}") for name in ("and", "or", "xor")},
}


# Places -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompiledFormula:
    """The calls of a block.

    They find their arrays by place: the elements, the numbers, the new values, rows of scratch, the constants, and then views of the bits
    of those at `viewed`.
    """

    elements: int
    numbers: int
    rows: int
    constants: tuple[Array, ...]
    viewed: tuple[int, ...]
    bits: Any
    steps: tuple[Placed, ...]
    #: whether some calls take vectors only
    of_vectors: bool

    @cached_property
    def alone(self) -> Placed | None:
        """The step, if there is one only and it needs nothing besides."""
        return self.steps[0] if len(self.steps) == 1 and not (self.rows or self.viewed or self.of_vectors) else None

    @property
    def length(self) -> int:
        """Elements per block."""
        return LONG_BLOCK if self.elements + self.rows <= FEW else BLOCK


def compiled(outputs: Sequence[Expression], elements: int, numbers: int, over: Mapping[int, Sequence[int]]) -> CompiledFormula | None:
    """Expressions of so many elements and then numbers as calls; output k may lie over the elements over[k], and over no others.

    None where they are not all of one element type, but for truth values and what is cast.
    """
    results, dtype = _simple(outputs), outputs[0].dtype
    steps = [x for x in in_order(results) if x.arguments]
    if any(x.dtype is not dtype and x.dtype is not bool_ for x in steps) or any(x.dtype is not dtype for x in results):
        return None
    given = elements + numbers
    last = {y: i for i, x in enumerate(steps) for y in x.arguments} | dict.fromkeys(results, len(steps))
    leaves = [x for x in in_order(results) if not x.arguments]
    places = {x: int(str(x.attribute)) for x in leaves if x.primitive in ("element", "number")}
    read = {place: last[x] for x, place in places.items()}
    for k, value in enumerate(results):
        _lead_to(given + k, value, max((read.get(i, -1) for i in over.get(k, ())), default=-1), steps, last, places)
    scratch = _Scratch(given + len(results))
    spare = _place(steps, last, places, scratch)
    behind = [x for x in leaves if x not in places]
    places |= {x: scratch.first + scratch.rows + i for i, x in enumerate(behind)}
    seen = _Bits(dtype, scratch.first + scratch.rows + len(behind))
    calls = [_placed(x, [seen.place(x, y, places[y]) for y in (*x.arguments, x)], spare.get(i)) for i, x in enumerate(steps)]
    calls += [(_convert, itemgetter(places[x], given + k)) for k, x in enumerate(results) if places[x] != given + k]
    constants = tuple(_constant(x, dtype, seen.dtype) for x in behind)
    return CompiledFormula(elements, numbers, scratch.rows, constants, tuple(seen.viewed), seen.dtype, tuple(calls), bool(spare))


def _lead_to(output: int, value: Expression, free: int, steps: list[Expression], last: dict[Expression, int], places: dict[Expression, int]) -> None:
    """Have a result made in its memory, and so what it is made of, from step `free` on, when nothing there is read any more."""
    while value not in places and free <= (at := steps.index(value)):
        places[value] = output
        ending = [x for x in value.arguments if x.arguments and last[x] == at and x not in places]
        if not ending:
            return
        value = ending[0]


def _place(steps: list[Expression], last: dict[Expression, int], places: dict[Expression, int], scratch: _Scratch) -> dict[int, int]:
    """Give the other steps rows of scratch; the rows that weighted sums need besides, by step."""
    spare: dict[int, int] = {}
    for i, step in enumerate(steps):
        dying = {places[x] for x in step.arguments if x in places and last[x] == i and places[x] >= scratch.first}
        if step.primitive == "weighted_sum":  # its result must not lie over what it needs besides
            _, x, _, y = step.arguments
            spare[i] = places[x] if x is not y and places.get(x) in dying else scratch.take()
        scratch.free += [place for place in sorted(dying) if place != spare.get(i)]
        if step not in places:
            places[step] = scratch.take()
        scratch.free += [spare[i]] if i in spare else []
    return spare


class _Scratch:
    """Rows of scratch, as places from `first` on."""

    def __init__(self, first: int) -> None:
        self.first, self.rows = first, 0
        self.free: list[int] = []

    def take(self) -> int:
        self.rows += not self.free
        return self.free.pop() if self.free else self.first + self.rows - 1


class _Bits:
    """Which places are read or written as whole numbers of the same width, by way of views behind all places."""

    def __init__(self, dtype: DType, total: int) -> None:
        self.of, self.dtype, self.total = dtype, np.dtype(f"i{dtype.itemsize}"), total
        self.viewed: dict[int, int] = {}

    def place(self, step: Expression, x: Expression, place: int) -> int:
        """Where a step finds what it reads or writes, if its place is this one."""
        truth = x.dtype is bool_ and x.primitive != "element"
        pattern = step.primitive.startswith("bits ") and x.dtype is self.of
        return self.viewed.setdefault(place, self.total + len(self.viewed)) if truth or pattern else place


def _placed(step: Expression, places: Sequence[int], spare: int | None) -> Placed:
    if spare is not None:
        return blas.mixed, itemgetter(*places, spare)
    name = step.primitive.removeprefix("bits ")
    return FUNCTIONS.get(name) or getattr(np, name), itemgetter(*places)


def _constant(x: Expression, dtype: DType, whole: Any) -> Array:
    if x.primitive == "bits":
        return np.asarray(x.attribute, whole).view(dtype.numpy)
    return np.asarray(x.attribute, whole if x.dtype is bool_ else x.dtype.numpy)


# Blocks -------------------------------------------------------------------------------------------------------------


def block_calls(
    program: CompiledFormula, device: Binder, elements: Sequence[Array], numbers: Sequence[Array], outputs: Sequence[Array], backwards: bool = False
) -> list[Call]:
    """The calls for NumPy arrays that broadcast to the shape of the outputs, and numbers without axes.

    With `backwards` the last block comes first: after a backward pass the end of what it has written is still in the cache.
    """
    shape, length = outputs[0].shape, program.length
    if not program.of_vectors and (len(program.steps) == 1 or outputs[0].size <= length):
        rows = _rows(program, device, outputs[0].size, outputs[0].dtype)
        return _block(program, [*elements, *numbers, *outputs, *(row.reshape(shape) for row in rows), *program.constants])
    arrays = [*outputs, *(a if a.shape == shape else np.broadcast_to(a, shape) for a in elements)]
    parts = list(_parts(arrays, length))
    if backwards:
        parts.reverse()
    most = max((part[0].size for part in parts), default=0)
    rows = _rows(program, device, most, outputs[0].dtype)
    calls: list[Call] = []
    for part in parts:
        new, old = part[: len(outputs)], part[len(outputs) :]
        calls += _block(program, [*old, *numbers, *new, *(row[: new[0].size].reshape(new[0].shape) for row in rows), *program.constants])
    return calls


def _rows(program: CompiledFormula, device: Binder, length: int, dtype: Any) -> Sequence[Array]:
    """Scratch for a block of this length."""
    return list(device.scratch((program.rows, length), dtype_of(dtype))) if program.rows else ()


def _parts(arrays: Sequence[Array], length: int) -> Iterator[Sequence[Array]]:
    """Arrays of one shape block by block, as vectors where they all lie in memory without gaps."""
    if not all(a.flags.c_contiguous for a in arrays):
        yield from blocks(arrays, length)
        return
    vectors = [a.reshape(-1) for a in arrays]
    size = vectors[0].size
    for start, stop in cut(size, -(-size // length)) if size else ():
        yield [a[start:stop] for a in vectors]


def _block(program: CompiledFormula, places: list[Array]) -> list[Call]:
    places += [places[i].view(program.bits) for i in program.viewed]
    if not program.of_vectors:
        return [(function, arguments(places)) for function, arguments in program.steps]
    calls: list[Call] = []
    for function, arguments in program.steps:
        if function is blas.mixed:
            calls += blas.mixed(*arguments(places))
        else:
            calls.append((function, arguments(places)))
    return calls
