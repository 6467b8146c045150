"""Expressions and arrays to calls of machine code."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType, float32, float64
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.llvm.decompositions import DECOMPOSITIONS, lowered
from jobflow.kernels.llvm.instructions import INSTRUCTIONS
from jobflow.kernels.llvm.loop_space import LoopForm, OperandAccess, Space, dtype_or_reason, overlaps, space_of
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


def refuses(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str | None:
    """Why there is no loop of these outputs for these arrays; None if there is one."""
    order = in_order(outputs)
    return _refused_expression(order) or _refused_array(order, outputs, inputs, targets)


def _refused_expression(order: Sequence[Expression]) -> str | None:
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
    return None


def _refused_array(order: Sequence[Expression], outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str | None:
    for x in order:
        if x.primitive not in ("element", "number"):
            continue
        array = inputs[position(x)]
        dtype = dtype_or_reason(array, f"input {x.attribute}")
        if isinstance(dtype, str):
            return dtype
        if dtype.numpy != x.dtype.numpy:
            return f"input {x.attribute} is {dtype.name}, not {x.dtype.name}"
        if x.primitive == "number" and array.size != 1:
            return f"input {x.attribute} has {array.size} elements, not one"
    for k, (y, target) in enumerate(zip(outputs, targets, strict=True)):
        dtype = dtype_or_reason(target, f"output {k}")
        if isinstance(dtype, str):
            return dtype
        if dtype.numpy != y.dtype.numpy:
            return f"output {k} is {dtype.name}, not {y.dtype.name}"
    return _refused_space(order, outputs, inputs, targets)


def _refused_space(order: Sequence[Expression], outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str | None:
    given = _elements(order, inputs)
    rows, per_column = _has_rows(order), of_columns(order)
    if any(target.size == 0 for target in targets) and not rows and not per_column:
        return None
    try:
        shape = np.broadcast_shapes(*(a.shape for a in (*given, *targets)))
    except ValueError:
        return f"shapes {', '.join(str(a.shape) for a in (*given, *targets))} do not broadcast"
    if (rows and shape and shape[-1] == 0) or (per_column and 0 in shape):
        return "rows without elements"
    allowed = {*per_column, *(x for x in order if x.primitive in ("number", "constant"))}
    beside = next((y for x in per_column if x.primitive != COLUMNS for y in x.arguments if y not in allowed), None)
    if beside is not None:
        return f"{beside.primitive} beside sums of columns"
    for k, target in enumerate(targets):
        if not _covers(outputs[k], target, shape, inputs):
            return f"output {k} of shape {target.shape} does not cover {shape}"
        if any(stride == 0 and size > 1 for stride, size in zip(target.strides, target.shape, strict=True)):
            return f"output {k} has several elements in one place"
        if any(overlaps(target, other) for other in (*given, *targets[:k], *targets[k + 1 :])):
            return f"output {k} shares memory with another operand, and not element by element"
        if any(target.size and target.ctypes.data == other.ctypes.data for other in targets[:k]):
            return f"output {k} lies where another output does"
    space = _space(order, inputs, targets, shape)
    return f"{len(space.sizes)} axes" if len(space.sizes) > _MOST_AXES else None


def _covers(y: Expression, target: Array, shape: tuple[int, ...], inputs: Sequence[Array]) -> bool:
    """Has an output a place for each of its values?"""
    if y in of_columns(in_order([y])):
        return bool(shape) and target.shape[-1:] == shape[-1:] and target.size == shape[-1]
    return target.shape == shape or bool(shape and target.shape == (*shape[:-1], 1) and _one_per_row(y, inputs))


def _space(order: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array], shape: tuple[int, ...]) -> Space:
    rows = _has_rows(order) or any(target.shape != shape for target in targets)
    return space_of(inputs_of(order, inputs), targets, rows, ordered=bool(of_columns(order)))


def _has_rows(order: Sequence[Expression]) -> bool:
    return any(x.primitive in (*REDUCTIONS, COLUMNS, "columns") for x in order)


def _elements(order: Sequence[Expression], inputs: Sequence[Array]) -> list[Array]:
    return [inputs[k] for k in sorted({position(x) for x in order if x.primitive == "element"})]


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


def inputs_of(order: Sequence[Expression], inputs: Sequence[Array]) -> list[Array]:
    """The inputs as they take part in the space: a number, and what is not read, as one element."""
    read = {x.attribute for x in order if x.primitive == "element"}
    return [a if k in read else np.zeros(()) for k, a in enumerate(inputs)]


def _form(space: Space, order: Sequence[Expression], inputs: Sequence[Array], outputs: Sequence[Expression]) -> LoopForm:
    types = {x.attribute: x.dtype for x in order if x.primitive in ("element", "number")}
    elements = {x.attribute for x in order if x.primitive == "element"}
    read = [space.access(k, types[k]) if k in elements else OperandAccess(types.get(k, float32), "number") for k in range(len(inputs))]
    written = [space.access(len(inputs) + k, y.dtype) for k, y in enumerate(outputs)]
    return LoopForm(len(space.sizes) - 1, tuple(read), tuple(written))


def bind(outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> list[Call]:
    """The calls that compute the outputs from these arrays into those; `refuses` says whether there are such."""
    order = in_order(outputs)
    if any(target.size == 0 for target in targets):
        return []
    shape = np.broadcast_shapes(*(a.shape for a in (*_elements(order, inputs), *targets)))
    space = _space(order, inputs, targets, shape)
    loop = compile_loop(outputs, _form(space, order, inputs, outputs))
    scratch = [np.empty(space.sizes[-1], dtype.numpy) for dtype in loop.scratch]
    return [(loop.function, (_arguments(loop.form, space, [*inputs, *targets], scratch),))]


def _arguments(form: LoopForm, space: Space, operands: Sequence[Array], scratch: Sequence[Array]) -> Any:
    words = [a.ctypes.data for a in (*operands, *scratch)]
    words += [space.sizes[-1], *space.sizes[:-1]]
    accesses = [*form.inputs, *form.outputs]
    for access, strides in zip(accesses, space.strides, strict=True):
        words += strides[:-1] if access.inner != "number" else ()
    words += [strides[-1] for access, strides in zip(accesses, space.strides, strict=True) if access.inner == "strided"]
    block = np.array(words, np.int64)
    argument = _Arguments(block.ctypes.data)
    argument.block, argument.arrays = block, (*operands, *scratch)
    return argument


__all__ = ["OperandAccess", "LoopForm", "Loop", "bind", "compile_loop", "refuses"]
