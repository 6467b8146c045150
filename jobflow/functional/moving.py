"""Where tensors lie: to_global, to_local, copies to NumPy, devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.eager import crossing
from jobflow.eager.convert import gathered
from jobflow.eager.run import recorder
from jobflow.eager.state import state
from jobflow.eager.tensor import Tensor, method
from jobflow.errors import JobError, user_line
from jobflow.layout import Layout
from jobflow.placements import placement as public_placement
from jobflow.placements import sbp_tuple
from jobflow.types import Array


def layout_of(what: str, placement: public_placement | None, sbp: Any, ndim: int) -> Layout | None:
    """The layout that `placement=` and `sbp=` of a function mean; None without them.  JobError for one without the other."""
    if placement is None and sbp is None:
        return None
    if placement is None or sbp is None:
        raise JobError(f"{what} at {user_line()}: a global tensor needs both placement= and sbp=; got placement={placement!r}, sbp={sbp!r}")
    if not isinstance(placement, public_placement):
        raise JobError(f"{what} at {user_line()}: placement= takes a jobflow.placement; got {placement!r}")
    return Layout(placement.core, sbp_tuple(sbp, placement.core, f"{what} at {user_line()}", ndim))


@method()
def to_global(
    x: Tensor, placement: public_placement | None = None, sbp: Any = None, *, grad_sbp: Any = None, check_meta: bool = True, copy: bool = False
) -> Tensor:
    """x on other ranks or in another layout; of a local tensor, the global one that all ranks' tensors make together.

    What is left out of `placement` and `sbp` stays as it is; a local tensor needs both.  The gradient comes back as x lies, through
    `grad_sbp` if that is given.  Every rank calls it, also those outside the placements.  `check_meta=False` does not compare the
    ranks' shapes: all must be equal then.
    Raises: ShapeError if the ranks' tensors do not fit together, SbpError, PlacementError.
    """
    here = state()
    what = f"to_global at {user_line()}"
    if x.layout is None and x.symbol is None:
        target = layout_of("to_global of a local tensor", placement, sbp, x.ndim)
        if target is None:
            raise JobError(f"{what}: a local tensor becomes global on a placement= and in an sbp=")
        if here.building is not None:
            raise JobError(f"{what}: a local tensor in nn.Graph.build; make it global before the graph is called")
        return crossing.enter(here, x, target, check=check_meta, copy=copy)
    assert x.layout is not None
    where = x.layout.placement if placement is None else placement.core
    kept = x.layout.sbp if sbp is None else sbp
    target = Layout(where, sbp_tuple(kept, where, what, x.ndim))
    back = None if grad_sbp is None else sbp_tuple(grad_sbp, where, f"{what}, grad_sbp", x.ndim)
    made = crossing.change(here, x, target, back)
    return Tensor(made.type, made.layout, made.array.copy()) if copy and made is x else made


@method()
def to_local(x: Tensor, *, copy: bool = False) -> Tensor:
    """This rank's piece of a global tensor: of a partial one its addend; outside the placement, an empty tensor.  It shares memory unless `copy`."""
    if x.symbol is not None:
        made: Tensor = recorder(state(), "to_local").leave(x)
        return made
    if x.layout is None:
        raise JobError(f"to_local at {user_line()}: the tensor is local already")
    return crossing.leave(state(), x, copy=copy)


def value_of(x: Tensor, what: str) -> Array:
    """The numbers of x, whole; of a global tensor on every rank, all of which call it."""
    if x.symbol is not None:
        raise JobError(f"{what} at {user_line()}: a tensor has no numbers while nn.Graph.build runs; return it from build")
    if x.layout is None:
        return x.array
    return gathered(state(), x, what)


@method()
def numpy(x: Tensor) -> Array:
    """A NumPy array with the logical value; of a global tensor every rank calls it and gets it.  A local tensor on the host shares memory."""
    if x.requires_grad and state().grad_enabled and x.layout is None:
        return np.array(x.array)
    return value_of(x, "numpy()")


@method()
def item(x: Tensor) -> Any:
    """The only element as a Python number."""
    if x.type.size != 1:
        raise JobError(f"item at {user_line()}: the tensor {x.type} has {x.type.size} elements, not one")
    return value_of(x, "item()").reshape(()).item()


@method()
def tolist(x: Tensor) -> Any:
    """Nested lists of Python numbers."""
    return value_of(x, "tolist()").tolist()


@method("__repr__", "__str__")
def shown(x: Tensor) -> str:
    """The values, where they lie, and what they are."""
    if x.symbol is not None:
        return f"tensor(..., {x.layout}, size={tuple(x.shape)}, dtype={x.dtype!r})"
    parts = [np.array2string(value_of(x, "print"), separator=", ", prefix="tensor(", precision=4, threshold=1000)]
    if x.layout is not None:
        parts += [f"placement={x.placement!r}", f"sbp={x.sbp!r}"]
    parts.append(f"dtype={x.dtype!r}")
    if x.node is not None:
        parts.append(f"grad_fn={x.node!r}")
    elif x.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({', '.join(parts)})"


@method("__format__")
def formatted(x: Tensor, spec: str) -> str:
    """A single element takes a format of numbers."""
    return format(item(x), spec) if spec and x.type.size == 1 else shown(x)
