"""The logical program before layouts are chosen: values, nodes, graphs.

All classes are immutable, so graphs may share nodes.  A pass returns a new graph, which shares the unchanged nodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import InitVar, field
from typing import Literal, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, SourceLine
from jobflow.core.layout import B, Layout, Local, Placement, S, Sbp, Split
from jobflow.core.types import TensorType, Typed
from jobflow.ops.layout_ops import Identity, StaticShape, ViewConversion
from jobflow.ops.op import Op
from jobflow.ops.source import Input
from jobflow.ops.user_gradient import UserGradient

#: The phase of a node: the user's program, its gradients, or the step that writes variables.
Phase = Literal["forward", "backward", "update"]
#: An output of a node, for its constructor: type, name, and True in the mirrored view.
Output: TypeAlias = tuple[TensorType, str, bool]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Value(Typed):
    """One tensor of a program: output `index` of `node`.  Values are compared by identity.

    `local` is True in the mirrored view: `tensor_type` is the type on one rank, and there is no logical tensor.
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
    """Return True if the shape of the value may differ between ranks.

    This is the case for a value of the mirrored view that depends on an argument of the program, except through a `StaticShape`.
    """
    visited, rest = set(), [value]
    while rest:
        one = rest.pop()
        if one.local and one not in visited:
            visited.add(one)
            if isinstance(one.node.op, Input):
                return True
            rest.extend(() if isinstance(one.node.op, StaticShape) else one.node.inputs)
    return False


def batch_axis(value: Value) -> int | None:
    """Return the axis along which a value is split if the arguments are split along axis 0; None if the value is then not split."""
    axes: dict[Value, int | None] = {}
    waiting = [value.node]
    while waiting:
        node = waiting[-1]
        rest = [x.node for x in node.inputs if x not in axes]
        waiting.extend(rest)
        if not rest:
            waiting.pop()
            axes |= dict(zip(node.outputs, _batch_axes(node, [axes[x] for x in node.inputs]), strict=True))
    return axes[value]


def _batch_axes(node: Node, inputs: Sequence[int | None]) -> Sequence[int | None]:
    if isinstance(node.op, Input):
        return [0 if node.op.split and node.outputs[0].shape else None]
    if isinstance(node.op, ViewConversion | Identity):
        return inputs
    if isinstance(node.op, UserGradient):
        return node.op.results(inputs)
    layouts = tuple(B if axis is None else S(axis) for axis in inputs)
    signatures = node.op.rule(*(x.tensor_type for x in node.inputs)).signatures() if node.inputs else ()
    outputs = next((each.outputs for each in signatures if each.inputs == layouts), ())
    return [sbp.axis if isinstance(sbp, Split) else None for sbp in outputs] or [None] * len(node.outputs)


@dataclass(frozen=True, slots=True)
class End:
    """A reference to the input or, if `output` is True, the output `index` of the node with the name `node`."""

    node: str
    index: int
    output: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a node in the user's program: source line, phase, pipeline stage and microbatch.

    A node that a pass adds has the origin of the node for which the pass adds it.
    """

    #: the user's line, for errors about the node
    where: SourceLine = NOWHERE
    phase: Phase = "forward"
    #: the pipeline stage; None if the program names none
    stage: int | None = None
    #: the microbatch; None for nodes that read the whole batch
    microbatch: int | None = None
    #: the rematerialized region: its values are dropped after the forward pass and recomputed for the backward pass; None if they are saved.
    #: A recomputing node has the inverted number (~region).
    region: int | None = None
    #: per output, the value that it is the gradient of; () if none is a gradient
    gradients: tuple[End | None, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One application of the operation `op` to the values `inputs`, on the ranks of `placement`.  Nodes are compared by identity.

    The constructor creates the values `outputs`; `makes` lists their types, names and views.
    """

    op: Op
    inputs: tuple[Value, ...]
    makes: InitVar[Sequence[Output]]
    name: str
    placement: Placement
    provenance: Provenance = Provenance()
    outputs: tuple[Value, ...] = field(init=False)

    def __post_init__(self, makes: Sequence[Output]) -> None:
        values = tuple([Value(type, self, i, name, local) for i, (type, name, local) in enumerate(makes)])
        object.__setattr__(self, "outputs", values)

    @property
    def where(self) -> SourceLine:
        """The user's line that created the node."""
        return self.provenance.where

    @property
    def phase(self) -> Phase:
        return self.provenance.phase

    def __str__(self) -> str:
        outputs = ", ".join(f"{v}:{v.tensor_type}" for v in self.outputs)
        return f"{outputs} = {self.op}({', '.join(map(str, self.inputs))})"


@dataclass(frozen=True)
class Variable:
    """A named tensor that persists between runs, such as a parameter, an optimizer slot, or the number of training steps."""

    name: str
    type: TensorType
    #: a source op without inputs that computes the first value
    initializer: Op
    placement: Placement
    #: the stored layout, per mesh dimension: B unless the user splits it
    sbp: tuple[Sbp, ...]
    trainable: bool = True
    #: factors of the l1 and l2 regularizers that are added to the gradient
    l1: float = 0.0
    l2: float = 0.0
    #: variables of one group and element type are contiguous in memory, so one update covers them all
    group: str = "parameter"

    @property
    def layout(self) -> Layout:
        return Layout(self.placement, tuple(B if n == 1 else sbp for sbp, n in zip(self.sbp, self.placement.mesh, strict=True)))


@dataclass(frozen=True)
class Graph:
    """A traced program.

    `nodes` are in topological order.  `reads` and `updates` map the name of a variable to its value at the start and at the end of the run.
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
    #: the kind of program, for messages
    kind: Literal["job", "graph"] = "job"

    def values(self) -> Iterator[Value]:
        for node in self.nodes:
            yield from node.outputs


@dataclass(frozen=True)
class Sharded:
    """A logical graph with the layout of every value, and the layouts in which each node reads its inputs."""

    graph: Graph
    layouts: dict[Value, Layout | Local]
    read_layouts: dict[Node, tuple[Layout | Local, ...]]


@dataclass(frozen=True)
class Physical:
    """A graph in which layout changes are separate nodes, so that every node reads its inputs in their stored layouts."""

    graph: Graph
    layouts: dict[Value, Layout | Local]


def nodes_behind(last: Node, ends: Container[Value] = ()) -> list[Node]:
    """Return `last` and the nodes that it depends on, in topological order.

    The search does not continue from a value in `ends` to the producer of that value.
    """
    order: dict[Node, None] = {}
    waiting = [(last, False)]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            order[node] = None
        elif node not in order:
            waiting.append((node, True))
            waiting.extend((x.node, False) for x in node.inputs if x not in ends)
    return list(order)
