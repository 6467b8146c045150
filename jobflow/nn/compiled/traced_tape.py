"""The autograd tape of a traced function: nodes that save traced tensors, and a backward pass whose operations are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import B, Layout
from jobflow.core.types import TensorType
from jobflow.functional.custom_functions import UserGradient
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Node
from jobflow.ops.arithmetic import Add
from jobflow.ops.op import Op
from jobflow.tensors.backward import Sweep
from jobflow.tensors.tape import Edge, Gradients, Hook, ReleasedError, TapeNode
from jobflow.tensors.tensor import Storage

if TYPE_CHECKING:
    from jobflow.nn.compiled.step_recorder import StepRecorder


class Differentiating:
    """The interpreter of a recorded backward pass, which records the operations of gradient functions."""

    takes_tensors = True
    #: gradients are recorded operation by operation
    chains = False

    def __init__(self, recorder: StepRecorder, records: bool) -> None:
        self.recorder = recorder
        self.placement: Any = None
        self.records = records

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[Tensor, ...]:
        if inputs:
            return self.recorder.run(op, inputs)
        where = self.placement
        return (self.recorder.source(op, None if where is None else Layout(where, (B,) * len(where.mesh)), None),)


class TracedNode(TapeNode):
    """A tape node on traced tensors; `node` is the program node of its outputs."""

    __slots__ = ("node",)

    def __init__(
        self, name: str, edges: tuple[Edge, ...], outputs: int, backward: Callable[..., Gradients], node: Node, saved: Sequence[Tensor | None] = ()
    ) -> None:
        super().__init__(name, edges, outputs, backward)
        self.node = node
        self.saved = tuple([None if x is None else (x.tensor_type, x.layout, x.traced, x.memory, x.memory.version) for x in saved])

    def restored(self, type: TensorType, layout: Any, value: Any, storage: Storage, version: int) -> Tensor:
        return Tensor(type, layout, None, value) if storage.version == version else Changed(type, layout, None, None)


class Changed(Tensor):
    """A saved tensor that an in-place operation has overwritten; reading its value raises JobError."""

    __slots__ = ()

    @property
    def traced(self) -> Any:
        raise ReleasedError(
            f"backward at {user_line()}: a {self.tensor_type} tensor that a gradient needs was overwritten by an in-place operation; "
            f"use the form that returns a new tensor, or clone() it first"
        )

    @traced.setter
    def traced(self, value: Any) -> None:
        """Ignore the assigned value, because the tensor has no valid value."""


class TracedSweep(Sweep[Tensor]):
    """A backward pass whose operations are recorded.  Python code is observed only while hooks run, because only hooks are user code."""

    observed = False

    def run(self, roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Tensor | None]:
        observer = self.recorder.observer
        self.observed = observer is not None and observer.suspend()
        try:
            with self.recorder.in_backward():
                return super().run(roots, seeds)
        finally:
            if observer is not None and self.observed:
                observer.resume()

    @property
    def recorder(self) -> StepRecorder:
        recorder: StepRecorder = self.here.building
        return recorder

    def pass_on(self, edge: Edge, gradient: Tensor | None, own: bool = False) -> None:
        if gradient is not None and edge is not None and not isinstance(edge, Tensor):
            like = edge[0].node if isinstance(edge[0], TracedNode) else None
            with self.recorder.in_gradient_of(like):
                super().pass_on(edge, gradient)
        else:
            super().pass_on(edge, gradient)

    @property
    def hook_interpreter(self) -> Any:
        return self.recorder.tracer

    def hooked(self, hooks: dict[int, Hook] | None, gradient: Tensor) -> Tensor:
        with self._watched(bool(hooks)):
            return super().hooked(hooks, gradient)

    def results(self, node: TapeNode, backward: Callable[..., Gradients], gradients: list[Tensor | None]) -> Gradients:
        with self.recorder.in_gradient_of(node.node if isinstance(node, TracedNode) else None), self._watched(isinstance(backward, UserGradient)):
            return super().results(node, backward, gradients)

    @contextmanager
    def _watched(self, of_user: bool) -> Iterator[None]:
        """Observe Python code inside the `with` block if it is `of_user`."""
        observer = self.recorder.observer if self.observed and of_user else None
        if observer is not None:
            observer.resume()
        try:
            yield
        finally:
            if observer is not None:
                observer.suspend()

    def zeros(self, x: Tensor) -> Tensor:
        return self.recorder.filled(x, 0.0)

    def accumulate(self, x: Tensor, gradient: Tensor, own: bool = False) -> None:
        recorder = self.recorder
        if x.traced is None and x.node is not None:
            raise recorder.untraceable(
                f"backward at {user_line()}: the backward pass of flow.compile ends at a tensor {x.tensor_type} that was computed outside of the "
                "compiled function, and whose own gradient would be lost; compute it inside, or call backward() outside"
            )
        known = recorder.gradient_of(x)
        target = x if known is None else known
        if target.layout is not None and gradient.layout != target.layout:
            gradient = recorder.change(gradient, target.layout, None)
        if known is not None and self.records:
            x._gradient = self.sum(known, gradient)
        elif known is not None:
            if known.tensor_type != gradient.tensor_type:
                raise JobError(
                    f"backward at {user_line()}: the gradient {gradient.tensor_type} cannot be added to the existing grad "
                    f"{known.tensor_type}; set grad to None first"
                )
            recorder.write(known, self.sum(known, gradient))
        else:
            recorder.hold_gradient(x)
            x._gradient = gradient if self.records else recorder.again(gradient)

    @property
    def records(self) -> bool:
        interpreter: Any = scope.current().interpreter
        return bool(interpreter.records)

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        return self.recorder.run(Add(), [a, b])[0]
