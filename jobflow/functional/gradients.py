"""backward, requires_grad, detach, and hooks on gradients."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, ShapeError, user_line
from jobflow.core.types import Typed
from jobflow.eager import backward as passes
from jobflow.eager.parameters import described
from jobflow.eager.run import recorder, run
from jobflow.eager.state import building_now, running, state
from jobflow.eager.tape import anomalies, follow
from jobflow.functional.dispatch import attribute, method
from jobflow.functional.typed import Tensor
from jobflow.ops.layout_ops import Copy
from jobflow.ops.scalar import Detach

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
    """Add the gradient of x, times `gradient`, to the `grad` of every leaf that it was made of, or of the `inputs` only.

    A tensor of one element has 1.0 as gradient.  The graph is gone after that unless `retain_graph`, which is on with `create_graph`:
    this records the gradients' own computation, for gradients of gradients.
    """
    tracer = building_now()
    if x.traced is not None and (tracer is None or not tracer.differentiates):
        if create_graph or inputs is not None:
            raise JobError(f"backward at {user_line()}: create_graph and inputs are for gradients that are taken at once; {NOT_IN_GRAPHS}")
        recorder(state(), "backward").backward(x, gradient)
        return
    into = None if inputs is None else tensors_of("backward", "inputs", inputs)
    passes.backward([x], [gradient], keep=bool(retain_graph), create=create_graph, into=into)


#: why some of this is an error while a graph is built
NOT_IN_GRAPHS = "in nn.Graph.build, loss.backward() and the graph's optimizers say what gradients are for, in a job an optimizer's minimize"


def tensors_of(what: str, name: str, given: Any) -> list[Tensor]:
    """A tensor, or several, as a list; ArgumentError for anything else, JobError for those of a graph that is being built."""
    several = isinstance(given, Iterable) and not isinstance(given, Tensor | Typed | np.ndarray)
    found = list(given) if several else [given]
    for x in found:
        if isinstance(x, Typed):
            raise JobError(f"{what} at {user_line()}: {x.tensor_type} is a tensor of a job; call an optimizer's minimize instead")
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: {name} must be a tensor, or several; got {type(x).__name__}")
        if x.traced is not None and not building_now().differentiates:
            raise JobError(f"{what} at {user_line()}: {x.tensor_type} has no numbers while {running()} runs; {NOT_IN_GRAPHS}")
    return found


def seeds_of(what: str, name: str, given: Any, roots: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients that are given for `roots`, None where 1.0 is meant."""
    if given is None:
        return [None] * len(roots)
    found = [given] if isinstance(given, Tensor) else list(given)
    if len(found) != len(roots):
        raise ArgumentError(f"{what} at {user_line()}: {len(found)} {name} for {len(roots)} tensors")
    return found


def grad(
    outputs: Tensor | Iterable[Tensor],
    inputs: Tensor | Iterable[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    *,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs' sum with respect to the inputs, lying as these; no `grad` changes.

    Raises: JobError for an input that the outputs do not depend on, unless `allow_unused`, which gives None there, or
    `materialize_grads`, which gives zeros.
    """
    roots, wanted = tensors_of("grad", "outputs", outputs), tensors_of("grad", "inputs", inputs)
    given = seeds_of("grad", "grad_outputs", grad_outputs, roots)
    for i, x in enumerate(wanted):
        if not x._needs_gradient:
            raise JobError(f"grad at {user_line()}: input {i}, {x.tensor_type}, does not require gradients")
    found = passes.backward(roots, given, keep=bool(retain_graph), create=create_graph, only=wanted)
    for i, gradient in enumerate(found):
        if gradient is None and materialize_grads:
            found[i] = passes.zeros(wanted[i])
        elif gradient is None and not allow_unused:
            raise JobError(
                f"grad at {user_line()}: the outputs do not depend on input {i}, {wanted[i].tensor_type}; allow_unused=True gives None for it"
            )
    return tuple(found)


# -------------------------------------------------------------------- what is recorded


class set_grad_enabled:
    """Record for backward from now on, or do not; as a `with` block or a decorator, only inside."""

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
    """Record for backward inside, or do not; a `with` block that may be entered again, or a decorator."""

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
    """Nothing is recorded for backward inside; a `with` block, or a decorator."""

    mode = False


inference_mode = no_grad


class enable_grad(_Mode):
    """What is done inside is recorded for backward, also within no_grad; a `with` block, or a decorator."""

    mode = True


def _decorated(function: Callable[Parameters, Result], mode: bool) -> Callable[Parameters, Result]:
    @wraps(function)
    def inside(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        with enable_grad() if mode else no_grad():
            return function(*arguments, **options)

    return inside


def is_grad_enabled() -> bool:
    """Whether what is done now is recorded for backward."""
    return state().grad_enabled


# -------------------------------------------------------------------- NaN in gradients


class set_detect_anomaly:
    """Look for NaN in gradients from now on, or do not; as a `with` block only inside.

    What is recorded meanwhile remembers the user's line.  A gradient that has NaN, or that fails, is then an error that names the
    operation and the line of its forward call, on every rank that has some of the gradient.  With `check_nan=False` only failing ones.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = anomalies.enabled, anomalies.check_nan
        anomalies.enabled, anomalies.check_nan = bool(mode), bool(check_nan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        anomalies.enabled, anomalies.check_nan = self.before


class detect_anomaly:
    """`with detect_anomaly():` is set_detect_anomaly(True) inside."""

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan
        self.inside: list[set_detect_anomaly] = []

    def __enter__(self) -> Self:
        self.inside.append(set_detect_anomaly(True, self.check_nan))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.inside.pop().__exit__(kind, error, trace)


def is_anomaly_enabled() -> bool:
    """Whether NaN in gradients is looked for."""
    return anomalies.enabled


# -------------------------------------------------------------------- tensors and the graph of gradients


def _requires_grad(x: Tensor) -> bool:
    """Whether backward has a gradient for x, or for what it was made of."""
    return x._needs_gradient if x.base is None else follow(x)


def _set_requires_grad(x: Tensor, given: bool) -> None:
    what = f"requires_grad at {user_line()}"
    if not isinstance(given, bool | np.bool_):
        raise DtypeError(f"{what}: it is True or False; got {given!r}")
    if not x.is_leaf:
        remedy = "detach() gives a tensor whose it can be" if given else "use detach()"
        raise JobError(f"{what}: that of a computed tensor ({x.node!r}) follows from what it was made of, and cannot be set; {remedy}")
    requires_grad_(x, bool(given))


def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
    """x, which backward gives a gradient from now on, or does not."""
    if requires_grad and not x.dtype.is_float:
        raise DtypeError(f"requires_grad_ at {user_line()}: only floating point tensors have gradients; this is {x.tensor_type}")
    if not requires_grad and x.node is not None:
        raise JobError(f"requires_grad_ at {user_line()}: requires_grad of a computed tensor ({x.node!r}) cannot be switched off; use detach()")
    x._needs_gradient = bool(requires_grad)
    return x


def _grad(x: Tensor) -> Tensor | None:
    """What backward has added up for x; None before the first time."""
    tracer = building_now()
    return tracer.gradient_of(x) if tracer is not None and tracer.differentiates else x._gradient


def _set_grad(x: Tensor, given: Tensor | None) -> None:
    if given is not None:
        _check_grad(x, given)
    tracer = building_now()
    if tracer is not None and tracer.differentiates:
        tracer.hold_gradient(x)
    x._gradient = given


def _check_grad(x: Tensor, given: Tensor) -> None:
    """An error for what no optimizer could step x by, at the line that assigns it."""
    what = f"grad at {user_line()}"
    if not isinstance(given, Tensor):
        raise DtypeError(f"{what}: the gradient of {x.tensor_type} is a tensor, or None; got {described(given)}")
    if given is x:
        raise JobError(f"{what}: a tensor cannot be its own gradient; x.clone() can")
    if given.traced is not None and not building_now().differentiates:
        raise JobError(f"{what}: {given.tensor_type} has no numbers while {running()} runs; {NOT_IN_GRAPHS}")
    if given.tensor_type.shape != x.tensor_type.shape:
        raise ShapeError(f"{what}: {given.tensor_type} is not of the shape of the tensor {x.tensor_type} whose gradient it is to be")
    if given.tensor_type.dtype is not x.tensor_type.dtype:
        raise DtypeError(
            f"{what}: {given.tensor_type} is not of the element type of the tensor {x.tensor_type}; cast it: grad.to({x.tensor_type.dtype})"
        )
    if None in (given.layout, x.layout) and given.layout is not x.layout:
        kinds = ["local" if each.layout is None else f"global, {each.layout}" for each in (given, x)]
        raise PlacementError(f"{what}: the gradient is {kinds[0]}, the tensor {x.tensor_type} is {kinds[1]}; use to_global or to_local")
    if given.layout is not None and x.layout is not None and given.layout.placement != x.layout.placement:
        raise PlacementError(
            f"{what}: the gradient is on {given.layout}, the tensor {x.tensor_type} on {x.layout}; use grad.to_global(placement=...)"
        )


def without_gradient(x: Tensor, tie: Callable[[Tensor, Tensor], None]) -> Tensor:
    """x in the same memory, without what made it; `tie` notes that the second tensor looks at the memory of the first."""
    if building_now() is not None:
        return run(Detach(), x)
    made = Tensor.new(x.tensor_type, x.layout, x.array)
    made._device, made.origin = x._device, x.origin
    tie(x, made)
    return made


def detach(x: Tensor) -> Tensor:
    """x, in the same memory, as a tensor that no gradient goes through."""
    return without_gradient(x, Tensor.shares)


def detach_(x: Tensor) -> Tensor:
    """x, which forgets what made it."""
    x._needs_gradient, x.node, x.index = False, None, 0
    return x


def clone(x: Tensor) -> Tensor:
    """x in memory of its own; gradients go through."""
    return run(Copy(), x)


def retain_grad(x: Tensor) -> None:
    """Keep the gradient that backward finds for x, though others made it."""
    tensors_of("retain_grad", "x", x)
    if not x._needs_gradient:
        raise JobError(f"retain_grad at {user_line()}: the tensor {x.tensor_type} does not require gradients")
    if x.node is not None:
        x.node.retained[x.index] = weakref.ref(x)


class RemovableHandle:
    """Takes a hook off again: `remove()`."""

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.hooks = hooks
        self.id = next(_hooks)

    def remove(self) -> None:
        """Take it off; no harm in doing so twice."""
        self.hooks.pop(self.id, None)


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook` with the gradient of x when backward gets there; what it returns, if not None, goes on instead."""
    tensors_of("register_hook", "x", x)
    if not callable(hook):
        raise ArgumentError(f"register_hook at {user_line()}: a hook is a function of the gradient, not {type(hook).__name__}")
    if not x._needs_gradient:
        raise JobError(f"register_hook at {user_line()}: the tensor {x.tensor_type} does not require gradients")
    if x.node is not None:
        hooks = x.node.hooks.setdefault(x.index, {})
    else:
        hooks = x.hooks = {} if x.hooks is None else x.hooks
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class GradientMethods:
    """Methods of tensors: gradients."""

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
