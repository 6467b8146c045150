"""Groups of instructions that become a region, and cached properties of each candidate."""

from __future__ import annotations

from dataclasses import field

from jobflow.compiler.rank.joined_space import JoinedSpace, expressions_of, space_of_step
from jobflow.compiler.rank.local import LocalInstruction, LocalValue
from jobflow.core.dataclass import dataclass
from jobflow.expressions.cost import FLOPS_PER_BYTE, flops_per_element
from jobflow.expressions.language import in_order
from jobflow.kernels.row_phases import COLUMNS

#: floating-point operations per element up to which recomputing a result costs less than reading its four bytes
CHEAP = 4 * FLOPS_PER_BYTE


@dataclass(frozen=True)
class StepFacts:
    """Cached properties of an instruction."""

    space: JoinedSpace
    #: its outputs that are sums of columns, and its other outputs
    sums: tuple[LocalValue, ...]
    others: tuple[LocalValue, ...]
    #: True if computing it costs more than reading its result
    expensive: bool


@dataclass(eq=False)
class RegionGroup:
    """A group of instructions, by index and in order, that become one region at `position`."""

    steps: list[int]
    position: int
    space: JoinedSpace
    inputs: dict[LocalValue, None]
    produced: set[LocalValue]
    #: values that are complete only after the last row
    sums: set[LocalValue]
    #: indices of the instructions of other groups that it recomputes
    rematerialized: set[int] = field(default_factory=set)

    def indices(self) -> list[int]:
        """Return the ordered indices of all instructions that the group computes, including rematerialized ones."""
        return sorted({*self.steps, *self.rematerialized})


def facts_of(step: LocalInstruction) -> StepFacts:
    expressions = expressions_of(step)
    sums = tuple(value for value, x in zip(step.outputs, expressions, strict=True) if any(y.primitive == COLUMNS for y in in_order([x])))
    others = tuple(value for value in step.outputs if value not in sums)
    return StepFacts(space_of_step(step), sums, others, flops_per_element(expressions) > CHEAP)
