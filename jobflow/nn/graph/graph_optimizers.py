"""Adapters between the optimizers of `jobflow.optim` and the compiler, for graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, SourceLine
from jobflow.core.layout import B, Layout
from jobflow.core.types import Array, DType, TensorType
from jobflow.graph.ir import Value
from jobflow.graph.training import DynamicScale, Parameter, Slots, updated
from jobflow.legacy.optimizer.clipping import GroupNorm
from jobflow.nn.amp import Scaler
from jobflow.optim.optimizer import Group, Optimizer

#: slot of a formula -> name of its variable, where they differ
NAMES = {"mean_square": "square_avg", "mean_gradient": "grad_avg"}


@dataclass(frozen=True)
class Added:
    """An optimizer of a graph, its learning rate schedule, and the source line of `add_optimizer`."""

    optimizer: Optimizer
    schedule: Any
    where: SourceLine


@dataclass(frozen=True)
class Rate:
    """The learning rate of a parameter group, which the host passes to every run as an input."""

    key: str
    array: Array
    group: Group


@dataclass
class Steps:
    """All optimizers of a graph as one optimizer for the compiler, which updates each parameter by the rule of its group."""

    added: Sequence[Added]
    #: variable name by id of the parameter
    names: Mapping[int, str]
    scaler: Scaler | None
    rates: list[Rate] = field(default_factory=list)

    @property
    def loss_scale(self) -> float:
        return 1.0 if self.scaler is None else self.scaler.constant

    @property
    def dynamic_loss_scale(self) -> DynamicScale | None:
        return None if self.scaler is None else self.scaler.dynamic

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        mine = {self.names.get(id(p)) for one in self.added for group in one.optimizer.param_groups for p in group["params"]}
        return [name for name in names if name in mine]

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        known = {parameter.variable.name: parameter for parameter in parameters}
        new: dict[str, Value] = {}
        for one in self.added:
            for group in one.optimizer.param_groups:
                own = [known[name] for p in group["params"] if (name := self.names.get(id(p), "")) in known]
                if own:
                    new.update(self._stepped(one.optimizer, group, clipped(own, group), step, slots))
        return new

    def _stepped(self, optimizer: Optimizer, group: Group, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        op = optimizer.rule(group)
        return updated(parameters, lambda _: op, lambda dtype: self._rate(group, dtype), step, slots, NAMES)

    def _rate(self, group: Group, dtype: DType) -> Value:
        recorder = scope.current().interpreter
        assert isinstance(recorder, Tracer), "updates are recorded"
        key, where = f"#rate{len(self.rates)}", recorder.placement
        self.rates.append(Rate(key, np.zeros(1, dtype.numpy), group))
        return recorder.input(key, TensorType((1,), dtype), layout=Layout(where, (B,) * len(where.mesh)))


def clipped(parameters: Sequence[Parameter], group: Group) -> Sequence[Parameter]:
    """Return the parameters, with gradients clipped to the norm `clip_grad_max_norm` if the group sets this option.

    Raises: ConfigError if `clip_grad_norm_type` is not 2 or inf.
    """
    most, kind = group.get("clip_grad_max_norm"), group.get("clip_grad_norm_type")
    if most is None:
        return parameters
    if kind not in (None, 2, math.inf):
        raise ConfigError(f"nn.Graph: clip_grad_norm_type must be 2 or inf; got {kind!r}")
    return GroupNorm(float(most), 2.0 if kind is None else kind).clipped(parameters)
