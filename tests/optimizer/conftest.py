"""An interpreter that computes every op at once in NumPy, and a loop that trains variables with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from jobflow import scope
from jobflow.core.layout import B, Placement
from jobflow.core.types import TensorType, type_of
from jobflow.engine.operators import TensorOperators
from jobflow.graph.ir import Variable
from jobflow.graph.training import Parameter
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.source import Constant

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(eq=False)
class Held(TensorOperators):
    """A tensor with its numbers."""

    array: np.ndarray[Any, Any]
    #: all lie in one place
    node: ClassVar[Any] = SimpleNamespace(placement=Placement("cpu", (0,)), provenance=SimpleNamespace(stage=None))

    @property
    def tensor_type(self) -> TensorType:  # type: ignore[override]
        return type_of(self.array)


class Immediate:
    """Runs the kernel of every op that is called."""

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None) -> tuple[Held, ...]:
        types = types_tuple(op.infer(*(value.tensor_type for value in inputs)))
        outputs = [np.empty(type.shape, type.dtype.numpy) for type in types]
        op.kernel(np, *(value.array for value in inputs), *outputs)
        return tuple(map(Held, outputs))


@dataclass
class Trained:
    """Variables under an optimizer: `step` applies one update for the given gradients."""

    optimizer: Any
    weights: Arrays
    slots: Arrays = field(default_factory=dict)
    count: int = 0

    def step(self, gradients: Arrays) -> None:
        with scope.using(interpreter=Immediate()):
            parameters = [Parameter(variable(name, w), Held(w), Held(gradients[name])) for name, w in self.weights.items()]  # type: ignore[arg-type]
            chosen = set(self.optimizer.selects(list(self.weights)))
            selected = [p for p in parameters if p.variable.name in chosen]
            new = self.optimizer.update(selected, Held(np.array([self.count])), self._slot)
        for name, value in new.items():
            (self.weights if name in self.weights else self.slots)[name] = value.array
        self.count += 1

    def _slot(self, name: str, type: TensorType, initial: float, like: Any) -> Held:
        return Held(self.slots.setdefault(name, np.full(type.shape, initial, type.dtype.numpy)))


def variable(name: str, w: np.ndarray[Any, Any]) -> Variable:
    type = type_of(w)
    return Variable(name=name, type=type, initializer=Constant(type.shape, type.dtype, 0.0), placement=Placement("cpu", (0,)), sbp=(B,))


@pytest.fixture
def train() -> Callable[..., Trained]:
    """train(optimizer, steps, weights, gradients(weights, step)) -> the variables after `steps` updates."""

    def run(optimizer: Any, steps: int, weights: Arrays, gradients: Callable[[Arrays, int], Arrays]) -> Trained:
        trained = Trained(optimizer, {name: w.copy() for name, w in weights.items()})
        for step in range(steps):
            trained.step(gradients(trained.weights, step))
        return trained

    return run
