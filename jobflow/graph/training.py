"""What a job says about its losses, its optimizers and the tensors it watches, and what an optimizer is to the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jobflow.errors import SourceLine
from jobflow.graph.ir import Value, Variable
from jobflow.types import TensorType


@dataclass(frozen=True)
class Parameter:
    """A trainable variable, its value in this run, and its gradient (divided, unscaled, regularized; not yet clipped)."""

    variable: Variable
    value: Value
    gradient: Value


#: slot(name, type, initial value, like) -> the current value of an optimizer's own variable, created at first sight.
#: `like` is the variable whose storage layout it shares; None for a scalar that every rank holds.
Slots = Callable[[str, TensorType, float, Variable | None], Value]


class Optimizer(Protocol):
    """Turns gradients into new values of variables by calling ordinary ops."""

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        """Which of the job's trainable variables this optimizer updates."""
        ...

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """New values by variable name, slots included.  `step` is int64[1], the number of updates before this one."""
        ...

    @property
    def loss_scale(self) -> float:
        """Factor on the loss gradient that is divided out of the parameters' gradients again."""
        ...


@dataclass(frozen=True)
class Training:
    """Losses to minimise and who does it; `where` is the user's line that asked for it."""

    losses: tuple[Value, ...]
    optimizers: tuple[Optimizer, ...]
    where: SourceLine


@dataclass(frozen=True)
class Watch:
    """A tensor that the program is shown after every run: itself, or the gradient of the sum of the losses' elements by it.

    `take` gets the whole array, or a list with one array per device of a mirrored tensor.
    """

    value: Value
    take: Callable[[Any], None]
    gradient: bool
    where: SourceLine
