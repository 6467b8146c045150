"""The base class of strategies, and the hints that they give.

    hints = strategy.hints(program, n, split)

`hints` is plain data: how variables are stored and read, whether the arguments are cut, in which stage each node runs.  It is
a pure function of the program, of the number n of ranks along the dimension, and of the axes of variables that other
dimensions split already.  `write` puts the hints of all dimensions into the program.
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
    """What is wished along one dimension of the ranks."""

    #: how variables are stored; those not named: whole
    stored: Mapping[str, Sbp] = field(default_factory=dict)
    #: how variables are read; those not named: whole.  None leaves it to layout inference
    read: Mapping[str, Sbp] | None = None
    #: how values are read, and how their gradients are, where inference is not to choose
    values: Mapping[Value, Sbp] = field(default_factory=dict)
    gradients: Mapping[Value, Sbp] = field(default_factory=dict)
    #: False if every rank along the dimension takes the whole of every argument
    cuts_arguments: bool = False
    #: gradients are brought to where their variables are stored as soon as they are made, not when all are made
    reduces_at_once: bool = False
    #: what is read otherwise than it is stored is brought together again for the backward pass, and not kept from the forward pass
    gathers_again: bool = False
    #: the stage of a pipeline that each node runs in
    stages: Mapping[Node, int] = field(default_factory=dict)
    #: how many stages there are, if not one for each rank of the dimension
    stage_count: int = 0


class Strategy:
    """Base of the strategies: each is one dimension of parallelism, and on its own a whole strategy too.

    `size` is the number of ranks along the dimension, or None for all that other dimensions leave.
    """

    size: int | None
    #: True if the ranks along the dimension hold different layers; False if they hold parts of each tensor
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
        """From the outermost dimension of the ranks to the innermost."""
        return (self,)

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        """What this strategy wishes of the program on n ranks.  `split`: by variable, the axes that inner dimensions split."""
        return Hints(cuts_arguments=True)

    def placement(self, given: Placement) -> Placement:
        return arranged(self.dimensions, given)

    def distribute(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        return write(program, outputs, self.dimensions)
