"""Functions with user-defined gradients: `flow.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, ShapeError, counted, user_line
from jobflow.core.layout import Layout
from jobflow.core.types import TensorType, Typed
from jobflow.functional.dispatch import record_call
from jobflow.functional.gradients import enable_grad, grad, no_grad, seeds_of, set_grad_enabled, tensors_of
from jobflow.functional.promotion import cast
from jobflow.functional.typed import Tensor
from jobflow.ops.broadcast import SumTo
from jobflow.ops.scalar import FillLike
from jobflow.tensors import backward as passes
from jobflow.tensors import in_place_writes as writing
from jobflow.tensors.gpus import gpu_of, on_device
from jobflow.tensors.run import run
from jobflow.tensors.state import building_now, state
from jobflow.tensors.tape import Gradients, TapeNode, edge_of, note

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

__all__ = ["Function", "backward", "enable_grad", "grad", "no_grad", "set_grad_enabled"]


def backward(
    tensors: Tensor | Iterable[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    inputs: Tensor | Iterable[Tensor] | None = None,
) -> None:
    """Add the gradients of the sum of `tensors`, weighted by `grad_tensors`, to the `grad` of the leaves, or only of `inputs`.

    A weight defaults to 1.0 for a tensor of one element.  The graph is released unless `retain_graph` or `create_graph` is set.
    `create_graph` also records the computation of the gradients.
    Raises: ArgumentError for arguments that are not tensors, or for different numbers of `tensors` and `grad_tensors`.
    """
    roots = tensors_of("backward", "tensors", tensors)
    seeds = seeds_of("backward", "grad_tensors", grad_tensors, roots)
    into = None if inputs is None else tensors_of("backward", "inputs", inputs)
    passes.backward(roots, seeds, keep=bool(retain_graph), create=create_graph, into=into)


class Saved:
    """The `ctx` of a Function, with the tensors that `forward` saves for `backward` and with arbitrary attributes."""

    def __init__(self, name: str, needs: tuple[bool, ...]) -> None:
        self._name = name
        #: per argument of forward: True if its gradient is needed
        self.needs_input_grad = needs
        self._saved: tuple[tuple[Tensor | None, int], ...] = ()
        self._without: tuple[Tensor, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._zeros = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors; `backward` reads them as `saved_tensors`."""
        self._saved = tuple((x, 0 if x is None else x.version) for x in tensors)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The saved tensors.  Raises: JobError if one of the tensors was overwritten after `forward`."""
        for x, version in self._saved:
            if x is not None and x.version != version:
                raise JobError(
                    f"backward at {user_line()}: a {x.tensor_type} tensor that {self._name} saved for its backward was overwritten by an in-place "
                    f"operation after forward; use the form that returns a new tensor, or clone() it first"
                )
        return tuple(x for x, _ in self._saved)

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Mark outputs without a gradient; `backward` receives zeros for them."""
        self._without = outputs

    def mark_dirty(self, *inputs: Tensor) -> None:
        """Mark inputs that `forward` overwrites in place and returns."""
        self._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Pass zeros (True, the default) or None to `backward` as the gradients of unused outputs."""
        self._zeros = bool(value)


class Function:
    """A function with a user-defined gradient, called by `apply`.

        class Double(flow.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, dy):
                return dy * 2

    `backward` receives one gradient per output of `forward`, or None for an output other than a tensor.  `backward` returns one gradient per
    argument, or None for an argument without a gradient.  Gradients of gradients differentiate `backward` itself.  `forward` may omit `ctx` if
    the class defines `setup_context(ctx, inputs, output)`.
    """

    setup_context: Any = None

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Compute the result of the function; its operations are not recorded for backward."""
        raise JobError(f"apply at {user_line()}: an autograd.Function needs a static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradients of the arguments of `forward`, computed from the gradients of its outputs."""
        raise JobError(f"backward at {user_line()}: an autograd.Function needs a static method backward(ctx, ...)")

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Call `forward` and attach `backward` as the gradient of its result.

        Compiled functions record the operations of both methods.  Graphs and jobs call `backward` once, directly after `forward`.
        Raises: ArgumentError if a dirty input is not returned; in graphs and jobs, JobError if `backward` samples or overwrites other tensors.
        """
        if any(isinstance(x, Typed) for x in arguments):
            return record_call(f"{cls.__name__}.apply", cls.apply, arguments)
        here, building = state(), building_now()
        if building is not None and not building.differentiates:
            return cls._traced(building, arguments)
        edge = edge_of if building is None else building.edge
        edges = [edge(each) if isinstance(each, Tensor) else None for each in arguments]
        saved = Saved(cls.__name__, tuple(edge is not None for edge in edges))
        result, outputs = cls._forward(saved, arguments)
        node = None
        if here.grad_enabled and any(saved.needs_input_grad):
            gradient = UserGradient(cls, saved, [_kind(x) for x in arguments], [_kind(y) for y in outputs])
            node = TapeNode(cls.__name__, tuple(edges), len(outputs), gradient)
        results = _results(saved, arguments, outputs, None if node is None else partial(_noted, node))
        return tuple(results) if isinstance(result, tuple) else results[0]

    @classmethod
    def _forward(cls, saved: Saved, arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Call `forward` without recording gradients; return its result, and the result as a list of outputs."""
        with no_grad():
            result = cls.forward(saved, *arguments) if cls.setup_context is None else cls.forward(*arguments)
            if cls.setup_context is not None:
                cls.setup_context(saved, arguments, result)
        return result, list(result) if isinstance(result, tuple) else [result]

    @classmethod
    def _traced(cls, building: Any, arguments: Sequence[Any]) -> Any:
        """Record `forward` in a graph or job, and `backward` as the gradient of its result."""
        needs = tuple([state().grad_enabled and isinstance(x, Tensor) and building.needs_gradient(x) for x in arguments])
        before = {i: building.snapshot(arguments[i]) for i, needed in enumerate(needs) if needed}
        kinds = [_kind(x) for x in arguments]
        saved = Saved(cls.__name__, needs)
        result, outputs = cls._forward(saved, arguments)
        gradient = UserGradient(cls, saved, kinds, [_kind(y) for y in outputs])
        results = _results(saved, arguments, outputs, partial(_recorded, building, gradient, before) if before else None)
        return tuple(results) if isinstance(result, tuple) else results[0]


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn`, the `backward` of a Function, with operations that are not recorded; decorate it below `@staticmethod`.

    Raises (when called): JobError with create_graph=True, because the gradient of `fn` is unknown.
    """

    @wraps(fn)
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if state().grad_enabled:
            raise JobError(
                f"{ctx._name}.backward at {user_line()}: the function is once_differentiable, so gradients of gradients are unknown; pass "
                "create_graph=False"
            )
        with no_grad():
            return fn(ctx, *grad_outputs)

    return backward


#: A function from the outputs of forward, and the same list with None for outputs without a gradient, to the outputs with their gradients.
Attach = Callable[[list[Any], list[Any]], list[Any]]


def _noted(node: TapeNode, fresh: list[Any], differentiable: list[Any]) -> list[Any]:
    """Attach the outputs of `forward` to a node of the tape."""
    note(node, differentiable)
    return fresh


def _recorded(building: Any, gradient: UserGradient, before: Mapping[int, Tensor], fresh: list[Any], differentiable: list[Any]) -> list[Any]:
    """Record `backward` of a Function in a program; return the outputs of `forward`, whose gradient it computes.

    `before` has the arguments that need a gradient, with their values before `forward`.
    """
    places = [i for i, y in enumerate(differentiable) if y is not None and y.tensor_type.dtype.is_float]
    if not places:
        return fresh
    tensors = [building.known(fresh[i]) for i in places]
    with building.recording_gradient(f"{gradient.function.__name__} at {user_line()}"):
        placeholders = [building.output_gradient(y) for y in tensors]
        output_gradients: list[Tensor | None] = [run(FillLike(0.0), y) if isinstance(y, Tensor) and gradient.saved._zeros else None for y in fresh]
        for i, placeholder in zip(places, placeholders, strict=True):
            output_gradients[i] = building.snapshot(placeholder)
        gradients = gradient((), output_gradients)
        own = {i: building.snapshot(gradients[i]) for i in before if gradients[i] is not None}
    if not own:
        return fresh
    results = iter(building.with_gradients([before[i] for i in own], tensors, placeholders, list(own.values())))
    return [next(results) if i in places else y for i, y in enumerate(fresh)]


def _results(saved: Saved, arguments: Sequence[Any], outputs: Sequence[Any], attach: Attach | None) -> list[Any]:
    """Return the outputs of `forward`, with their gradients by `attach`; raise ArgumentError if a dirty tensor is not among the outputs.

    An argument among the outputs is replaced by a new tensor in the same memory, except for a dirty argument.
    """
    building = building_now()
    dirty, without = ({id(x) for x in marked} for marked in (saved._dirty, saved._without))
    if lost := dirty - {id(y) for y in outputs}:
        raise ArgumentError(
            f"{saved._name} at {user_line()}: forward returns {len(dirty) - len(lost)} of the {len(dirty)} tensors marked dirty; return all of them"
        )
    argument_ids = {id(x) for x in arguments}
    fresh = [y.detach() if isinstance(y, Tensor) and id(y) in argument_ids else y for y in outputs]
    if attach is not None:
        fresh = attach(fresh, [y if isinstance(y, Tensor) and id(old) not in without else None for y, old in zip(fresh, outputs, strict=True)])
    for i, old in enumerate(outputs):
        if id(old) in dirty:
            if building is None or building.differentiates:
                writing.may_write(state(), old, saved._name)
            if building is None:
                writing.written(state(), old, fresh[i], saved._name)
            else:
                building.write(old, fresh[i])
            fresh[i] = old
    saved._saved = tuple((x, x.version if x is not None and id(x) in dirty else version) for x, version in saved._saved)
    return fresh


@dataclass(frozen=True, slots=True)
class _Kind:
    """The type and layout of a tensor, and the shape of this rank's piece."""

    tensor_type: TensorType
    layout: Layout | None
    piece: tuple[int, ...] = ()
    #: the GPU that holds the tensor; None for the host
    gpu: EagerGpu | None = None

    def zeros(self) -> Tensor:
        building = building_now()
        if building is not None:
            zeros: Tensor = building.filled(self, 0.0)
            return zeros
        array = np.zeros(self.piece, self.tensor_type.dtype.numpy)
        return Tensor.new(self.tensor_type, self.layout, on_device(self.gpu, array))

    def fitted(self, gradient: Tensor, what: str) -> Tensor:
        """Return `gradient` summed over the axes along which this tensor was broadcast, in the element type of this tensor."""
        lead = gradient.tensor_type.ndim - self.tensor_type.ndim
        if lead < 0 or any(n not in (1, m) for n, m in zip(self.tensor_type.shape, gradient.tensor_type.shape[lead:], strict=True)):
            raise ShapeError(f"{what} is {gradient.tensor_type}, but the argument is {self.tensor_type}; return a gradient of the argument's shape")
        placement, own = (None if layout is None else layout.placement for layout in (gradient.layout, self.layout))
        if placement != own:
            raise ShapeError(f"{what} is {gradient.layout or 'local'}, but the argument is {self.layout or 'local'}; use to_global or to_local")
        if gradient.tensor_type.shape != self.tensor_type.shape:
            gradient = run(SumTo(self.tensor_type.shape), gradient)
        return cast(gradient, self.tensor_type.dtype)


def _kind(x: Any) -> _Kind | None:
    if not isinstance(x, Tensor):
        return None
    return _Kind(x.tensor_type, x.layout) if x.traced is not None else _Kind(x.tensor_type, x.layout, tuple(x.array.shape), gpu_of(x.array))


@dataclass(frozen=True, slots=True)
class UserGradient:
    """The recorded gradient of a Function, which calls the user's `backward` and checks its results."""

    function: type[Function]
    saved: Saved
    arguments: Sequence[_Kind | None]
    outputs: Sequence[_Kind | None]

    def __call__(self, saved_values: Sequence[Tensor], gradients: Gradients) -> Gradients:
        output_gradients = [
            kind.zeros() if gradient is None and kind is not None and self.saved._zeros else gradient
            for kind, gradient in zip(self.outputs, gradients, strict=True)
        ]
        building = building_now()
        if building is not None and building.has_returned:
            raise building.untraceable(
                f"{self.function.__name__} at {user_line()}: a replay does not call the backward of an autograd.Function; call loss.backward() "
                f"inside {building.short}"
            )
        with scope.using(interpreter=None if building is None else building.interpreter):
            returned = self.function.backward(self.saved, *output_gradients)
        listed = list(returned) if isinstance(returned, tuple | list) else [returned]
        what, expected = f"{self.function.__name__}.backward at {user_line()}", len(self.arguments)
        if len(listed) < expected or any(gradient is not None for gradient in listed[expected:]):
            result, arguments = counted(len(listed), "gradient"), counted(expected, "argument")
            raise ArgumentError(f"{what}: backward returns {result} for {arguments} of forward; return one gradient per argument")
        return [self._check_gradient(what, i, gradient) for i, gradient in enumerate(listed[:expected])]

    def _check_gradient(self, what: str, i: int, gradient: Any) -> Tensor | None:
        kind, needed = self.arguments[i], self.saved.needs_input_grad[i]
        if gradient is None:
            return None
        if kind is None or not isinstance(gradient, Tensor):
            argument = "not a tensor" if kind is None else str(kind.tensor_type)
            raise ArgumentError(
                f"{what}: gradient {i} is of type {type(gradient).__name__}, but the argument is {argument}; return "
                f"{'None' if kind is None else 'a tensor or None'}"
            )
        return kind.fitted(gradient, f"{what}: gradient {i}") if needed else None
