"""A check that metrics reduced over a batch are means, because the trainer averages metrics over batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobflow.core.errors import ConfigError
from jobflow.graph.ir import Value
from jobflow.ops.arithmetic import Add, Divide, Multiply, Subtract
from jobflow.ops.axes import ExpandDims, Reshape, Squeeze
from jobflow.ops.layout_ops import Identity
from jobflow.ops.likelihood import NegativeLogLikelihood
from jobflow.ops.logit_likelihood import LogitLoss
from jobflow.ops.pointwise import Negate
from jobflow.ops.reduce import Reduce, ReduceSum, SquareSum
from jobflow.ops.scalar import Cast, DivideBy, Scale, Shift
from jobflow.ops.source import Input

#: operations whose result is a mean if their only input is a mean
LINEAR = (Cast, DivideBy, ExpandDims, Identity, Negate, Reshape, Scale, Shift, Squeeze)
SAME = (Cast, ExpandDims, Identity, Reshape, Squeeze)


def check_mean(name: str, value: Any, rows: int) -> None:
    """Raise ConfigError unless `value`, one number for `rows` samples, is a mean over them or does not depend on them."""
    if not _is_mean(value, rows):
        node = _unshaped(value).node
        raise ConfigError(
            f'{node.where}: the metric "{name}" is one number for the whole batch, computed by {node.op.word()}, which is not a mean over '
            f"the samples; return one value per sample, or a mean that the trainer can average over batches (the mean loss instead of a perplexity)"
        )


def _is_mean(value: Any, rows: int) -> bool:
    op, inputs = value.node.op, value.node.inputs
    if _is_constant(value):
        return True
    if isinstance(op, Scale | DivideBy) and isinstance(_unshaped(inputs[0]).node.op, Reduce | SquareSum):
        factor = op.number if isinstance(op, Scale) else 1 / op.number
        return (
            not _compares_with_batch(inputs[0]) and isinstance(_unshaped(inputs[0]).node.op, ReduceSum | SquareSum) and abs(factor) * rows < 1 + 1e-6
        )
    if isinstance(op, LINEAR) and (not isinstance(op, Cast) or op.dtype.is_float):
        return _is_mean(inputs[0], rows)
    if isinstance(op, Add | Subtract):
        return all(_is_mean(x, rows) for x in inputs)
    if isinstance(op, Multiply):
        return all(_is_mean(x, rows) for x in inputs) and any(_is_constant(x) for x in inputs)
    if isinstance(op, Divide):
        return (_is_mean(inputs[0], rows) and _is_constant(inputs[1])) or _is_likelihood(inputs[0])
    return False


def _compares_with_batch(total: Value) -> bool:
    """Return True for a sum of values that depend on one number for the whole batch, as a variance depends on the mean."""
    nodes = _ancestors(_unshaped(total).node.inputs[0])
    return any(isinstance(node.op, Reduce) and node.outputs[0].tensor_type.size == 1 and not _is_constant(node.outputs[0]) for node in nodes)


def _is_constant(value: Value) -> bool:
    return not any(isinstance(node.op, Input) for node in _ancestors(value))


def _is_likelihood(value: Value) -> bool:
    """Return True for the sum in a cross entropy, which is divided by the sum of the label weights."""
    value = _unshaped(value)
    return isinstance(value.node.op, ReduceSum) and any(isinstance(node.op, NegativeLogLikelihood | LogitLoss) for node in _ancestors(value))


def _unshaped(value: Value) -> Value:
    while isinstance(value.node.op, SAME):
        value = value.node.inputs[0]
    return value


def _ancestors(value: Value) -> Iterator[Any]:
    """Yield the node of `value`, and all nodes that it depends on."""
    ancestors, waiting = set(), [value.node]
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            yield node
            waiting.extend(x.node for x in node.inputs)
