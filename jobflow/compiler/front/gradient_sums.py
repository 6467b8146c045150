"""Sums of gradients, computed per placement first and replaced by cheaper equivalents if these exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import recorded
from jobflow.core.layout import Placement
from jobflow.core.types import Tensor
from jobflow.graph.ir import Value
from jobflow.ops.arithmetic import Add
from jobflow.ops.op import Op, apply
from jobflow.ops.slices import SliceGrad, concat

#: (op, inputs) of each term
Terms = Sequence[tuple[Op, Sequence[Tensor]]]


def added(values: Sequence[Tensor]) -> Value:
    """Return the sum of the values.  Values on one placement are added there, so that only one tensor per placement is transferred."""
    sums: dict[Placement, Value] = {}
    for value in map(recorded, values):
        node = value.node
        with scope.using(placement=node.placement, stage=node.provenance.stage):
            sums[node.placement] = _sum(sums[node.placement], value) if node.placement in sums else value
    return reduce(_sum, sums.values())


def addends(total: Value) -> list[Value]:
    """Return the terms of a sum across placements that `added` built, in order; any other value is its only term."""
    if not isinstance(total.node.op, Add):
        return [total]
    first, second = total.node.inputs
    alike = first.tensor_type == second.tensor_type == total.tensor_type
    return [*addends(first), second] if alike and first.node.placement != second.node.placement else [total]


def _sum(total: Value, value: Value) -> Value:
    return recorded(apply(Add(), total, value))


def shorter_sum(terms: Terms) -> Tensor | None:
    """Return a cheaper equivalent of the sum of these terms, or None if there is none; all terms are results of operations of one class."""
    shorten = SHORTER.get(type(terms[0][0]))
    return None if shorten is None else shorten(terms)


def _windows_side_by_side(terms: Terms) -> Tensor | None:
    """Return the concatenation of the slices' gradients if the slices cover one axis without gaps and overlaps, otherwise None."""
    ops = [op for op, _ in terms if isinstance(op, SliceGrad)]
    for axis, size in enumerate(ops[0].shape):
        spans = [op.span(axis) for op in ops]
        order = sorted(range(len(spans)), key=lambda i: spans[i] or (0, 0))
        edges = [edge for i in order for edge in spans[i] or (-1, -1)]
        if edges[0] == 0 and edges[-1] == size and edges[1:-1:2] == edges[2::2]:
            return concat([terms[i][1][0] for i in order], axis)
    return None


SHORTER: Mapping[type[Op], Callable[[Terms], Tensor | None]] = MappingProxyType({SliceGrad: _windows_side_by_side})
