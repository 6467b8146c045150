"""Backward plans of compiled functions whose results are differentiated by code outside of the function.

The backward pass from the function's outputs to the tensors that it read is traced together with the function.  The trace is then cut.
Values that cross the cut are outputs of the forward plan and inputs of the backward plan.  The backward plan is compiled at the first
`backward()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import Array
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Node, Value
from jobflow.graph.rewrite import needed_nodes
from jobflow.nn.compiled.step_recorder import StepRecorder
from jobflow.nn.compiled.traced_tape import TracedSweep
from jobflow.nn.graph.built import Meta
from jobflow.ops.source import Constant, Input, ReadVariable
from jobflow.tensors.backward import gradient_layout, redistributed_gradient
from jobflow.tensors.convert import empty
from jobflow.tensors.state import EagerState
from jobflow.tensors.tape import ReleasedError, TapeNode, edge_of, note


@dataclass(eq=False)
class Outside:
    """The traced backward pass of a compiled function, before its compilation."""

    #: indices of the outputs that require gradients, and the inputs of the second plan for their gradients
    outputs: list[int]
    seeds: list[Value]
    #: tensors that the function read and that require gradients, and their gradients
    leaves: list[Tensor]
    gradients: list[Value]
    #: nodes of the second plan in their order, and the values that cross the cut
    nodes: list[Node]
    cut: list[Value]


class OutsideSweep(TracedSweep):
    """A recorded backward pass that stores gradients of leaves, instead of adding them to `grad`."""

    def leaf(self, x: Tensor) -> None:
        gradient = self.sums.pop(x)
        del self.readers[x]
        self.requested[id(x)] = gradient
        self.reached[id(x)] = x

    @property
    def reached(self) -> dict[int, Tensor]:
        reached: dict[int, Tensor] = self.__dict__.setdefault("_reached", {})
        return reached


def is_open(x: Tensor) -> bool:
    """Return True if the traced tensor x requires gradients and its autograd node still has its saved values."""
    return x._needs_gradient and x.node is not None and x.node.backward is not None


def trace_outside(recorder: StepRecorder, outputs: Sequence[Tensor]) -> tuple[Outside | None, dict[int, str]]:
    """Record the backward pass from the outputs of a compiled function to the tensors that the function read.

    Return (backward pass, reasons).  The backward pass is None if no output can be differentiated.  For other outputs that cannot be differentiated,
    `reasons` maps the number to the reason, such as a backward pass of the function itself.
    """
    recorder.has_returned = True
    chosen = [i for i, x in enumerate(outputs) if is_open(recorder.known(x))]
    released: dict[int, str] = {}
    try:
        return _recorded(recorder, outputs, chosen), released
    except ReleasedError:
        for i in chosen:
            try:
                _recorded(recorder, outputs, [i])
            except ReleasedError as error:
                released[i] = str(error)
    return _recorded(recorder, outputs, [i for i in chosen if i not in released]), released


def _recorded(recorder: StepRecorder, outputs: Sequence[Tensor], chosen: list[int]) -> Outside | None:
    """Record the backward pass from the outputs `chosen`; return None without outputs."""
    if not chosen:
        return None
    roots = [recorder.known(outputs[i]) for i in chosen]
    before = len(recorder.tracer.nodes)
    seeds = []
    for i, root in zip(chosen, roots, strict=True):
        layout = None if root.layout is None else gradient_layout(root.layout)
        value = recorder.tracer.input(f"#gradient{i}", root.tensor_type, layout=layout or recorder.alone)
        seeds.append(Tensor(root.tensor_type, layout, None, traced=value))
    seed_values = [seed.traced for seed in seeds]
    try:
        with recorder.differentiating(False):
            sweep = OutsideSweep(recorder.here, True, ())
            sweep.run(roots, seeds)
            leaves = [x for x in sweep.reached.values() if x.traced is None]
            gradients = [_in_layout(recorder, sweep.requested[id(x)], x) for x in leaves]
    finally:
        for value in seed_values:
            del recorder.tracer.inputs[value.node.op.key]
    values = [recorder.known(gradient).traced for gradient in gradients]
    needed = needed_nodes(values)
    late = [node for node in recorder.tracer.nodes[before:] if node in needed and not isinstance(node.op, Input)]
    inside = set(late)
    cut = {value: None for node in late for value in node.inputs if value.node not in inside}
    cut.update({value: None for value in values if value.node not in inside})
    for value in seed_values:
        cut.pop(value, None)
    return Outside(chosen, seed_values, leaves, values, late, list(cut))


def _in_layout(recorder: StepRecorder, gradient: Tensor, x: Tensor) -> Tensor:
    return gradient if x.layout is None or gradient.layout == x.layout else recorder.change(gradient, x.layout, None)


class Cut:
    """The values that the forward plan passes to the backward plan."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        again = (Constant, ReadVariable, Input)
        #: values that the first plan returns
        self.saved = [value for value in outside.cut if not isinstance(value.node.op, again)]
        #: arguments and other inputs of the first plan that the second reads too, by key
        self.inputs = [value for value in outside.cut if isinstance(value.node.op, Input)]

    def program(self, tracer: Tracer, recorder: StepRecorder, metas: Sequence[Meta], alone: Layout) -> tuple[list[Value], list[Meta]]:
        """Record the backward plan with `tracer`; return its outputs, the gradients, and the name, type and layout of its inputs.

        `metas` are the types and layouts of the saved values.  `alone` is the layout of local tensors.
        """
        now: dict[Value, Value] = {}
        inputs: list[Meta] = []
        for value in self.outside.seeds:
            now[value] = self._input(tracer, value, inputs, value.node.op.key)  # type: ignore[attr-defined]
        for value, meta in zip(self.saved, metas, strict=True):
            key = f"#saved{len(inputs)}"
            inputs.append(Meta(key, meta.type, meta.layout))
            now[value] = tracer.input(key, meta.type, layout=meta.layout or alone)
        for value in self.inputs:
            now[value] = self._input(tracer, value, inputs, value.node.op.key)  # type: ignore[attr-defined]
        for value in self.outside.cut:
            if isinstance(value.node.op, ReadVariable):
                now[value] = tracer.variable(recorder.tracer.variables[value.node.op.key])
            elif isinstance(value.node.op, Constant):
                now.update(zip(value.node.outputs, tracer.again(value.node, ()), strict=True))
        for node in self.outside.nodes:
            now.update(zip(node.outputs, tracer.again(node, [now[value] for value in node.inputs]), strict=True))
        return [now[value] for value in self.outside.gradients], inputs

    @staticmethod
    def _input(tracer: Tracer, value: Value, inputs: list[Meta], key: str) -> Value:
        layout = Layout(value.node.placement, value.node.op.sbp)  # type: ignore[attr-defined]
        inputs.append(Meta(key, value.tensor_type, layout))
        return tracer.input(key, value.tensor_type, layout=layout)

    def variables(self) -> list[str]:
        """Return the names of the variables that the backward plan reads."""
        return [value.node.op.key for value in self.outside.cut if isinstance(value.node.op, ReadVariable)]


@dataclass
class ReleasedBackward:
    """The gradient function of an output that cannot be differentiated, for a reason from the trace."""

    name: str
    reason: str

    def __call__(self, saved: Sequence[Any], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        raise ReleasedError(f"backward at {user_line()}: a result of the compiled function {self.name} has no gradient ({self.reason})")


class LaterBackward:
    """The gradient function of one call of a compiled function, which runs the backward plan."""

    def __init__(
        self, here: EagerState, name: str, outside: Outside, saved: Mapping[int, Array], read: Sequence[Tensor], run: Callable[..., list[Tensor]]
    ) -> None:
        self.here, self.name, self.outside, self.saved, self.run = here, name, outside, saved, run
        self.read = [(x, x.memory, x.memory.version) for x in read]

    def __call__(self, saved: Sequence[Any], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        what = f"backward at {user_line()}"
        if self.here.grad_enabled:
            raise JobError(
                f"{what}: create_graph=True is not supported for the compiled function {self.name}, whose gradient is compiled; "
                "call the function eagerly"
            )
        for x, memory, version in self.read:
            if x._storage is not memory or memory.version != version:
                raise JobError(
                    f"{what}: a {x.tensor_type} tensor that the gradient of {self.name} needs was overwritten by an in-place operation after the "
                    f"call; call backward() first, or clone() the tensor"
                )
        results: list[Tensor | None] = [*self.run(self.saved, gradients)]
        return results


def attach(later: LaterBackward, outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Make `later` the gradient function of the outputs that require gradients, with respect to `leaves`."""
    chosen = [outputs[i] for i in later.outside.outputs]
    note(TapeNode(f"compiled {later.name}", tuple(map(edge_of, leaves)), len(chosen), later), chosen)


def seed(here: EagerState, layout: Layout | None, gradient: Tensor | None, output: Meta) -> Tensor:
    """Return the gradient of an output in the layout that the backward plan reads; for None, return zeros of the output's type."""
    if gradient is None:
        piece = output.type.shape if layout is None else _piece(here, layout, output)
        return Tensor(output.type, layout, np.zeros(piece, output.type.dtype.numpy))
    return gradient if layout is None else redistributed_gradient(here, gradient, layout)


def _piece(here: EagerState, layout: Layout, output: Meta) -> tuple[int, ...]:
    inside = here.rank.index in layout.placement.ranks
    return layout.box(output.type.shape, here.rank.index).shape if inside else empty(output.type).shape
