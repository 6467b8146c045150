"""What is recorded for `backward`: one node per step, with what its gradient needs.

A node keeps (type, layout, array, storage, version) of the tensors that its gradient may read.  Reading one whose memory has been
written over since is an error; not reading it is none, so that `relu_` after a convolution is fine.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jobflow import scope
from jobflow.eager.tensor import Storage, Tensor
from jobflow.errors import JobError, user_line
from jobflow.layout import Placement
from jobflow.ops.base import Op
from jobflow.types import Array

#: per input: the node and the number of its output, or the leaf, that the gradient goes to; None if to nobody
Edge = tuple[Any, int] | Tensor | None
Gradients = Sequence[Tensor | None]
Hook = Callable[[Tensor], Tensor | None]
_numbers = itertools.count()


class TapeNode:
    """One recorded step.  `backward(saved tensors, gradients of the outputs)` gives the gradients of the inputs."""

    __slots__ = ("__weakref__", "backward", "edges", "hooks", "name", "number", "outputs", "retained", "saved")

    def __init__(self, name: str, edges: tuple[Edge, ...], outputs: int, backward: Callable[..., Gradients], saved: Sequence[Tensor] = ()) -> None:
        self.name = name
        self.edges = edges
        self.outputs = outputs
        self.backward: Callable[..., Gradients] | None = backward
        self.number = next(_numbers)
        self.saved: tuple[Any, ...] = tuple((x.type, x.layout, x.array, x.memory, x.version) for x in saved)
        #: by output
        self.hooks: dict[int, dict[int, Hook]] = {}
        self.retained: dict[int, weakref.ref[Tensor]] = {}

    def __repr__(self) -> str:
        return f"<{self.name}Backward>"

    def kept(self) -> list[Tensor]:
        """The saved tensors as they were; those written over since complain when they are read."""
        return [_Kept(self.name, *saved) if storage_changed(saved) else Tensor(*saved[:3]) for saved in self.saved]

    def drop(self) -> None:
        """Forget what was kept: it is gone through once."""
        self.backward, self.saved = None, ()


def storage_changed(saved: tuple[Any, ...]) -> bool:
    storage: Storage = saved[3]
    before: int = saved[4]
    return storage.version != before


class _Kept(Tensor):
    """A tensor that is not any more what it was."""

    def __init__(self, reader: str, type: Any, layout: Any, array: Array, storage: Any, version: int) -> None:
        super().__init__(type, layout, None)
        self.reader = reader

    @property
    def array(self) -> Array:
        raise JobError(
            f"backward at {user_line()}: a {self.type} tensor that the gradient of {self.reader} needs was written over by an "
            f"in-place operation after {self.reader}; use the form that makes a new tensor, or clone() it first"
        )

    @array.setter
    def array(self, value: Array) -> None:
        """Nothing is kept."""


def edge_of(x: Tensor) -> Edge:
    """Where the gradient of x goes."""
    if x.base is not None:
        follow(x)
    if x.node is not None:
        return x.node, x.index
    return x if x.requires_grad else None


def follow(view: Tensor) -> bool:
    """Whether a view requires gradients; if its memory was written over since it was made, it is made of its base anew."""
    assert view.base is not None
    base, op = view.base
    if base.base is not None:
        follow(base)
    if view.seen != view.version:
        view.seen, view.requires_grad, view.node = view.version, base.requires_grad, None
        if base.requires_grad:
            record(op.word(), (base,), (view,), OpGradient(op, None if view.layout is None else view.layout.placement), (base, view))
    return view.requires_grad


@dataclass(frozen=True, slots=True)
class OpGradient:
    """The gradient of an op that ran, by the ops that its `grad` calls."""

    op: Op
    placement: Placement | None

    def __call__(self, kept: Sequence[Tensor], gradients: Gradients) -> Gradients:
        interpreter: Any = scope.current().interpreter
        interpreter.placement = self.placement
        made: Gradients = self.op.grad(*kept, *gradients)  # type: ignore[assignment]  # of this interpreter's tensors
        return made


def record(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], backward: Callable[..., Gradients], saved: Sequence[Tensor] = ()) -> None:
    """Note how the outputs were made; those of floats require gradients from now on."""
    node = TapeNode(name, tuple(map(edge_of, inputs)), len(outputs), backward, saved)
    for index, output in enumerate(outputs):
        if output.type.dtype.is_float:
            output.requires_grad, output.node, output.index = True, node, index
