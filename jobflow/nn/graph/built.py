"""A traced graph: its program, its inputs and outputs, and the tensors and numbers that its runs read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SourceLine, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import TensorType
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Graph
from jobflow.kernels.target import CPU, Target
from jobflow.nn.graph.building import Draw
from jobflow.tensors.structures import leaves


@dataclass(frozen=True)
class Meta:
    """The name, type and layout of an input or output."""

    name: str
    type: TensorType
    layout: Layout | None

    def __str__(self) -> str:
        return f"{self.type} {'local' if self.layout is None else self.layout}"


class Arguments(NamedTuple):
    """The positional arguments and the keyword arguments of a call."""

    args: tuple[Any, ...]
    options: dict[str, Any]

    def leaves(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor for each tensor of the call, such as "input0", "input1.0" or a keyword."""
        for name, x in (*((f"input{i}", x) for i, x in enumerate(self.args)), *self.options.items()):
            yield from leaves(x, name)

    def __repr__(self) -> str:
        return repr((*self.args, self.options) if self.options else self.args)


def described_call(name: str, inputs: Sequence[Meta]) -> str:
    """Return a description of the first call of a graph with these inputs, for messages."""
    return f"the first call of {name}({', '.join(f'{meta.name} {meta}' for meta in inputs)}) at {user_line()}"


@dataclass(frozen=True)
class Built:
    """A traced graph, and the random counters, learning rates and schedules that the host updates at every run."""

    name: str
    graph: Graph
    inputs: tuple[Meta, ...]
    #: the arguments and the result of build, with traced tensors
    arguments: Arguments
    result: Any
    tensors: Mapping[str, Tensor]
    draws: Sequence[Draw]
    rates: Sequence[Any]
    schedules: Sequence[Any]
    #: True if its tensors are local
    local: bool
    #: tensors that Python numbers of build depend on
    guarded: Sequence[Guard] = ()
    #: the target that all ranks share, and the CPU if they differ
    target: Target = CPU

    @property
    def first_call(self) -> str:
        """A description of the call that compiles the graph, for messages."""
        return described_call(self.name, self.inputs)


@dataclass(frozen=True)
class Guard:
    """A tensor that a Python number of `build` depends on, with its elements and the line that read them."""

    tensor: Tensor
    elements: bytes
    where: SourceLine
    #: the name among the tensors of the graph's modules, if any
    name: str
