"""Expressions and arrays to calls of machine code."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType, float32, float64
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.llvm.decompositions import DECOMPOSITIONS, lowered
from jobflow.kernels.llvm.instructions import INSTRUCTIONS
from jobflow.kernels.llvm.loop_space import LoopForm, OperandAccess, Space, address, overlaps, space_of, steps
from jobflow.kernels.llvm.loop_text import position, print_loop
from jobflow.kernels.llvm.machine_code import Function, compiler
from jobflow.kernels.llvm.row_phases import COLUMNS, REDUCTIONS, of_columns
from jobflow.ops.op import Call

#: primitives that are read or counted, not computed
_GIVEN = {"element", "number", "constant", "columns"}
_PRINTED = {*_GIVEN, *REDUCTIONS, COLUMNS, *INSTRUCTIONS, *DECOMPOSITIONS}
#: needs more digits than float64 has
_TOO_DEAR = {("power", float64)}
#: types whose numbers a number of two bytes is rounded from once
_TO_HALF = {"bool", "char", "int8", "uint8", "float16", "bfloat16", "float32"}
_MOST_AXES = 6


@dataclass(frozen=True)
class Loop:
    """Outputs as machine code for operands of one form."""

    form: LoopForm
    text: str
    #: element types of the rows of scratch memory that it needs
    scratch: tuple[DType, ...]
    function: Function


class _Arguments(ctypes.c_void_p):
    """The address of a block of arguments, which lives as long as this, as do the arrays whose addresses are in it."""

    block: Array
    arrays: tuple[Array, ...]


_loops: dict[tuple[tuple[Expression, ...], LoopForm], Loop] = {}
_lock = threading.Lock()


def compile_loop(outputs: Sequence[Expression], form: LoopForm) -> Loop:
    """The loop of these outputs for operands of this form: printed and compiled once."""
    key = (tuple(outputs), form)
    with _lock:
        found = _loops.get(key)
    if found is None:
        apart, dear = lowered(outputs, compiler().primitives)
        printed = print_loop(apart, form, dear)
        found = Loop(form, printed.text, printed.scratch, compiler().function(printed.text))
        with _lock:
            found = _loops.setdefault(key, found)
    return found


@dataclass(frozen=True)
class _Facts:
    """What of outputs does not depend on arrays."""

    order: tuple[Expression, ...]
    #: positions of inputs that are read at an index, and the types of all that are read
    elements: tuple[int, ...]
    types: dict[int, DType]
    #: does the last axis have a meaning?
    rows: bool
    #: sums of columns, and what is made of them
    per_column: tuple[Expression, ...]
    #: why there is no loop of these; "" if there is
    problem: str


@lru_cache(4096)
def _facts(outputs: tuple[Expression, ...]) -> _Facts:
    order = in_order(outputs)
    elements = {position(x) for x in order if x.primitive == "element"}
    types = {position(x): x.dtype for x in order if x.primitive in ("element", "number")}
    rows = any(x.primitive in (*REDUCTIONS, COLUMNS, "columns") for x in order)
    return _Facts(tuple(order), tuple(sorted(elements)), types, rows, of_columns(order), _refused_expression(order))


def _refused_expression(order: Sequence[Expression]) -> str:
    for x in order:
        if x.primitive not in _PRINTED:
            return f"{x.primitive} is not made of what a machine has"
        if x.primitive in DECOMPOSITIONS and (not x.dtype.is_float or (x.primitive, x.dtype) in _TOO_DEAR):
            return f"{x.primitive} of {x.dtype.name} is not made of what a machine has"
        if x.primitive == "cast":
            names = (x.arguments[0].dtype.name, x.dtype.name)
            if any(d.is_half for d in (x.arguments[0].dtype, x.dtype)) and not set(names) <= _TO_HALF:
                return f"cast from {names[0]} to {names[1]} would be rounded twice"
        if x.primitive in DECOMPOSITIONS and not compiler().has_fma:
            return f"{x.primitive} needs a machine with fused multiply-adds"
        if x.dtype.name == "float16" and not compiler().has_float16:
            return "this machine has no instructions for float16"
    return _refused_columns(order)


def _refused_columns(order: Sequence[Expression]) -> str:
    """Sums of columns are known after the last row: what is made of them has nothing of a row in it."""
    per_column = of_columns(order)
    allowed = {*per_column, *(x for x in order if x.primitive in ("number", "constant"))}
    beside = [y for x in per_column if x.primitive != COLUMNS for y in x.arguments if y not in allowed]
    return f"{beside[0].primitive} beside sums of columns" if beside else ""


def refuses(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str | None:
    """Why there is no loop of these outputs for these arrays; None if there is one."""
    facts = _facts(tuple(outputs))
    return facts.problem or _refused_arrays(facts, outputs, inputs, targets) or _refused_space(facts, outputs, inputs, targets) or None


def _refused_arrays(facts: _Facts, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str:
    read = [(f"input {k}", inputs[k], dtype) for k, dtype in facts.types.items()]
    for what, array, dtype in (*read, *((f"output {k}", t, y.dtype) for k, (y, t) in enumerate(zip(outputs, targets, strict=True)))):
        if array.dtype != dtype.numpy:
            return f"{what} is {array.dtype}, not {dtype.name}"
        if not array.flags.aligned:
            return f"{what} does not lie at a multiple of its element size"
    several = [k for k in facts.types if k not in facts.elements and inputs[k].size != 1]
    return f"input {several[0]} has {inputs[several[0]].size} elements, not one" if several else ""


def _refused_space(facts: _Facts, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str:
    if not facts.rows and any(target.size == 0 for target in targets):
        return ""
    given = [inputs[k] for k in facts.elements]
    try:
        shape = np.broadcast_shapes(*(a.shape for a in (*given, *targets)))
    except ValueError:
        return f"shapes {', '.join(str(a.shape) for a in (*given, *targets))} do not broadcast"
    if (facts.rows and shape and shape[-1] == 0) or (facts.per_column and 0 in shape):
        return "rows without elements"
    for k, target in enumerate(targets):
        if not _covers(outputs[k], facts, target, shape, inputs):
            return f"output {k} of shape {target.shape} does not cover {shape}"
        if any(stride == 0 and size > 1 for stride, size in zip(target.strides, target.shape, strict=True)):
            return f"output {k} has several elements in one place"
        if any(overlaps(target, other) for other in (*given, *targets[:k], *targets[k + 1 :])):
            return f"output {k} shares memory with another operand, and not element by element"
        if any(target.size and address(target) == address(other) for other in targets[:k]):
            return f"output {k} lies where another output does"
    axes = len(_space(facts, inputs, targets, shape).sizes)
    return f"{axes} axes" if axes > _MOST_AXES else ""


def _covers(y: Expression, facts: _Facts, target: Array, shape: tuple[int, ...], inputs: Sequence[Array]) -> bool:
    """Has an output a place for each of its values?"""
    if y in facts.per_column:
        return bool(shape) and target.shape[-1:] == shape[-1:] and target.size == shape[-1]
    return target.shape == shape or bool(shape and target.shape == (*shape[:-1], 1) and _one_per_row(y, inputs))


def _one_per_row(x: Expression, inputs: Sequence[Array]) -> bool:
    """Has it one value for all elements of a row?"""
    constant: dict[Expression, bool] = {}
    for y in in_order([x]):
        if y.primitive == "element":
            shape = inputs[position(y)].shape
            constant[y] = not shape or shape[-1] == 1
        else:
            constant[y] = y.primitive in REDUCTIONS or all(constant[z] for z in y.arguments)
    return constant[x]


def _space(facts: _Facts, inputs: Sequence[Array], targets: Sequence[Array], shape: tuple[int, ...]) -> Space:
    """A number, and what is not read, takes part as one element."""
    read = [steps(inputs[k], shape) if k in facts.elements else (0,) * len(shape) for k in range(len(inputs))]
    rows = facts.rows or any(target.shape != shape for target in targets)
    return space_of(shape, [*read, *(steps(target, shape) for target in targets)], rows, ordered=bool(facts.per_column))


def _form(facts: _Facts, space: Space, inputs: Sequence[Array], outputs: Sequence[Expression]) -> LoopForm:
    types, elements = facts.types, facts.elements
    read = [space.access(k, types[k]) if k in elements else OperandAccess(types.get(k, float32), "number") for k in range(len(inputs))]
    written = [space.access(len(inputs) + k, y.dtype) for k, y in enumerate(outputs)]
    return LoopForm(len(space.sizes) - 1, tuple(read), tuple(written))


def bind(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> list[Call]:
    """The calls that compute the outputs from these arrays into those; `refuses` says whether there are such.

    One call at a time: it has rows of scratch memory of its own.
    """
    if any(target.size == 0 for target in targets):
        return []
    facts = _facts(tuple(outputs))
    shape = np.broadcast_shapes(*(inputs[k].shape for k in facts.elements), *(target.shape for target in targets))
    space = _space(facts, inputs, targets, shape)
    loop = compile_loop(outputs, _form(facts, space, inputs, outputs))
    scratch = [np.empty(space.sizes[-1], dtype.numpy) for dtype in loop.scratch]
    return [(loop.function, (_arguments(loop.form, space, [*inputs, *targets], scratch),))]


def _arguments(form: LoopForm, space: Space, operands: Sequence[Array], scratch: Sequence[Array]) -> Any:
    words = [address(a) for a in (*operands, *scratch)]
    words += [space.sizes[-1], *space.sizes[:-1]]
    accesses = [*form.inputs, *form.outputs]
    for access, strides in zip(accesses, space.strides, strict=True):
        words += strides[:-1] if access.inner != "number" else ()
    words += [strides[-1] for access, strides in zip(accesses, space.strides, strict=True) if access.inner == "strided"]
    block = np.array(words, np.int64)
    argument = _Arguments(address(block))
    argument.block, argument.arrays = block, (*operands, *scratch)
    return argument


__all__ = ["Loop", "bind", "compile_loop", "refuses"]
