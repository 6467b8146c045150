"""The base class of strategies, and their hints.

    hints = strategy.hints(program, n, split)

`hints` is plain data: the layouts of variables in storage and for their readers, the split of the arguments, the stage of each node.  It is a
pure function of the program, the number n of ranks along the dimension, and the axes of variables that other dimensions split.
`write` applies the hints of all dimensions to the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import ClassVar

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Placement, Sbp
from jobflow.core.scope import View
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.strategies.apply_hints import arranged, write


@dataclass(frozen=True)
class Hints:
    """The layout and stage constraints of a strategy along one dimension of the ranks."""

    #: stored layouts of variables; others are replicated
    stored: Mapping[str, Sbp] = field(default_factory=dict)
    #: layouts of variables for their readers; others are replicated.  None leaves the choice to layout inference
    read: Mapping[str, Sbp] | None = None
    #: layouts of values and their gradients for their readers, which override layout inference
    values: Mapping[Value, Sbp] = field(default_factory=dict)
    gradients: Mapping[Value, Sbp] = field(default_factory=dict)
    #: False if every rank along the dimension reads every argument whole
    cuts_arguments: bool = False
    #: reduce each gradient to its stored layout as soon as it is computed, not after the whole backward pass
    reduces_at_once: bool = False
    #: gather variables a second time for the backward pass instead of keeping them from the forward pass
    gathers_again: bool = False
    #: the pipeline stage of each node
    stages: Mapping[Node, int] = field(default_factory=dict)
    #: the number of stages, if not one per rank of the dimension
    stage_count: int = 0


class Strategy:
    """Base class of strategies.  A strategy is one dimension of parallelism, and can be used alone.

    `size` is the number of ranks along the dimension, or None for all ranks that other dimensions do not use.
    """

    size: int | None
    #: True if the ranks along the dimension store different layers; False if they store shards of each tensor
    is_pipeline: ClassVar[bool] = False

    @property
    def view(self) -> View | None:
        return None

    @property
    def microbatches(self) -> int | None:
        return None

    @property
    def schedule(self) -> str | None:
        return None

    @property
    def dimensions(self) -> tuple[Strategy, ...]:
        """The dimensions of the strategy from the outermost to the innermost."""
        return (self,)

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        """Return the hints for the program on n ranks; `split` maps variables to the axes that inner dimensions split."""
        return Hints(cuts_arguments=True)

    def placement(self, given: Placement) -> Placement:
        return arranged(self.dimensions, given)

    def distribute(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        return write(program, outputs, self.dimensions)
