"""Sums of gradients for which there is a shorter way than adding them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from jobflow.core.types import Tensor
from jobflow.ops.op import Op
from jobflow.ops.slices import SliceGrad, concat

#: (op, inputs) of what is added
Terms = Sequence[tuple[Op, Sequence[Tensor]]]


def shorter_sum(terms: Terms) -> Tensor | None:
    """The sum of what these ops of one class give, where there is a shorter way; else None."""
    found = SHORTER.get(type(terms[0][0]))
    return None if found is None else found(terms)


def _windows_side_by_side(terms: Terms) -> Tensor | None:
    """Windows that follow each other along an axis and fill it: their gradients one after the other."""
    ops = [op for op, _ in terms if isinstance(op, SliceGrad)]
    for axis, size in enumerate(ops[0].shape):
        spans = [op.span(axis) for op in ops]
        order = sorted(range(len(spans)), key=lambda i: spans[i] or (0, 0))
        edges = [edge for i in order for edge in spans[i] or (-1, -1)]
        if edges[0] == 0 and edges[-1] == size and edges[1:-1:2] == edges[2::2]:
            return concat([terms[i][1][0] for i in order], axis)
    return None


SHORTER: Mapping[type[Op], Callable[[Terms], Tensor | None]] = MappingProxyType({SliceGrad: _windows_side_by_side})
