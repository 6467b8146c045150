"""Steps that become a region, and what is known of each step that may be in one."""

from __future__ import annotations

from dataclasses import field

from jobflow.compiler.rank.joined_space import JoinedSpace, expressions_of, space_of_step
from jobflow.compiler.rank.local import Item, Step
from jobflow.core.dataclass import dataclass
from jobflow.expressions.cost import FLOPS_PER_BYTE, flops_per_element
from jobflow.expressions.language import in_order
from jobflow.kernels.row_phases import COLUMNS

#: floating-point operations that are done again rather than their result, a number of four bytes, is read from memory
CHEAP = 4 * FLOPS_PER_BYTE


@dataclass(frozen=True)
class StepFacts:
    """What is looked at of a step again and again."""

    space: JoinedSpace
    #: its outputs that are sums of columns, and those that are not
    sums: tuple[Item, ...]
    others: tuple[Item, ...]
    #: that it costs more than to read its result
    dear: bool


@dataclass(eq=False)
class RegionGroup:
    """Steps that become one, by number, in order; it runs at `position`."""

    steps: list[int]
    position: int
    space: JoinedSpace
    inputs: dict[Item, None]
    made: set[Item]
    #: what is known after the last row only
    sums: set[Item]
    #: steps of other groups that it computes again, and what it so has no need to read
    again: set[int] = field(default_factory=set)

    def numbers(self) -> list[int]:
        """All steps that it computes."""
        return sorted({*self.steps, *self.again})


def facts_of(step: Step) -> StepFacts:
    made = expressions_of(step)
    sums = tuple(item for item, x in zip(step.outputs, made, strict=True) if any(y.primitive == COLUMNS for y in in_order([x])))
    others = tuple(item for item in step.outputs if item not in sums)
    return StepFacts(space_of_step(step), sums, others, flops_per_element(made) > CHEAP)
