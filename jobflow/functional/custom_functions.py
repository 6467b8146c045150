"""Functions with their own gradients: `flow.autograd.Function`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, ShapeError, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import TensorType
from jobflow.eager import backward as passes
from jobflow.eager import in_place_writes as writing
from jobflow.eager.state import running, state
from jobflow.eager.tape import Gradients, TapeNode, edge_of, note
from jobflow.functional.gradients import enable_grad, grad, no_grad, seeds_of, set_grad_enabled, tensors_of
from jobflow.functional.promotion import cast
from jobflow.functional.typed import Tensor
from jobflow.ops.broadcast import SumTo
from jobflow.ops.op import apply

__all__ = ["Function", "backward", "enable_grad", "grad", "no_grad", "set_grad_enabled"]


def backward(
    tensors: Tensor | Iterable[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    inputs: Tensor | Iterable[Tensor] | None = None,
) -> None:
    """Add the gradients of the tensors' sum to the `grad` of the leaves, or of the `inputs` only."""
    roots = tensors_of("backward", "tensors", tensors)
    given = seeds_of("backward", "grad_tensors", grad_tensors, roots)
    into = None if inputs is None else tensors_of("backward", "inputs", inputs)
    passes.backward(roots, given, keep=bool(retain_graph), create=create_graph, into=into)


class Saved:
    """What `forward` leaves for `backward`: `save_for_backward(*tensors)`, and any attribute."""

    def __init__(self, name: str, needs: tuple[bool, ...]) -> None:
        self._name = name
        #: per argument of forward, whether its gradient is asked for
        self.needs_input_grad = needs
        self._saved: tuple[tuple[Tensor | None, int], ...] = ()
        self._without: tuple[Tensor, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._zeros = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors; `saved_tensors` in backward."""
        self._saved = tuple((x, 0 if x is None else x.version) for x in tensors)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What was kept; JobError if some of it has been written over since."""
        for x, version in self._saved:
            if x is not None and x.version != version:
                raise JobError(
                    f"backward at {user_line()}: a {x.tensor_type} tensor that {self._name} saved for its backward was overwritten by an in-place "
                    f"operation after forward; use the form that returns a new tensor, or clone() it first"
                )
        return tuple(x for x, _ in self._saved)

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """These outputs have no gradient; backward is given zeros for them."""
        self._without = outputs

    def mark_dirty(self, *inputs: Tensor) -> None:
        """These inputs were written over by forward, which returns them."""
        self._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward is given zeros, and not None, for outputs that nobody made use of."""
        self._zeros = bool(value)


class Function:
    """A function with a gradient of its own; it is called by `apply`.

    class Double(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy * 2

    `backward` is given one gradient for each output of forward (None for those that are no tensors), and gives one for each argument,
    None for those that have none.  It is differentiated too where gradients of gradients are asked for.  `forward` may leave `ctx`
    out, if there is a `setup_context(ctx, inputs, output)`.
    """

    setup_context: Any = None

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """What the function computes; nothing of it is recorded."""
        raise JobError(f"apply at {user_line()}: an autograd.Function needs a static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients of forward's arguments, from those of its outputs."""
        raise JobError(f"backward at {user_line()}: an autograd.Function needs a static method backward(ctx, ...)")

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """The result of forward, with backward as its gradient."""
        here = state()
        if here.building is not None:
            raise JobError(f"{cls.__name__} at {user_line()}: an autograd.Function cannot be part of {running()}")
        edges = [edge_of(each) if isinstance(each, Tensor) else None for each in arguments]
        saved = Saved(cls.__name__, tuple(edge is not None for edge in edges))
        with no_grad():
            made = cls.forward(saved, *arguments) if cls.setup_context is None else cls.forward(*arguments)
            if cls.setup_context is not None:
                cls.setup_context(saved, arguments, made)
        outputs = list(made) if isinstance(made, tuple) else [made]
        node = None
        if here.grad_enabled and any(saved.needs_input_grad):
            gradient = _Backward(cls, saved, [_kind(x) for x in arguments], [_kind(y) for y in outputs])
            node = TapeNode(cls.__name__, tuple(edges), len(outputs), gradient)
        results = _results(saved, arguments, outputs, node)
        return tuple(results) if isinstance(made, tuple) else results[0]


def _results(saved: Saved, arguments: Sequence[Any], outputs: Sequence[Any], node: TapeNode | None) -> list[Any]:
    """The outputs as `node` made them; an argument that is handed through is another tensor in the same memory, unless it is dirty."""
    dirty, without = ({id(x) for x in marked} for marked in (saved._dirty, saved._without))
    if lost := dirty - {id(y) for y in outputs}:
        raise ArgumentError(f"{saved._name} at {user_line()}: forward returns {len(dirty) - len(lost)} of the {len(dirty)} tensors marked dirty")
    given = {id(x) for x in arguments}
    fresh = [y.detach() if isinstance(y, Tensor) and id(y) in given else y for y in outputs]
    if node is not None:
        note(node, [y if isinstance(y, Tensor) and id(old) not in without else None for y, old in zip(fresh, outputs, strict=True)])
    for i, old in enumerate(outputs):
        if id(old) in dirty:
            writing.may_write(state(), old, saved._name)
            writing.written(state(), old, fresh[i], saved._name)
            fresh[i] = old
    saved._saved = tuple((x, x.version if x is not None and id(x) in dirty else version) for x, version in saved._saved)
    return fresh


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a tensor is, and the shape of this rank's piece."""

    type: TensorType
    layout: Layout | None
    piece: tuple[int, ...]

    def zeros(self) -> Tensor:
        return Tensor.new(self.type, self.layout, np.zeros(self.piece, self.type.dtype.numpy))

    def fitted(self, gradient: Tensor, what: str) -> Tensor:
        """A gradient for a tensor of this kind: summed to its shape, if it was broadcast, in its element type."""
        lead = gradient.tensor_type.ndim - self.type.ndim
        if lead < 0 or any(n not in (1, m) for n, m in zip(self.type.shape, gradient.tensor_type.shape[lead:], strict=True)):
            raise ShapeError(f"{what} is {gradient.tensor_type}, the argument {self.type}")
        place, own = (None if layout is None else layout.placement for layout in (gradient.layout, self.layout))
        if place != own:
            raise ShapeError(f"{what} is {gradient.layout or 'local'}, the argument {self.layout or 'local'}; use to_global or to_local")
        if gradient.tensor_type.shape != self.type.shape:
            gradient = apply(SumTo(self.type.shape), gradient)
        return cast(gradient, self.type.dtype)


def _kind(x: Any) -> _Kind | None:
    return _Kind(x.tensor_type, x.layout, tuple(x.array.shape)) if isinstance(x, Tensor) else None


@dataclass(frozen=True, slots=True)
class _Backward:
    """The gradients of the arguments, by the function's own backward."""

    function: type[Function]
    saved: Saved
    arguments: Sequence[_Kind | None]
    outputs: Sequence[_Kind | None]

    def __call__(self, kept: Sequence[Tensor], gradients: Gradients) -> Gradients:
        given = [
            kind.zeros() if gradient is None and kind is not None and self.saved._zeros else gradient
            for kind, gradient in zip(self.outputs, gradients, strict=True)
        ]
        with scope.using(interpreter=None):
            found = self.function.backward(self.saved, *given)
        listed = list(found) if isinstance(found, tuple | list) else [found]
        what, expected = f"{self.function.__name__}.backward at {user_line()}", len(self.arguments)
        if len(listed) < expected or any(gradient is not None for gradient in listed[expected:]):
            raise ArgumentError(f"{what}: {len(listed)} gradients for {expected} arguments of forward")
        return [self._checked(what, i, gradient) for i, gradient in enumerate(listed[:expected])]

    def _checked(self, what: str, i: int, gradient: Any) -> Tensor | None:
        kind, asked = self.arguments[i], self.saved.needs_input_grad[i]
        if gradient is None:
            return None
        if kind is None or not isinstance(gradient, Tensor):
            told = "no tensor" if kind is None else str(kind.type)
            raise ArgumentError(f"{what}: gradient {i} is {type(gradient).__name__}, the argument {told}; a gradient is a tensor, or None")
        return kind.fitted(gradient, f"{what}: gradient {i}") if asked else None
