"""Strategies in which every rank computes the whole model on a part of the batch."""

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
    """A strategy that leaves the program unchanged: arguments are split along axis 0; layouts come from the program and layout inference."""

    size: int | None = None


@dataclass(frozen=True)
class mirrored(Strategy):
    """A strategy in the mirrored view: the job's body describes one rank, variables are replicated, and gradients are summed over the ranks."""

    size: int | None = None

    @property
    def view(self) -> View | None:
        return "mirrored"


@dataclass(frozen=True)
class data_parallel(Strategy):
    """Data parallelism: arguments S(0), variables B.

    Each rank and step communicates 2 psi (n-1)/n bytes for the all_reduce of the gradients.  Here psi is the size of all gradients in bytes,
    and n is the number of ranks.

    Examples:
        >>> import jobflow.typing as tp
        >>> config = flow.function_config()
        >>> config.strategy(flow.strategies.data_parallel())
        >>> @flow.global_function(function_config=config)
        ... def scores(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        ...     return flow.layers.dense(x, 10, name="scores")
        ...
        >>> scores(np.zeros((8, 4), np.float32)).shape
        (8, 10)
    """

    size: int | None = None

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        return Hints(cuts_arguments=True, read={})


@dataclass(frozen=True)
class zero(Strategy):
    """ZeRO: variables are read whole and stored S(axis), along the first axis that is long enough and not split by another dimension.

    stage 1   gradients are reduced after the whole backward pass             2 psi (n-1)/n bytes per rank and step
    stage 2   gradients are reduced as soon as each is computed               2 psi (n-1)/n
    stage 3   variables are gathered a second time for the backward pass      3 psi (n-1)/n

    Here psi is the size of all variables in bytes, and n is the number of ranks.  Variables of fewer than `least` elements are not split.  The
    all_reduce of their gradients transfers the same number of bytes in fewer messages.  In stage 3 the second gather omits variables that the
    backward pass does not read, such as biases.
    """

    stage: int = 1
    size: int | None = None
    least: int = 4096

    def __post_init__(self) -> None:
        if self.stage not in (1, 2, 3):
            raise ConfigError(f"strategies.zero at {user_line()}: stage must be 1, 2 or 3, not {self.stage!r}")

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        stored: dict[str, Sbp] = {}
        for name, variable in program.variables.items():
            axis = self.axis(variable, n, split[name])
            if axis is not None:
                stored[name] = S(axis)
        return Hints(stored, read={}, cuts_arguments=True, reduces_at_once=self.stage > 1, gathers_again=self.stage > 2)

    def axis(self, variable: Variable, n: int, taken: AbstractSet[int]) -> int | None:
        """Return the axis along which a variable is split among `n` ranks in storage, or None if it is stored whole.

        Axes in `taken`, which other dimensions split, and axes shorter than `n` are excluded.  Variables that are not trained, or have fewer than
        `least` elements, are stored whole.
        """
        if n == 1 or not variable.trainable or variable.type.size < self.least:
            return None
        return next((axis for axis, length in enumerate(variable.type.shape) if axis not in taken and length >= n), None)
