"""Gradient clipping by global norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, cast

from jobflow.compiler.front.gradient_sums import added
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, user_line
from jobflow.core.types import Tensor, float32, float64
from jobflow.functional.nn_base import EPSILON
from jobflow.graph.training import Parameter
from jobflow.ops import elementwise as ew
from jobflow.ops.layout_ops import ToLayout
from jobflow.ops.op import apply
from jobflow.ops.reduce import SquareSum, reduce_max

if TYPE_CHECKING:
    from jobflow.graph.ir import Value

__all__ = ["by_global_norm"]


class Clipping(Protocol):
    """The protocol of rules that change the gradients of an optimizer before the update."""

    def clipped(self, parameters: Sequence[Parameter]) -> list[Parameter]: ...


@dataclass(frozen=True)
class GlobalNorm:
    """Clipping of each gradient g to g clip_norm / max(n, clip_norm); n is the Euclidean norm of all gradients of the optimizer as one vector."""

    clip_norm: float

    def __post_init__(self) -> None:
        if not isinstance(self.clip_norm, Real) or not 0 < self.clip_norm < math.inf:
            raise ConfigError(f"grad_clipping.by_global_norm at {user_line()}: clip_norm must be a positive number, not {self.clip_norm!r}")

    def clipped(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        return by_norm(parameters, lambda n: ew.scale(ew.reciprocal(ew.clip(n, minimum=self.clip_norm)), self.clip_norm))


@dataclass(frozen=True)
class ByValue:
    """Clipping of each element of each gradient to the range from -most to most."""

    most: float

    def clipped(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        whole = [replace(p, gradient=apply(ToLayout(p.variable.sbp), p.gradient)) for p in parameters]
        return [replace(p, gradient=cast("Value", ew.clip(p.gradient, -self.most, self.most))) for p in whole]


@dataclass(frozen=True)
class GroupNorm:
    """Clipping of each gradient g to g min(1, most / (n + EPSILON)), as in PyTorch; n is the norm of all gradients of a parameter group.

    The norm is the Euclidean norm, or for an infinite `kind` the largest absolute value.
    """

    most: float
    kind: float = 2.0

    def clipped(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        return by_norm(parameters, lambda n: ew.clip(ew.scale(ew.reciprocal(ew.shift(n, EPSILON)), self.most), maximum=1.0), self.kind)


def by_norm(parameters: Sequence[Parameter], factor_of: Callable[[Tensor], Tensor], kind: float = 2.0) -> list[Parameter]:
    """Return the parameters with gradients multiplied by `factor_of(norm)`.

    The norm of all gradients is the Euclidean norm, or for an infinite `kind` the largest absolute value.
    Gradients with several addends are summed once, before squaring, because the update reads the sum as well.
    """
    if not parameters:
        return []
    wide = float64 if any(p.gradient.dtype is float64 for p in parameters) else float32
    parameters = [replace(p, gradient=apply(ToLayout(p.variable.sbp), p.gradient)) for p in parameters]
    if kind == math.inf:
        norm: Tensor = reduce(ew.maximum, [reduce_max(ew.absolute(p.gradient)) for p in parameters])
    else:
        norm = ew.sqrt(added([apply(SquareSum(), ew.cast(p.gradient, wide)) for p in parameters]))
    factor = factor_of(norm)
    return [replace(p, gradient=_times(p.gradient, factor)) for p in parameters]


def _times(gradient: Value, factor: Tensor) -> Any:
    return ew.multiply(gradient, ew.cast(factor, gradient.dtype))


by_global_norm = GlobalNorm
