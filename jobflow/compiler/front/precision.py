"""Traced program -> the same program with matrix products and convolutions in half precision.

Every op has a category (`Op.precision`):

* ``half``     products and convolutions: always in half precision;
* ``follows``  sums, activations, normalizations of rows, softmax ...: in half precision between two such ops;
* ``any``      ops that only move, select or compare elements: in the precision of their inputs;
* ``single``   all others, above all reductions and losses: in float32.

Only float32 is converted.  Variables, arguments, results, losses and watched values stay float32.  A variable is cast where it is
used, once for all users in one scope.  The gradient of a cast is a cast, so gradients return in float32.  The pass runs before
differentiation, so the backward pass of an op has the precision of the op.

Example: matmul, bias_add, relu, matmul, bias_add, mean, with 16 for half precision: 16 16 16 16 32 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.types import DType, float32
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.ops.elementwise import cast


def lower_precision(program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
    """Rewrite the program so that suitable operations run in its half-precision type; return the program and its outputs."""
    if program.half is None:
        return program, outputs
    shown = {*outputs, *program.losses, *(watch.value for watch in program.watches), *program.updates.values()}
    shown.update(program.training.losses if program.training is not None else ())
    with_gradient = {watch.value for watch in program.watches if watch.gradient}
    tracer = Tracer.onward(program)
    lowering = _Halving(tracer, program.half, _in_half(program.nodes), shown, with_gradient)
    return tracer.rewritten(program, outputs, lowering.stand_in)


def _in_half(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes to compute in half precision, except nodes that accept any precision."""
    always = {node for node in nodes if node.op.precision == "half" and _only_single(node)}
    willing = {node for node in nodes if node.op.precision in ("follows", "any") and _only_single(node)}
    behind: set[Node] = set()
    for node in nodes:
        if node in willing and any(value.node in always or value.node in behind for value in node.inputs):
            behind.add(node)
    before: set[Node] = set()
    for node in reversed(nodes):
        if node in always or node in before:
            before.update(value.node for value in node.inputs if value.node in willing)
    return always | {node for node in behind & before if node.op.precision == "follows"}


def _only_single(node: Node) -> bool:
    """Return True if a node has floating-point inputs and all of them are float32; the program requested any other type."""
    floats = [value.dtype for value in node.inputs if value.dtype.is_float]
    return bool(floats) and all(dtype is float32 for dtype in floats)


@dataclass
class _Halving:
    tracer: Tracer
    half: DType
    chosen: set[Node]
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
        fitted = tuple(self._cast(now, dtype) if was.dtype is float32 else now for was, now in zip(node.inputs, inputs, strict=True))
        outputs = self.tracer.again(node, fitted)
        return tuple(self._as_shown(was, now) for was, now in zip(node.outputs, outputs, strict=True))

    def _dtype(self, node: Node, inputs: tuple[Value, ...]) -> DType:
        if node in self.chosen:
            return self.half
        mine = [now for was, now in zip(node.inputs, inputs, strict=True) if was.dtype is float32]
        takes = node.op.precision == "any" and _only_single(node) and all(now.dtype is self.half for now in mine)
        return self.half if takes else float32

    def _cast(self, value: Value, dtype: DType) -> Value:
        value = self.before.get(value, value) if dtype is self.half else value
        if value.dtype is dtype:
            return value
        here = scope.current()
        region = value.node.provenance.region if here.region is None else here.region  # the cast of a dropped value is dropped too
        key = (value, dtype, here.placement, here.stage, region, here.view)
        if key not in self.casts:
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
