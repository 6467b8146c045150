"""Layout requests of job functions: `split(axis)`, `broadcast()`, `auto()`.

Programs compare requests with `is`, so there is one object for `broadcast()`, one for `auto()`, and one per axis for `split(axis)`.

    split(axis)   each device has a piece along the axis    S(axis)
    broadcast()   each device has the whole tensor          B
    auto()        layout inference chooses the layout
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, SbpError, user_line
from jobflow.core.layout import B, P, Placement, S, Sbp, Split
from jobflow.core.notices import notice
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.layout_ops import GradientLayout, Identity, ToLayout, to_layout
from jobflow.ops.op import Op, apply


@dataclass(frozen=True, eq=False)
class Distribute:
    """A layout request for one tensor; `axis` is None unless the tensor is to be split."""

    kind: str
    axis: int | None = None

    def __repr__(self) -> str:
        return f"jobflow.distribute.{self.kind}({'' if self.axis is None else f'axis={self.axis}'})"

    @property
    def sbp(self) -> Sbp | None:
        """S(axis), B, or None for layout inference."""
        if self.axis is not None:
            return S(self.axis)
        return B if self is broadcast() else None


@cache
def _split(axis: int) -> Distribute:
    return Distribute("split", axis)


def split(axis: int) -> Distribute:
    """Request balanced pieces along `axis`, one per device."""
    if type(axis) is not int:
        raise ArgumentError(f"distribute.split at {user_line()}: axis must be an int, not {axis!r}")
    return _split(axis)


@cache
def broadcast() -> Distribute:
    """Request the whole tensor on each device."""
    return Distribute("broadcast")


@cache
def auto() -> Distribute:
    """Return the request that leaves the layout to the compiler."""
    return Distribute("auto")


#: One entry per mesh dimension: a `Distribute`, or "S(0)", "B", "P".
ParallelDistribution: TypeAlias = Sequence["Distribute | str"]

_SPELLING = re.compile(r"\s*(?:S\((-?\d+)\)|(B)|(P))\s*\Z")


def assert_is_valid_distribute(distribute: object) -> None:
    """Raise ArgumentError, which is an AssertionError, unless the object is a `Distribute`."""
    if not isinstance(distribute, Distribute):
        raise ArgumentError(f"distribute at {user_line()}: {distribute!r} is not a layout request; use distribute.split(axis), broadcast() or auto()")


def read_sbp(text: str, what: str) -> Sbp:
    """Parse "S(axis)", "B" or "P"; raise SbpError for another string."""
    match = _SPELLING.match(text)
    if match is None:
        raise SbpError(f'{what} at {user_line()}: {text!r} is not an sbp; write "S(0)", "B" or "P"')
    if match[1] is not None:
        return S(int(match[1]))
    return B if match[2] else P


def current_placement(what: str) -> Placement:
    """Return the current placement; raise JobError outside of a job."""
    here = scope.current()
    placement = here.placement or getattr(here.interpreter, "placement", None)
    if not isinstance(placement, Placement):
        raise JobError(f"{what} at {user_line()}: called outside a job, where there is no placement; call it in the body of a job")
    return placement


def mesh_sbp(what: str, wish: Distribute | str | ParallelDistribution, type: TensorType, placement: Placement) -> tuple[Sbp, ...]:
    """Return one sbp per mesh dimension; `wish` is one request for all dimensions, or a list with one request for each.

    `auto()` becomes B.  Raises: SbpError for another number of requests, or for an axis that the tensor does not have.
    """
    each: list[Any] = list(wish) if isinstance(wish, list | tuple) else [wish]
    if len(each) == 1:
        each *= len(placement.mesh)
    if len(each) != len(placement.mesh):
        raise SbpError(
            f"{what} at {user_line()}: {len(each)} entries {each} for a placement {placement} of {len(placement.mesh)} mesh dimensions; "
            f"pass one per dimension"
        )
    return tuple(_checked(what, one, type) for one in each)


def _checked(what: str, spec: Distribute | str, type: TensorType) -> Sbp:
    if isinstance(spec, str):
        sbp = read_sbp(spec, what)
    else:
        assert_is_valid_distribute(spec)
        sbp = spec.sbp or B
    if not isinstance(sbp, Split):
        return sbp
    if not -type.ndim <= sbp.axis < type.ndim:
        axes = "has no axes; use distribute.broadcast()" if not type.ndim else f"has the axes 0 to {type.ndim - 1}; split one of these"
        raise SbpError(f"{what} at {user_line()}: {spec} names axis {sbp.axis}, but the tensor {type} {axes}")
    return S(sbp.axis % type.ndim)


def with_distribute(value: Tensor, distribute: Distribute) -> Tensor:
    """Return another handle of the tensor; operations that read this handle receive the tensor in the layout `distribute`.

    Requests on the original handle do not apply to the new handle.  `auto()` removes the request.  Tensors of the mirrored view ignore requests.
    """
    assert_is_valid_distribute(distribute)
    value = _before_hints(value)
    if distribute is auto() or is_local(value):
        return value
    return to_layout(
        value, *mesh_sbp("with_distribute", distribute, value.tensor_type, current_placement("with_distribute")), requested_by="with_distribute"
    )


def _before_hints(value: Tensor) -> Tensor:
    """Return the handle of the tensor before any call of `with_distribute`."""
    body = scope.current().interpreter
    while isinstance(op := getattr(getattr(value, "node", None), "op", None), ToLayout) and op.requested_by == "with_distribute":
        value = body.handle(value.node.inputs[0])  # type: ignore[union-attr, attr-defined]
    return value


def is_local(value: Tensor) -> bool:
    """Return True for a value of the mirrored view; layout requests do not apply to it, because each rank has a separate tensor."""
    return bool(getattr(value, "local", False))


def asked_of(value: Tensor) -> tuple[Sbp | None, ...]:
    """Return the layout requested of this handle, with one sbp per mesh dimension; () if neither `with_distribute` nor a cast requested one."""
    op = getattr(getattr(value, "node", None), "op", None)
    return op.sbp if isinstance(op, ToLayout) else ()


def distribute_of(value: Tensor) -> Distribute:
    """Return the layout request of this handle as one `Distribute`; `auto()` without a request, or if the sbps of mesh dimensions differ."""
    requests = asked_of(value)
    if len(set(requests)) != 1:
        return auto()
    spec = requests[0]
    if isinstance(spec, Split):
        return split(spec.axis)
    return broadcast() if spec is B else auto()


def parallel_cast(
    input: Tensor, name: str | None = None, distribute: Distribute | None = None, gradient_distribute: Distribute | None = None
) -> Tensor:
    """Return `input` in the layout `distribute`; the gradient is redistributed to `gradient_distribute`, or its layout is inferred."""
    return _cast("parallel_cast", input, name, distribute or auto(), gradient_distribute)


def hierarchical_parallel_cast(
    input: Tensor,
    parallel_distribution: ParallelDistribution,
    grad_mode: str | None = None,
    grad_parallel_distribution: ParallelDistribution | None = None,
    name: str | None = None,
) -> Tensor:
    """Return `input` in the layout `parallel_distribution`, with one entry ("S(0)", "B" or a distribute) per mesh dimension.

    On one mesh dimension, an empty list leaves `input` unchanged. With grad_mode "manual", the gradient is redistributed to
    `grad_parallel_distribution`. With "restore", "identity", "auto" and None, its layout is inferred.
    """
    if grad_mode not in (None, "manual", "restore", "identity", "auto"):
        raise ArgumentError(f"hierarchical_parallel_cast at {user_line()}: grad_mode is {grad_mode!r}; use manual, restore, identity or auto")
    if (grad_mode == "manual") != (grad_parallel_distribution is not None):
        missing = "grad_mode 'manual' requires grad_parallel_distribution; pass it, or omit grad_mode"
        extra = f"grad_parallel_distribution has no effect with grad_mode {grad_mode!r}; pass grad_mode 'manual', or omit the layout"
        raise ArgumentError(f"hierarchical_parallel_cast at {user_line()}: {missing if grad_mode == 'manual' else extra}")
    return _cast("hierarchical_parallel_cast", input, name, parallel_distribution, grad_parallel_distribution)


def _cast(
    what: str,
    x: Tensor,
    name: str | None,
    spec: Distribute | ParallelDistribution,
    gradient: Distribute | ParallelDistribution | None,
) -> Tensor:
    spec, gradient = _free_if_empty(spec), _free_if_empty(gradient)
    free = gradient is None or gradient is auto()
    if is_local(x) or (free and spec is auto()):
        return _apply(Identity(), x, name)
    placement = current_placement(what)
    grad = None if gradient is None or free else mesh_sbp(f"{what} (gradient)", gradient, x.tensor_type, placement)
    if spec is not auto():
        return to_layout(x, *mesh_sbp(what, spec, x.tensor_type, placement), grad=grad, requested_by=what, name=name)
    assert grad is not None
    return _apply(GradientLayout(grad), x, name)


def _free_if_empty(spec: Any) -> Any:
    """Return `auto()` for an empty list on a mesh of one dimension, and other requests unchanged."""
    empty = isinstance(spec, list | tuple) and not spec
    return auto() if empty and len(current_placement("hierarchical_parallel_cast").mesh) == 1 else spec


def _apply(op: Op, x: Tensor, name: str | None) -> Tensor:
    return apply(op, x, name=name)


# Names of older releases ------------------------------------------------------------------------------------------------------


def consistent_strategy() -> scope.consistent_view:
    """Return `scope.consistent_view()`, and print a notice that this function has an old name."""
    notice("distribute.consistent_strategy is the old name of scope.consistent_view")
    return scope.consistent_view()


def mirrored_strategy() -> scope.mirrored_view:
    """Return `scope.mirrored_view()`, and print a notice that this function has an old name."""
    notice("distribute.mirrored_strategy is the old name of scope.mirrored_view")
    return scope.mirrored_view()


def consistent_strategy_enabled() -> bool:
    """Return `scope.consistent_view_enabled()`, and print a notice that this function has an old name."""
    notice("distribute.consistent_strategy_enabled is the old name of scope.consistent_view_enabled")
    return scope.consistent_view_enabled()


def mirrored_strategy_enabled() -> bool:
    """Return `scope.mirrored_view_enabled()`, and print a notice that this function has an old name."""
    notice("distribute.mirrored_strategy_enabled is the old name of scope.mirrored_view_enabled")
    return scope.mirrored_view_enabled()
