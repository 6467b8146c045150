"""Physical graph -> the same graph with gradients reduced in buckets.

All_reduces whose results only the update phase reads run after the last gradient.  All_reduces among the same ranks are sent together,
as one flat array of at most `LIMIT` bytes, whatever the layout along other mesh dimensions.  Small messages cost latency rather than
bandwidth, and buckets of a few MB stay in cache during the sum.  Buckets follow the order of the variables, so a bucket's
gradients have the offsets of the variables and one update op serves all of them.

All_reduces that depend on these sums are merged in further rounds, for example the sums of squares for a norm over all
gradients.  The pass precedes `lower` and works on the global program, so all ranks get the same buckets.

All_reduces of several outputs of one node are also merged, at the first of them, for example the gradient sums of a batch norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.layouts.paths import changed
from jobflow.graph.ir import Node, Physical, Provenance
from jobflow.graph.rewrite import Rewriter, consumers, outputs_of

#: Maximum number of bytes of a bucket.
LIMIT = 4 << 20


def bucket(physical: Physical) -> Physical:
    """Order the update phase last; merge its all_reduces, and the all_reduces of several outputs of one node."""
    return _Bucketing(physical).bucketed()


class _Bucketing(Rewriter):
    def __init__(self, physical: Physical) -> None:
        super().__init__(physical.graph)
        self.late = _late_nodes(physical)
        self.layouts = physical.layouts

    def bucketed(self) -> Physical:
        body = [node for node in self.graph.nodes if node not in self.late]
        siblings = {node: group for group in _groups(body, lambda node: (node.inputs[0].node, *_among(node))) for node in group}
        for node in body:
            group = siblings.get(node, [node])
            if node is group[0]:
                self._merge(group, node.provenance)
        for turn in _turns(self.late):
            for group in _groups(turn, _among):
                self._merge(group, replace(group[0].provenance, phase="update"))
            self.walk(node for node in turn if not _is_all_reduce(node))
        layouts = {self.now[value]: layout for value, layout in self.layouts.items()}
        return Physical(self.rebuilt(), layouts)

    def _merge(self, group: Sequence[Node], provenance: Provenance) -> None:
        first, last = group[0], group[-1]
        if first is last:
            self.walk(group)
            return
        inputs = tuple(self.now[value] for node in group for value in node.inputs)
        name = f"{first.inputs[0].name}..{last.inputs[0].name}"
        makes = [output for node in group for output in outputs_of(node)]
        outputs = self.add(Node(_joined(group), inputs, makes, name, first.placement, provenance))
        self.now.update(zip((node.outputs[0] for node in group), outputs, strict=True))


def _groups(nodes: Iterable[Node], key: Callable[[Node], tuple[Any, ...]]) -> list[list[Node]]:
    """Return groups of all_reduces with equal keys and at most `LIMIT` bytes; a larger all_reduce is alone in its group."""
    groups: list[list[Node]] = []
    last: dict[tuple[Any, ...], list[Node]] = {}
    for node in filter(_is_all_reduce, nodes):
        group = last.get(key(node))
        if group is not None and sum(map(_nbytes, [*group, node])) <= LIMIT:
            group.append(node)
        else:
            last[key(node)] = [node]
            groups.append(last[key(node)])
    return groups


def _turns(late: Iterable[Node]) -> list[list[Node]]:
    """Group the nodes into rounds; an all_reduce depends only on all_reduces of earlier rounds.

    Any other node belongs to the round of the last all_reduce that it depends on, or else to the first round.
    """
    turn: dict[Node, int] = {}
    for node in late:
        waits = max((turn[value.node] for value in node.inputs if value.node in turn), default=-1)
        turn[node] = waits + 1 if _is_all_reduce(node) else max(waits, 0)
    return [[node for node in turn if turn[node] == number] for number in range(max(turn.values(), default=-1) + 1)]


def _late_nodes(physical: Physical) -> dict[Node, None]:
    """Return, in program order, the all_reduces and reduce_scatters that only the update phase reads, and all their dependents."""
    readers = consumers(physical.graph)
    outputs = set(physical.graph.outputs)
    late: dict[Node, None] = {}
    for node in physical.graph.nodes:
        reduces = isinstance(node.op, Reroute) and node.op.name in ("all_reduce", "reduce_scatter") and not outputs & set(node.outputs)
        if (reduces and all(r.phase == "update" for v in node.outputs for r in readers[v])) or any(value.node in late for value in node.inputs):
            late[node] = None
    return late


def _is_all_reduce(node: Node) -> bool:
    return isinstance(node.op, Reroute) and node.op.name == "all_reduce"


def _among(node: Node) -> tuple[Any, ...]:
    """Return the key of tensors that can be reduced together: placement, mesh dimensions, reduction and element type."""
    assert isinstance(node.op, Reroute)
    dimensions = changed(node.op.source, node.op.target)
    return node.op.source.placement, dimensions, node.op.source.sbp[dimensions[0]], node.inputs[0].dtype


def _nbytes(node: Node) -> int:
    """Return the size in bytes of the first rank's addend."""
    assert isinstance(node.op, Reroute)
    source = node.op.source
    return source.local_type(node.inputs[0].tensor_type, source.placement.ranks[0]).nbytes


def _joined(group: Sequence[Node]) -> Reroute:
    """Return the `Reroute` that reduces all tensors of a group together."""
    ops = [node.op for node in group if isinstance(node.op, Reroute)]
    if all(op == ops[0] for op in ops):
        return ops[0]
    return replace(ops[0], each=tuple((op.source, op.target) for op in ops))
