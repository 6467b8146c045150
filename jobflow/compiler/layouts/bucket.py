"""Physical graph -> the same graph with gradients reduced in buckets.

All all_reduces that only the update step waits for go behind the last gradient, and those among the same ranks travel together as
one flat array of at most `LIMIT` bytes, however the tensors lie along the other mesh dimensions: small messages cost their
latency, not their bytes, and buckets of a few MB stay in cache while they are summed.  The order is that of the variables, so a
bucket's gradients lie like the variables they update and one update op serves them all.  This happens before `lower`, on the
global program, so all ranks agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.layouts.paths import changed
from jobflow.graph.ir import Node, Physical
from jobflow.graph.rewrite import Rewriter, consumers, made_by

#: Bytes of one bucket.
LIMIT = 4 << 20


def bucket(physical: Physical) -> Physical:
    """Order the update step last and merge its all_reduces."""
    return _Bucketing(physical).bucketed()


class _Bucketing(Rewriter):
    def __init__(self, physical: Physical) -> None:
        super().__init__(physical.graph)
        self.late = _late_nodes(physical)
        self.layouts = physical.layouts

    def bucketed(self) -> Physical:
        late = [node for node in self.graph.nodes if node in self.late]
        self.stay(node for node in self.graph.nodes if node not in self.late)
        for group in self._groups(late):
            self._merge(group)
        self.walk(node for node in late if not self._is_gradient_sum(node))
        layouts = {self.now[value]: layout for value, layout in self.layouts.items()}
        return Physical(self.rebuilt(), layouts)

    def _groups(self, late: Sequence[Node]) -> list[list[Node]]:
        """The sums of gradients, those together that travel together."""
        groups: list[list[Node]] = []
        last: dict[tuple[Any, ...], list[Node]] = {}
        for node in late:
            if not self._is_gradient_sum(node):
                continue
            key = _among(node)
            if key in last and sum(map(_nbytes, [*last[key], node])) <= LIMIT:
                last[key].append(node)
            else:
                last[key] = [node]
                groups.append(last[key])
        return groups

    def _is_gradient_sum(self, node: Node) -> bool:
        return _is_all_reduce(node) and not any(value.node in self.late for value in node.inputs)

    def _merge(self, group: Sequence[Node]) -> None:
        first, last = group[0], group[-1]
        if first is last:
            self.walk(group)
            return
        inputs = tuple(self.now[value] for node in group for value in node.inputs)
        name, origin = f"{first.inputs[0].name}..{last.inputs[0].name}", replace(first.origin, phase="update")
        makes = [output for node in group for output in made_by(node)]
        made = self.add(Node(_joined(group), inputs, makes, name, first.placement, origin))
        self.now.update(zip((node.outputs[0] for node in group), made, strict=True))


def _late_nodes(physical: Physical) -> set[Node]:
    """All_reduces whose result only the update step reads, and everything that depends on them."""
    readers = consumers(physical.graph)
    outputs = set(physical.graph.outputs)
    late: set[Node] = set()
    for node in physical.graph.nodes:
        starts = _is_reduction(node) and all(r.phase == "update" for v in node.outputs for r in readers[v]) and not outputs & set(node.outputs)
        if starts or any(value.node in late for value in node.inputs):
            late.add(node)
    return late


def _is_all_reduce(node: Node) -> bool:
    return isinstance(node.op, Reroute) and node.op.name == "all_reduce"


def _is_reduction(node: Node) -> bool:
    return isinstance(node.op, Reroute) and node.op.name in ("all_reduce", "reduce_scatter")


def _among(node: Node) -> tuple[Any, ...]:
    """What is the same for tensors that can be reduced as one: the groups of ranks, the reduction, the element type."""
    assert isinstance(node.op, Reroute)
    dimensions = changed(node.op.source, node.op.target)
    return node.op.source.placement, dimensions, node.op.source.sbp[dimensions[0]], node.inputs[0].dtype


def _nbytes(node: Node) -> int:
    """Bytes that the first rank holds of what is reduced."""
    assert isinstance(node.op, Reroute)
    source = node.op.source
    return source.local_type(node.inputs[0].type, source.placement.ranks[0]).nbytes


def _joined(group: Sequence[Node]) -> Reroute:
    """The reduction of all tensors of a group at once."""
    ops = [node.op for node in group if isinstance(node.op, Reroute)]
    if all(op == ops[0] for op in ops):
        return ops[0]
    return replace(ops[0], each=tuple((op.source, op.target) for op in ops))
