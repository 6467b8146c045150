"""Operands that do not lie in memory as an index space goes over them, by way of copies that do.

layer norm of x.transpose(1, 2)      rows [n, c] of x are no matrix in memory: x is copied into one, which is normalised
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
    """With all of the axes of a row, or all others, where it has some: numbers for each group of rows become numbers for each row."""
    lead, made = len(space.sizes) - space.row, list(shape)
    for axes in (range(lead), range(lead, len(space.sizes))):
        if any(shape[i] != 1 for i in axes):
            for i in axes:
                made[i] = space.sizes[i]
    return tuple(made)


@dataclass
class OperandCopies:
    """The operands as the space sees them, and the calls that copy before and after."""

    #: as many axes as the space has
    seen: list[Array] = field(default_factory=list)
    before: list[Call] = field(default_factory=list)
    after: list[Call] = field(default_factory=list)


def operand_copies(
    space: IndexSpace,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    fits: Callable[[Array], bool],
    scratch: Callable[[tuple[int, ...], DType], Array],
) -> OperandCopies:
    """Copies, in scratch memory, of the operands that the space cannot see as they lie or that do not fit."""
    made = OperandCopies()
    for k, operand in enumerate((*inputs, *outputs)):
        view = space.view(k, operand)
        if view is None or not fits(view):
            there = space.wide(k, operand)
            if k < len(inputs):
                there = np.broadcast_to(there, _complete(space, there.shape))
            here = scratch(there.shape, dtype_of(operand.dtype))
            view = here.reshape(space.collapsed(here.shape))
            if k < len(inputs):
                made.before.append((np.copyto, (here, there)))
            else:
                made.after.append((np.copyto, (there, here)))
        made.seen.append(view)
    return made
