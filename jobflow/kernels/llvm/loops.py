"""Calls of compiled loops for expressions and arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, dtype_named
from jobflow.expressions.cost import flops_per_element
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.argument_block import address, argument_block
from jobflow.kernels.decompositions import DECOMPOSITIONS, lowered
from jobflow.kernels.index_operands import with_index_operands
from jobflow.kernels.llvm.instructions import INSTRUCTIONS
from jobflow.kernels.llvm.loop_text import print_loop
from jobflow.kernels.llvm.machine_code import Function, Printed, compiler
from jobflow.kernels.loop_operands import Facts, facts, loop_form, loop_shape, loop_space, refused_columns, refused_operands
from jobflow.kernels.loop_space import LoopForm, Space, stride_of_table
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS
from jobflow.kernels.transposed_reduction import TransposedLoop, has_strided_columns, transposed_reduction
from jobflow.ops.op import Call

#: primitives that are read, not computed
_READ = {"element", "looked_up", "number", "constant", "columns", "index"}
_PRINTED = {*_READ, *REDUCTIONS, COLUMNS, *INSTRUCTIONS, *DECOMPOSITIONS}
#: most operations per element for which reading the operands dominates
CHEAP = 4
#: longest row with scratch rows; longer ones would double the memory of tensors that are one row
LONGEST = 1 << 16
#: types whose cast to half precision rounds once
_TO_HALF = {"bool", "char", "int8", "uint8", "int16", "float16", "bfloat16", "float32"}


@dataclass(frozen=True)
class Loop:
    """A compiled loop: the machine code that computes the outputs for operands of one form."""

    form: LoopForm
    #: element types of its rows of scratch memory
    scratch: tuple[DType, ...]
    function: Function


_loops: dict[tuple[tuple[Expression, ...], LoopForm, bool], Loop] = {}
_lock = threading.Lock()


def compile_loop(outputs: Sequence[Expression], form: LoopForm, keeps: bool = True) -> Loop:
    """Return the loop of these outputs for operands of this form, printed and compiled once.

    With `keeps`, results that are expensive to recompute are stored in scratch rows.
    """
    key = (tuple(outputs), form, keeps)
    with _lock:
        loop = _loops.get(key)
    if loop is None:
        function, scratch = compiler().printed(f"{_described(outputs)}\n{form}\n{keeps}", lambda: _printed(outputs, form, keeps))
        loop = Loop(form, tuple(map(dtype_named, scratch.split())), function)
        with _lock:
            loop = _loops.setdefault(key, loop)
    return loop


def _printed(outputs: Sequence[Expression], form: LoopForm, keeps: bool) -> Printed:
    expanded, expensive = lowered(outputs, compiler().primitives)
    return print_loop(expanded, form, expensive if keeps else set())


def _described(outputs: Sequence[Expression]) -> str:
    """Return a complete description of the outputs; different outputs have different descriptions."""
    number = {x: n for n, x in enumerate(in_order(outputs))}
    parts = [f"{x.primitive} {x.dtype.name} {[number[y] for y in x.arguments]} {x.attribute!r}" for x in number]
    return "\n".join((*parts, str([number[x] for x in outputs])))


@lru_cache(4096)
def _problem(outputs: tuple[Expression, ...]) -> str:
    """Return the reason no loop can compute these outputs for any arrays, or "" if a loop can."""
    order = facts(outputs).order
    for x in order:
        if x.primitive not in _PRINTED:
            return f"{x.primitive} has no decomposition into machine instructions"
        if x.primitive == "power" and x.dtype.is_integer and not _whole(x.arguments[1]):
            return "a power of integers needs a constant exponent of at least 0"
        if x.primitive == "cast":
            names = (x.arguments[0].dtype.name, x.dtype.name)
            if any(d.is_half for d in (x.arguments[0].dtype, x.dtype)) and not set(names) <= _TO_HALF:
                return f"cast from {names[0]} to {names[1]} would be rounded twice"
        if x.primitive in DECOMPOSITIONS and not compiler().has_fma:
            return f"{x.primitive} needs fused multiply-adds, which this machine lacks"
        if x.dtype.name == "float16" and not compiler().has_float16:
            return "this machine has no instructions for float16"
    return refused_columns(order)


def _whole(exponent: Expression) -> bool:
    return exponent.primitive == "constant" and int(str(exponent.attribute)) >= 0


def refuses(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str | None:
    """Return the reason no loop computes these outputs for these arrays, or None if one does."""
    known = facts(tuple(outputs))
    problem = _problem(tuple(outputs)) or refused_operands(known, outputs, inputs, targets) or _gathered_rows(known, outputs, inputs)
    if problem or not has_strided_columns(outputs, inputs, targets):
        return problem or None
    transposed = transposed_reduction(outputs, inputs, targets)
    if transposed is None:
        return "it sums columns that are not contiguous in memory"
    return refused_operands(facts(transposed.outputs), transposed.outputs, transposed.inputs, transposed.targets) or None


def cheap(outputs: Sequence[Expression]) -> bool:
    """Return True if the outputs cost less to compute than copies of their operands."""
    return flops_per_element(outputs) <= CHEAP


def _gathered_rows(known: Facts, outputs: Sequence[Expression], inputs: Sequence[Array]) -> str:
    """Return the reason to refuse a cheap reduction of rows that are not contiguous, or "" for other operations.

    Each element of a strided row is read from another cache line; NumPy processes many rows at once.
    """
    if not any(x.primitive in REDUCTIONS for x in known.order) or not cheap(outputs):
        return ""
    rows = [inputs[k] for k in known.elements if inputs[k].ndim > 1]
    strided = any(a.shape[-1] > 1 and a.size > a.shape[-1] and a.strides[-1] != a.itemsize for a in rows)
    return "the elements of rows are not contiguous in memory" if strided else ""


def temporary(shape: tuple[int, ...], dtype: DType) -> Array:
    """Allocate memory for calls that run once."""
    return np.empty(shape, dtype.numpy)


def bind(
    outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], scratch: Callable[[tuple[int, ...], DType], Array] = temporary
) -> list[Call]:
    """Return the calls that compute the outputs from these inputs into these targets; `refuses` must have returned None.

    The calls share rows of memory from `scratch`, so they must not run concurrently.
    """
    if any(target.size == 0 for target in targets):
        return []
    transposed = transposed_reduction(outputs, inputs, targets) or TransposedLoop(tuple(outputs), tuple(inputs), tuple(targets))
    return _calls(transposed.outputs, transposed.inputs, transposed.targets, scratch)


def _calls(
    outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], scratch: Callable[[tuple[int, ...], DType], Array]
) -> list[Call]:
    known = facts(tuple(outputs))
    shape = loop_shape(known, inputs, targets)
    outputs, index_operands = with_index_operands(outputs, len(inputs), shape)
    known, inputs = facts(tuple(outputs)), [*inputs, *index_operands]
    space = loop_space(known, inputs, targets, shape)
    loop = compile_loop(outputs, loop_form(known, space, inputs, outputs, len(index_operands)), space.sizes[-1] <= LONGEST)
    rows = [scratch((space.sizes[-1],), dtype) for dtype in loop.scratch]
    tiles = [(0, space)] if known.rows or any(target.shape != shape for target in targets) else space.tiles()
    return [(loop.function, (_arguments(loop.form, tile, [*inputs, *targets], rows, first),)) for first, tile in tiles]


def _arguments(form: LoopForm, space: Space, operands: Sequence[Array], scratch: Sequence[Array], first: int) -> Any:
    """Return the argument block for the columns from `first` on."""
    words = [address(a) + first * strides[-1] for a, strides in zip(operands, space.strides, strict=True)]
    words += [address(a) for a in scratch]
    words += [space.sizes[-1], *space.sizes[:-1]]
    accesses = [*form.inputs, *form.outputs]
    for access, strides in zip(accesses, space.strides, strict=True):
        words += strides[:-1] if access.inner != "number" else ()
    words += [strides[-1] for access, strides in zip(accesses, space.strides, strict=True) if access.inner == "strided"]
    words += [stride_of_table(operand) for access, operand in zip(accesses, operands, strict=True) if access.table]
    return argument_block(words, (*operands, *scratch))


__all__ = ["Loop", "bind", "cheap", "compile_loop", "refuses"]
