"""Physical graph -> the same with gradients synchronised in buckets.

All all_reduces that only the update step waits for go behind the last gradient, and those among the same ranks travel together as
one flat array of at most `LIMIT` bytes, however the tensors lie along the other mesh dimensions: small messages cost their
latency, not their bytes, and buckets of a few MB stay in cache while they are summed.  The order is that of the variables, so a
bucket's gradients lie like the variables they update and one update op serves them all.  This happens before `lower`, on the
global program, so all ranks agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.layouts.paths import changed
from jobflow.core.layout import Layout, Local
from jobflow.graph.ir import Node, Physical, Value
from jobflow.graph.rewrite import consumers, with_values

#: Bytes of one bucket.
LIMIT = 4 << 20


def bucket(physical: Physical) -> Physical:
    """Order the update step last and merge its all_reduces."""
    late = _late_nodes(physical)
    early = [node for node in physical.graph.nodes if node not in late]
    rest = [node for node in physical.graph.nodes if node in late]
    groups: list[list[Node]] = []
    others: list[Node] = []
    last: dict[tuple[Any, ...], list[Node]] = {}
    for node in rest:
        if not _is_gradient_sum(node, late):
            others.append(node)
            continue
        key = _among(node)
        if key in last and sum(map(_nbytes, [*last[key], node])) <= LIMIT:
            last[key].append(node)
        else:
            last[key] = [node]
            groups.append(last[key])
    now: dict[Value, Value] = {value: value for value in physical.graph.values()}
    layouts = dict(physical.layouts)
    merged = [_merge(group, now, layouts) for group in groups]
    tail = [_renamed(node, now, layouts) for node in others]
    return Physical(with_values(physical.graph, [*early, *merged, *tail], now), layouts)


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


def _is_gradient_sum(node: Node, late: set[Node]) -> bool:
    return _is_all_reduce(node) and not any(value.node in late for value in node.inputs)


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


def _joined(group: list[Node]) -> Reroute:
    """The reduction of all tensors of a group at once."""
    ops = [node.op for node in group if isinstance(node.op, Reroute)]
    if all(op == ops[0] for op in ops):
        return ops[0]
    return replace(ops[0], each=tuple((op.source, op.target) for op in ops))


def _merge(group: list[Node], now: dict[Value, Value], layouts: dict[Value, Layout | Local]) -> Node:
    if len(group) == 1:
        return group[0]
    first, last = group[0], group[-1]
    inputs = tuple(value for node in group for value in node.inputs)
    name = f"{first.inputs[0].name}..{last.inputs[0].name}"
    fresh = Node(_joined(group), inputs, (), name, first.placement, replace(first.origin, phase="update"))
    old = [node.outputs[0] for node in group]
    fresh.outputs = tuple(replace_value(value, fresh, i) for i, value in enumerate(old))
    for before, after in zip(old, fresh.outputs, strict=True):
        now[before] = after
        layouts[after] = layouts[before]
    return fresh


def replace_value(value: Value, node: Node, index: int) -> Value:
    return Value(value.type, node, index, value.name, value.local)


def _renamed(node: Node, now: dict[Value, Value], layouts: dict[Value, Layout | Local]) -> Node:
    """The node reading what its inputs are now."""
    inputs = tuple(now[value] for value in node.inputs)
    if inputs == node.inputs:
        return node
    fresh = Node(node.op, inputs, (), node.name, node.placement, node.origin)
    fresh.outputs = tuple(replace_value(value, fresh, value.index) for value in node.outputs)
    for before, after in zip(node.outputs, fresh.outputs, strict=True):
        now[before] = after
        layouts[after] = layouts[before]
    return fresh
