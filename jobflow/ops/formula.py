"""Elementwise formulas, written once as arithmetic and run in two ways: on whole arrays, or as NumPy calls in place, block by block.

A formula is a pure function of elements and numbers that uses operators, NumPy's elementwise functions and `weighted_sum`:

    def formula(w, g, rate):
        return (w - rate * g,)

Called with arrays it computes; called with `Recorded` values it is written down.  `compiled` gives each value it writes down a place, and
`block_calls` makes of that the calls for a block after another, so that blocks stay in the cache from one call to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from jobflow.core.layout import cut
from jobflow.core.types import Array, dtype_of
from jobflow.ops import blas
from jobflow.ops.op import Binder, Call

#: elements per block: the arrays of one block of Adam (w, m, v, g and one of scratch) stay in a second-level cache of 1 MB
BLOCK = 32 * 1024
#: the same for formulas of few arrays, where fewer, longer calls pay more
LONG_BLOCK, FEW = 64 * 1024, 4

#: an array, or what stands for one while a formula is recorded
Element = Any
#: elements and numbers -> the new values of the first elements, in their order
Formula = Callable[..., Sequence[Element]]
#: a function, the values it takes (a float is a constant), and the value it gives
Step = tuple[Callable[..., Any], tuple[int | float, ...], int]
#: a function, and what takes its arguments, with what it writes, out of all places
Placed = tuple[Callable[..., Any], Callable[[Sequence[Array]], Any]]


class FormulaArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array in a formula: what is done with it is written down."""

    def __init__(self, value: int, steps: list[Step], given: int) -> None:
        self.value, self.steps, self.given = value, steps, given

    def __array_ufunc__(self, function: Callable[..., Any], method: str, *inputs: Any, **options: Any) -> FormulaArray:
        if method != "__call__" or options:
            raise TypeError(f"a formula is elementwise: {function} with {method} and {options} is not")
        return self.made(function, *inputs)

    def made(self, function: Callable[..., Any], *inputs: FormulaArray | float) -> FormulaArray:
        """What the function gives for these."""
        result = FormulaArray(self.given + len(self.steps), self.steps, self.given)
        self.steps.append((function, tuple(x.value if isinstance(x, FormulaArray) else float(x) for x in inputs), result.value))
        return result


def weighted_sum(alpha: Element, x: Element, beta: Element, y: Element) -> Element:
    """alpha x + beta y: where the result is written over y, BLAS needs one pass, and rounds once less."""
    return y.made(weighted_sum, alpha, x, beta, y) if isinstance(y, FormulaArray) else alpha * x + beta * y


@dataclass(frozen=True)
class CompiledFormula:
    """The calls of a block.  They find their arrays by place: the elements, the numbers, the new values, rows of scratch, then the constants."""

    elements: int
    numbers: int
    rows: int
    constants: tuple[Array, ...]
    steps: tuple[Placed, ...]

    @property
    def length(self) -> int:
        """Elements per block."""
        return LONG_BLOCK if self.elements + self.rows <= FEW else BLOCK


def compiled(formula: Formula, elements: int, numbers: int, dtype: Any) -> CompiledFormula:
    """A formula as calls that write each value where it ends up, as far as nothing there is still read, and else into scratch."""
    steps: list[Step] = []
    given = elements + numbers
    made = formula(*(FormulaArray(i, steps, given) for i in range(given)))
    results = [x.value if x.value == k or x.value >= given else x.made(np.positive, x).value for k, x in enumerate(made)]
    last = {x: i for i, (_, inputs, _) in enumerate(steps) for x in inputs if isinstance(x, int)} | dict.fromkeys(results, len(steps))
    places = {i: i for i in range(given)}
    for k, value in enumerate(results):
        _lead_to(given + k, value, k, steps, last, places, given)
    scratch = _Scratch(given + len(results))
    spare: dict[int, int] = {}
    for i, (function, inputs, value) in enumerate(steps):
        dying = {places[x] for x in inputs if isinstance(x, int) and last[x] == i and places[x] >= scratch.first}
        if function is weighted_sum:  # its result must not lie over what it needs besides
            x, y = inputs[1], inputs[3]
            spare[i] = places[x] if isinstance(x, int) and x != y and places[x] in dying else scratch.take()
        scratch.free += [place for place in sorted(dying) if place != spare.get(i)]
        if value not in places:
            places[value] = scratch.take()
        scratch.free += [spare[i]] if i in spare else []
    chosen = [(f, [*inputs, value], [spare[i]] if i in spare else []) for i, (f, inputs, value) in enumerate(steps)]
    constants = {x.hex(): x for _, values, _ in chosen for x in values if isinstance(x, float)}
    behind = {name: scratch.first + scratch.rows + i for i, name in enumerate(constants)}

    def at(value: int | float) -> int:
        return behind[value.hex()] if isinstance(value, float) else places[value]

    calls: list[Placed] = [(POSITIONAL.get(f, f), itemgetter(*map(at, values), *also)) for f, values, also in chosen]
    calls += [(np.positive, itemgetter(places[value], given + k)) for k, value in enumerate(results) if places[value] != given + k]
    return CompiledFormula(elements, numbers, scratch.rows, tuple(np.asarray(x, dtype) for x in constants.values()), tuple(calls))


def _lead_to(output: int, value: int, old: int, steps: list[Step], last: dict[int, int], places: dict[int, int], given: int) -> None:
    """Have a result made in its memory, and so what it is made of, from the last time on that the `old` value there is read."""
    while value >= given and value not in places and last.get(old, -1) <= value - given:
        places[value] = output
        at = value - given
        ending = (x for x in steps[at][1] if isinstance(x, int) and x >= given and last[x] == at and x not in places)
        value = next(ending, -1)


class _Scratch:
    """Rows of scratch, as places from `first` on."""

    def __init__(self, first: int) -> None:
        self.first, self.rows = first, 0
        self.free: list[int] = []

    def take(self) -> int:
        self.rows += not self.free
        return self.free.pop() if self.free else self.first + self.rows - 1


def block_calls(
    program: CompiledFormula, device: Binder, elements: Sequence[Array], numbers: Sequence[Array], outputs: Sequence[Array]
) -> list[Call] | None:
    """The calls for NumPy arrays of one shape and numbers without axes; None if the arrays are not contiguous.

    The last block comes first: the end of what the backward pass has written is still in the cache, and the first variables will
    be when the next forward pass begins with them.
    """
    if not all(a.flags.c_contiguous for a in (*elements, *outputs)):
        return None
    size, length = elements[0].size, program.length
    rows = [*device.scratch((program.rows, min(length, size)), dtype_of(elements[0].dtype))] if program.rows else []
    elements, outputs = [a.reshape(-1) for a in elements], [a.reshape(-1) for a in outputs]
    if 0 < size <= length:
        return _block(program, [*elements, *numbers, *outputs, *rows, *program.constants])
    calls: list[Call] = []
    for start, stop in reversed(cut(size, max(1, -(-size // length)))):
        if stop > start:
            old, new = ([a[start:stop] for a in arrays] for arrays in (elements, outputs))
            calls += _block(program, [*old, *numbers, *new, *(row[: stop - start] for row in rows), *program.constants])
    return calls


def _block(program: CompiledFormula, places: Sequence[Array]) -> list[Call]:
    calls: list[Call] = []
    for function, arguments in program.steps:
        if function is weighted_sum:
            calls += blas.mixed(*arguments(places))
        else:
            calls.append((function, arguments(places)))
    return calls


def _maximum(x: Array, y: Array, z: Array) -> None:
    np.maximum(x, y, out=z)


def _minimum(x: Array, y: Array, z: Array) -> None:
    np.minimum(x, y, out=z)


#: instead of functions of which a positional output is deprecated
POSITIONAL: dict[Callable[..., Any], Callable[..., Any]] = {np.maximum: _maximum, np.minimum: _minimum}
