"""Graph -> graph with gradients and updates.

Reverse-mode differentiation of ordinary nodes, before layouts are chosen.  Layout inference then derives the communication of the
backward pass as it does for the forward pass.  Gradients are processed in the order of the legacy API:

1. the gradient of every loss element starts with loss_scale / (number of elements of a loss);
2. contributions are added;
3. the scale is divided out;
4. regularizers are added;
5. the optimizer clips and updates.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

import jobflow.core.scope as scope
from jobflow.compiler.front.dynamic_loss_scale import Scaling
from jobflow.compiler.front.gradient_sums import added, shorter_sum
from jobflow.compiler.front.trace import Tracer, recorded
from jobflow.compiler.front.user_gradients import user_gradients
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, PlanError
from jobflow.core.layout import B, P, Split
from jobflow.core.types import DType, Tensor, TensorType, bool_, float16, float64, int64
from jobflow.graph.ir import End, Graph, Node, Provenance, Value, Variable, is_dynamic
from jobflow.graph.rewrite import Rewriter, outputs_of
from jobflow.graph.strategy import Strategy
from jobflow.graph.traced import Traced
from jobflow.graph.training import DynamicScale, Optimizer, Parameter, Training, Watch
from jobflow.ops import elementwise as ew
from jobflow.ops.axes import Reshape, Squeeze
from jobflow.ops.layout_ops import ToGlobal, ToLayout, ToLocal, ViewConversion
from jobflow.ops.op import Op, apply
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.reduce import ReduceSum
from jobflow.ops.scalar import Cast, DivideBy, Scale
from jobflow.ops.source import Constant, ReadVariable
from jobflow.ops.update import Increment
from jobflow.ops.user_gradient import UserGradient

#: Value -> the contributions to its gradient so far.
Contributions = dict[Value, list[Value]]


@dataclass(frozen=True)
class Weight:
    """The weight of a body's losses in the losses of the batch.

    The mean runs over `elements` elements (per rank in the mirrored view, see `counted`), and the body contributes the fraction `share`.
    Gradients are multiplied by `raised` (see `raised_by`) until they reach variables.  If the program watches gradients, `raised` is
    the number of elements.  Watches then report the gradients of the sum of the elements without rounding.
    """

    elements: int
    share: float = 1.0
    raised: float = 1.0


@dataclass(frozen=True)
class Gradients:
    """The gradients that the backward pass computes, and the node input or output to which each gradient belongs."""

    #: value -> its gradient
    of: Mapping[Value, Value]
    #: gradient -> the node input or output that it belongs to
    ends: Mapping[Value, End]

    def of_variables(self, tracer: Tracer) -> dict[str, Value]:
        """Return the gradients of trained variables by name."""
        names = [name for name, variable in tracer.variables.items() if variable.trainable and tracer.reads[name] in self.of]
        return {name: self.of[tracer.reads[name]] for name in names}

    def provenance(self, node: Node) -> Provenance:
        """Return the provenance of a node, with the node inputs or outputs whose gradients the node computes."""
        ends = tuple([self.ends.get(value) for value in node.outputs])
        return replace(node.provenance, gradients=ends) if any(ends) else node.provenance


@dataclass(frozen=True)
class LogicalProgram:
    """The graph of a job, its watches, and the number of outputs per result."""

    graph: Graph
    #: the watches that receive the last outputs
    watches: tuple[Watch, ...]
    #: per result and watch, the number of its outputs, which are concatenated along axis 0
    pieces: tuple[int, ...]


def differentiate(program: Traced, outputs: Sequence[Value]) -> LogicalProgram:
    """Return the graph of a traced job with nodes for gradients and updates; a predict job gets none."""
    tracer, training = Tracer.onward(program), program.training
    if training is None:
        watches, shown = watched(tracer, {}, Weight(1))
        return LogicalProgram(tracer.graph((*outputs, *shown)), watches, (1,) * (len(outputs) + len(shown)))
    check_losses(program)
    weight = Weight(counted(program, training.losses[0]))
    shows = any(watch.gradient for watch in tracer.watches) and not _has_dynamic_rows(tracer, training.losses[0])
    raised = _on_all_ranks(training.losses[0], weight) if shows else raised_by(program.nodes, training, weight)
    weight = replace(weight, raised=max(raised, 1))
    gradients = backpropagate(tracer, training, weight)
    update_variables(tracer, training, gradients.of_variables(tracer), weight.raised)
    watches, shown = watched(tracer, gradients.of, weight)
    return LogicalProgram(
        _Marking(tracer.graph((*outputs, *shown)), len(program.nodes), gradients).run(), watches, (1,) * (len(outputs) + len(shown))
    )


def counted(program: Traced, loss: Value) -> int:
    """Return the number of terms in the mean of a loss.

    The terms are the elements of the loss.  In jobs without a strategy that sets a view, losses with a dynamic shape count rows instead.  In the
    mirrored view, the result is 0 on a device without samples.  The mean of this device then has weight 0.
    """
    if loss.local and is_without_rows(program.inputs.values(), program.rows):
        return 0
    rows = is_dynamic(loss) and not (isinstance(program.strategy, Strategy) and program.strategy.view)
    return math.prod(loss.shape[:1]) if rows and program.kind == "job" else loss.tensor_type.size


def is_without_rows(arguments: Iterable[Value], rows: tuple[int, ...]) -> bool:
    """Return True if the arguments of this device have no rows, although other devices have rows; see `Tracer` for `rows`."""
    own = [value.shape[:1] for value in arguments if value.local and value.shape]
    return any(rows) and bool(own) and all(length == (0,) for length in own)


class _Marking(Rewriter):
    """A rewriter that records in each backward node which inputs or outputs of forward nodes its gradients belong to."""

    def __init__(self, graph: Graph, traced: int, gradients: Gradients) -> None:
        super().__init__(graph)
        self.traced, self.gradients = traced, gradients

    def run(self) -> Graph:
        self.stay(self.graph.nodes[: self.traced])
        self.walk(self.graph.nodes[self.traced :])
        return self.rebuilt()

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        provenance = self.gradients.provenance(node)
        if provenance is node.provenance and inputs == node.inputs:
            return self.add(node)
        return self.add(Node(node.op, inputs, outputs_of(node), node.name, node.placement, provenance))


#: number of loss elements up to which float16 represents the gradients without a factor
FEW = 1024
#: ops between the elements of a loss and their mean
_OF_MEANS = (Cast, DivideBy, Reshape, ReduceSum, Scale, Squeeze)


def raised_by(nodes: Sequence[Node], training: Training, weight: Weight) -> float:
    """Return the factor that keeps float16 gradients of a mean over millions of elements from underflowing.

    The factor is a power of two, so it does not round float32 values.  The factor is close to the number of averaged loss elements, divided by
    FEW, the initial loss scale, and the body's share of the batch.  The factor is 1 without float16 values, with a loss in half
    precision, or if this quotient is less than 2.
    """
    optimizer = training.optimizers[0]
    half = any(value.dtype is float16 for node in nodes for value in node.outputs)
    if not half or any(loss.dtype.is_half for loss in training.losses):
        return 1.0
    dynamic = optimizer.dynamic_loss_scale
    scale = dynamic.initial if isinstance(dynamic, DynamicScale) else optimizer.loss_scale
    count = min(_on_all_ranks(loss, weight) * _mean_over(loss) for loss in training.losses) / (FEW * scale * weight.share)
    return float(2 ** math.floor(math.log2(count))) if 2 <= count < math.inf else 1.0


def _mean_over(loss: Value) -> float:
    """Return the number of elements that a float32 loss averages: the product of the divisors applied to its sums."""
    count, value = 1.0, loss
    while isinstance(value.node.op, _OF_MEANS) and not value.node.inputs[0].dtype.is_half:
        if isinstance(value.node.op, Scale) and 0 < abs(value.node.op.number) < 1:
            count /= abs(value.node.op.number)
        if isinstance(value.node.op, DivideBy) and 1 < abs(value.node.op.number) < math.inf:
            count *= abs(value.node.op.number)
        value = value.node.inputs[0]
    return count


def update_variables(tracer: Tracer, training: Training, gradients: Mapping[str, Value], raised: float = 1.0) -> None:
    """Record the updates of variables and of the train step; divide the factor `raised` out of the gradients."""
    names = list(gradients)
    scaling = Scaling.of(tracer, training.optimizers[0].dynamic_loss_scale)
    with tracer.updating(training.where):
        if scaling is not None:
            gradients = {name: _in_layout_of(tracer.variables[name], gradient) for name, gradient in gradients.items()}
            tracer.updates.update(scaling.judge(list(gradients.values())))
            gradients = {name: recorded(scaling.unscaled(gradient, raised)) for name, gradient in gradients.items()}
        step = tracer.slot(f"System-Train-TrainStep-{tracer.name}", TensorType((1,), int64), 0, None)
        for optimizer in training.optimizers:
            selected = set(optimizer.selects(names))
            chosen = [name for name in names if name in selected]
            scale = optimizer.loss_scale if isinstance(scaling, Scaling) else optimizer.loss_scale * raised
            parameters = [_parameter(tracer, name, gradients[name], optimizer, scale) for name in chosen]
            tracer.updates.update(optimizer.update(parameters, step, tracer.slot))
        tracer.updates[step.name] = apply(Increment(), step)


def watched(tracer: Tracer, gradients: Mapping[Value, Value], weight: Weight) -> tuple[tuple[Watch, ...], list[Value]]:
    """Return the watches and the value that each watch reports; omit watches of gradients that do not exist."""
    watches = tuple(watch for watch in tracer.watches if not watch.gradient or watch.value in gradients)
    shown = [_undivided(tracer, watch.value, gradients[watch.value], weight) if watch.gradient else watch.value for watch in watches]
    return watches, shown


def _undivided(tracer: Tracer, value: Value, gradient: Value, weight: Weight) -> Value:
    """Return the gradient of the sum of the loss elements, computed from the gradient of their mean."""
    assert tracer.training is not None, "without training there are no gradients"
    loss = tracer.training.losses[0]
    if not _has_dynamic_rows(tracer, loss):
        with tracer.gradients_of(value.node):
            return recorded(ew.scale(gradient, _on_all_ranks(loss, weight) / weight.raised))
    with tracer.gradients_of(loss.node):
        counted = _counted(weight, gradient.dtype.arithmetic)
        counted = counted if weight.raised == 1 else ew.scale(counted, 1 / weight.raised)
    with tracer.gradients_of(value.node):
        single = ew.cast(gradient, gradient.dtype.arithmetic)
        return recorded(ew.cast(ew.multiply(single, apply(ToLocal((B,)), counted) if value.local else counted), gradient.dtype))


def check_losses(program: Traced) -> Training:
    """Return the training configuration of a program; raise JobError unless its losses exist and share one numeric type."""
    assert program.training is not None, "only train jobs have losses"
    training, what = program.training, f"{program} at {program.training.where}"
    if not training.losses:
        raise JobError(f"{what}: a train job needs at least one loss; pass it to minimize or to losses.add_loss")
    first = training.losses[0]
    for loss in training.losses[1:]:
        if loss.tensor_type != first.tensor_type:
            raise JobError(
                f"{what}: losses {first.name} {first.tensor_type} and {loss.name} {loss.tensor_type} differ in shape or dtype; "
                f"reduce and cast them to one type"
            )
    for loss in training.losses:
        if loss.dtype is bool_:
            raise JobError(f"{what}: loss {loss.name} is {loss.tensor_type}; pass a numeric tensor")
    return training


def backpropagate(tracer: Tracer, training: Training, weight: Weight) -> Gradients:
    """Return the gradient of the losses with respect to every value between a trainable variable and the losses.

    Raises: JobError if a loss does not depend on a trainable floating-point variable.
    """
    nodes = tuple(tracer.nodes)
    needed = reached_from(trained_variables(tracer), nodes)
    contributions: Contributions = {}
    scale = training.optimizers[0].loss_scale
    scaling = Scaling.of(tracer, training.optimizers[0].dynamic_loss_scale)
    for loss in training.losses:
        if loss not in needed:
            whole = [name for name, variable in tracer.variables.items() if variable.trainable and not variable.type.dtype.is_float]
            why = f" (integer variables are not trained: {', '.join(whole)})" if whole else ""
            raise JobError(
                f"{tracer.kind} {tracer.name} at {training.where}: loss {loss.name} does not depend on any trainable variable{why}; "
                f"compute it from a trainable floating-point variable"
            )
        with tracer.gradients_of(loss.node):
            seed = _seed(tracer, loss, scale * weight.share * weight.raised, weight)
            seed = seed if scaling is None else recorded(scaling.scaled(seed))
            contributions.setdefault(loss, []).append(recorded(ew.cast(seed, loss.dtype.of_gradient)))
    gradients: dict[Value, Value] = {}
    ends: dict[Value, End] = {}
    for node in reversed(nodes):
        if not any(output in contributions for output in node.outputs):
            continue
        with tracer.gradients_of(node):
            for output in node.outputs:
                if output in contributions:
                    gradients[output] = _marked(_total(contributions[output]), End(node.name, output.index, output=True), ends)
            if any(value in needed for value in node.inputs):
                _add_gradients(tracer, node, gradients, needed, contributions, ends)
    return Gradients(gradients, ends)


def trained_variables(tracer: Tracer) -> set[Value]:
    """Return the values of trainable floating-point variables."""
    return {tracer.reads[name] for name, variable in tracer.variables.items() if variable.trainable and variable.type.dtype.is_float}


def reached_from(values: set[Value], nodes: Sequence[Node]) -> set[Value]:
    """Return `values` and all values that depend on them through `nodes` and can have a gradient."""
    reached = set(values)
    for node in nodes:
        if any(value in reached for value in node.inputs):
            reached.update(value for value in node.outputs if value.dtype.is_float or _lets_through(node, reached))
    return reached


def _seed(tracer: Tracer, loss: Value, scale: float, weight: Weight) -> Value:
    """Return the initial gradient of a loss: the scale divided by the number of elements of the loss on all ranks.

    The initial gradient of a loss in half precision is float32.
    """
    dtype = loss.dtype.of_gradient.arithmetic
    wider = None if dtype is loss.dtype else dtype
    if _has_dynamic_rows(tracer, loss):
        return recorded(ew.divide(ew.fill_like(loss, scale if weight.elements else 0.0, dtype=wider), apply(ToLocal((B,)), _counted(weight, dtype))))
    return recorded(ew.fill_like(loss, scale / max(_on_all_ranks(loss, weight), 1), dtype=wider))


def _has_dynamic_rows(tracer: Tracer, loss: Value) -> bool:
    """Return True if the ranks' parts of the loss differ in length, so that the number of elements is unknown while compiling."""
    return loss.local and bool(tracer.rows)


def _on_all_ranks(loss: Value, weight: Weight) -> int:
    """Return the number of elements of the loss on all ranks."""
    return weight.elements * (loss.node.placement.size if loss.local else 1)


def _counted(weight: Weight, dtype: DType) -> Tensor:
    """Return the number of elements on all ranks as a logical tensor of shape (1,), summed at run time."""
    return apply(ToGlobal((P,)), apply(Constant((1,), dtype, weight.elements)))


def _total(contributions: list[Value]) -> Value:
    first = type(contributions[0].node.op)
    if len(contributions) > 1 and all(type(value.node.op) is first for value in contributions):
        shorter = shorter_sum([(value.node.op, value.node.inputs) for value in contributions])
        if shorter is not None:
            return recorded(shorter)
    return added(contributions)


def _add_gradients(
    tracer: Tracer, node: Node, gradients: Mapping[Value, Value], needed: set[Value], contributions: Contributions, ends: dict[Value, End]
) -> None:
    results: Sequence[Tensor | None]
    if isinstance(node.op, UserGradient):
        results = user_gradients(tracer, node, node.op, gradients)
    else:
        inputs, outputs = _operands(node, needed)
        results = node.op.grad(*inputs, *outputs, *(gradients.get(output) for output in node.outputs))
    for index, (value, gradient) in enumerate(zip(node.inputs, results, strict=True)):
        if gradient is None or value not in needed or not (value.dtype.is_float or _lets_through(node, needed)):
            continue
        if not isinstance(gradient, Value) or gradient.tensor_type != value.tensor_type.with_dtype(value.dtype.of_gradient):
            raise PlanError(
                f"{node.op} at {node.where}: `grad` returned {gradient!r} for the input {value.name}; "
                f"return a gradient of type {value.tensor_type.with_dtype(value.dtype.of_gradient)}"
            )
        contributions.setdefault(value, []).append(_marked(gradient, End(node.name, index), ends))


def _marked(gradient: Value, end: End, ends: dict[Value, End]) -> Value:
    """Return the gradient, after recording the node input or output that it belongs to in `ends`; an earlier record takes precedence."""
    if gradient.node.phase == "backward":
        ends.setdefault(gradient, end)
    return gradient


def _in_layout_of(variable: Variable, gradient: Tensor) -> Value:
    return recorded(apply(ToLayout(variable.sbp), gradient))


def _parameter(tracer: Tracer, name: str, gradient: Value, optimizer: Optimizer, scale: float) -> Parameter:
    variable, value = tracer.variables[name], tracer.reads[name]
    assert isinstance(value.node.op, ReadVariable), "gradients belong to reads of variables"
    total: Tensor = gradient
    with scope.using(placement=variable.placement):
        if any(isinstance(sbp, Split) for sbp in variable.sbp):
            total = _in_layout_of(variable, total)  # each rank receives its part of the gradient
        if scale != 1:
            total = ew.scale(total, 1.0 / scale)
        if variable.l1:
            total = ew.add(total, ew.scale(ew.sign(value), variable.l1))
        if variable.l2:
            total = ew.add(total, ew.scale(value, variable.l2))
    return Parameter(variable, value, recorded(total))


# Gradients through integers, which a legacy cast permits: an integer operation has the gradient of the same float64 operation ----


def _lets_through(node: Node, reached: Container[Value]) -> bool:
    """Return True if gradients flow through integer results of a node.

    These nodes are view conversions, casts from integers or with `through`, and linear or differentiable functions of integers.
    """
    op, whole = node.op, {i for i, value in enumerate(node.inputs) if value in reached}
    if isinstance(op, ViewConversion | Cast):
        return isinstance(op, ViewConversion) or op.through or not node.inputs[0].dtype.is_float
    if any(node.inputs[i].dtype.is_float for i in whole):
        return False
    return _is_linear(node, whole) or _is_formula(node, whole)


def _is_linear(node: Node, whole: set[int]) -> bool:
    linear = node.op.rule(*(value.tensor_type for value in node.inputs)).linear
    return len(linear) == 1 and whole <= set(linear[0])


def _is_formula(node: Node, whole: set[int]) -> bool:
    """Return True for a differentiable operation with one output, which has the same element type as the inputs with the indices `whole`."""
    kinds = {value.dtype for value in (*node.outputs, *(node.inputs[i] for i in whole))}
    return type(node.op).grad is not Op.grad and len(kinds) == 1 and len(node.outputs) == 1


def _operands(node: Node, reached: Container[Value]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the inputs and outputs that the gradient function of a node reads; integers on the path of a gradient become float64."""
    path = [value for value in node.inputs if value in reached and value.dtype.is_integer]
    if not path or isinstance(node.op, ViewConversion | Cast):
        return node.inputs, node.outputs
    together = {i for group in node.op.rule(*(value.tensor_type for value in node.inputs)).linear for i in group}
    everything = isinstance(node.op, Pointwise) and not together
    inputs = [_as_float(x) if everything or x in path or i in together else x for i, x in enumerate(node.inputs)]
    return tuple(inputs), tuple(map(_as_float, node.outputs))


def _as_float(value: Value) -> Value:
    cast: Value = ew.cast(value, float64) if value.dtype.is_integer else value  # type: ignore[assignment]
    return cast
