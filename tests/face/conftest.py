"""A job that computes every op at its call: functions of the job API on NumPy arrays, without compiler or runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import scope
from jobflow.core.errors import DuplicateNameError
from jobflow.core.layout import Placement
from jobflow.core.types import DType, TensorType, float32, type_of
from jobflow.engine.operators import TensorOperators
from jobflow.graph.ir import Variable
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.source import ReadVariable


@dataclass(eq=False)
class Concrete(TensorOperators):
    """An array with the interface of a tensor; `node` is the op that computed it."""

    array: Any
    node: Any = None

    @property
    def tensor_type(self) -> TensorType:  # type: ignore[override]
        return type_of(self.array)


@dataclass
class Immediate:
    """A job that computes each operation at once. `state` holds the variables' values between runs."""

    trainable: bool = False
    frozen: Sequence[str] = ()
    seed: int = 0
    runs: int = 0
    placement: Placement = field(default_factory=lambda: Placement("cpu", (0,)))
    config: Any = None
    conv_algorithm: str = "auto"
    default_dtype: DType = float32
    variables: dict[str, Variable] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    #: how functions of tensors record here
    records: Any = None

    def apply(self, op: Op, inputs: Sequence[Concrete], name: str | None) -> tuple[Concrete, ...]:
        if name is not None:
            full = scope.current().full_name(name)
            if full in self.names:
                raise DuplicateNameError(full)
            self.names.append(full)
        self.ops.append(op)
        outputs = [np.full(t.shape, 99, t.dtype.numpy) for t in types_tuple(op.infer(*(x.tensor_type for x in inputs)))]
        op.kernel(np, *(x.array for x in inputs), *outputs)
        node = SimpleNamespace(op=op, inputs=tuple(inputs))
        return tuple(Concrete(y, node) for y in outputs)

    def variable(self, variable: Variable) -> Concrete:
        self.variables.setdefault(variable.name, variable)
        if variable.name not in self.state:
            first = np.empty(variable.type.shape, variable.type.dtype.numpy)
            variable.initializer.kernel(np, first)
            self.state[variable.name] = first
        read = ReadVariable(variable.type.shape, variable.type.dtype, variable.name)
        return Concrete(self.state[variable.name], SimpleNamespace(op=read, inputs=()))

    def assign(self, name: str, value: Concrete) -> None:
        self.state[name] = value.array

    def run_counter(self) -> Concrete:
        return Concrete(np.array([self.runs]))

    def unique_name(self, prefix: str) -> str:
        return f"{scope.current().full_name(prefix)}_{len(self.ops)}"

    @contextmanager
    def updating(self, where: Any) -> Iterator[None]:
        with scope.using(namespace=()):
            yield

    def again(self, **changes: Any) -> Immediate:
        """Return the job of the next run, with the state of this run."""
        return replace(self, runs=self.runs + 1, variables={}, names=[], ops=[], records=None, **changes)


class Bench:
    """A runner of bodies on arrays; `job` is the job of the last run."""

    job: Immediate

    def __call__(self, body: Callable[..., Any], *arrays: Any, job: Immediate | None = None, **options: Any) -> Any:
        self.job = job or Immediate(**options)
        with scope.using(interpreter=self.job, placement=self.job.placement):
            return plain(body(*(Concrete(np.asarray(a)) for a in arrays)))


def plain(result: Any) -> Any:
    """Replace tensors by their arrays, in any nesting of lists and tuples."""
    if isinstance(result, list | tuple):
        return type(result)(map(plain, result))
    return result.array if isinstance(result, Concrete) else result


@pytest.fixture
def run() -> Bench:
    return Bench()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def session() -> Iterator[None]:
    """Start a fresh session."""
    flow.clear_default_session()
    yield
    flow.clear_default_session()


@pytest.fixture(params=[1, 2])
def devices(request: pytest.FixtureRequest, session: None) -> int:
    """Start a session on one device, and on two."""
    flow.config.cpu_device_num(request.param)
    return request.param
