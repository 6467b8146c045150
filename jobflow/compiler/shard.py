"""Graph -> layouts: how every value lies on the ranks.

The policy is the legacy system's greedy one, per node in program order (it never looks ahead, so a layout is explained by
what comes before it):

1. Arguments are S(0), variables as they are stored (B unless the user splits them), other sources B.
2. A node takes one signature of its op's rule.  Signatures that split an axis into fewer elements than there are ranks are
   left out, unless a wish (3) asks for one.  An op that writes over a variable takes it
   as it is stored, or whole if it has no such signature.
3. What the user asked for (`ToLayout`, variables stored split) is a wish: signatures that disagree with it are left out, if
   any remain.
4. The signature with the most inputs that already lie so wins.  Among equals, the one that moves fewer bytes: nothing for an
   input that already lies so, its size otherwise; making P out of something, and cutting up a B, come last.  Among equals
   still, the order in which the rule lists them.

Example, two ranks: x S(0), w B.  MatMul "mk,kn->mn" takes (S(0) B -> S(0)): both inputs lie so already.  Its gradient for w
is x' dy with both S(0): "km,kn->mn" split along k gives P, and the update, which only takes B B B, has it all_reduced.

In the mirrored view nothing is decided: a node runs on each rank's own tensors.  A mesh of several dimensions decides each on
its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobflow.errors import SbpError
from jobflow.graph.ir import Graph, Node, Sharded, Value
from jobflow.layout import B, Layout, Local, Partial, Placement, Rule, S, Sbp, Signature, Split
from jobflow.ops.layout_ops import ToGlobal, ToLayout, ToLocal
from jobflow.ops.source import Input, ReadVariable

_LAST = 1 << 62
_LATE = 1 << 31

Layouts = dict[Value, Layout | Local]


def shard(graph: Graph) -> Sharded:
    """Decide the layout of every value, and in which layouts each node reads its inputs."""
    layouts: Layouts = {}
    wanted: dict[Node, tuple[Layout | Local, ...]] = {}
    wishes: set[Value] = set()
    for node in graph.nodes:
        decided = _decide(graph, node, layouts, wishes)
        wanted[node] = decided.inputs
        layouts.update(zip(node.outputs, decided.outputs, strict=True))
        if decided.is_wish:
            wishes.update(node.outputs)
    return Sharded(graph, layouts, wanted)


@dataclass(frozen=True)
class Decision:
    """The layouts a node reads and writes; `is_wish` if later nodes should respect them."""

    inputs: tuple[Layout | Local, ...]
    outputs: tuple[Layout | Local, ...]
    is_wish: bool = False


def _decide(graph: Graph, node: Node, layouts: Layouts, wishes: set[Value]) -> Decision:
    op, here = node.op, node.placement
    if isinstance(op, ReadVariable):
        variable = graph.variables[op.key]
        return Decision((), (variable.layout,), is_wish=any(isinstance(sbp, Split) for sbp in variable.layout.sbp))
    if isinstance(op, Input):
        return Decision((), (Local(here) if node.outputs[0].local else _argument_layout(op, here),))
    if isinstance(op, ToLocal):
        return Decision((Layout(here, _per_dimension(op.sbp, here)),), (Local(here),))
    if isinstance(op, ToGlobal):
        return Decision((Local(here),), (Layout(here, _per_dimension(op.sbp, here)),))
    if node.outputs[0].local:
        return Decision((Local(here),) * len(node.inputs), (Local(here),) * len(node.outputs))
    if isinstance(op, ToLayout) and here.size > 1:
        asked = Layout(here, _per_dimension(op.sbp, here))
        return Decision((asked,), (asked,), is_wish=True)
    return by_rule(node, layouts, wishes)


def _per_dimension(sbp: tuple[Sbp, ...], placement: Placement) -> tuple[Sbp, ...]:
    """One S/B/P per mesh dimension; a dimension of one rank is B whatever was asked."""
    each = sbp if len(sbp) == len(placement.mesh) else sbp[:1] * len(placement.mesh)
    return tuple(B if n == 1 else one for one, n in zip(each, placement.mesh, strict=True))


def _argument_layout(op: Input, placement: Placement) -> Layout:
    splits = op.split and op.shape and op.shape[0] >= placement.mesh[0]
    first: Sbp = S(0) if splits and placement.size > 1 else B
    return Layout(placement, (first, *(B for _ in placement.mesh[1:])))


def by_rule(node: Node, layouts: Layouts, wishes: set[Value]) -> Decision:
    """The signature of the node's op that steps 2 to 4 choose."""
    here = node.placement
    rule = node.op.rule(*(value.type for value in node.inputs))
    chosen = [_choose(node, rule, dimension, layouts, wishes) for dimension in range(len(here.mesh))]
    inputs = tuple(Layout(here, tuple(s.inputs[i] for s in chosen)) for i in range(len(node.inputs)))
    outputs = tuple(Layout(here, tuple(s.outputs[i] for s in chosen)) for i in range(len(node.outputs)))
    return Decision(inputs, outputs)


def _choose(node: Node, rule: Rule, dimension: int, layouts: Layouts, wishes: set[Value]) -> Signature:
    n = node.placement.mesh[dimension]
    legal = [s for s in rule.signatures() if s.legal(n)]
    if n == 1 or not node.inputs:
        return _all_whole(node, legal)
    now = [_present(layouts[value], node.placement, dimension) for value in node.inputs]
    legal = _writing(node, legal, now)
    wished = [i for i, value in enumerate(node.inputs) if value in wishes and now[i] is not None]
    agreeing = [s for s in legal if wished and all(s.inputs[i] == now[i] for i in wished)]
    roomy = [s for s in agreeing or legal if all(_has_room(v, sbp, n) for v, sbp in zip(node.inputs, s.inputs, strict=True))]
    candidates = roomy or agreeing or legal
    return min(candidates, key=lambda s: _preference(s, node, now))


def _writing(node: Node, legal: list[Signature], now: list[Sbp | None]) -> list[Signature]:
    """For an op that writes over variables: the signatures in which they lie as they are stored, else those that take them whole.

    What comes out is stored without communication then, which there must not be once variables are written.
    """
    written = sorted(set(node.op.alias.values()))
    as_stored = [s for s in legal if all(s.inputs[i] == now[i] for i in written)]
    return as_stored or [s for s in legal if all(s.inputs[i] == B for i in written) and all(sbp == B for sbp in s.outputs)]


def _all_whole(node: Node, legal: list[Signature]) -> Signature:
    for signature in legal:
        if all(sbp == B for sbp in (*signature.inputs, *signature.outputs)):
            return signature
    raise SbpError(f"{node.op} at {node.where} has no signature in which every rank holds everything")


def _present(layout: Layout | Local, placement: Placement, dimension: int) -> Sbp | None:
    """The S/B/P of a value along a mesh dimension; None where it lies on another number of ranks."""
    if isinstance(layout, Local) or layout.placement.mesh != placement.mesh:
        return None
    return layout.sbp[dimension]


def _has_room(value: Value, sbp: Sbp, n: int) -> bool:
    return not isinstance(sbp, Split) or value.shape[sbp.axis] >= n


def _preference(signature: Signature, node: Node, now: list[Sbp | None]) -> tuple[int, int]:
    matches = sum(want == have for want, have in zip(signature.inputs, now, strict=True))
    cost = sum(_cost(want, have, v.type.nbytes) for want, have, v in zip(signature.inputs, now, node.inputs, strict=True))
    return -matches, cost


def _cost(want: Sbp, have: Sbp | None, nbytes: int) -> int:
    if want == have:
        return 0
    if isinstance(want, Partial):
        return _LAST
    return _LATE if have == B else nbytes
