"""Gradients through integers, which a legacy cast permits: an integer operation has the gradient of the same float64 operation."""

from __future__ import annotations

from collections.abc import Container

from jobflow.core.types import float64
from jobflow.graph.ir import Node, Value
from jobflow.ops import elementwise as ew
from jobflow.ops.layout_ops import ViewConversion
from jobflow.ops.op import Op
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.scalar import Cast


def lets_through(node: Node, reached: Container[Value]) -> bool:
    """Return True if gradients flow through the integer results of a node: a cast with `through`, or a function of its integers."""
    op, whole = node.op, {i for i, value in enumerate(node.inputs) if value in reached}
    if isinstance(op, ViewConversion | Cast):
        return isinstance(op, ViewConversion) or op.through or not node.inputs[0].dtype.is_float
    if any(node.inputs[i].dtype.is_float for i in whole):
        return False
    return _is_linear(node, whole) or _is_formula(node, whole)


def _is_linear(node: Node, whole: set[int]) -> bool:
    linear = node.op.rule(*(value.tensor_type for value in node.inputs)).linear
    return len(linear) == 1 and whole <= set(linear[0])


def _is_formula(node: Node, whole: set[int]) -> bool:
    """Return True for a differentiable operation whose result has the element type of the operands in `whole`."""
    kinds = {value.dtype for value in (*node.outputs, *(node.inputs[i] for i in whole))}
    return type(node.op).grad is not Op.grad and len(kinds) == 1 and len(node.outputs) == 1


def operands(node: Node, reached: Container[Value]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the inputs and outputs that the gradient function of a node reads; integers on the path of a gradient become float64."""
    path = [value for value in node.inputs if value in reached and value.dtype.is_integer]
    if not path or isinstance(node.op, ViewConversion | Cast):
        return node.inputs, node.outputs
    together = {i for group in node.op.rule(*(value.tensor_type for value in node.inputs)).linear for i in group}
    everything = isinstance(node.op, Pointwise) and not together
    inputs = [_as_float(x) if everything or x in path or i in together else x for i, x in enumerate(node.inputs)]
    return tuple(inputs), tuple(map(_as_float, node.outputs))


def _as_float(value: Value) -> Value:
    cast: Value = ew.cast(value, float64) if value.dtype.is_integer else value  # type: ignore[assignment]
    return cast
