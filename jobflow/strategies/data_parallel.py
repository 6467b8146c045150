"""Strategies in which every rank computes the whole model on its part of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, user_line
from jobflow.core.layout import S, Sbp
from jobflow.core.scope import View
from jobflow.graph.ir import Variable
from jobflow.graph.traced import Traced
from jobflow.strategies.strategy_class import Hints, Strategy


@dataclass(frozen=True)
class consistent(Strategy):
    """The program as it is written: arguments are cut along their first axis, layouts are what it asks for and inference chooses."""

    size: int | None = None


@dataclass(frozen=True)
class mirrored(Strategy):
    """The job's body is traced in the mirrored view: what it says, it says about one rank.  Variables are copies, and gradients are added up."""

    size: int | None = None

    @property
    def view(self) -> View | None:
        return "mirrored"


@dataclass(frozen=True)
class data_parallel(Strategy):
    """Arguments S(0), variables B.

    Bytes per rank and step: 2 psi (n-1)/n, with psi the bytes of all gradients, for their all_reduce.
    """

    size: int | None = None

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        return Hints(cuts_arguments=True, read={})


@dataclass(frozen=True)
class zero(Strategy):
    """Variables are stored S(axis), along the first axis that has room and that no other dimension splits, and read whole.

    stage 1   gradients are brought to their owners when all are made     2 psi (n-1)/n bytes per rank and step
    stage 2   as they are made, so that no rank ever holds all            2 psi (n-1)/n
    stage 3   variables are gathered again for the backward pass          3 psi (n-1)/n

    psi is the bytes of all variables.  Those of fewer than `least` elements stay whole, with an all_reduce of their gradients: that is
    2 psi (n-1)/n too, in fewer messages.  In stage 3 nothing is gathered again that the backward pass does not read, such as biases.
    """

    stage: int = 1
    size: int | None = None
    least: int = 4096

    def __post_init__(self) -> None:
        if self.stage not in (1, 2, 3):
            raise ConfigError(f"strategies.zero at {user_line()}: stage is {self.stage!r}; use 1, 2 or 3")

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        stored: dict[str, Sbp] = {}
        for name, variable in program.variables.items():
            axis = self.axis(variable, n, split[name])
            if axis is not None:
                stored[name] = S(axis)
        return Hints(stored, read={}, cuts_arguments=True, reduces_at_once=self.stage > 1, gathers_again=self.stage > 2)

    def axis(self, variable: Variable, n: int, taken: AbstractSet[int]) -> int | None:
        """The axis along which a variable is stored split; None if it stays whole."""
        if n == 1 or not variable.trainable or variable.type.size < self.least:
            return None
        return next((axis for axis, length in enumerate(variable.type.shape) if axis not in taken and length >= n), None)
