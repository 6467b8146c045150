"""The base class of strategies.

    hints = strategy.hints(program, n, split)

`hints` is plain data: how variables are stored and read, whether the arguments are cut, in which stage each node runs.  It is
a pure function of the program, of the number n of ranks along the dimension, and of the axes of variables that other
dimensions split already.  `write` puts the hints of all dimensions into the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from jobflow.core.layout import Placement
from jobflow.core.scope import View
from jobflow.graph.ir import Value
from jobflow.graph.traced import Traced
from jobflow.strategies.apply_hints import arranged, write
from jobflow.strategies.hints import Dimension, Hints


class Strategy:
    """Base of the strategies: each is one dimension of parallelism, and on its own a whole strategy too."""

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
    def dimensions(self) -> tuple[Dimension, ...]:
        """From the outermost dimension of the ranks to the innermost."""
        return (self,)

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        """What this strategy wishes of the program on n ranks.  `split`: by variable, the axes that inner dimensions split."""
        return Hints(cuts_arguments=True)

    def placement(self, given: Placement) -> Placement:
        return arranged(self.dimensions, given)

    def distribute(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        return write(program, outputs, self.dimensions)
