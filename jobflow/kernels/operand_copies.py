"""Dense copies of operands whose memory does not fit an index space.

For example, the rows [n, c] in the layer norm of x.transpose(1, 2) do not form a matrix, so x is first copied into one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, dtype_of
from jobflow.expressions.index_space import IndexSpace
from jobflow.ops.op import Call


def _complete(space: IndexSpace, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extend a shape with some axes of a row to all axes of the row, and likewise for the other axes of the space.

    A value per group of rows becomes a value per row.
    """
    lead, result = len(space.sizes) - space.row, list(shape)
    for axes in (range(lead), range(lead, len(space.sizes))):
        if any(shape[i] != 1 for i in axes):
            for i in axes:
                result[i] = space.sizes[i]
    return tuple(result)


@dataclass
class OperandCopies:
    """The operands as arrays of the index space, and the calls that copy before and after the loop."""

    #: arrays with as many axes as the space
    views: list[Array] = field(default_factory=list)
    before: list[Call] = field(default_factory=list)
    after: list[Call] = field(default_factory=list)


def operand_copies(
    space: IndexSpace,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    fits: Callable[[Array], bool],
    scratch: Callable[[tuple[int, ...], DType], Array],
) -> OperandCopies:
    """Return views of the operands in the space; `fits` returns True for the views that the loop accepts.

    An operand without an acceptable view is replaced by a copy in memory from `scratch`.
    """
    result = OperandCopies()
    for k, operand in enumerate((*inputs, *outputs)):
        view = space.view(k, operand)
        if view is None or not fits(view):
            there = space.wide(k, operand)
            if k < len(inputs):
                there = np.broadcast_to(there, _complete(space, there.shape))
            here = scratch(there.shape, dtype_of(operand.dtype))
            view = here.reshape(space.collapsed(here.shape))
            if k < len(inputs):
                result.before.append((np.copyto, (here, there)))
            else:
                result.after.append((np.copyto, (there, here)))
        result.views.append(view)
    return result
