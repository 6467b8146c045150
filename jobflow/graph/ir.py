"""The logical program, before layouts are chosen: values, nodes, graphs.

All of it is immutable, so graphs may share nodes: a pass builds a new graph, of new nodes where something changes and of the same ones elsewhere.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import InitVar, field
from typing import Literal, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, SourceLine
from jobflow.core.layout import B, Layout, Local, Placement, S, Sbp, Split
from jobflow.core.types import TensorType, Typed
from jobflow.ops.layout_ops import Crossing, Identity, StaticShape
from jobflow.ops.op import Op
from jobflow.ops.source import Input

#: What a node is for: the user's program, its gradients, or the step that writes variables.
Phase = Literal["forward", "backward", "update"]
#: What a node is to make, for its constructor: type, name, and whether it is of the mirrored view.
Output: TypeAlias = tuple[TensorType, str, bool]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Value(Typed):
    """One tensor of a program: output `index` of `node`; compared by identity.

    `local` is True in the mirrored view, where `tensor_type` is the type on one rank and no logical whole exists.
    """

    tensor_type: TensorType
    node: Node
    index: int
    name: str
    local: bool = False

    def __str__(self) -> str:
        return f"%{self.name}"

    def __repr__(self) -> str:
        return f"<tensor {self.name} {self.tensor_type}>"


def is_dynamic(value: Value) -> bool:
    """True if ranks may have tensors of different shapes: in the mirrored view, what comes of arguments that each rank has of its own."""
    seen, rest = set(), [value]
    while rest:
        one = rest.pop()
        if one.local and one not in seen:
            seen.add(one)
            if isinstance(one.node.op, Input):
                return True
            rest.extend(() if isinstance(one.node.op, StaticShape) else one.node.inputs)
    return False


def batch_axis(value: Value) -> int | None:
    """The axis of the samples: axis 0 of arguments, and what ops make of that axis; None where there is none."""
    found: dict[Value, int | None] = {}
    waiting = [value.node]
    while waiting:
        node = waiting[-1]
        rest = [x.node for x in node.inputs if x not in found]
        waiting.extend(rest)
        if not rest:
            waiting.pop()
            found |= dict(zip(node.outputs, _batch_axes(node, [found[x] for x in node.inputs]), strict=True))
    return found[value]


def _batch_axes(node: Node, given: Sequence[int | None]) -> Sequence[int | None]:
    if isinstance(node.op, Input):
        return [0 if node.op.split and node.outputs[0].shape else None]
    if isinstance(node.op, Crossing | Identity):
        return given
    asked = tuple(B if axis is None else S(axis) for axis in given)
    signatures = node.op.rule(*(x.tensor_type for x in node.inputs)).signatures() if node.inputs else ()
    made = next((each.outputs for each in signatures if each.inputs == asked), ())
    return [sbp.axis if isinstance(sbp, Split) else None for sbp in made] or [None] * len(node.outputs)


@dataclass(frozen=True, slots=True)
class End:
    """An input, or an output, of the node called `node`."""

    node: str
    index: int
    output: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where in the program a node comes from; nodes that passes add take it over from the nodes they serve."""

    #: the user's line, for every error about the node
    where: SourceLine = NOWHERE
    phase: Phase = "forward"
    #: which stage of a pipeline; None if the program names none
    stage: int | None = None
    #: which part of the batch it works on; None if on all of it
    microbatch: int | None = None
    #: which region, whose values are dropped after the forward pass and made again for the backward pass; None if they are kept.
    #: Of a node that makes them again, the number inverted (~region).
    region: int | None = None
    #: per output, what it is the gradient of; () if none is a gradient
    gradients: tuple[End | None, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One application of an op on a placement; compared by identity.  It is made together with its outputs."""

    op: Op
    inputs: tuple[Value, ...]
    makes: InitVar[Sequence[Output]]
    name: str
    placement: Placement
    origin: Origin = Origin()
    outputs: tuple[Value, ...] = field(init=False)

    def __post_init__(self, makes: Sequence[Output]) -> None:
        values = tuple([Value(type, self, i, name, local) for i, (type, name, local) in enumerate(makes)])
        object.__setattr__(self, "outputs", values)

    @property
    def where(self) -> SourceLine:
        """The user's line."""
        return self.origin.where

    @property
    def phase(self) -> Phase:
        return self.origin.phase

    def __str__(self) -> str:
        outputs = ", ".join(f"{v}:{v.tensor_type}" for v in self.outputs)
        return f"{outputs} = {self.op}({', '.join(map(str, self.inputs))})"


@dataclass(frozen=True)
class Variable:
    """A named tensor that outlives a run: declared by `get_variable`, by optimizers, and for the train step."""

    name: str
    type: TensorType
    #: a source op without inputs that gives the first value
    initializer: Op
    placement: Placement
    #: how it is stored, per mesh dimension: B unless the user splits it
    sbp: tuple[Sbp, ...]
    trainable: bool = True
    #: factors of the l1 and l2 regularizers that are added to the gradient
    l1: float = 0.0
    l2: float = 0.0
    #: variables of one group and element type lie end to end in memory, so that one update serves them all
    group: str = "parameter"

    @property
    def layout(self) -> Layout:
        return Layout(self.placement, tuple(B if n == 1 else sbp for sbp, n in zip(self.sbp, self.placement.mesh, strict=True)))


@dataclass(frozen=True)
class Graph:
    """A traced program.

    `nodes` are in an order in which every input comes before its use.  `updates` says which value a variable takes at the
    end of the run.
    """

    name: str
    placement: Placement
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    variables: dict[str, Variable] = field(default_factory=dict)
    reads: dict[str, Value] = field(default_factory=dict)
    updates: dict[str, Value] = field(default_factory=dict)
    #: mirrored view only: the length of the first axis of each rank's arguments, if the ranks' shapes differ
    rows: tuple[int, ...] = ()
    #: who wrote it, for messages
    kind: Literal["job", "graph"] = "job"

    def values(self) -> Iterator[Value]:
        for node in self.nodes:
            yield from node.outputs


@dataclass(frozen=True)
class Sharded:
    """A logical graph, how every value of it lies on the ranks, and in which layouts each node reads its inputs."""

    graph: Graph
    layouts: dict[Value, Layout | Local]
    wanted: dict[Node, tuple[Layout | Local, ...]]


@dataclass(frozen=True)
class Physical:
    """A graph in which every node finds its inputs as it reads them: changes of layout are nodes of their own."""

    graph: Graph
    layouts: dict[Value, Layout | Local]


def nodes_behind(last: Node, ends: Container[Value] = ()) -> list[Node]:
    """The last node and those that it needs, each behind what it needs; what these values are made of is left out."""
    found: dict[Node, None] = {}
    waiting = [(last, False)]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            found[node] = None
        elif node not in found:
            waiting.append((node, True))
            waiting.extend((x.node, False) for x in node.inputs if x not in ends)
    return list(found)
