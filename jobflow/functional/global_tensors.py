"""Placement and devices of tensors: to_global, to_local, to, cpu, cuda."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, JobError, PlacementError, user_line
from jobflow.core.layout import Layout
from jobflow.eager import crossing
from jobflow.eager.recording import lying
from jobflow.eager.run import recorder, run
from jobflow.eager.state import building_now, running, state
from jobflow.eager.tensor import shows
from jobflow.engine.placements import on_host, sbp_tuple
from jobflow.engine.placements import placement as public_placement
from jobflow.functional import devices as where
from jobflow.functional.casting import named
from jobflow.functional.dispatch import attribute, method
from jobflow.functional.gradients import clone, without_gradient
from jobflow.functional.promotion import cast
from jobflow.functional.typed import Tensor
from jobflow.functional.values import numpy as numpy
from jobflow.functional.values import value_of as value_of
from jobflow.ops.layout_ops import Copy

__all__ = [
    "global_to_global", "local_to_global", "to_global", "to_local",
]  # fmt: skip


def layout_of(what: str, placement: public_placement | None, sbp: Any, ndim: int) -> Layout | None:
    """The layout that `placement=` and `sbp=` of a function mean; None without them.  JobError for one without the other."""
    if placement is None and sbp is None:
        return None
    if placement is None or sbp is None:
        raise JobError(f"{what} at {user_line()}: a global tensor needs both placement= and sbp=; got placement={placement!r}, sbp={sbp!r}")
    if not isinstance(placement, public_placement):
        raise JobError(f"{what} at {user_line()}: placement= takes a jobflow.placement; got {placement!r}")
    return Layout(placement.core, sbp_tuple(sbp, placement.core, f"{what} at {user_line()}", ndim))


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
    if x.layout is None:
        target = layout_of("to_global of a local tensor", placement, sbp, x.ndim)
        if target is None:
            raise JobError(f"{what}: placement= and sbp= are needed to make a local tensor global")
        if here.building is not None:
            return crossing.change(here, x, target)
        return crossing.enter(here, x, target, check=check_meta, copy=copy)
    assert x.layout is not None
    place = x.layout.placement if placement is None else placement.core
    kept = x.layout.sbp if sbp is None else sbp
    target = Layout(place, sbp_tuple(kept, place, what, x.ndim))
    back = None if grad_sbp is None else sbp_tuple(grad_sbp, place, f"{what}, grad_sbp", x.ndim)
    made = crossing.change(here, x, target, back)
    return clone(x) if copy and made is x else made


def local_to_global(x: Tensor, placement: public_placement, sbp: Any, *, check_meta: bool = True, copy: bool = False) -> Tensor:
    """The global tensor that all ranks' local ones make together."""
    return to_global(x, placement, sbp, check_meta=check_meta, copy=copy)


def global_to_global(x: Tensor, placement: public_placement | None = None, sbp: Any = None, *, grad_sbp: Any = None, copy: bool = False) -> Tensor:
    """A global tensor on other ranks or in another layout."""
    return to_global(x, placement, sbp, grad_sbp=grad_sbp, copy=copy)


def to_local(x: Tensor, *, copy: bool = False) -> Tensor:
    """This rank's piece of a global tensor: of a partial one its addend; outside the placement, an empty tensor.  It shares memory unless `copy`."""
    if x.traced is not None:
        return recorder(state(), "to_local").leave(x)
    if x.layout is None:
        raise JobError(f"to_local at {user_line()}: the tensor is local already")
    here = state()
    made = crossing.leave(here, x, copy=copy)
    if x.layout.placement.tag == "cuda":
        made._device = where.device("cuda", here.rank.index)
    return made


# -------------------------------------------------------------------- devices


def device(x: Tensor) -> where.device:
    """Where a local tensor lives; JobError for a global one."""
    if x.layout is not None:
        raise JobError(f"{user_line()}: only local tensors have 'device'; this one is global, see its 'placement'")
    return where.device_of(x)


def nbytes(x: Tensor) -> int:
    """Bytes of the logical value."""
    return x.tensor_type.nbytes


def itemsize(x: Tensor) -> int:
    """Bytes of an element."""
    return x.dtype.itemsize


def is_cuda(x: Tensor) -> bool:
    """Whether it is said to live on a GPU."""
    return (where.device_of(x).type if x.layout is None else x.layout.placement.tag) == "cuda"


def cpu(x: Tensor) -> Tensor:
    """x on the host; of a global tensor on a placement of the same ranks' hosts."""
    return _on(x, "cpu", "cpu()")


def cuda(x: Tensor, device: Any = None) -> Tensor:
    """x on a GPU, where there is one; of a global tensor on a placement of the same ranks' GPUs."""
    return _on(x, "cuda" if device is None else device, "cuda()")


def _on(x: Tensor, given: Any, what: str) -> Tensor:
    """x on a device, in memory of its own unless it is there."""
    if x.layout is not None:
        return _of_type(x, given, what)
    target = where.checked_device(what, given)
    assert target is not None
    if x.traced is not None or target == where.device_of(x):
        return x
    return where.marked(run(Copy(), x), target)


def _of_type(x: Tensor, given: Any, what: str) -> Tensor:
    """A global tensor on the same ranks, of another type of device."""
    assert x.layout is not None
    tag = given.type if isinstance(given, where.device) and not given.index else given
    if tag not in where.TYPES:
        raise PlacementError(
            f'{what} at {user_line()}: a global tensor is on a placement, not on {given!r}; use "cpu", "cuda" or to_global(placement=...)'
        )
    place = x.layout.placement
    if tag == "cuda":
        on_host(f"{what} at {user_line()}")
    return x if tag == place.tag else crossing.change(state(), x, replace(x.layout, placement=replace(place, tag=tag)))


def to(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """x as another element type, on another device, as another tensor is, or in another layout.

    x.to(flow.float16)   x.to("cuda")   x.to("cpu", flow.float64)   x.to(y)   x.to(placement=p, sbp=s)
    """
    copy = options.pop("copy", False)
    found = asked_of_to(arguments, options)
    if "device" in found and ("placement" in found or "sbp" in found):
        raise ConfigError(
            f"to at {user_line()}: device={found['device']!r} is for local tensors, placement and sbp for global ones; give one or the other"
        )
    made = cast(x, found["dtype"]) if "dtype" in found else x
    if "device" in found:
        made = _on(made, found["device"], "to")
    if "placement" in found or "sbp" in found:
        made = to_global(made, found.get("placement"), found.get("sbp"))
    return clone(made) if copy and made is x else made


def asked_of_to(arguments: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    """What the arguments of `to` ask for: a dtype, a device, a placement and an sbp, as far as they do."""
    options.pop("non_blocking", None)
    found: dict[str, Any] = {name: options.pop(name) for name in ("dtype", "device", "placement", "sbp") if options.get(name) is not None}
    if any(each is not None for each in options.values()):
        raise ArgumentError(f"to at {user_line()}: it takes dtype, device, placement, sbp and copy; got {sorted(options)}")
    for given in arguments:
        if not isinstance(given, bool) and given is not None:
            found |= _meant(given)
    return found


def _meant(given: Any) -> dict[str, Any]:
    """What an argument of `to` without a name says."""
    if isinstance(given, Tensor):
        if given.layout is not None:
            return {"dtype": given.dtype, "placement": given.placement, "sbp": given.sbp}
        return {"dtype": given.dtype, "device": where.device_of(given)}
    if isinstance(given, public_placement):
        return {"placement": given}
    if where.is_device(given) or isinstance(given, int):
        return {"device": given}
    try:
        return {"dtype": named("to", given)}
    except DtypeError as error:
        raise DtypeError(f'{error}, nor a device ("cpu", "cuda" or "cuda:0")') from None


# -------------------------------------------------------------------- memory


def _data(x: Tensor) -> Tensor:
    """x in the same memory, as a tensor that the graph of gradients does not know."""
    return without_gradient(x, shows)


def _set_data(x: Tensor, given: Tensor) -> None:
    if not isinstance(given, Tensor):
        raise DtypeError(f"data at {user_line()}: it takes a tensor; got {given!r}")
    if building_now() is not None:
        raise JobError(f"data at {user_line()}: no tensor gets other memory while {running()} runs; write over what it has: x.data.copy_(given)")
    x.tensor_type, x.layout, x.array, x._device = given.tensor_type, given.layout, given.array, given._device
    x.origin, x.strides = given.origin, given.strides
    x.wrote()


def contiguous(x: Tensor) -> Tensor:
    """x with its elements in order of their indices in memory; x itself if they are."""
    return x if is_contiguous(x) else clone(x)


def is_contiguous(x: Tensor) -> bool:
    """Whether the elements lie in order of their indices."""
    return bool(lying(x).flags.c_contiguous)


def stride(x: Tensor, dim: int | None = None) -> Any:
    """The distances in memory between elements, in elements; of a local tensor."""
    if x.layout is not None or x.traced is not None:
        raise JobError(f"stride at {user_line()}: a global tensor is not in one memory; see to_local().stride()")
    steps = tuple(step // x.array.itemsize for step in x.array.strides)
    return steps if dim is None else steps[dim]


def storage_offset(x: Tensor) -> int:
    """Where in the memory of the tensor that it is a view of a local tensor begins, in elements."""
    if x.layout is not None or x.traced is not None:
        raise JobError(f"storage_offset at {user_line()}: a global tensor is not in one memory; see to_local()")
    root = x
    while root.base is not None:
        root = root.base[0]
    begins: int = x.array.ctypes.data - root.array.ctypes.data
    return begins // x.dtype.itemsize


def pin_memory(x: Tensor) -> Tensor:
    """x: the memory of the host is what it is."""
    return x


def to_consistent(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """The name that to_global had."""
    raise JobError(f"to_consistent at {user_line()}: it is called to_global(placement=..., sbp=...) now")


def element_size(x: Tensor) -> int:
    """Bytes of an element."""
    return x.dtype.itemsize


def reduced(x: Tensor, protocol: int) -> tuple[Any, ...]:
    """For pickle: of a global tensor each rank's piece, with placement and sbp."""
    _portable(x, "pickle")
    array = x.array.copy(order="C")
    return rebuilt, (type(x), x.tensor_type, x.layout, array, x._needs_gradient, x._device, x.__dict__)


def _portable(x: Tensor, what: str) -> None:
    if x.traced is not None or x.node is not None:
        raise JobError(
            f"{what} at {user_line()}: only leaf tensors can be; this {x.tensor_type} was made by {x.node or 'a graph'}: use detach() or clone()"
        )


def rebuilt(kind: type[Tensor], *parts: Any) -> Tensor:
    """The tensor of which `reduced` gave the parts."""
    made = kind.__new__(kind)
    Tensor.__init__(made, *parts[:3])
    made._needs_gradient, made._device = parts[3:5]
    made.__dict__.update(parts[5])
    if is_cuda(made):
        on_host(f"a copy or a pickle of a tensor at {user_line()}")
    return made


def copied(x: Tensor, memory: dict[int, Any]) -> Tensor:
    """For copy.deepcopy: in memory of its own, with placement, sbp and gradient."""
    _portable(x, "deepcopy")
    array = x.array.copy()
    made = rebuilt(type(x), x.tensor_type, x.layout, array, x._needs_gradient, x._device, deepcopy(x.__dict__, memory))
    memory[id(x)] = made
    made._gradient = deepcopy(x._gradient, memory)
    return made


class PlacementMethods:
    """Methods of tensors: placement and memory."""

    __slots__ = ()

    __deepcopy__ = method(copied)
    __reduce_ex__ = method(reduced)  # type: ignore[assignment]
    contiguous = method(contiguous)
    cpu = method(cpu)
    cuda = method(cuda)
    data = attribute(_data, _set_data)
    device = attribute(device)
    element_size = method(element_size)
    is_contiguous = method(is_contiguous)
    is_cuda = attribute(is_cuda)
    itemsize = attribute(itemsize)
    nbytes = attribute(nbytes)
    pin_memory = method(pin_memory)
    storage_offset = method(storage_offset)
    stride = method(stride)
    to = method(to)
    to_consistent = method(to_consistent)
    to_global = method(to_global)
    to_local = method(to_local)
