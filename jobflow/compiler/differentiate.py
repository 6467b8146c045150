"""Graph -> graph with gradients and updates.

Reverse mode over ordinary nodes, before anyone decides on layouts: communication of the backward pass falls out of the same
inference as that of the forward pass.  The order of what happens to a gradient is the legacy face's: every loss element
starts with loss_scale / (number of elements of a loss); contributions add up; the scale is divided out; regularizers are
added; the optimizer clips and updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobflow import scope
from jobflow.compiler.trace import Tracer
from jobflow.errors import JobError, PlanError
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.training import Optimizer, Parameter, Training
from jobflow.layout import B, P, Split
from jobflow.ops import elementwise as ew
from jobflow.ops.base import apply
from jobflow.ops.layout_ops import ToGlobal, ToLayout, ToLocal
from jobflow.ops.source import Constant, ReadVariable
from jobflow.ops.update import Increment
from jobflow.types import DType, Tensor, TensorType, int64

#: Gradients so far, by the value they belong to.
Contributions = dict[Value, list[Value]]


def differentiate(tracer: Tracer, outputs: Sequence[Value]) -> Graph:
    """The traced job with the nodes of its training appended; a predict job is left as it is."""
    training = tracer.training
    if training is None:
        return tracer.graph((*outputs, *watched(tracer, {})))
    _check(tracer, training)
    gradients = backpropagate(tracer, training)
    names = [name for name, variable in tracer.variables.items() if variable.trainable and tracer.reads[name] in gradients]
    with tracer.updating(training.where):
        step = tracer.slot(f"System-Train-TrainStep-{tracer.name}", TensorType((1,), int64), 0, None)
        for optimizer in training.optimizers:
            chosen = [name for name in names if name in set(optimizer.selects(names))]
            parameters = [_parameter(tracer, name, gradients[tracer.reads[name]], optimizer) for name in chosen]
            tracer.updates.update(optimizer.update(parameters, step, tracer.slot))
        tracer.updates[step.name] = apply(Increment(), step)
    return tracer.graph((*outputs, *watched(tracer, gradients)))


def watched(tracer: Tracer, gradients: Mapping[Value, Value]) -> list[Value]:
    """What the watches show.  Those of gradients that there are not are forgotten."""
    tracer.watches = [watch for watch in tracer.watches if not watch.gradient or watch.value in gradients]
    return [_undivided(tracer, watch.value, gradients[watch.value]) if watch.gradient else watch.value for watch in tracer.watches]


def _undivided(tracer: Tracer, value: Value, gradient: Value) -> Value:
    """The gradient of the sum of the losses' elements, not of their mean."""
    assert tracer.training is not None, "without training there are no gradients"
    loss = tracer.training.losses[0]
    if not _ragged(tracer, loss):
        with tracer.gradients_of(value.node):
            return _traced(ew.scale(gradient, _elements(loss)))
    with tracer.gradients_of(loss.node):
        counted = _counted(loss, gradient.dtype)
    with tracer.gradients_of(value.node):
        return _traced(ew.multiply(gradient, apply(ToLocal((B,)), counted) if value.local else counted))


def _check(tracer: Tracer, training: Training) -> None:
    if not training.losses:
        raise JobError(f"job {tracer.name} at {training.where}: a train job needs at least one loss; pass it to minimize or to losses.add_loss")
    first = training.losses[0]
    for loss in training.losses[1:]:
        if loss.type != first.type:
            raise JobError(
                f"job {tracer.name} at {training.where}: losses {first.name} {first.type} and {loss.name} {loss.type} differ in shape or dtype"
            )
    for loss in training.losses:
        if not loss.dtype.is_float:
            raise JobError(f"job {tracer.name} at {training.where}: loss {loss.name} is {loss.type}; a loss is a floating-point tensor")


def backpropagate(tracer: Tracer, training: Training) -> dict[Value, Value]:
    """The gradient of the losses with respect to every value that leads from a trainable variable to them."""
    nodes = tuple(tracer.nodes)
    needed = _reached_from_variables(tracer, nodes)
    found: Contributions = {}
    scale = training.optimizers[0].loss_scale
    for loss in training.losses:
        if loss not in needed:
            raise JobError(f"job {tracer.name} at {training.where}: loss {loss.name} does not depend on any trainable variable")
        with tracer.gradients_of(loss.node):
            found.setdefault(loss, []).append(_seed(tracer, loss, scale))
    gradients: dict[Value, Value] = {}
    for node in reversed(nodes):
        if not any(output in found for output in node.outputs):
            continue
        with tracer.gradients_of(node):
            for output in node.outputs:
                if output in found:
                    gradients[output] = _total(found[output])
            if any(value in needed for value in node.inputs):
                _add_gradients(node, gradients, needed, found)
    return gradients


def _reached_from_variables(tracer: Tracer, nodes: Sequence[Node]) -> set[Value]:
    reached = {tracer.reads[name] for name, variable in tracer.variables.items() if variable.trainable and variable.type.dtype.is_float}
    for node in nodes:
        if any(value in reached for value in node.inputs):
            reached.update(value for value in node.outputs if value.dtype.is_float)
    return reached


def _seed(tracer: Tracer, loss: Value, scale: float) -> Value:
    """d(sum of means) / d loss: loss_scale over the number of elements of the loss on all ranks."""
    if _ragged(tracer, loss):
        return _traced(ew.divide(ew.fill_like(loss, scale), apply(ToLocal((B,)), _counted(loss, loss.dtype))))
    return _traced(ew.fill_like(loss, scale / max(_elements(loss), 1)))


def _ragged(tracer: Tracer, loss: Value) -> bool:
    """True if the ranks' parts of the loss differ in length, so that no rank knows how many elements there are."""
    return loss.local and bool(tracer.rows)


def _elements(loss: Value) -> int:
    """How many elements the loss has on all ranks."""
    return loss.type.size * (loss.node.placement.size if loss.local else 1)


def _counted(loss: Value, dtype: DType) -> Tensor:
    """The same as a logical tensor of shape (1,), counted when the job runs."""
    counted: Tensor = apply(ToGlobal((P,)), apply(Constant((1,), dtype, loss.type.size)))
    return counted


def _traced(made: Tensor) -> Value:
    """What ops give while the tracer is in force."""
    assert isinstance(made, Value)
    return made


def _total(contributions: list[Value]) -> Value:
    first = type(contributions[0].node.op)
    if len(contributions) > 1 and all(type(value.node.op) is first for value in contributions):
        shorter = first.total([(value.node.op, value.node.inputs) for value in contributions])
        if shorter is not None:
            return _traced(shorter)
    total = contributions[0]
    for value in contributions[1:]:
        total = apply(ew.Add(), total, value)
    return total


def _add_gradients(node: Node, gradients: dict[Value, Value], needed: set[Value], found: Contributions) -> None:
    results = node.op.grad(*node.inputs, *node.outputs, *(gradients.get(output) for output in node.outputs))
    for value, gradient in zip(node.inputs, results, strict=True):
        if gradient is None or value not in needed:
            continue
        if not isinstance(gradient, Value) or gradient.type != value.type:
            raise PlanError(f"{node.op} at {node.where}: its gradient for {value.name} {value.type} is {gradient!r}")
        found.setdefault(value, []).append(gradient)


def _parameter(tracer: Tracer, name: str, gradient: Value, optimizer: Optimizer) -> Parameter:
    variable, value = tracer.variables[name], tracer.reads[name]
    assert isinstance(value.node.op, ReadVariable), "gradients belong to reads of variables"
    total: Tensor = gradient
    with scope.using(placement=variable.placement):
        if any(isinstance(sbp, Split) for sbp in variable.sbp):
            total = apply(ToLayout(variable.sbp), total)  # each rank gets the part of the gradient that it will use
        if optimizer.loss_scale != 1:
            total = ew.scale(total, 1.0 / optimizer.loss_scale)
        if variable.l1:
            total = ew.add(total, ew.scale(ew.sign(value), variable.l1))
        if variable.l2:
            total = ew.add(total, ew.scale(value, variable.l2))
    return Parameter(variable, value, _traced(total))
