"""Physical graph -> the same graph with gradients reduced in buckets.

All_reduces whose results only the update phase reads are sent together as one flat array of limited size.  They must have the same ranks, but
may have any layout along other mesh dimensions.  Small messages cost latency rather than bandwidth.  Buckets follow the order of the
variables, so a bucket's gradients have the offsets of the variables and one update op serves all of them.

On CPUs, buckets are reduced after the last gradient, and have at most `LIMIT` bytes, which stay in cache during the sum.  On GPUs, a
separate stream communicates (`compiler/rank/concurrent_collectives.py`).  A bucket is therefore reduced as soon as the backward pass has
computed its gradients, and has at most `STREAM_LIMIT` bytes.  Gradients that the backward pass computes at distant times are in
different buckets.  An example is a table that the first and the last layer read.

All_reduces that depend on these sums are merged in further rounds, for example the sums of squares for a norm over all
gradients.  The pass precedes `lower` and works on the global program, so all ranks get the same buckets.

All_reduces of several outputs of one node are also merged, at the first of them, for example the gradient sums of a batch norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.layouts.paths import changed
from jobflow.core.layout import P
from jobflow.core.types import DType, float32
from jobflow.graph.ir import Node, Physical, Provenance, Value
from jobflow.graph.rewrite import Rewriter, consumers, outputs_of
from jobflow.kernels.target import CPU, Target
from jobflow.ops.op import ViewOp

#: Maximum number of bytes of a bucket.
LIMIT = 4 << 20
#: the same on GPUs, where NCCL needs larger messages for its full rate
STREAM_LIMIT = 25 << 20


def bucket(physical: Physical, target: Target = CPU, reduce_dtype: DType | None = None) -> Physical:
    """Order the update phase last; merge its all_reduces, and the all_reduces of several outputs of one node.

    `target` is the target that all ranks share.  On GPUs, reductions of gradients precede the end of the backward pass, and sums of float32
    gradients have the type `reduce_dtype`, if it is set.
    """
    is_gpu = target.kind == "cuda"
    return _Bucketing(physical, reduce_dtype if is_gpu and reduce_dtype is not float32 else None).bucketed(is_gpu)


class _Bucketing(Rewriter):
    def __init__(self, physical: Physical, reduce_dtype: DType | None) -> None:
        super().__init__(physical.graph)
        self.late = _late_nodes(physical)
        self.layouts = physical.layouts
        self.reduce_dtype = reduce_dtype
        self.readers = {} if reduce_dtype is None else consumers(physical.graph)

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs, op=self._in_sum_type([node], node.op)) if self._has_sum_type(node) else self.keep(node, inputs)

    def _has_sum_type(self, node: Node) -> bool:
        """Return True for the first reduction of a gradient, if its sum has another type."""
        if self.reduce_dtype is None or not _reduces(node) or any(value.node in self.late for value in node.inputs):
            return False
        return _is_float32_sum(node) and self._is_read_by_updates_only(node)

    def _is_read_by_updates_only(self, node: Node) -> bool:
        """Return True if all readers of the outputs, also of their copies in other layouts, belong to the update phase."""
        values, outputs = list(node.outputs), set(self.graph.outputs)
        while values:
            value = values.pop()
            if value in outputs:
                return False
            for reader in self.readers[value]:
                if isinstance(reader.op, ViewOp):
                    values.extend(reader.outputs)
                elif reader.phase != "update":
                    return False
        return True

    def _in_sum_type(self, group: Sequence[Node], op: Any) -> Any:
        return replace(op, reduce_dtype=self.reduce_dtype) if all(map(self._has_sum_type, group)) else op

    def bucketed(self, early: bool) -> Physical:
        body = [node for node in self.graph.nodes if node not in self.late]
        siblings = {node: group for group in _groups(body, lambda node: (node.inputs[0].node, *_among(node))) for node in group}
        behind = self._early(body) if early else {}
        for node in body:
            group = siblings.get(node, [node])
            if node is group[0]:
                self._merge(group, node.provenance)
            for ready in behind.get(node, ()):
                self._merge(ready, replace(ready[0].provenance, phase="update"))
        for turn in _turns(self.late):
            turn = [node for node in turn if node.outputs[0] not in self.now]
            for group in _groups(turn, _among):
                self._merge(group, replace(group[0].provenance, phase="update"))
            self.walk(node for node in turn if not _is_all_reduce(node))
        layouts = {self.now[value]: layout for value, layout in self.layouts.items()}
        return Physical(self.rebuilt(), layouts)

    def _early(self, body: Sequence[Node]) -> dict[Node, list[list[Node]]]:
        """Return the buckets that can be reduced in the body, by the node after which all of their gradients exist."""
        position = {node: at for at, node in enumerate(body)}
        reductions = [node for node in self.late if _reduces(node) and all(value.node in position for value in node.inputs)]
        ready = {node: max(position[value.node] for value in node.inputs) for node in reductions}
        behind: dict[Node, list[list[Node]]] = {}
        for group in _close_groups(reductions, ready):
            behind.setdefault(body[max(ready[node] for node in group)], []).append(group)
        return behind

    def _merge(self, group: Sequence[Node], provenance: Provenance) -> None:
        first, last = group[0], group[-1]
        if first is last:
            self.walk(group)
            return
        inputs = tuple(self.now[value] for node in group for value in node.inputs)
        name = f"{first.inputs[0].name}..{last.inputs[0].name}"
        makes = [output for node in group for output in outputs_of(node)]
        outputs = self.add(Node(self._in_sum_type(group, _joined(group)), inputs, makes, name, first.placement, provenance))
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


def _close_groups(reductions: Sequence[Node], ready: Mapping[Node, int]) -> list[list[Node]]:
    """Return groups of adjacent all_reduces with equal keys and at most `STREAM_LIMIT` bytes; a reduce_scatter is alone.

    Groups are formed from the last reduction on, because the backward pass computes the gradients of the last variables first.  Between the first
    and the last gradient of a group, the backward pass computes at most twice `STREAM_LIMIT` bytes of gradients.
    """
    in_time = sorted(reductions, key=ready.__getitem__)
    computed = dict(zip(in_time, accumulate(map(_nbytes, in_time)), strict=True))
    groups: list[list[Node]] = []
    last: dict[tuple[Any, ...], list[Node]] = {}
    for node in reversed(reductions):
        group = last.get(_among(node)) if _is_all_reduce(node) else None
        times = [computed[other] for other in (*(group or ()), node)]
        if group is not None and sum(map(_nbytes, [*group, node])) <= STREAM_LIMIT and max(times) - min(times) <= 2 * STREAM_LIMIT:
            group.insert(0, node)
            continue
        groups.append([node])
        if _is_all_reduce(node):
            last[_among(node)] = groups[-1]
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
        reduces = _reduces(node) and not outputs & set(node.outputs)
        if (reduces and all(r.phase == "update" for v in node.outputs for r in readers[v])) or any(value.node in late for value in node.inputs):
            late[node] = None
    return late


def _reduces(node: Node) -> bool:
    return isinstance(node.op, Reroute) and node.op.name in ("all_reduce", "reduce_scatter")


def _is_float32_sum(node: Node) -> bool:
    assert isinstance(node.op, Reroute)
    return node.inputs[0].dtype is float32 and node.op.source.sbp[changed(node.op.source, node.op.target)[0]] == P


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
