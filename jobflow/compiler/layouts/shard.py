"""Graph -> sharded graph: the layout of every value, and the layouts in which each node reads its inputs.

Arguments are S(0), variables have their stored layout (B unless the user splits them), and other sources are B.  Every other node gets
its signatures from the policy in `choose`, in program order.  The mirrored view needs no decision: a node runs on each
rank's own tensors.

Constraints are the user's layouts for the readers of a value:

    with_distribute     readers in the forward pass must use the layout
    parallel_cast       readers in the forward pass, except another cast, must use the layout
    other constraints   are applied where a signature allows it: ToLayout of a strategy, split variables, all constraints in the backward pass

An op that would have to gather a split axis is replaced by its decomposition, if it has one (`Op.decompose`).  For example, the
softmax of split classes becomes a maximum, an exponential, a sum and a quotient.  Only one number per row is communicated then.
The result contains the decomposition instead of the op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jobflow.core.scope as scope
from jobflow.compiler.front.constraint_errors import Constraint, contradiction, unmet
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
    """Choose the layout of every value and the layouts in which each node reads its inputs."""
    return Sharding(graph).sharded()


@dataclass(frozen=True)
class Decision:
    """The layouts that a node reads and writes, and the constraint on readers of its output."""

    inputs: Reads
    outputs: Reads
    constraint: Constraint | None = None


class Sharding(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.layouts: dict[Value, Layout | Local] = {}
        self.read_layouts: dict[Node, Reads] = {}
        self.constraints: dict[Value, Constraint] = {}
        #: layouts of the inputs and outputs of a node, by the node's name
        self.layouts_by_name: dict[str, tuple[Reads, Reads]] = {}
        self.chosen: dict[Case, Choice] = {}
        #: the inputs that cause the decomposition of the last node
        self.stuck: tuple[int, ...] = ()

    def sharded(self) -> Sharded:
        return Sharded(self.run(), self.layouts, self.read_layouts)

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """Choose the layouts of a node of the program; return the replacements of its outputs."""
        here = changed(node, inputs)
        decision = self.decide(here)
        outputs: Sequence[Value] = here.outputs
        if decision is None:
            outputs = self.replaced(here)
            self.layouts_by_name[node.name] = tuple(self.layouts[v] for v in inputs), tuple(self.layouts[v] for v in outputs)
        else:
            self.settle(here, decision)
            self.layouts_by_name[node.name] = decision.inputs, decision.outputs
        return outputs

    def settle(self, node: Node, decision: Decision) -> None:
        """Add a node with the layouts and the constraint of its decision."""
        self.add(node)
        self.read_layouts[node] = decision.inputs
        self.layouts.update(zip(node.outputs, decision.outputs, strict=True))
        if decision.constraint is not None:
            self.constraints.update(dict.fromkeys(node.outputs, decision.constraint))

    # ---------------------------------------------------------------- one node

    def decide(self, node: Node) -> Decision | None:
        """Return the layouts of a node; None if its decomposition replaces it."""
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
            layout = _reduced(self.layouts[node.inputs[0]])
            return Decision((layout,), (layout,))
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
        return Decision((), (layout,), Constraint(marks, node) if any(marks) else None)

    def _cast(self, op: ToLayout, node: Node) -> Decision:
        marks = _each(op.sbp, node.placement)
        value = node.inputs[0]
        here = self.layouts[value]
        present_sbp = present(here, node.placement, value)[0] if isinstance(here, Layout) else marks
        target = tuple(mark or have or B for mark, have in zip(marks, present_sbp, strict=True))
        layout, before = Layout(node.placement, target), self.constraints.get(node.inputs[0])
        if op.requested_by and before is not None and before.hint and before.marks != marks and node.phase == "forward":
            raise contradiction(node, before, target)
        return Decision((layout,), (layout,), Constraint(marks, node, required=bool(op.requested_by), hint=op.requested_by == "with_distribute"))

    def by_rule(self, node: Node) -> Decision | None:
        """Return the layouts that the policy (`choose`) selects; None if the decomposition replaces the node.

        Raises: SbpError if no signature satisfies the required layouts.
        """
        case = self.case(node)
        choice = self.chosen.get(case)
        if choice is None:
            choice = self.chosen[case] = choose(case)
        if choice.stuck and type(node.op).decompose is not Op.decompose:
            self.stuck = choice.stuck
            return None
        if choice.unmet is not None:
            raise unmet(node, case, choice.unmet, [self.constraints.get(value) for value in node.inputs])
        here = node.placement
        inputs = tuple(Layout(here, choice.input(i)) for i in range(len(node.inputs)))
        return Decision(inputs, tuple(Layout(here, choice.output(i)) for i in range(len(node.outputs))))

    def case(self, node: Node) -> Case:
        """Return the arguments of `choose` for a node."""
        operands = tuple(self._operand(value, node) for value in node.inputs)
        pieces = tuple(self._piece(end, node.placement) for end in node.provenance.gradients)
        return Case(node.op, operands, node.placement.mesh, pieces if any(pieces) else ())

    def _operand(self, value: Value, node: Node) -> Operand:
        layout, constraint = self.layouts[value], self.constraints.get(value)
        if isinstance(layout, Local):
            raise PlanError(
                f"{node.op} at {node.where}: {value.name} is in the mirrored view, but the op is in the consistent view; convert it with to_global"
            )
        now, here = present(layout, node.placement, value)
        if constraint is None or len(constraint.marks) != len(now):
            return Operand(value.tensor_type, now, here)
        return Operand(value.tensor_type, now, here, constraint.marks, constraint.required and node.phase == "forward")

    def _piece(self, end: End | None, placement: Placement) -> Marks:
        """Return the layout of the forward value at `end`; () if the layout is unknown or on another mesh."""
        if end is None or end.node not in self.layouts_by_name:
            return ()
        layout = self.layouts_by_name[end.node][end.output][end.index]
        return layout.sbp if isinstance(layout, Layout) and layout.placement.mesh == placement.mesh else ()

    # ---------------------------------------------------------------- decomposition

    def replaced(self, node: Node) -> tuple[Value, ...]:
        """Replace a node by its decomposition; return the outputs under the names of the node's outputs."""
        start = len(self.nodes)
        recorder = _Recorder(self, node, [node.inputs[i] for i in self.stuck])
        with scope.using(interpreter=recorder, placement=node.placement, view="consistent", namespace=()):
            returned = node.op.decompose(*node.inputs)
        recorder.forget()
        outputs = tuple(value for value in returned or () if isinstance(value, Value))
        if [value.tensor_type for value in outputs] != [value.tensor_type for value in node.outputs]:
            raise PlanError(
                f"{node.op} at {node.where}: `decompose` returned {list(map(repr, outputs))}; it must return values of the same types as "
                f"{list(map(repr, node.outputs))}"
            )
        names = {value: before.name for value, before in zip(outputs, node.outputs, strict=True) if value.node in recorder.added}
        now = self._renamed(start, names)
        return tuple(now.get(value, value) for value in outputs)

    def _renamed(self, start: int, names: Mapping[Value, str]) -> dict[Value, Value]:
        """Rebuild the nodes from index `start` on with new names of values; return the replacements of changed values."""
        now: dict[Value, Value] = {}
        for at, node in enumerate(self.nodes[start:], start):
            inputs = tuple(now.get(value, value) for value in node.inputs)
            makes = [(value.tensor_type, names.get(value, value.name), value.local) for value in node.outputs]
            fresh = changed(node, inputs, makes=makes if any(value in names for value in node.outputs) else None)
            if fresh is not node:
                self.nodes[at], self.read_layouts[fresh] = fresh, self.read_layouts.pop(node)
                now.update(zip(node.outputs, fresh.outputs, strict=True))
                self.layouts.update((now[value], self.layouts.pop(value)) for value in node.outputs)
        return now


class _Recorder:
    """An interpreter that records a decomposition and chooses the layouts of each op when it is called.

    The inputs that caused the decomposition stay split, and so do results with the shapes of these inputs.
    """

    def __init__(self, sharding: Sharding, node: Node, split: Sequence[Value]) -> None:
        self.sharding, self.node = sharding, node
        self.added: set[Node] = set()
        self.shapes = {value.shape for value in split}
        self.before = dict(sharding.constraints)
        for value in split:
            self._keep(value, node)

    def _keep(self, value: Value, node: Node) -> None:
        layout = self.sharding.layouts[value]
        if isinstance(layout, Layout):
            self.sharding.constraints[value] = Constraint(tuple(sbp if isinstance(sbp, Split) else None for sbp in layout.sbp), node)

    def forget(self) -> None:
        """Restore the constraints from before the decomposition."""
        self.sharding.constraints = self.before

    def apply(self, op: Op, inputs: Sequence[Tensor], name: str | None) -> tuple[Value, ...]:
        values = tuple(value for value in inputs if isinstance(value, Value))
        types = types_tuple(op.infer(*(value.tensor_type for value in values)))
        label = f"{self.node.name}.{op.word()}_{len(self.added)}"
        provenance = replace(self.node.provenance, gradients=())
        makes = [(type, label if len(types) == 1 else f"{label}.{i}", False) for i, type in enumerate(types)]
        fresh = Node(op, values, makes, label, self.node.placement, provenance)
        self.added.add(fresh)
        decision = self.sharding.decide(fresh)
        if decision is None:
            return self.sharding.replaced(fresh)
        self.sharding.settle(fresh, decision)
        for value in fresh.outputs:
            if value.shape in self.shapes:
                self._keep(value, fresh)
        return fresh.outputs


def _reduced(layout: Layout | Local) -> Layout | Local:
    """Return the layout with B instead of P."""
    return layout if isinstance(layout, Local) else replace(layout, sbp=tuple(B if isinstance(sbp, Partial) else sbp for sbp in layout.sbp))


def _each(sbp: Marks, placement: Placement) -> Marks:
    """Return a layout with one entry per mesh dimension: `sbp`, or its first entry repeated; a dimension of one rank is always B."""
    each = sbp if len(sbp) == len(placement.mesh) else sbp[:1] * len(placement.mesh)
    return tuple(B if n == 1 else one for one, n in zip(each, placement.mesh, strict=True))


def _per_dimension(sbp: tuple[Sbp, ...], placement: Placement) -> tuple[Sbp, ...]:
    """Return one S/B/P per mesh dimension, and B where `sbp` does not specify the layout."""
    return tuple(one or B for one in _each(sbp, placement))


def _argument_layout(op: Input, placement: Placement) -> Layout:
    """Return the layout of an argument: the declared layout, or a split along the outermost mesh dimension of more than one rank.

    An argument without `split`, or with fewer elements than ranks along axis 0, is not split.
    """
    if op.sbp is not None:
        return Layout(placement, tuple(B if n == 1 else sbp for sbp, n in zip(op.sbp, placement.mesh, strict=True)))
    outer = next((d for d, n in enumerate(placement.mesh) if n > 1), 0)
    splits = op.split and op.shape and placement.size > 1 and op.shape[0] >= placement.mesh[outer]
    return Layout(placement, tuple(S(0) if splits and d == outer else B for d in range(len(placement.mesh))))


def present(layout: Layout, placement: Placement, value: Value) -> tuple[Marks, bool]:
    """Return the layout of a value on a placement's mesh, and True if the value has a mesh of this shape already.

    Otherwise, the layout is the layout after a move to the placement.  Partial values are reduced before they move.
    A value of one rank is received in pieces.
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
