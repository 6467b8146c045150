"""Gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from jobflow.core.errors import ConfigError, user_line
from jobflow.core.types import Tensor, float32, float64
from jobflow.graph.training import Parameter
from jobflow.ops import elementwise as ew
from jobflow.ops.base import apply
from jobflow.ops.layout_ops import ToLayout
from jobflow.ops.reduce import SquareSum

if TYPE_CHECKING:
    from jobflow.graph.ir import Value, Variable

__all__ = ["by_global_norm"]


class Clipping(Protocol):
    """Changes the gradients of one optimizer before it uses them."""

    def clipped(self, parameters: Sequence[Parameter]) -> list[Parameter]: ...


@dataclass(frozen=True)
class GlobalNorm:
    """g clip_norm / max(n, clip_norm), n = the Euclidean norm of all gradients of the optimizer taken as one vector."""

    clip_norm: float

    def __post_init__(self) -> None:
        if not isinstance(self.clip_norm, Real) or not 0 < self.clip_norm < math.inf:
            raise ConfigError(f"grad_clipping.by_global_norm at {user_line()}: clip_norm must be a positive number; got {self.clip_norm!r}")

    def clipped(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        if not parameters:
            return []
        wide = float64 if any(p.gradient.dtype is float64 for p in parameters) else float32
        parameters = [replace(p, gradient=_in_layout_of(p.variable, p.gradient)) for p in parameters]
        squares = [apply(SquareSum(), ew.cast(p.gradient, wide)) for p in parameters]
        norm = ew.sqrt(reduce(ew.add, squares))
        factor = ew.scale(ew.reciprocal(ew.clip(norm, minimum=self.clip_norm)), self.clip_norm)
        return [replace(p, gradient=_times(p.gradient, factor)) for p in parameters]


def _in_layout_of(variable: Variable, gradient: Value) -> Any:
    """Addends are summed before they are squared, and once: the update reads the sum as well."""
    return apply(ToLayout(variable.sbp), gradient)


def _times(gradient: Value, factor: Tensor) -> Any:
    return ew.multiply(gradient, ew.cast(factor, gradient.dtype))


by_global_norm = GlobalNorm
