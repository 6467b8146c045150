"""Traced program -> the same program with `Attention` in place of chains of operations, for targets with a kernel for it.

A chain is a product of queries and keys, a softmax and a product with the values.  The scores may be scaled, masked or causal, and the weights may
have dropout:

    scores = matmul(q, k, transpose_b=True)                     q, k, v: the operands of the chain
    scores = scale(scores), tril(scores), where(mask, scores, -inf) or scores + mask     each optional, in this order
    weights = softmax(scores) or causal_softmax(scores)
    y = matmul(weights * dropout_mask, v)

Nothing else may read the scores or the weights.  The pass runs before microbatches, strategies, precision and differentiation: gradients and
layouts are those of `Attention`.  Repeated heads of keys and values (grouped queries) are read without the repetition.

The condition is a property of the target (`registry.has_own`), so plans of other targets are unchanged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace

from jobflow.compiler.front.trace import Tracer, recorded
from jobflow.core.dataclass import dataclass
from jobflow.core.types import bool_
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.kernels import registry
from jobflow.kernels.target import Target
from jobflow.ops.arithmetic import Add, Multiply, Where
from jobflow.ops.attention import Attention
from jobflow.ops.attention_dropout import WeightRows
from jobflow.ops.axes import Reshape, Transpose
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.compare import logical_not
from jobflow.ops.masked import MaskedFill
from jobflow.ops.matmul import BatchMatMul
from jobflow.ops.op import Op, apply
from jobflow.ops.random_tensors import DropoutMask
from jobflow.ops.scalar import DivideBy, FillLike, Scale
from jobflow.ops.softmax import CausalSoftmax, Softmax
from jobflow.ops.triangle import Tril


@dataclass
class AttentionChain:
    """The parts of one chain, found from its last product back to the first."""

    #: the value to continue from
    at: Value
    #: the nodes that only the chain reads
    inside: list[Node] = field(default_factory=list)
    scale: float = 1.0
    diagonal: int | None = None
    fill: float = -math.inf
    masked: bool = True
    mask: Value | None = None
    #: True if the mask is true for hidden keys
    hides: bool = False
    dropout: DropoutMask | None = None
    counter: Value | None = None
    operands: tuple[Value, ...] = ()

    def step(self, *ops: type[Op]) -> Op | None:
        """Continue from the first input of the producer if that is one of `ops`; return its op, or None."""
        node = self.at.node
        if type(node.op) not in ops:
            return None
        self.inside.append(node)
        self.at = node.inputs[0]
        return node.op

    def find(self, v: Value) -> bool:
        """Return True if the chain is complete, from weights to the product of queries and keys."""
        self._dropout()
        if not (self._softmax() and self._product()):
            return False
        self.operands = (*self.operands, _without_repetition(v))
        return self.operands[1].shape[:-2] == self.operands[2].shape[:-2]

    def _dropout(self) -> None:
        node = self.at.node
        if type(node.op) is not Multiply:
            return
        for weights, factors in (node.inputs, node.inputs[::-1]):
            op = factors.node.op
            if isinstance(op, DropoutMask) and op.box is None and factors.node.inputs[0] is weights:
                self.dropout, self.counter, self.at = op, factors.node.inputs[1], weights
                self.inside += [node, factors.node]
                return

    def _softmax(self) -> bool:
        last = self.at.tensor_type.ndim - 1
        softmax = self.step(CausalSoftmax, Softmax)
        if isinstance(softmax, CausalSoftmax):
            self.scale, self.diagonal = softmax.scale, softmax.diagonal
            return True
        if not isinstance(softmax, Softmax) or softmax.axis != last:
            return False
        self.masked = softmax.masked
        self._mask()
        if isinstance(triangle := self.step(Tril), Tril):
            self.diagonal, self.fill = triangle.diagonal, triangle.fill
        factor = self.step(Scale, DivideBy)
        if isinstance(factor, Scale | DivideBy):
            self.scale = factor.number if isinstance(factor, Scale) else 1.0 / factor.number if factor.number else math.inf
        return math.isfinite(self.scale)

    def _mask(self) -> None:
        node = self.at.node
        if type(node.op) is Where:
            mask, scores, filled = node.inputs
            if isinstance(filled.node.op, FillLike) and filled.node.op.value == -math.inf and scores.shape == node.outputs[0].shape:
                self.mask, self.at = mask, scores
                self.inside += [node, filled.node]
        elif type(node.op) is MaskedFill and node.op.value == -math.inf and node.inputs[0].shape == node.outputs[0].shape:
            self.step(MaskedFill)
            self.mask, self.hides = node.inputs[1], True
        elif type(node.op) is Add:
            for scores, mask in (node.inputs, node.inputs[::-1]):
                if type(scores.node.op) in (Tril, Scale, DivideBy, BatchMatMul) and scores.shape == node.outputs[0].shape:
                    self.mask, self.at = mask, scores
                    self.inside.append(node)
                    return

    def _product(self) -> bool:
        node = self.at.node
        if type(node.op) is not BatchMatMul or node.op.transpose_a:
            return False
        self.step(BatchMatMul)
        q, k = node.inputs
        if not node.op.transpose_b:
            axes = tuple(range(k.tensor_type.ndim))
            if not isinstance(k.node.op, Transpose) or k.node.op.perm != (*axes[:-2], axes[-1], axes[-2]):
                return False
            k = k.node.inputs[0]
        self.operands = (q, _without_repetition(k))
        return q.dtype.is_float

    def op(self) -> Attention:
        dropout = self.dropout
        random = {} if dropout is None or not dropout.rate else {"rate": dropout.rate, "key": dropout.key, "seed": dropout.seed}
        return Attention(self.scale, self.diagonal, self.fill, self.mask is not None, self.masked, **random)  # type: ignore[arg-type]


def _without_repetition(x: Value) -> Value:
    """Return the keys or values of groups whose heads x repeats, or x itself."""
    if not isinstance(x.node.op, Reshape):
        return x
    wide = x.node.inputs[0]
    if not isinstance(wide.node.op, BroadcastTo) or not isinstance(wide.node.inputs[0].node.op, Reshape):
        return x
    single = wide.node.inputs[0]
    groups = single.node.inputs[0]
    *lead, heads, length, size = x.shape
    before = groups.shape
    if len(before) != len(x.shape) or before[:-3] != tuple(lead) or before[-2:] != (length, size) or not before[-3]:
        return x
    expected = (*lead, before[-3], heads // before[-3], length, size)
    return groups if wide.shape == expected and single.shape == (*lead, before[-3], 1, length, size) else x


def with_attention(program: Traced, outputs: Sequence[Value], target: Target) -> tuple[Traced, Sequence[Value]]:
    """Merge the attention of a program and of its traces for other batch sizes; return the program and its outputs."""
    program, outputs = merge_attention(program, outputs, target)
    if program.tail is not None:
        program = replace(program, tail=merge_attention(*program.tail, target))
    if program.whole is not None:
        program = replace(program, whole=merge_attention(*program.whole, target))
    return program, outputs


def merge_attention(program: Traced, outputs: Sequence[Value], target: Target) -> tuple[Traced, Sequence[Value]]:
    """Replace chains by `Attention` if the target has a kernel for it; return the program and its outputs."""
    if not any(type(node.op) in (Softmax, CausalSoftmax) for node in program.nodes):
        return program, outputs  # before the registry imports modules of kernels
    if not registry.has_own(Attention, target):
        return program, outputs
    chains = _chains(program, outputs, target)
    if not chains:
        return program, outputs
    return _AttentionMerging(Tracer.onward(program), chains).run(program, outputs)


def _chains(program: Traced, outputs: Sequence[Value], target: Target) -> dict[Node, AttentionChain]:
    """Return the chains of the program by their last nodes."""
    shown = {*outputs, *program.losses, *program.updates.values(), *(watch.value for watch in program.watches)}
    shown.update(program.training.losses if program.training is not None else ())
    reads = Counter(value for node in program.nodes for value in set(node.inputs))
    chains = {}
    for node in program.nodes:
        if type(node.op) is not BatchMatMul or node.op.transpose_a or node.op.transpose_b:
            continue
        chain = AttentionChain(node.inputs[0])
        if chain.find(node.inputs[1]) and _is_closed(chain, node, reads, shown) and _is_supported(chain, target):
            chains[node] = chain
    return chains


def _is_closed(chain: AttentionChain, last: Node, reads: Counter[Value], shown: set[Value]) -> bool:
    """Return True if only the chain reads the values inside, and all nodes have the placement, stage, region and view of the last."""
    nodes = [last, *chain.inside]
    inside = Counter(value for node in nodes for value in set(node.inputs))
    values = [value for node in chain.inside for value in node.outputs]
    origins = {(node.placement, node.provenance.stage, node.provenance.region, node.phase, node.outputs[0].local) for node in nodes}
    return len(origins) == 1 and all(reads[value] == inside[value] and value not in shown for value in values)


def _is_supported(chain: AttentionChain, target: Target) -> bool:
    """Return True if the target's kernel accepts the operands."""
    op, types = chain.op(), [value.tensor_type for value in chain.operands]
    if chain.mask is not None:
        if chain.mask.dtype is not bool_ and chain.mask.dtype is not types[0].dtype:
            return False
        types.append(chain.mask.tensor_type)
    if op.rate and chain.counter is not None:
        types += [WeightRows(types[1].shape[-2]).infer(types[0]), chain.counter.tensor_type]
    return registry.accepts(op, target, types, op.infer(*types))


class _AttentionMerging:
    """A rewriter that records `Attention` at the last node of each chain, and removes the other nodes."""

    def __init__(self, tracer: Tracer, chains: dict[Node, AttentionChain]) -> None:
        self.tracer, self.chains = tracer, chains
        self.inside = {node for chain in chains.values() for node in chain.inside}
        self.now: dict[Value, Value] = {}
        self.removed: set[Node] = set()

    def run(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        result, outputs = self.tracer.rewritten(program, outputs, self.take)
        return replace(result, nodes=tuple(node for node in result.nodes if node not in self.removed)), outputs

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        if node in self.chains:
            outputs: Sequence[Value] = self.merged(node, self.chains[node])
        else:
            outputs = self.tracer.again(node, inputs)
            if node in self.inside:
                self.removed.add(outputs[0].node)
        self.now.update(zip(node.outputs, outputs, strict=True))
        return outputs

    def merged(self, node: Node, chain: AttentionChain) -> Sequence[Value]:
        op, operands = chain.op(), [self.now[value] for value in chain.operands]
        if chain.mask is not None:
            mask = self.now[chain.mask]
            operands.append(recorded(logical_not(mask)) if chain.hides else mask)
        if op.rate:
            assert chain.counter is not None, "a dropout mask reads the run counter"
            rows = apply(WeightRows(operands[1].shape[-2]), operands[0])
            operands += [rows, self.now[chain.counter]]
        return self.tracer.again(node, operands, op=op)[:1]
