"""Gradients of the nodes `UserGradient`: the recorded computation is repeated with gradients in place of its placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer, recorded
from jobflow.core.errors import PlanError
from jobflow.graph.ir import Node, Value
from jobflow.ops import elementwise as ew
from jobflow.ops.user_gradient import OutputGradient, UserGradient


def user_gradients(tracer: Tracer, node: Node, op: UserGradient, gradients: Mapping[Value, Value]) -> list[Value | None]:
    """Return the gradients of the inputs of `node`, which are None except for the arguments; `gradients` has those of its outputs."""
    now: dict[Value, Value] = {}
    for placeholder, output in zip(op.placeholders(node.inputs), node.outputs, strict=True):
        gradient = gradients.get(output)
        now[placeholder] = recorded(ew.fill_like(output, 0.0, dtype=placeholder.dtype) if gradient is None else ew.cast(gradient, placeholder.dtype))
    results = op.gradients(node.inputs)
    needed = _needed(results, {*op.arguments(node.inputs), *op.results(node.inputs), *now})
    for each in [each for each in tracer.nodes if each in needed]:
        if isinstance(each.op, OutputGradient) and each.outputs[0] not in now:
            raise PlanError(f"{op} at {node.where}: the placeholder {each.name} is not an input of {node.name}")
        if any(value in now for value in each.inputs) or (each.phase == "backward" and not each.op.external):
            now.update(zip(each.outputs, _repeated(tracer, each, [now.get(value, value) for value in each.inputs]), strict=True))
    arguments = op.arguments(node.inputs)
    own = [recorded(ew.cast(now.get(value, value), x.dtype.of_gradient)) for value, x in zip(results, arguments, strict=True)]
    return [*own, *[None] * (len(node.inputs) - op.count)]


def _needed(roots: Sequence[Value], ends: set[Value]) -> set[Node]:
    """Return the nodes that the values `roots` depend on; the search stops at the values `ends`.

    The outputs of other user-defined gradients depend on their results only.
    """
    nodes: set[Node] = set()
    rest = [value for value in roots if value not in ends]
    while rest:
        node = rest.pop().node
        if node not in nodes:
            nodes.add(node)
            inputs = node.op.results(node.inputs) if isinstance(node.op, UserGradient) else node.inputs
            rest += [value for value in inputs if value not in ends]
    return nodes


def _repeated(tracer: Tracer, node: Node, inputs: Sequence[Value]) -> Sequence[Value]:
    view = "mirrored" if any(value.local for value in node.outputs) else "consistent"
    with scope.using(placement=node.placement, view=view, stage=node.provenance.stage):
        return tracer.apply(node.op, inputs, None)
