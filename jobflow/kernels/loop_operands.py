"""Checks of the operands of an elementwise loop, and their access along its axes, for machine code of CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, TensorType, dtype_of, float32
from jobflow.expressions.language import Expression, in_order
from jobflow.kernels.argument_block import address
from jobflow.kernels.loop_space import LoopForm, OperandAccess, Space, overlaps, space_of, steps
from jobflow.kernels.region import expression_on, space_on
from jobflow.kernels.row_phases import COLUMNS, REDUCTIONS, of_columns, position
from jobflow.ops.op import Op

MOST_AXES = 6


@dataclass(frozen=True)
class Facts:
    """Properties of output expressions that do not depend on arrays."""

    order: tuple[Expression, ...]
    #: indices of inputs that are read at the loop's index, indices of inputs that are tables, and the types of all inputs that are read
    elements: tuple[int, ...]
    tables: tuple[int, ...]
    types: dict[int, DType]
    #: True if expressions refer to rows along the last axis
    rows: bool
    #: sums of columns, and expressions computed from them
    per_column: tuple[Expression, ...]


@lru_cache(4096)
def facts(outputs: tuple[Expression, ...]) -> Facts:
    order = in_order(outputs)
    elements = {position(x) for x in order if x.primitive == "element"}
    tables = {position(x) for x in order if x.primitive == "looked_up"}
    types = {position(x): x.dtype for x in order if x.primitive in ("element", "number", "looked_up")}
    rows = any(x.primitive in (*REDUCTIONS, COLUMNS, "columns") for x in order)
    return Facts(tuple(order), tuple(sorted(elements)), tuple(sorted(tables)), types, rows, of_columns(order))


def refused_columns(order: Sequence[Expression]) -> str:
    """Return the reason to refuse an expression that mixes sums of columns with elements of rows, or "" if there is no such expression.

    Sums of columns are complete only after the last row, so an expression on them cannot read a row.
    """
    per_column = of_columns(order)
    allowed = {*per_column, *(x for x in order if x.primitive in ("number", "constant"))}
    per_row = [y for x in per_column if x.primitive != COLUMNS for y in x.arguments if y not in allowed]
    return f"{per_row[0].primitive} is combined with a sum of columns, which is complete only after the last row" if per_row else ""


def refused_operands(known: Facts, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str:
    """Return the reason these arrays cannot be operands of one loop, or "" if they can."""
    return _refused_arrays(known, outputs, inputs, targets) or _refused_space(known, outputs, inputs, targets)


def _refused_arrays(known: Facts, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str:
    read = [(f"input {k}", inputs[k], dtype) for k, dtype in known.types.items()]
    for what, array, dtype in (*read, *((f"output {k}", t, y.dtype) for k, (y, t) in enumerate(zip(outputs, targets, strict=True)))):
        if array.dtype != dtype.numpy:
            return f"{what} is {array.dtype}, not {dtype.name}"
        if not array.flags.aligned:
            return f"the address of {what} is not a multiple of its element size"
    if set(known.elements) & set(known.tables):
        return "an input is both a table and read at the loop's index"
    several = [k for k in known.types if k not in (*known.elements, *known.tables) and inputs[k].size != 1]
    return f"input {several[0]} has {inputs[several[0]].size} elements, not one" if several else ""


def _refused_space(known: Facts, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> str:
    if not known.rows and any(target.size == 0 for target in targets):
        return ""
    operands = [inputs[k] for k in known.elements]
    try:
        shape = loop_shape(known, inputs, targets)
    except ValueError:
        return f"shapes {', '.join(str(a.shape) for a in (*operands, *targets))} do not broadcast"
    if (known.rows and shape and shape[-1] == 0) or (known.per_column and 0 in shape):
        return "rows have no elements"
    for k, target in enumerate(targets):
        if not _covers(outputs[k], known, target, shape, inputs):
            return f"output {k} of shape {target.shape} does not cover {shape}"
        if any(stride == 0 and size > 1 for stride, size in zip(target.strides, target.shape, strict=True)):
            return f"output {k} has several elements at one address"
        if any(np.may_share_memory(target, inputs[i]) for i in known.tables):
            return f"output {k} may share memory with a table"
        if any(overlaps(target, other) for other in (*operands, *targets[:k], *targets[k + 1 :])):
            return f"output {k} shares memory with another operand, but not element by element"
        if any(target.size and address(target) == address(other) for other in targets[:k]):
            return f"output {k} has the address of another output"
    axes = len(loop_space(known, inputs, targets, shape).sizes)
    return f"{axes} axes, more than {MOST_AXES}" if axes > MOST_AXES else ""


def loop_shape(known: Facts, inputs: Sequence[Array], targets: Sequence[Array]) -> tuple[int, ...]:
    """Return the shape to which the targets and the inputs broadcast; scalar inputs do not count, and tables count without their last axis."""
    shapes = (
        a.shape[:-1] if k in known.tables else a.shape for k, a in enumerate(inputs) if k in {*known.elements, *known.tables} or k not in known.types
    )
    return np.broadcast_shapes(*shapes, *(target.shape for target in targets))


def _covers(y: Expression, known: Facts, target: Array, shape: tuple[int, ...], inputs: Sequence[Array]) -> bool:
    """Return True if `target` has the right shape to store y in a loop over `shape`.

    Sums of columns need one element per column.  Other values need one element per index, or one per row if the value is equal along the row.
    """
    if y in known.per_column:
        return bool(shape) and target.shape[-1:] == shape[-1:] and target.size == shape[-1]
    return target.shape == shape or bool(shape and target.shape == (*shape[:-1], 1) and constant_in_rows(in_order([y]), inputs)[y])


def constant_in_rows(order: Sequence[Expression], inputs: Sequence[Array]) -> dict[Expression, bool]:
    """Return, for each expression, whether it has one value for all elements of a row; `order` has arguments first."""
    constant: dict[Expression, bool] = {}
    for y in order:
        if y.primitive == "element":
            shape = inputs[position(y)].shape
            constant[y] = not shape or shape[-1] == 1
        elif y.primitive == "looked_up":
            constant[y] = inputs[position(y)].shape[-2:-1] in ((), (1,)) and constant[y.arguments[0]]
        elif y.primitive == "index":
            constant[y] = y.attribute != -1
        else:
            constant[y] = y.primitive in REDUCTIONS or all(constant[z] for z in y.arguments)
    return constant


def loop_space(known: Facts, inputs: Sequence[Array], targets: Sequence[Array], shape: tuple[int, ...]) -> Space:
    """Return the space of the loop; scalars and unread inputs have stride 0 along every axis."""
    rows = known.rows or any(target.shape != shape for target in targets)
    return space_of(shape, strides_along(known, inputs, targets, shape), rows, ordered=bool(known.per_column))


def strides_along(known: Facts, inputs: Sequence[Array], targets: Sequence[Array], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the strides in bytes of the operands along the axes of a loop, inputs first."""
    return [*(_along(known, k, array, shape) for k, array in enumerate(inputs)), *(steps(target, shape) for target in targets)]


def _along(known: Facts, k: int, array: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    if k in known.tables:
        return steps(array[..., 0], shape)
    return steps(array, shape) if k in known.elements else (0,) * len(shape)


def loop_form(known: Facts, space: Space, inputs: Sequence[Array], outputs: Sequence[Expression], counted: int = 0) -> LoopForm:
    """Return the form of the loop; the last `counted` inputs are index operands."""
    types, real = known.types, len(inputs) - counted
    read = [OperandAccess(types.get(k, float32), "number") for k in range(len(inputs))]
    for k in (*known.elements, *known.tables):
        read[k] = replace(space.access(k, types[k], k >= real), table=k in known.tables)
    written = [space.access(len(inputs) + k, y.dtype) for k, y in enumerate(outputs)]
    return LoopForm(len(space.sizes) - 1, tuple(read), tuple(written))


def _types(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(tuple(a.shape), dtype_of(a.dtype)) for a in arrays]


def views_in_space(op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[list[Array], list[Array]] | None:
    """Return views of the inputs and outputs in the operation's index space, or None if an array has no view in this space.

    If the operation has no index space, return the arrays unchanged.
    """
    space = space_on(op, *_types(inputs))
    if space is None:
        return list(inputs), list(outputs)
    views = [space.view(k, a) for k, a in enumerate((*inputs, *outputs))]
    available = [v for v in views if v is not None]
    return (available[: len(inputs)], available[len(inputs) :]) if len(available) == len(views) else None


def expression_of(op: Op, inputs: Sequence[Array]) -> tuple[Expression, ...] | None:
    """Return the expressions of an operation for inputs of these types, one per output; None if it has none."""
    return expression_on(op, *_types(inputs))
