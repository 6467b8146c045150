"""Graph -> sharded graph: the layout of every value, and the layouts in which each node reads its inputs.

Arguments are S(0), variables as they are stored (B unless the user splits them), other sources B.  Every other node takes the
signatures that the policy in `choose` gives it, in program order.  In the mirrored view nothing is decided: a node runs on each
rank's own tensors.

Wishes are what the policy knows of the user: how the readers of a value are to find it.

    with_distribute     readers in the forward pass must read it so
    parallel_cast       the same, but for another cast
    ToLayout of a strategy, variables stored split, and all of these in the backward pass: readers do, where a signature does

An op that must keep an axis whole along which its input lies split stands aside for the same in smaller ops, if it can be
written so (`Op.decompose`): the softmax of split classes is a maximum, an exponential, a sum and a quotient, of which only numbers
per row travel.  The graph is then another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jobflow.core.scope as scope
from jobflow.compiler.front.hint_errors import Wish, contradiction, unmet
from jobflow.compiler.layouts.choose import Case, Choice, Marks, Operand, choose
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlanError
from jobflow.core.layout import B, Layout, Local, Partial, Placement, S, Sbp, Split
from jobflow.core.types import Tensor
from jobflow.graph.ir import End, Graph, Node, Sharded, Value
from jobflow.graph.rewrite import Rewriter, changed
from jobflow.ops.layout_ops import ToGlobal, ToLayout, ToLocal
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.parts import PutPart, TakePart
from jobflow.ops.rows import Rows
from jobflow.ops.source import Input, ReadVariable

Reads = tuple[Layout | Local, ...]


def shard(graph: Graph) -> Sharded:
    """Decide the layout of every value, and in which layouts each node reads its inputs."""
    return Sharding(graph).sharded()


@dataclass(frozen=True)
class Decision:
    """The layouts a node reads and writes, and what readers of its output are asked for."""

    inputs: Reads
    outputs: Reads
    wish: Wish | None = None


class Sharding(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.layouts: dict[Value, Layout | Local] = {}
        self.wanted: dict[Node, Reads] = {}
        self.wishes: dict[Value, Wish] = {}
        #: how the inputs and outputs of a node lay, by the node's name
        self.seen: dict[str, tuple[Reads, Reads]] = {}
        self.chosen: dict[Case, Choice] = {}
        #: the inputs for whose sake the last node stands aside
        self.stuck: tuple[int, ...] = ()

    def sharded(self) -> Sharded:
        return Sharded(self.run(), self.layouts, self.wanted)

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """Decide about a node of the program; the values that stand for its outputs."""
        here = changed(node, inputs)
        decided = self.decide(here)
        made: Sequence[Value] = here.outputs
        if decided is None:
            made = self.replaced(here)
            self.seen[node.name] = tuple(self.layouts[v] for v in inputs), tuple(self.layouts[v] for v in made)
        else:
            self.settle(here, decided)
            self.seen[node.name] = decided.inputs, decided.outputs
        return made

    def settle(self, node: Node, decided: Decision) -> None:
        """Add a node as it was decided about."""
        self.add(node)
        self.wanted[node] = decided.inputs
        self.layouts.update(zip(node.outputs, decided.outputs, strict=True))
        if decided.wish is not None:
            self.wishes.update(dict.fromkeys(node.outputs, decided.wish))

    # ---------------------------------------------------------------- one node

    def decide(self, node: Node) -> Decision | None:
        """How a node reads and writes; None if it stands aside for smaller ops."""
        op, here = node.op, node.placement
        if isinstance(op, ReadVariable):
            return self._stored(self.graph.variables[op.key].layout, node)
        if isinstance(op, Input):
            return Decision((), (Local(here) if node.outputs[0].local else _argument_layout(op, here),))
        if isinstance(op, ToLocal):
            return Decision((Layout(here, _per_dimension(op.sbp, here)),), (Local(here),))
        if isinstance(op, ToGlobal):
            return Decision((Local(here),), (Layout(here, _per_dimension(op.sbp, here)),))
        if isinstance(op, Rows):
            lies = _summed(self.layouts[node.inputs[0]])
            return Decision((lies,), (lies,))
        if isinstance(op, TakePart | PutPart):
            logical, part = op.layouts
            return Decision((logical,), (part,)) if isinstance(op, TakePart) else Decision((part,), (logical,))
        if node.outputs[0].local:
            return Decision((Local(here),) * len(node.inputs), (Local(here),) * len(node.outputs))
        if isinstance(op, ToLayout) and here.size > 1:
            return self._cast(op, node)
        return self.by_rule(node)

    @staticmethod
    def _stored(layout: Layout, node: Node) -> Decision:
        marks: Marks = tuple(sbp if isinstance(sbp, Split) else None for sbp in layout.sbp)
        return Decision((), (layout,), Wish(marks, node) if any(marks) else None)

    def _cast(self, op: ToLayout, node: Node) -> Decision:
        marks = _each(op.sbp, node.placement)
        value = node.inputs[0]
        here = self.layouts[value]
        lies = present(here, node.placement, value)[0] if isinstance(here, Layout) else marks
        asked = tuple(mark or have or B for mark, have in zip(marks, lies, strict=True))
        layout, before = Layout(node.placement, asked), self.wishes.get(node.inputs[0])
        if op.asked and before is not None and before.hint and before.marks != marks and node.phase == "forward":
            raise contradiction(node, before, asked)
        return Decision((layout,), (layout,), Wish(marks, node, firm=bool(op.asked), hint=op.asked == "with_distribute"))

    def by_rule(self, node: Node) -> Decision | None:
        """What the policy takes."""
        case = self.case(node)
        choice = self.chosen.get(case)
        if choice is None:
            choice = self.chosen[case] = choose(case)
        if choice.stuck and type(node.op).decompose is not Op.decompose:
            self.stuck = choice.stuck
            return None
        if choice.unmet is not None:
            raise unmet(node, case, choice.unmet, [self.wishes.get(value) for value in node.inputs])
        here = node.placement
        inputs = tuple(Layout(here, choice.input(i)) for i in range(len(node.inputs)))
        return Decision(inputs, tuple(Layout(here, choice.output(i)) for i in range(len(node.outputs))))

    def case(self, node: Node) -> Case:
        """All that the choice for a node depends on."""
        operands = tuple(self._operand(value, node) for value in node.inputs)
        pieces = tuple(self._piece(end, node.placement) for end in node.origin.gradients)
        return Case(node.op, operands, node.placement.mesh, pieces if any(pieces) else ())

    def _operand(self, value: Value, node: Node) -> Operand:
        layout, wish = self.layouts[value], self.wishes.get(value)
        if isinstance(layout, Local):
            raise PlanError(f"{node.op} at {node.where}: {value.name} is of the mirrored view, the op is not; cross with to_global")
        now, here = present(layout, node.placement, value)
        if wish is None or len(wish.marks) != len(now):
            return Operand(value.tensor_type, now, here)
        return Operand(value.tensor_type, now, here, wish.marks, wish.firm and node.phase == "forward")

    def _piece(self, end: End | None, placement: Placement) -> Marks:
        """How the forward pass held what this is the gradient of; () if it says nothing."""
        if end is None or end.node not in self.seen:
            return ()
        layout = self.seen[end.node][end.output][end.index]
        return layout.sbp if isinstance(layout, Layout) and layout.placement.mesh == placement.mesh else ()

    # ---------------------------------------------------------------- smaller ops

    def replaced(self, node: Node) -> tuple[Value, ...]:
        """The outputs of a node as smaller ops make them, under their names."""
        start = len(self.nodes)
        recorder = _Recorder(self, node, [node.inputs[i] for i in self.stuck])
        with scope.using(interpreter=recorder, placement=node.placement, view="consistent", namespace=()):
            made = node.op.decompose(*node.inputs)
        recorder.forget()
        found = tuple(value for value in made or () if isinstance(value, Value))
        if [value.tensor_type for value in found] != [value.tensor_type for value in node.outputs]:
            raise PlanError(
                f"{node.op} at {node.where}: written in smaller ops it gives {list(map(repr, found))}, not {list(map(repr, node.outputs))}"
            )
        names = {value: before.name for value, before in zip(found, node.outputs, strict=True) if value.node in recorder.made}
        now = self._renamed(start, names)
        return tuple(now.get(value, value) for value in found)

    def _renamed(self, start: int, names: Mapping[Value, str]) -> dict[Value, Value]:
        """Make the nodes from `start` on anew, so that some of their values have these names; what stands for values that are others then."""
        now: dict[Value, Value] = {}
        for at, node in enumerate(self.nodes[start:], start):
            inputs = tuple(now.get(value, value) for value in node.inputs)
            makes = [(value.tensor_type, names.get(value, value.name), value.local) for value in node.outputs]
            fresh = changed(node, inputs, makes=makes if any(value in names for value in node.outputs) else None)
            if fresh is not node:
                self.nodes[at], self.wanted[fresh] = fresh, self.wanted.pop(node)
                now.update(zip(node.outputs, fresh.outputs, strict=True))
                self.layouts.update((now[value], self.layouts.pop(value)) for value in node.outputs)
        return now


class _Recorder:
    """The interpreter while an op is written in smaller ones: each is decided about where it is called.

    Inputs for whose sake this is done, and what is made of their shape, are to stay cut as they are.
    """

    def __init__(self, sharding: Sharding, node: Node, kept: Sequence[Value]) -> None:
        self.sharding, self.node = sharding, node
        self.made: set[Node] = set()
        self.shapes = {value.shape for value in kept}
        self.before = dict(sharding.wishes)
        for value in kept:
            self._keep(value, node)

    def _keep(self, value: Value, node: Node) -> None:
        layout = self.sharding.layouts[value]
        if isinstance(layout, Layout):
            self.sharding.wishes[value] = Wish(tuple(sbp if isinstance(sbp, Split) else None for sbp in layout.sbp), node)

    def forget(self) -> None:
        """The wishes were for the smaller ops alone."""
        self.sharding.wishes = self.before

    def apply(self, op: Op, inputs: Sequence[Tensor], name: str | None) -> tuple[Value, ...]:
        values = tuple(value for value in inputs if isinstance(value, Value))
        types = types_tuple(op.infer(*(value.tensor_type for value in values)))
        label = f"{self.node.name}.{op.word()}_{len(self.made)}"
        origin = replace(self.node.origin, gradients=())
        makes = [(type, label if len(types) == 1 else f"{label}.{i}", False) for i, type in enumerate(types)]
        fresh = Node(op, values, makes, label, self.node.placement, origin)
        self.made.add(fresh)
        decided = self.sharding.decide(fresh)
        if decided is None:
            return self.sharding.replaced(fresh)
        self.sharding.settle(fresh, decided)
        for value in fresh.outputs:
            if value.shape in self.shapes:
                self._keep(value, fresh)
        return fresh.outputs


def _summed(layout: Layout | Local) -> Layout | Local:
    """The layout with B for P."""
    return layout if isinstance(layout, Local) else replace(layout, sbp=tuple(B if isinstance(sbp, Partial) else sbp for sbp in layout.sbp))


def _each(sbp: Marks, placement: Placement) -> Marks:
    """One entry per mesh dimension; a dimension of one rank is B whatever was asked."""
    each = sbp if len(sbp) == len(placement.mesh) else sbp[:1] * len(placement.mesh)
    return tuple(B if n == 1 else one for one, n in zip(each, placement.mesh, strict=True))


def _per_dimension(sbp: tuple[Sbp, ...], placement: Placement) -> tuple[Sbp, ...]:
    """One S/B/P per mesh dimension."""
    return tuple(one or B for one in _each(sbp, placement))


def _argument_layout(op: Input, placement: Placement) -> Layout:
    """As it lies if it does already; else split along the outermost mesh dimension of more than one rank, if there are as many elements."""
    if op.sbp is not None:
        return Layout(placement, tuple(B if n == 1 else sbp for sbp, n in zip(op.sbp, placement.mesh, strict=True)))
    outer = next((d for d, n in enumerate(placement.mesh) if n > 1), 0)
    splits = op.split and op.shape and placement.size > 1 and op.shape[0] >= placement.mesh[outer]
    return Layout(placement, tuple(S(0) if splits and d == outer else B for d in range(len(placement.mesh))))


def present(layout: Layout, placement: Placement, value: Value) -> tuple[Marks, bool]:
    """How a value lies on a placement's mesh, or would if it came there; and whether it lies on such a mesh already.

    Partial values are made whole before they go elsewhere.  A value of one rank comes as pieces.
    """
    if layout.placement == placement:
        return layout.sbp, True
    moved: Marks = tuple(None if isinstance(sbp, Partial) else sbp for sbp in layout.sbp)
    if layout.placement.mesh == placement.mesh:
        return moved, True
    if layout.placement.size == 1:
        moved = (S(0) if value.shape else B,)
    if len(moved) == len(placement.mesh):
        return moved, False
    return (moved[0] if len(set(moved)) == 1 else None,) * len(placement.mesh), False
