"""The tape: one node per recorded operation, with the values that its gradient needs.

A node saves (type, layout, array, storage, version) of the tensors that its gradient may read.  Reading a tensor whose memory was written to
since raises an error; an unread tensor does not, so `relu_` after a convolution is allowed.  If the backward pass is recorded, too,
the saved tensors have the positions of the original tensors in the graph.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, SourceLine, user_line
from jobflow.core.types import Array, TensorType
from jobflow.engine.anomaly_switch import anomalies as anomalies
from jobflow.ops.chain import chained
from jobflow.ops.derivative import Derivative, derivative
from jobflow.ops.op import Op
from jobflow.tensors.gpus import anchor_of
from jobflow.tensors.tensor import Storage, TensorBase

#: destination of the gradient of an input: (node, index of its output), a leaf, or None
Edge: TypeAlias = Any
#: the placement of a global tensor, or the GPU of a local tensor, or None: see gpus.py
Anchor: TypeAlias = Any
Gradients = Sequence[Any]
Hook = Callable[[Any], Any]
#: number of the run in which a gradient program becomes a chain
CHAINED = 4
_node_numbers = itertools.count()


def next_number() -> int:
    """Return a number that is larger than the numbers of all nodes so far, and smaller than those of later nodes."""
    return next(_node_numbers)


class ReleasedError(JobError):
    """The error for a backward pass through a graph whose saved values were freed or overwritten."""


@dataclass(frozen=True, slots=True)
class ReadyCallback:
    """A hook that calls `callback` without arguments when a gradient is complete."""

    callback: Callable[[], None]

    def __call__(self, gradient: TensorBase) -> None:
        self.callback()


class TapeNode:
    """A recorded operation; `backward(saved tensors, gradients of the outputs)` returns the gradients of the inputs."""

    __slots__ = ("__weakref__", "backward", "edges", "hooks", "line", "number", "operation", "outputs", "retained", "saved")

    def __init__(
        self, name: str, edges: tuple[Edge, ...], outputs: int, backward: Callable[..., Gradients], saved: Sequence[TensorBase | None] = ()
    ) -> None:
        #: the name of the operation
        self.operation = name
        self.edges = edges
        self.outputs = outputs
        self.backward: Callable[..., Gradients] | None = backward
        self.number = next(_node_numbers)
        self.saved: tuple[Any, ...] = tuple([None if x is None else (x.tensor_type, x.layout, x.array, x.memory, x.memory.version) for x in saved])
        #: hooks by output
        self.hooks: dict[int, dict[int, Hook]] = {}
        self.retained: dict[int, weakref.ref[TensorBase]] = {}
        #: the user's line, with anomaly detection
        self.line: SourceLine | None = user_line() if anomalies.enabled else None

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    def name(self) -> str:
        """Return the name of the node, such as "addBackward"."""
        return f"{self.operation}Backward"

    def saved_tensors(self, linked: bool = False) -> list[TensorBase | None]:
        """Return the saved tensors; reading such a tensor raises an error if its memory was overwritten after it was saved.

        With `linked`, the saved inputs and outputs have the nodes of the original tensors, for gradients of gradients.
        """
        tensors = [None if saved is None else self.restored(*saved) for saved in self.saved]
        ends: list[Edge] = [*self.edges, *((self, i) for i in range(self.outputs))]
        if linked and len(ends) == len(tensors):
            tensors = [x if x is None or isinstance(x, _StaleTensor) else _at(x, end) for x, end in zip(tensors, ends, strict=True)]
        return tensors

    def restored(self, type: TensorType, layout: Any, value: Any, storage: Storage, version: int) -> TensorBase:
        """Return a saved tensor with the array `value`; reading the tensor raises an error if its storage no longer has `version`."""
        return (
            TensorBase.new(type, layout, value) if storage.version == version else _StaleTensor(self.operation, type, layout, value, storage, version)
        )

    def retaining(self, index: int) -> Any:
        """Return the tensor of output `index` if `retain_grad` was called for it and it still exists, else None."""
        reference = self.retained.get(index)
        return None if reference is None else reference()

    def drop(self) -> None:
        """Release the saved values after a backward pass; an operation without saved values remains, and can run again."""
        if not isinstance(self.backward, OpGradient) or any(saved is not None for saved in self.saved):
            self.backward, self.saved = None, ()


def _at(x: TensorBase, end: Edge) -> TensorBase:
    """Return a saved tensor with `end` as the destination of its gradient; if `end` is a leaf, return the leaf."""
    if isinstance(end, TensorBase):
        return end
    if end is not None and x.tensor_type.dtype.is_float:
        x._needs_gradient, (x.node, x.index) = True, end
    return x


class _StaleTensor(TensorBase):
    """A saved tensor whose memory was overwritten after it was saved."""

    def __init__(self, reader: str, type: Any, layout: Any, array: Array, storage: Any, version: int) -> None:
        super().__init__(type, layout, None)
        del self._array
        self.reader = reader

    def _fetched(self) -> Array:
        """Raise JobError, because the saved elements were overwritten."""
        raise ReleasedError(
            f"backward at {user_line()}: a {self.tensor_type} tensor that the gradient of {self.reader} needs was overwritten by an "
            f"in-place operation after {self.reader}; use the form that returns a new tensor, or clone() it first"
        )


def edge_of(x: TensorBase) -> Edge:
    """Return the destination of the gradient of x: (node, index of the output), the leaf x, or None if x requires no gradient."""
    if x.base is not None:
        follow(x)
    if x.node is not None:
        return x.node, x.index
    return x if x._needs_gradient else None


def follow(view: TensorBase) -> bool:
    """Return True if a view requires gradients, after recording the view again if its base was written to."""
    assert view.base is not None
    base, op = view.base
    if base.base is not None:
        follow(base)
    if view._synced_version != view.version:
        view._synced_version, view._needs_gradient = view.version, base._needs_gradient
        if not base._needs_gradient:
            view.node = None
        else:
            record_op(op, anchor_of(view), {}, (base,), (view,))
    return view._needs_gradient


class OpGradient:
    """The gradient function of an operation, which nodes with the same input types and layouts can share.

    Without a `program`, the gradients of all inputs are computed.
    """

    __slots__ = ("_best", "_runs", "op", "placement", "program")

    def __init__(self, op: Op, placement: Anchor, program: Derivative | None = None) -> None:
        self.op = op
        #: the placement, or the GPU of local tensors; None for local tensors on the host
        self.placement = placement
        self.program = program
        self._runs = 0
        #: the program for local tensors, if gradients of gradients are not recorded
        self._best = program

    def __call__(self, saved: Sequence[Any], gradients: Gradients) -> Gradients:
        interpreter: Any = scope.current().interpreter
        interpreter.placement = self.placement
        program = self.program
        if program is None:
            present = tuple(gradient is not None for gradient in gradients)
            program = derivative(self.op, tuple(x.tensor_type for x in saved), present, (True,) * (len(saved) - len(present)))
        elif self.placement is None and interpreter.chains:
            program = self._local(program, (*saved, *gradients))
        return program(interpreter, (*saved, *gradients))

    def _local(self, program: Derivative, values: Sequence[Any]) -> Derivative:
        """Return the program to run on local tensors; after a few runs, a chain of fused operations replaces it, if one exists."""
        self._runs += 1
        if self._runs == CHAINED:
            self._best = chained(program, {i: values[i].tensor_type for i in program.reads}, f"gradient of {self.op.word()}")
        return self._best or program

    def own(self, inputs: int) -> tuple[bool, ...]:
        """Return one flag per input: True if no other tensor uses the memory of the input's gradient; without a program, all are False."""
        return (False,) * inputs if self.program is None else self.program.own


def record(
    name: str, inputs: Sequence[TensorBase], outputs: Sequence[TensorBase], backward: Callable[..., Gradients], saved: Sequence[TensorBase] = ()
) -> None:
    """Record the gradient function `backward` of a computation; its floating point outputs require gradients from now on.

    `saved` are the tensors that `backward` reads.
    """
    note(TapeNode(name, tuple(map(edge_of, inputs)), len(outputs), backward, saved), outputs)


def record_op(
    op: Op, placement: Anchor, known: dict[tuple[bool, ...], OpGradient], inputs: Sequence[TensorBase], outputs: Sequence[TensorBase]
) -> None:
    """Record an operation; `known` caches gradient programs, by one flag per input: True if the input requires gradients."""
    edges = tuple([edge_of(x) for x in inputs])
    gradient = op_gradient(op, placement, known, inputs, outputs, edges)
    note(TapeNode(op.word(), edges, len(outputs), gradient, read_by(gradient.program, inputs, outputs)), outputs)


def op_gradient(
    op: Op,
    placement: Anchor,
    known: dict[tuple[bool, ...], OpGradient],
    inputs: Sequence[TensorBase],
    outputs: Sequence[TensorBase],
    edges: Sequence[Edge],
) -> OpGradient:
    """Return the gradient function of an operation for the inputs that require gradients, whose edges are not None.

    The function has no program if the operation has no gradient.  It has none either for several outputs, because some outputs may lack gradients.
    """
    needed = tuple([edge is not None for edge in edges])
    gradient = known.get(needed)
    if gradient is None:
        program = None if len(outputs) > 1 else _program(op, tuple(x.tensor_type for x in (*inputs, *outputs)), needed)
        gradient = known[needed] = OpGradient(op, placement, program)
    return gradient


def read_by(program: Derivative | None, inputs: Sequence[TensorBase], outputs: Sequence[TensorBase]) -> Sequence[Any]:
    """Return the inputs and outputs of an operation, with None in place of tensors that the gradient program does not read."""
    values = (*inputs, *outputs)
    return values if program is None else [x if i in program.reads else None for i, x in enumerate(values)]


def _program(op: Op, types: tuple[TensorType, ...], needed: tuple[bool, ...]) -> Derivative | None:
    try:
        return derivative(op, types, (True,), needed)
    except JobError:  # it has no gradient, which is an error only if one is needed
        return None


def note(node: TapeNode, outputs: Sequence[TensorBase | None]) -> None:
    """Register the node as the source of the floating point outputs; None stands for an output without a gradient."""
    for index, output in enumerate(outputs):
        if output is not None and output.tensor_type.dtype.is_float:
            stand_at(output, node, index)


def stand_at(x: TensorBase, node: TapeNode, index: int) -> None:
    """Make output `index` of `node` the source of x, which requires gradients from now on; a `retain_grad` of x remains in force, as in PyTorch."""
    if x.node is not None and x.node.retained and x.node.retaining(x.index) is x:
        node.retained[index] = x.node.retained.pop(x.index)
    x._needs_gradient, x.node, x.index = True, node, index
