"""Traced program -> the same program with matrix products and convolutions in half precision.

Every op has a category (`Op.precision`).

* ``half``     products and convolutions, always in half precision.
* ``single``   reductions, normalizations, losses and all others, always in float32.
* ``follows``  sums, activations, softmax ..., in the widest precision of their inputs (`Op.autocast_dtype`).
* ``any``      ops that only copy, select or compare elements, likewise.

So a float32 tensor, such as an embedding or a normalized tensor, stays float32 in sums with half precision.  Such a tensor is the
residual stream of a transformer, while the bias and the activation of a product are in half precision.  `flow.autocast` applies the same rule.
A compiled program also contains the readers of each value, which this pass uses for one more rule.  An op of the category ``follows`` is in float32
unless its result is read in half precision.  Such readers are products, losses of logits (`Op.reads_half`), and other ops computed in half precision.

Only float32 is converted.  Variables, arguments, results, losses and watched values stay float32.  The gradient of a cast is a cast, so
gradients return in float32.  Each reader in half precision has its own cast, so the gradients of several readers are summed in float32.  After
differentiation, `simplify` merges equal casts.  Because this pass precedes differentiation, the backward pass of an op has the precision of the op,
and saved values have it, too.

On GPUs, batch normalization of half precision is computed in float32 and rounded, and operations that read it compute in half precision.  So the
images between two convolutions have half precision, as have their gradients.  Kernels that fuse round in registers.

Examples, with 16 for half precision.

    matmul, bias_add, relu, matmul, bias_add, mean:                               16 16 16 16 32 32
    matmul, bias_add, softmax_cross_entropy:                                      16 16 32
    gather, layer_norm, matmul, bias_add, gelu, matmul, bias_add, add (gather):   32 32 16 16 16 16 32 32
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.types import DType, TensorType, float32
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.kernels.target import CPU, Target
from jobflow.ops.batch_norm import Normalize
from jobflow.ops.elementwise import cast
from jobflow.ops.op import Op


def lower_precision(program: Traced, outputs: Sequence[Value], target: Target = CPU) -> tuple[Traced, Sequence[Value]]:
    """Rewrite the program so that suitable operations run in its half-precision type; return the program and its outputs."""
    if program.half is None:
        return program, outputs
    shown = {*outputs, *program.losses, *(watch.value for watch in program.watches), *program.updates.values()}
    shown.update(program.training.losses if program.training is not None else ())
    with_gradient = {watch.value for watch in program.watches if watch.gradient}
    tracer = Tracer.onward(program)
    chosen, rounded = _in_half(program.nodes, program.half, target.kind == "cuda")
    lowering = _Halving(tracer, program.half, chosen, rounded, shown, with_gradient)
    return tracer.rewritten(program, outputs, lowering.stand_in)


def _in_half(nodes: Sequence[Node], half: DType, images: bool) -> tuple[set[Node], set[Node]]:
    """Return the nodes to compute in half precision, except nodes of the category ``any``, and the nodes whose float32 results are rounded.

    With `images`, batch normalizations of half precision are rounded, and operations that read them compute in half precision.
    """
    possible: set[Node] = set()
    rounded: set[Node] = set()
    narrow: set[Value] = set()
    normalized: set[Value] = set()
    on_images: set[Node] = set()
    for node in nodes:
        types = [value.tensor_type.with_dtype(half) if value in narrow else value.tensor_type for value in node.inputs]
        if not _only_single(node):
            continue
        if images and isinstance(node.op, Normalize) and node.inputs[0] in narrow:
            rounded.add(node)
            narrow.update(node.outputs)
            normalized.update(node.outputs)
        elif _computes_in(half, node.op, types):
            possible.add(node)
            narrow.update(value for value in node.outputs if value.dtype is float32)
            if node.op.precision in ("follows", "any") and not normalized.isdisjoint(node.inputs):
                on_images.add(node)
                normalized.update(node.outputs)
    chosen: set[Node] = set()
    read_in_half: set[Value] = set()
    for node in reversed(nodes):
        if node in rounded:
            read_in_half.add(node.inputs[0])
        elif node in possible and (node.op.precision == "half" or node in on_images or not read_in_half.isdisjoint(node.outputs)):
            read_in_half.update(node.inputs)
            chosen.add(node)
        else:
            read_in_half.update(node.inputs[i] for i in node.op.reads_half)
    return {node for node in chosen if node.op.precision != "any"}, rounded


def _computes_in(half: DType, op: Op, types: Sequence[TensorType]) -> bool:
    """Return True if mixed precision computes the op in `half` for inputs of these types."""
    target = op.autocast_dtype(half, types)
    return target is half if target is not None else any(type.dtype is half and not op.reads_as_is(i, type) for i, type in enumerate(types))


def _only_single(node: Node) -> bool:
    """Return True if a node has floating-point inputs and all of them are float32; the program requested any other type."""
    floats = [value.dtype for value in node.inputs if value.dtype.is_float]
    return bool(floats) and all(dtype is float32 for dtype in floats)


@dataclass
class _Halving:
    tracer: Tracer
    half: DType
    chosen: set[Node]
    #: nodes whose results are computed in float32 and rounded
    rounded: set[Node]
    #: values that are visible outside of the graph: they stay float32
    shown: set[Value]
    with_gradient: set[Value]
    #: (value, element type, scope) -> the cast value
    casts: dict[object, Value] = field(default_factory=dict)
    #: visible value after its cast to float32 -> the value before
    before: dict[Value, Value] = field(default_factory=dict)

    def stand_in(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """Record the node with its inputs cast to the element type of the computation."""
        dtype = self._dtype(node, inputs)
        fitted = [self._fitted(node.op, i, was, inputs[i], dtype) for i, was in enumerate(node.inputs)]
        outputs = self.tracer.again(node, fitted)
        if node in self.rounded and self.shown.isdisjoint(node.outputs):
            outputs = tuple(self._cast(value, self.half) for value in outputs)
        return tuple(self._as_shown(was, now) for was, now in zip(node.outputs, outputs, strict=True))

    def _fitted(self, op: Op, index: int, was: Value, now: Value, dtype: DType) -> Value:
        if was.dtype is not float32:
            return now
        before = self.before.get(now, now)
        return before if op.reads_as_is(index, before.tensor_type) else self._cast(now, dtype)

    def _dtype(self, node: Node, inputs: tuple[Value, ...]) -> DType:
        if node in self.chosen:
            return self.half
        adapts = node.op.precision == "any" and _only_single(node)
        return self.half if adapts and _computes_in(self.half, node.op, [value.tensor_type for value in inputs]) else float32

    def _cast(self, value: Value, dtype: DType) -> Value:
        value = self.before.get(value, value) if dtype is self.half else value
        if value.dtype is dtype:
            return value
        here = scope.current()
        region = value.node.provenance.region if here.region is None else here.region  # the cast of a dropped value is dropped too
        key = (value, dtype, here.placement, here.stage, region, here.view)
        if dtype is self.half or key not in self.casts:
            with scope.using(region=region):
                result = cast(value, dtype)
            assert isinstance(result, Value)
            self.casts[key] = result
        return self.casts[key]

    def _as_shown(self, was: Value, now: Value) -> Value:
        """Return the new value `now` of an output; cast it back to float32 if the output is visible outside of the graph."""
        if was not in self.shown or now.dtype is was.dtype:
            return now
        single = self._cast(now, was.dtype)
        if was not in self.with_gradient:  # readers in half precision skip both casts
            self.before[single] = now
        return single
