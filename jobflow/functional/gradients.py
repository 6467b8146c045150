"""Control of gradients: backward, grad, requires_grad, detach, hooks and anomaly detection."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, ShapeError, counted, user_line
from jobflow.core.types import Typed
from jobflow.functional.dispatch import attribute, method
from jobflow.functional.memory_formats import check_format
from jobflow.functional.typed import Tensor
from jobflow.ops.layout_ops import Copy
from jobflow.ops.scalar import Detach
from jobflow.tensors import backward as passes
from jobflow.tensors.gpus import device_name, gpu_of
from jobflow.tensors.parameters import described
from jobflow.tensors.run import recorder, run
from jobflow.tensors.state import building_now, running, state
from jobflow.tensors.tape import anomalies, follow

__all__ = [
    "clone", "detach", "enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled",
]  # fmt: skip

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_hooks = itertools.count()


# -------------------------------------------------------------------- backward


def backward(
    x: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Iterable[Tensor] | None = None,
) -> None:
    """Add the gradient of x, weighted by `gradient`, to the `grad` of every leaf that x depends on, or only of `inputs`.

    `gradient` defaults to 1.0 for a tensor of one element.  The graph is released unless `retain_graph` or `create_graph` is set.
    `create_graph` also records the computation of the gradients, for gradients of gradients.
    Raises: JobError unless x requires gradients, or if `gradient` is missing for several elements.
    """
    tracer = building_now()
    if (x.traced is not None or tracer is not None) and (tracer is None or not tracer.differentiates):
        if create_graph or inputs is not None:
            raise JobError(f"backward at {user_line()}: create_graph and inputs need eager tensors; {NOT_IN_GRAPHS}")
        recorder(state(), "backward").backward(x, gradient)
        return
    into = None if inputs is None else tensors_of("backward", "inputs", inputs)
    passes.backward([x], [gradient], keep=bool(retain_graph), create=create_graph, into=into)


#: advice of the errors for calls that are not supported during tracing
NOT_IN_GRAPHS = "use loss.backward() and the graph's optimizers in nn.Graph.build, and an optimizer's minimize in a job"


def tensors_of(what: str, name: str, argument: Any) -> list[Tensor]:
    """Return one tensor or an iterable of tensors as a list; raise ArgumentError for other objects, JobError for tensors without values."""
    several = isinstance(argument, Iterable) and not isinstance(argument, Tensor | Typed | np.ndarray)
    tensors = list(argument) if several else [argument]
    for x in tensors:
        if isinstance(x, Typed):
            raise JobError(f"{what} at {user_line()}: {name} is a tensor {x.tensor_type} of a job; call an optimizer's minimize instead")
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: {name} must be a tensor or an iterable of tensors; got {type(x).__name__}")
        if (tracer := building_now()) is not None and not tracer.differentiates:
            problem = "has no values" if x.traced is not None else "cannot be differentiated"
            raise JobError(f"{what} at {user_line()}: {x.tensor_type} {problem} while {running()} runs; {NOT_IN_GRAPHS}")
    return tensors


def seeds_of(what: str, name: str, argument: Any, roots: Sequence[Tensor]) -> list[Tensor | None]:
    """Return a list with one output gradient per tensor of `roots`, from a tensor, a sequence, or None for all; an element None stands for 1.0.

    Raises: ArgumentError for another number of gradients.
    """
    if argument is None:
        return [None] * len(roots)
    seeds = [argument] if isinstance(argument, Tensor) else list(argument)
    if len(seeds) != len(roots):
        number, tensors = counted(len(seeds), "gradient"), counted(len(roots), "tensor")
        raise ArgumentError(f"{what} at {user_line()}: {name} has {number} for {tensors}; pass one gradient per tensor")
    return seeds


def grad(
    outputs: Tensor | Iterable[Tensor],
    inputs: Tensor | Iterable[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the sum of the outputs with respect to the inputs, in the layouts of the inputs.

    The `grad` attributes of tensors do not change; `only_inputs` has no effect.
    For an input that the outputs do not depend on, `allow_unused` returns None, and `materialize_grads` returns zeros.
    Raises: JobError for such an input without these options, or for an input that does not require gradients; ArgumentError for `is_grads_batched`.

    Examples:
        >>> x = flow.tensor(3.0, requires_grad=True)
        >>> flow.autograd.grad(x * x, x)
        (tensor(6., dtype=jobflow.float32),)
    """
    if is_grads_batched:
        raise ArgumentError(f"grad at {user_line()}: is_grads_batched=True is not supported; call grad once per row of grad_outputs")
    if materialize_grads and allow_unused is False:
        raise ArgumentError(f"grad at {user_line()}: materialize_grads=True returns zeros for unused inputs; omit allow_unused=False")
    roots, targets = tensors_of("grad", "outputs", outputs), tensors_of("grad", "inputs", inputs)
    seeds = seeds_of("grad", "grad_outputs", grad_outputs, roots)
    for i, x in enumerate(targets):
        if not x._needs_gradient:
            raise JobError(f"grad at {user_line()}: input {i}, {x.tensor_type}, does not require gradients; call requires_grad_() first")
    gradients = passes.backward(roots, seeds, keep=bool(retain_graph), create=create_graph, only=targets)
    for i, gradient in enumerate(gradients):
        if gradient is None and materialize_grads:
            gradients[i] = passes.zeros(targets[i])
        elif gradient is None and not allow_unused:
            raise JobError(
                f"grad at {user_line()}: the outputs do not depend on input {i}, {targets[i].tensor_type}; pass allow_unused=True to get None"
            )
    return tuple(gradients)


# -------------------------------------------------------------------- recording


class set_grad_enabled:
    """A switch for the recording of operations for backward: permanent, or inside a `with` block or a decorated function."""

    def __init__(self, mode: bool) -> None:
        here = state()
        self.mode = bool(mode)
        self.before = here.grad_enabled
        here.grad_enabled = self.mode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state().grad_enabled = self.before

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        state().grad_enabled = self.before
        return _decorated(function, self.mode)


class _Mode:
    """Base class of re-entrant `with` blocks and decorators that switch the recording of operations for backward."""

    mode: bool

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else _decorated(function, cls.mode)

    def __enter__(self) -> Self:
        own = state().own
        own.modes.append(own.grad_enabled)
        own.grad_enabled = self.mode
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        own = state().own
        own.grad_enabled = own.modes.pop()

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        return _decorated(function, self.mode)


class no_grad(_Mode):
    """A `with` block or decorator inside which operations are not recorded for backward.

    Examples:
        >>> x = flow.ones(2, requires_grad=True)
        >>> with flow.no_grad():
        ...     y = x * 2
        ...
        >>> y.requires_grad
        False
    """

    mode = False


inference_mode = no_grad


class enable_grad(_Mode):
    """A `with` block or decorator inside which operations are recorded for backward, even within no_grad."""

    mode = True


def _decorated(function: Callable[Parameters, Result], mode: bool) -> Callable[Parameters, Result]:
    @wraps(function)
    def inside(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        with enable_grad() if mode else no_grad():
            return function(*arguments, **options)

    return inside


def is_grad_enabled() -> bool:
    """Return True if operations are currently recorded for backward."""
    return state().grad_enabled


# -------------------------------------------------------------------- NaN in gradients


class set_detect_anomaly:
    """A switch for the detection of NaN in gradients: permanent, or inside a `with` block.

    Operations record the user's line while the switch is on.  Backward raises an error if a gradient contains NaN or cannot be computed; the
    error names the operation and the line of its forward call.  Every rank with a piece of the gradient raises the error.  `check_nan=False`
    omits the search for NaN.

    Jobs and graphs that are called while the switch is on raise JobError if a gradient or a result contains NaN, before variables change.  The error
    names the instruction that computed the first NaN.
    Raises: ArgumentError unless both arguments are True or False.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        for name, value in (("mode", mode), ("check_nan", check_nan)):
            if not isinstance(value, bool):
                raise ArgumentError(f"set_detect_anomaly at {user_line()}: {name} must be True or False; got {value!r}")
        self.before = anomalies.enabled, anomalies.check_nan
        anomalies.enabled, anomalies.check_nan = mode, check_nan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        anomalies.enabled, anomalies.check_nan = self.before


class detect_anomaly:
    """A `with` block inside which set_detect_anomaly(True) applies."""

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan
        self.inside: list[set_detect_anomaly] = []

    def __enter__(self) -> Self:
        self.inside.append(set_detect_anomaly(True, self.check_nan))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.inside.pop().__exit__(kind, error, trace)


def is_anomaly_enabled() -> bool:
    """Return True if gradients are checked for anomalies."""
    return anomalies.enabled


# -------------------------------------------------------------------- tensors and the graph of gradients


def _requires_grad(x: Tensor) -> bool:
    """True if backward computes a gradient for x, or for a tensor that x depends on."""
    return x._needs_gradient if x.base is None else follow(x)


def _set_requires_grad(x: Tensor, value: bool) -> None:
    what = f"requires_grad at {user_line()}"
    if not isinstance(value, bool | np.bool_):
        raise DtypeError(f"{what}: the value must be True or False; got {value!r}")
    if not x.is_leaf:
        remedy = "use detach().requires_grad_()" if value else "use detach()"
        raise JobError(f"{what}: requires_grad of a computed tensor ({x.node!r}) follows from its inputs and cannot be set; {remedy}")
    requires_grad_(x, bool(value))


def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
    """Set whether backward computes a gradient for x, and return x.

    Raises: DtypeError unless x is a floating point tensor; JobError for `requires_grad=False` and a computed tensor.
    """
    if requires_grad and not x.dtype.is_float:
        raise DtypeError(f"requires_grad_ at {user_line()}: only floating point tensors have gradients; got {x.tensor_type}; use x.float()")
    if not requires_grad and x.node is not None:
        raise JobError(f"requires_grad_ at {user_line()}: requires_grad of a computed tensor ({x.node!r}) cannot be switched off; use detach()")
    tracer = building_now()
    if tracer is not None and tracer.differentiates:
        tracer.require_gradient(x, bool(requires_grad))
    x._needs_gradient = bool(requires_grad)
    return x


def _grad(x: Tensor) -> Tensor | None:
    """The gradient accumulated by backward for x; None before the first backward."""
    tracer = building_now()
    return tracer.gradient_of(x) if tracer is not None and tracer.differentiates else x._gradient


def _set_grad(x: Tensor, gradient: Tensor | None) -> None:
    if gradient is not None:
        _check_grad(x, gradient)
    tracer = building_now()
    if tracer is not None and tracer.differentiates:
        tracer.hold_gradient(x)
    x._gradient = gradient


def _check_grad(x: Tensor, gradient: Tensor) -> None:
    """Raise an error unless `gradient` is another tensor with the shape, element type and placement of x, as optimizers require."""
    what = f"grad at {user_line()}"
    if not isinstance(gradient, Tensor):
        raise DtypeError(f"{what}: the gradient of {x.tensor_type} must be a tensor or None; got {described(gradient)}")
    if gradient is x:
        raise JobError(f"{what}: a tensor cannot be its own gradient; use x.clone()")
    if gradient.traced is not None and not building_now().differentiates:
        raise JobError(f"{what}: {gradient.tensor_type} has no values while {running()} runs; {NOT_IN_GRAPHS}")
    if gradient.tensor_type.shape != x.tensor_type.shape:
        raise ShapeError(f"{what}: the gradient {gradient.tensor_type} does not have the shape of its tensor {x.tensor_type}")
    if gradient.tensor_type.dtype is not x.tensor_type.dtype:
        raise DtypeError(
            f"{what}: the gradient {gradient.tensor_type} does not have the element type of its tensor {x.tensor_type}; cast it: "
            f"grad.to({x.tensor_type.dtype})"
        )
    if None in (gradient.layout, x.layout) and gradient.layout is not x.layout:
        kinds = ["local" if each.layout is None else f"global, {each.layout}" for each in (gradient, x)]
        raise PlacementError(f"{what}: the gradient is {kinds[0]}, but the tensor {x.tensor_type} is {kinds[1]}; use to_global or to_local")
    if gradient.layout is not None and x.layout is not None and gradient.layout.placement != x.layout.placement:
        raise PlacementError(
            f"{what}: the gradient is on {gradient.layout}, but the tensor {x.tensor_type} is on {x.layout}; use grad.to_global(placement=...)"
        )
    traced = gradient.traced is not None or x.traced is not None
    if not traced and x.layout is None and state().gpus and gpu_of(gradient.array) is not gpu_of(x.array):
        raise PlacementError(
            f"{what}: the gradient is on {device_name(gradient.array)}, but the tensor {x.tensor_type} is on {device_name(x.array)}; "
            f"use grad.to({device_name(x.array)!r})"
        )


def without_gradient(x: Tensor, share: Callable[[Tensor, Tensor], None]) -> Tensor:
    """Return a tensor with the memory of x, detached from the autograd graph; `share(x, result)` registers the shared memory."""
    if building_now() is not None:
        return run(Detach(), x)
    result = Tensor.new(x.tensor_type, x.layout, x.array)
    result._device, result._provenance = x._device, x._provenance
    share(x, result)
    return result


def detach(x: Tensor) -> Tensor:
    """Return a tensor with the memory of x, detached from the autograd graph."""
    return without_gradient(x, Tensor.shares)


def detach_(x: Tensor) -> Tensor:
    """Detach x from the autograd graph in place, and return x."""
    x._needs_gradient, x.node, x.index = False, None, 0
    return x


def clone(x: Tensor, *, memory_format: Any = None) -> Tensor:
    """Return a copy of x; gradients flow through the copy.  `memory_format` has no effect."""
    check_format("clone", memory_format, len(x.tensor_type.shape))
    return run(Copy(), x)


def retain_grad(x: Tensor) -> None:
    """Store the gradient of a computed tensor in its `grad` during backward.

    Raises: JobError unless x requires gradients.
    """
    tensors_of("retain_grad", "x", x)
    if not x._needs_gradient:
        raise JobError(f"retain_grad at {user_line()}: the tensor {x.tensor_type} does not require gradients; call requires_grad_() first")
    if x.node is not None:
        x.node.retained[x.index] = weakref.ref(x)


class RemovableHandle:
    """The handle of a registered hook; `remove()` removes the hook."""

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.hooks = hooks
        self.id = next(_hooks)

    def remove(self) -> None:
        """Remove the hook; later calls have no effect."""
        self.hooks.pop(self.id, None)


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Register `hook`, which backward calls with the gradient of x, and return a handle that removes the hook.

    A tensor that the hook returns replaces the gradient.  Raises: ArgumentError unless `hook` is callable, JobError unless x requires gradients.
    """
    tensors_of("register_hook", "x", x)
    if not callable(hook):
        raise ArgumentError(f"register_hook at {user_line()}: hook must be a function of the gradient; got {type(hook).__name__}")
    if not x._needs_gradient:
        raise JobError(f"register_hook at {user_line()}: the tensor {x.tensor_type} does not require gradients; call requires_grad_() first")
    if x.node is not None:
        hooks = x.node.hooks.setdefault(x.index, {})
    else:
        hooks = x.hooks = {} if x.hooks is None else x.hooks
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class GradientMethods:
    """Methods of tensors for gradients."""

    __slots__ = ()

    backward = method(backward)
    clone = method(clone)
    detach = method(detach)
    detach_ = method(detach_)
    grad = attribute(_grad, _set_grad)
    register_hook = method(register_hook)
    requires_grad = attribute(_requires_grad, _set_requires_grad)
    requires_grad_ = method(requires_grad_)
    retain_grad = method(retain_grad)
