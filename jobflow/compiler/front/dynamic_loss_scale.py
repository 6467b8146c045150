"""The dynamic loss scale, and guarded updates for steps with gradients that are not finite.

`Scaling` applies while gradients are computed.  The initial gradient of the loss is multiplied by the current scale, and the
gradients of variables are divided by the scale.  Elements that are not finite are counted over all variables and ranks.  The count is an
ordinary sum, so every rank has the same count.

`Stopping` replaces `Scaling` if there is no scale.  The first step that is not finite then leaves all variables unchanged, so that
the cause can be inspected.

`guard` is a pass on the finished graph: every write of a variable depends on the count (`GuardedUpdate`).  A step with an infinity leaves
every variable unchanged, including the train step and the statistics of batch normalization.  Only the scale shrinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.compiler.front.gradient_sums import added
from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import B
from jobflow.core.types import Tensor, TensorType, float32, int64
from jobflow.graph.ir import Graph, Node, Value
from jobflow.graph.rewrite import Rewriter, needed_nodes
from jobflow.graph.training import DynamicScale, Halting
from jobflow.ops import elementwise as ew
from jobflow.ops.guarded_update import COUNT, GuardedUpdate, Halt, LossScaleUpdate, count_not_finite
from jobflow.ops.layout_ops import Copy, ToLocal
from jobflow.ops.op import Op, ViewOp, apply
from jobflow.ops.shape import reshape
from jobflow.ops.source import ReadVariable
from jobflow.ops.update import Assign, Updated

#: prefix of the variable that halts the training of a job; the job's name follows
NOT_FINITE = "System-Train-NotFinite"


@dataclass(frozen=True)
class Scaling:
    """The dynamic loss scale of a job: its variables and their updates."""

    dynamic: DynamicScale
    scale: Value
    good: Value

    @staticmethod
    def of(tracer: Tracer, dynamic: DynamicScale | Halting | None) -> Scaling | Stopping | None:
        """Declare the variables of a dynamic scale, or of the count that halts training; return None if the scale is fixed."""
        if dynamic is None:
            return None
        if isinstance(dynamic, Halting):
            return Stopping(tracer.slot(f"{NOT_FINITE}-{tracer.name}", COUNT, 0, None))
        name = f"System-Train-DynamicLossScale-{tracer.name}"
        scale = tracer.slot(f"{name}-LossScale", TensorType((1,), float32), dynamic.initial, None)
        return Scaling(dynamic, scale, tracer.slot(f"{name}-GoodStepCounter", TensorType((1,), int64), 0, None))

    def scaled(self, seed: Tensor) -> Tensor:
        """Multiply the initial gradient of a loss by the scale."""
        return ew.multiply(seed, ew.cast(reshape(self.scale, ()), seed.tensor_type.dtype))

    def unscaled(self, gradient: Tensor, raised: float) -> Tensor:
        """Divide the gradient by the scale and by the factor `raised`."""
        factor = ew.reciprocal(self.scale) if raised == 1 else ew.scale(ew.reciprocal(self.scale), 1 / raised)
        dtype = gradient.tensor_type.dtype
        factor = ew.cast(reshape(factor, ()), dtype.arithmetic)  # the factor may exceed the range of half precision
        return ew.cast(ew.multiply(ew.cast(gradient, dtype.arithmetic), factor), dtype)

    def judge(self, gradients: Sequence[Tensor]) -> dict[str, Value]:
        """Return the new values of the scale and of the counter of steps with finite gradients, by variable name.

        `gradients` has the gradient of every variable, in the variable's layout.
        """
        bad = added(list(map(count_not_finite, gradients)))
        scale, good = apply(LossScaleUpdate(self.dynamic.period, self.dynamic.multiplier), self.scale, self.good, bad)
        return {self.scale.name: scale, self.good.name: good}


@dataclass(frozen=True)
class Stopping:
    """The check that halts training at the first step with elements that are not finite, used without a loss scale.

    `count` is zero until the first step with such elements, and then their number in this step.
    """

    count: Value

    def scaled(self, seed: Tensor) -> Tensor:
        """Return the initial gradient of a loss unchanged."""
        return seed

    def unscaled(self, gradient: Tensor, raised: float) -> Tensor:
        """Return the gradient unchanged; the optimizer divides by `raised`."""
        return gradient

    def judge(self, gradients: Sequence[Tensor]) -> dict[str, Value]:
        """Return the new value of the count, by variable name; `gradients` has the gradient of every variable, in the variable's layout."""
        bad: Tensor = self.count
        for gradient in gradients:
            bad = ew.add(count_not_finite(gradient), bad)
        return {self.count.name: apply(Halt(), self.count, bad)}


def guard(graph: Graph) -> Graph:
    """Make every variable update conditional on the count of elements that are not finite; return a graph without a count unchanged."""
    judge = next((node for node in graph.nodes if isinstance(node.op, LossScaleUpdate | Halt)), None)
    return graph if judge is None else _Guarding(graph, judge).run()


class _Guarding(Rewriter):
    def __init__(self, graph: Graph, judge: Node) -> None:
        super().__init__(graph)
        self.judge = judge
        self.before = needed_nodes(judge.inputs)
        self.local: dict[object, Value] = {}

    def run(self) -> Graph:
        behind = self._behind()
        self.walk(node for node in self.graph.nodes if node not in behind)
        self.walk(node for node in self.graph.nodes if node in behind)
        updates = {name: self._written(name, value) for name, value in self.graph.updates.items()}
        return replace(self.rebuilt(), updates=updates)

    def _is_guarded(self, node: Node) -> bool:
        return isinstance(node.op, Updated) and node is not self.judge and node not in self.before

    def _behind(self) -> set[Node]:
        """Return the nodes that depend on the count: the guarded updates, and all readers of their results."""
        behind: set[Node] = set()
        for node in self.graph.nodes:
            if self._is_guarded(node) or any(value.node in behind for value in node.inputs):
                behind.add(node)
        return behind

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        if not self._is_guarded(node):
            return self.keep(node, inputs)
        assert isinstance(node.op, Updated), "only updates are guarded"
        count = self._count(node)
        return self.keep(node, (*inputs, count), op=GuardedUpdate(node.op), provenance=replace(node.provenance, phase="update"))

    def _count(self, node: Node) -> Value:
        """Return the count, converted to the view of the node."""
        bad = self.now[self.judge.inputs[-1]]
        if not node.outputs[0].local:
            return bad
        if node.placement not in self.local:
            name, provenance = f"{bad.name}:local", replace(node.provenance, phase="update")
            (self.local[node.placement],) = self.add(Node(ToLocal((B,)), (bad,), ((bad.tensor_type, name, True),), name, node.placement, provenance))
        return self.local[node.placement]

    def _written(self, name: str, value: Value) -> Value:
        """Return the new value of the variable `name`; record a guarded assignment unless `value` is an update of the variable in place."""
        now, read = self.now[value], self.now[self.graph.reads[name]]
        over = now.node.op.alias.get(now.index)
        if over is not None and now.node.inputs[over] is read:
            return now
        if _is_stored(now):  # copy the value before the run: two variables may be exchanged
            now = self._added(Copy(), (now,), f"{name}:before", now)
        return self._added(GuardedUpdate(Assign()), (read, now, self.now[self.judge.inputs[-1]]), f"{name}:assign", read)

    def _added(self, op: Op, inputs: tuple[Value, ...], name: str, like: Value) -> Value:
        provenance = replace(like.node.provenance, phase="update")
        return self.add(Node(op, inputs, ((like.tensor_type, name, False),), name, like.node.placement, provenance))[0]


def _is_stored(value: Value) -> bool:
    """Return True if a value shares the memory of a variable."""
    while isinstance(value.node.op, ViewOp):
        value = value.node.inputs[0]
    return isinstance(value.node.op, ReadVariable)
