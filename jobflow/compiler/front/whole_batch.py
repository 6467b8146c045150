"""Rules that combine the values of microbatches into values of the whole batch.

Microbatches divide rows in time as ranks divide them in space, so the layout rules of operations apply to both.  The body is
traced for a microbatch and for the batch.  For each node, a `Part` describes how the values of the microbatches combine:

    Split(axis)   the value of the batch is their concatenation along the axis
    Partial       the value of the batch is their sum, maximum or minimum
    Broadcast     all equal the value of the batch
    Statistic     undefined: a statistic of batch normalization, computed per microbatch
    Mixed         undefined: an operation neither treats rows separately nor is linear in sums over the batch

Constants of an operation, such as the 1 / n of a mean, use the size of the batch.  A value without rows that is added to a sum over rows
is scaled in every microbatch by the microbatch's share of the rows.  An operation may need a sum over rows that depends on no trained
variable, such as the number of valid labels.  Such a sum is computed for the whole batch, before the first microbatch.

Example, rows x, variable w:  mean((x w)^2) + w^2  ->  x: S(0), x w: S(0), mean: P(sum), w^2: B times rows / batch, loss: P(sum)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import TypeAlias

from jobflow.compiler.front.differentiate import check_losses, counted, reached_from, trained_variables
from jobflow.compiler.front.trace import Tracer, recorded
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, JobflowError
from jobflow.core.layout import MAX, MIN, SUM, B, Box, Broadcast, P, Partial, Reduction, Rule, Sbp, Split
from jobflow.core.types import TensorType
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.graph.training import Microbatches
from jobflow.ops.arithmetic import Add, Maximum, Minimum
from jobflow.ops.batch_norm import BatchNormalize, CenteredSums
from jobflow.ops.broadcast import BroadcastTo
from jobflow.ops.layout_ops import Identity, ViewConversion
from jobflow.ops.op import Op, ViewOp, apply, types_tuple
from jobflow.ops.scalar import Shift, scale
from jobflow.ops.slices import concat
from jobflow.ops.source import Input, ReadVariable, Source
from jobflow.ops.user_gradient import OutputGradient, UserGradient

#: A traced body and its outputs.
Body = tuple[Traced, Sequence[Value]]


@dataclass(frozen=True)
class Statistic:
    """The part of a statistic of batch normalization, which is computed per microbatch."""


@dataclass(frozen=True)
class Mixed:
    """The part of a value that no rule combines; `node` is the first operation without a rule."""

    node: Node


#: reduction -> the op that combines the values of microbatches
_COMBINE: Mapping[Reduction, Op] = MappingProxyType({SUM: Add(), MAX: Maximum(), MIN: Minimum()})
Part: TypeAlias = Sbp | Statistic | Mixed


@dataclass(frozen=True)
class Parts:
    """The parts (combination rules) of a body's results, watched values and updated variables.

    Nodes are identified by name, because strategies and the precision pass record them again.
    """

    outputs: tuple[Part, ...]
    watches: tuple[Part, ...]
    updates: Mapping[str, Part]
    #: number of elements of the batch's loss
    elements: int
    #: node of a value of the whole batch, computed before the first microbatch -> the part of its input
    gathered: Mapping[str, Part]
    #: node whose result depends on row positions -> its operation for the batch, and the part of a microbatch
    placed: Mapping[str, tuple[Op, Part]]


def parts_of(body: Body, whole: Body, rows: int, microbatches: Microbatches) -> tuple[Traced, Sequence[Value], Parts]:
    """Rewrite a body so that its losses add up to the losses of the batch; raise JobError if requested values cannot be combined."""
    return _PartsRewriter(body, whole, rows, microbatches).run()


class _PartsRewriter:
    """A simultaneous walk over two traces of the body: for a microbatch, and for the batch."""

    def __init__(self, body: Body, whole: Body, rows: int, microbatches: Microbatches) -> None:
        self.body, self.whole, self.rows, self.microbatches = body, whole, rows, microbatches
        program = body[0]
        self.tracer = Tracer.onward(program)
        self.wholes = iter(whole[0].nodes)
        self.trained = reached_from(trained_variables(self.tracer), program.nodes)
        self.statistics = {value for node in program.nodes if isinstance(node.op, BatchNormalize | CenteredSums) for value in node.inputs[1:3]}
        self.parts: dict[Value, Part] = {}
        self.gathered: dict[str, Part] = {}
        self.placed: dict[str, tuple[Op, Part]] = {}
        self.share = rows / microbatches.rows
        self.starts = sorted({0, *(start for start, stop in microbatches.spans if stop - start == rows)})

    def run(self) -> tuple[Traced, Sequence[Value], Parts]:
        self._check_alike()
        program, outputs = self.tracer.rewritten(*self.body, self._take)
        program = self._losses(program)
        for value in outputs:
            self._check(value, "a result")
        for watch in program.watches:
            self._check(watch.value, f"the watch at {watch.where}")
        for name, value in program.updates.items():
            if not isinstance(self.parts[value], Statistic):
                self._check(value, f'variable "{name}"')
        whole = self.whole[0]
        parts = Parts(
            tuple([self.parts[value] for value in outputs]),
            tuple([self.parts[watch.value] for watch in program.watches]),
            {name: self.parts[value] for name, value in program.updates.items()},
            counted(whole, check_losses(whole).losses[0]),
            self.gathered,
            self.placed,
        )
        return program, outputs, parts

    def _check_alike(self) -> None:
        (program, _), (whole, _) = self.body, self.whole
        if [type(node.op) for node in program.nodes] == [type(node.op) for node in whole.nodes]:
            return
        pairs = zip(program.nodes, whole.nodes, strict=False)
        node = next((a for a, b in pairs if type(a.op) is not type(b.op)), program.nodes[-1])
        raise JobError(
            f"{node.op.word()} at {node.where}: the operations of the body differ between a microbatch of {self.rows} rows and the batch of "
            f"{self.microbatches.rows} rows, so {self._request} do not reproduce the results of the batch; request fewer microbatches, or none"
        )

    @property
    def _request(self) -> str:
        return f"the {self.microbatches.count} microbatches requested at {self.microbatches.where}"

    # ---------------------------------------------------------------- requested values

    def _losses(self, program: Traced) -> Traced:
        """Return the program with losses that add up over microbatches: a loss without rows is scaled by the microbatch's share of the rows."""
        training = check_losses(program)
        tracer = Tracer.onward(program)
        losses = []
        for loss in training.losses:
            part = self.parts[loss]
            self._check(loss, "the loss", trains=True)
            if isinstance(part, Broadcast):
                with tracer.standing_for(loss.node):
                    loss = recorded(scale(loss, self.share))
                self.parts[loss] = P
            losses.append(loss)
        traced = tracer.traced()
        return replace(program, nodes=traced.nodes, names=traced.names, counts=traced.counts, training=replace(training, losses=tuple(losses)))

    def _check(self, value: Value, what: str, trains: bool = False) -> None:
        """Raise JobError unless the values of all microbatches determine the value of the batch.

        With `trains`, the values of the microbatches must not be combined by a maximum or minimum.
        """
        part = self.parts[value]
        if isinstance(part, Split | Broadcast) or (isinstance(part, Partial) and (not trains or part.reduce is SUM)):
            return
        node = part.node if isinstance(part, Mixed) else value.node
        why = {
            Partial: "is an extreme of all rows",
            Statistic: "is a statistic of a microbatch",
        }.get(type(part), "combines rows of the batch, but is not a sum over them")
        instead = "a sum or a mean of a loss per row" if trains else "return the values per row"
        raise JobError(
            f"{node.op.word()} at {node.where}: {what} of {self.tracer.kind} {self.tracer.name} {why}, so {self._request} do not reproduce the "
            f"results of the batch; use one microbatch, or {instead} (microbatches divide the rows of {', '.join(self.microbatches.arguments)})"
        )

    # ---------------------------------------------------------------- one node

    def _take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        whole = next(self.wholes)
        if not node.inputs:
            return self._source(node, whole)
        if node.outputs[0] in self.statistics:
            return self._keep(node, inputs, node.op, [Statistic()] * len(node.outputs))
        parts = [self.parts[value] for value in inputs]
        if isinstance(node.op, BatchNormalize | CenteredSums):
            parts = [B if isinstance(part, Statistic) else part for part in parts]
        return self._mixed(node, inputs, parts) or self._ruled(node, whole, inputs, parts)

    def _mixed(self, node: Node, inputs: tuple[Value, ...], parts: Sequence[Part]) -> Sequence[Value] | None:
        """Return the outputs of a node with an input that is undefined for the batch; None if all inputs are defined."""
        undefined: Part | None = next((part for part in parts if isinstance(part, Mixed)), None)
        if undefined is None and any(isinstance(part, Statistic) for part in parts):
            alone = all(isinstance(part, Statistic | Broadcast) for part in parts)
            undefined = Statistic() if alone else Mixed(node)
        return None if undefined is None else self._keep(node, inputs, node.op, [undefined] * len(node.outputs))

    def _ruled(self, node: Node, whole: Node, inputs: tuple[Value, ...], parts: Sequence[Part]) -> Sequence[Value]:
        """Record a node by a layout rule of its operation, with scaled or gathered inputs if necessary; without a rule, the outputs are Mixed."""
        if isinstance(node.op, ViewConversion):
            return self._keep(node, inputs, node.op, list(parts))
        if isinstance(node.op, OutputGradient):
            return self._keep(node, inputs, node.op, [_gradient_part(parts[0])])
        if isinstance(node.op, UserGradient):
            return self._user_gradient(node, node.op, inputs)
        if isinstance(whole.op, Shift) and parts[0] == P and whole.inputs[0].dtype.is_float:
            return self._keep(node, inputs, Shift(whole.op.number * self.share), [P])
        for signature in _choices(whole, parts):
            choice = self._by(node, whole, parts, *signature)
            if choice is not None:
                return self._keep(node, self._shared(node, inputs, parts, signature[0]), *choice)
        free = [isinstance(part, Partial) and value not in self.trained for part, value in zip(parts, node.inputs, strict=True)]
        if any(free):
            inputs = tuple([self._gather(value) if own else value for value, own in zip(inputs, free, strict=True)])
            return self._ruled(node, whole, inputs, [self.parts[value] for value in inputs])
        return self._keep(node, inputs, node.op, [Mixed(node)] * len(node.outputs))

    def _user_gradient(self, node: Node, op: UserGradient, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """Record a node with a user-defined gradient; the outputs are Mixed unless the gradients of microbatches add up to those of the batch."""
        values, gradients = list(inputs), []
        for x, gradient in zip(op.arguments(inputs), op.gradients(inputs), strict=True):
            target, part = _gradient_part(self.parts[x]), self.parts[gradient]
            if part != target and not (isinstance(part, Broadcast) and target == P):
                return self._keep(node, inputs, op, [Mixed(node)] * len(node.outputs))
            gradients.append(recorded(scale(gradient, self.share)) if part != target else gradient)
        values[len(inputs) - op.count :] = gradients
        self.parts.update({gradient: P for gradient in gradients if gradient not in self.parts})
        return self._keep(node, tuple(values), op, [self.parts[value] for value in op.results(inputs)])

    def _by(
        self, node: Node, whole: Node, parts: Sequence[Part], input_parts: Sequence[Sbp], output_parts: Sequence[Sbp]
    ) -> tuple[Op, list[Part]] | None:
        """Return the operation that computes `output_parts` from `input_parts` in a microbatch, and the parts of its outputs.

        The result is None if neither the node of the batch nor the node of the microbatch has this operation.
        """
        if all(isinstance(part, Broadcast) for part in (*input_parts, *output_parts)) and isinstance(whole.op, BroadcastTo):
            output_parts = [_split_axis(node.outputs[0].tensor_type, whole.outputs[0].tensor_type)]
        inputs = [self._piece(part, value.tensor_type) for part, value in zip(input_parts, whole.inputs, strict=True)]
        outputs = [self._piece(part, value.tensor_type) for part, value in zip(output_parts, whole.outputs, strict=True)]
        if None in inputs or None in outputs or not self._anywhere(whole, input_parts, output_parts):
            return None
        for op in (whole.op, node.op):
            if _infers(op, inputs) == tuple(outputs):
                return op, list(output_parts)
        return None

    def _anywhere(self, whole: Node, input_parts: Sequence[Sbp], output_parts: Sequence[Sbp]) -> bool:
        """Return True if the operation is the same for all microbatches of this size, wherever they begin in the batch."""
        if whole.op.by_position or type(whole.op).localize is Op.localize or isinstance(whole.op, BroadcastTo):
            return True
        ops = set()
        for start in self.starts:
            boxes = [
                tuple([self._box(part, value.tensor_type, start) for part, value in zip(parts, values, strict=True)])
                for parts, values in ((input_parts, whole.inputs), (output_parts, whole.outputs))
            ]
            ops.add(whole.op.localize(*boxes))
        return len(ops) == 1

    def _box(self, part: Sbp, type: TensorType, start: int) -> Box:
        spans = [(0, n) for n in type.shape]
        if isinstance(part, Split):
            n = type.shape[part.axis]
            spans[part.axis] = (start * n // self.microbatches.rows, (start + self.rows) * n // self.microbatches.rows)
        return Box(tuple(spans), type.shape)

    def _piece(self, part: Sbp, type: TensorType) -> TensorType | None:
        """Return the type of a microbatch's part of a tensor of the batch; None if its length is not an integer."""
        if not isinstance(part, Split):
            return type
        length, rest = divmod(type.shape[part.axis] * self.rows, self.microbatches.rows)
        return None if rest else type.with_shape((*type.shape[: part.axis], length, *type.shape[part.axis + 1 :]))

    # ---------------------------------------------------------------- recording

    def _source(self, node: Node, whole: Node) -> Sequence[Value]:
        """Record a node without inputs: rows of the batch, or the same value for all microbatches."""
        if isinstance(node.op, Input):
            return self._keep(node, (), node.op, [Split(0) if node.op.key in self.microbatches.arguments else B])
        here, there = node.outputs[0].tensor_type, whole.outputs[0].tensor_type
        if here == there or isinstance(node.op, ReadVariable):
            if whole.op.by_position:
                self.placed[node.name] = whole.op, B
            return self._keep(node, (), node.op if isinstance(node.op, ReadVariable) else whole.op, [B])
        part = _split_axis(here, there)
        if not isinstance(part, Split) or self._piece(part, there) != here or not isinstance(node.op, Source):
            return self._keep(node, (), node.op, [Mixed(node)])
        self.placed[node.name] = whole.op, part
        return self._keep(node, (), node.op, [part])

    def _keep(self, node: Node, inputs: tuple[Value, ...], op: Op, parts: Sequence[Part]) -> Sequence[Value]:
        values = self.tracer.again(node, inputs, op=op)
        if node.inputs and op.by_position:
            self.placed[node.name] = op, parts[0]
        self.parts.update(zip(values, parts, strict=True))
        return values

    def _shared(self, node: Node, inputs: tuple[Value, ...], parts: Sequence[Part], targets: Sequence[Sbp]) -> tuple[Value, ...]:
        """Return the inputs; where the signature needs a sum over rows, inputs without rows are scaled by the microbatch's share of rows."""
        result = list(inputs)
        for i, (part, target) in enumerate(zip(parts, targets, strict=True)):
            if isinstance(part, Broadcast) and isinstance(target, Partial):
                result[i] = recorded(scale(inputs[i], self.share))
                self.parts[result[i]] = P
        return tuple(result)

    def _gather(self, value: Value) -> Value:
        """Return a placeholder for `value` of the whole batch, and request its computation before the first microbatch."""
        gathered = recorded(apply(Identity(), value))
        self.parts[gathered] = B
        self.gathered[gathered.node.name] = self.parts[value]
        return gathered


def _choices(whole: Node, parts: Sequence[Part]) -> Sequence[tuple[Sequence[Sbp], Sequence[Sbp]]]:
    """Return the signatures that accept these parts of the inputs, best first."""
    if isinstance(whole.op, ViewOp) and isinstance(parts[0], Partial) and parts[0] != P:
        return [((parts[0],), (parts[0],))]
    rule: Rule = whole.op.rule(*(value.tensor_type for value in whole.inputs))
    exact, scaled = [], []
    for signature in rule.signatures():
        if list(signature.inputs) == list(parts):
            exact.append((signature.inputs, signature.outputs))
        elif P in parts and all(
            part == target or (isinstance(part, Broadcast) and target == P and value.dtype.is_float)
            for part, target, value in zip(parts, signature.inputs, whole.inputs, strict=True)
        ):
            scaled.append((signature.inputs, signature.outputs))
    return exact + scaled


def _gradient_part(part: Part) -> Part:
    """Return the part of the gradient of a value: microbatches add contributions to the gradient of a value without rows."""
    if isinstance(part, Broadcast):
        return P
    return B if part == P else part


def _split_axis(here: TensorType, there: TensorType) -> Sbp:
    """Return a split along the only axis whose length differs between microbatch and batch; B if no axis or several axes differ."""
    if here.ndim != there.ndim:
        return B
    axes = [i for i, (n, m) in enumerate(zip(here.shape, there.shape, strict=True)) if n != m]
    return Split(axes[0]) if len(axes) == 1 else B


def _infers(op: Op, types: Sequence[TensorType | None]) -> tuple[TensorType, ...] | None:
    """Return the types of the outputs; None if the operation does not accept these inputs."""
    try:
        return types_tuple(op.infer(*types))
    except JobflowError:
        return None


def combined(part: Part, each: Sequence[Value]) -> Value:
    """Combine the values of microbatches into the value of the batch."""
    if isinstance(part, Split):
        return recorded(concat([*each], part.axis))
    if isinstance(part, Partial):
        return reduce(lambda total, value: recorded(apply(_COMBINE[part.reduce], total, value)), each)
    return each[0]


def leading_to(value: Value) -> set[Node]:
    """Return the producer of a value and all nodes on which it depends."""
    nodes: set[Node] = set()
    rest = [value.node]
    while rest:
        node = rest.pop()
        if node not in nodes:
            nodes.add(node)
            rest += [value.node for value in node.inputs]
    return nodes
