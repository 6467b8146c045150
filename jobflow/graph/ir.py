"""A program before anyone decided where it runs: values, nodes, graphs.  Immutable once traced; passes build new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jobflow.errors import NOWHERE, SourceLine
from jobflow.layout import Hint, Layout, Local, Placement, Sbp
from jobflow.ops.base import Op
from jobflow.tensor import TensorOperators
from jobflow.types import TensorType


@dataclass(eq=False, slots=True, weakref_slot=True)
class Value(TensorOperators):
    """One tensor of a program; compared by identity.

    `hint` is what the user asked of its layout where this handle is consumed; `local` is True in the mirrored view,
    where `type` is the type on one rank and no logical whole exists.
    """

    type: TensorType
    node: Node
    index: int
    name: str
    local: bool = False

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(eq=False, slots=True)
class Node:
    """One application of an op.  `inputs` may carry hints: `hints[i]` is what the user wants of the layout of input i."""

    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    name: str
    placement: Placement
    where: SourceLine = NOWHERE
    stage: int | None = None
    hints: tuple[Hint | None, ...] = ()
    #: the forward node whose gradient this node computes a part of; None in the forward pass
    forward: Node | None = None

    def __str__(self) -> str:
        outputs = ", ".join(f"{v}:{v.type}" for v in self.outputs)
        return f"{outputs} = {self.op}({', '.join(map(str, self.inputs))})"


@dataclass(frozen=True)
class Variable:
    """A named tensor that outlives a run: declared by `get_variable`, optimizers, and the train step."""

    name: str
    type: TensorType
    #: a source op without inputs that gives the first value
    initializer: Op
    placement: Placement
    #: how it is stored: B on all ranks unless the user splits it
    sbp: tuple[Sbp, ...]
    trainable: bool = True
    l1: float = 0.0
    l2: float = 0.0

    @property
    def layout(self) -> Layout:
        return Layout(self.placement, self.sbp)


@dataclass(frozen=True)
class Graph:
    """A traced program.

    `nodes` are in an order in which every input comes before its use.  `updates` says which value a variable takes at the
    end of the run.  `training` is what the job said about its optimizer and losses; `differentiate` consumes it.
    """

    name: str
    placement: Placement
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    variables: tuple[Variable, ...] = ()
    reads: dict[str, Value] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    training: Any = None

    def variable(self, name: str) -> Variable:
        return next(v for v in self.variables if v.name == name)

    def values(self) -> Iterator[Value]:
        for node in self.nodes:
            yield from node.outputs


@dataclass(frozen=True)
class Sharded:
    """A logical graph and how every value of it lies on the ranks; `wanted[node][i]` is the layout in which a node reads input i."""

    graph: Graph
    layouts: dict[Value, Layout | Local]
    wanted: dict[Node, tuple[Layout | Local, ...]]
