"""Redistribution of tensors and changes of their device: to_global, to_local, to, cpu and cuda."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, JobError, PlacementError, user_line
from jobflow.core.layout import B, Layout, Partial
from jobflow.engine.placements import note_without_gpu, sbp_tuple
from jobflow.engine.placements import placement as public_placement
from jobflow.functional import devices as where
from jobflow.functional.casting import named
from jobflow.functional.dispatch import attribute, method
from jobflow.functional.gradients import clone, without_gradient
from jobflow.functional.memory_formats import channels_follow, check_format
from jobflow.functional.promotion import cast
from jobflow.functional.switches import checked_bool
from jobflow.functional.typed import Tensor
from jobflow.functional.values import numpy as numpy
from jobflow.functional.values import value_of as value_of
from jobflow.ops.layout_ops import Copy
from jobflow.runtime.device.cuda_facts import is_pinned
from jobflow.tensors import redistribution
from jobflow.tensors.device_copies import moved
from jobflow.tensors.gpus import address, as_numpy, duplicate, gpu_count, gpu_of, on_device, open_gpu, placed
from jobflow.tensors.program_recorder import symbolic_array
from jobflow.tensors.run import recorder, run
from jobflow.tensors.state import building_now, refuse_tracing, running, state
from jobflow.tensors.tensor import shows

__all__ = [
    "global_to_global", "local_to_global", "to_global", "to_local", "type_as",
]  # fmt: skip


def layout_of(what: str, placement: public_placement | None, sbp: Any, ndim: int) -> Layout | None:
    """Return the layout that the arguments `placement` and `sbp` describe, or None if both are None.

    Raises: JobError if only one argument is passed, or if `placement` is not a placement; SbpError for an invalid `sbp`.
    """
    if placement is None and sbp is None:
        return None
    if placement is None or sbp is None:
        raise JobError(f"{what} at {user_line()}: a global tensor needs both placement= and sbp=; got placement={placement!r}, sbp={sbp!r}")
    if not isinstance(placement, public_placement):
        raise JobError(f"{what} at {user_line()}: placement= must be a jobflow.placement; got {placement!r}")
    return Layout(placement.core, sbp_tuple(sbp, placement.core, f"{what} at {user_line()}", ndim))


def to_global(
    x: Tensor, placement: public_placement | None = None, sbp: Any = None, *, grad_sbp: Any = None, check_meta: bool = True, copy: bool = False
) -> Tensor:
    """Return x redistributed to another placement or layout; local tensors of all ranks become the pieces of a global tensor.

    `placement` and `sbp` default to the placement and sbp of x; a local tensor needs both arguments.  The gradient is redistributed to the
    layout of x, first through `grad_sbp` if that is set.  All ranks must call this function, including ranks outside of the placements.
    `check_meta=False` skips the comparison of the local shapes, which must then be equal.
    Raises: ShapeError if the local tensors do not form a global tensor; SbpError for an invalid `sbp`.  JobError is raised for a local tensor
    without `placement` or `sbp`.

    Examples:
        >>> P = flow.placement.all("cpu")  # every rank of the program
        >>> x = flow.ones(4, 2).to_global(P, flow.sbp.broadcast)
        >>> x.to_global(sbp=flow.sbp.split(0)).sbp
        (jobflow.sbp.split(dim=0),)
    """
    here = state()
    what = f"to_global at {user_line()}"
    if x.layout is None:
        target = layout_of("to_global of a local tensor", placement, sbp, x.ndim)
        if target is None:
            raise JobError(f"{what}: a local tensor needs placement= and sbp= to become global")
        if here.building is not None:
            return redistribution.redistribute(here, x, target)
        return redistribution.local_to_global(here, x, target, check=check_meta, copy=copy)
    assert x.layout is not None
    new_placement = x.layout.placement if placement is None else placement.core
    new_sbp = x.layout.sbp if sbp is None else sbp
    target = Layout(new_placement, sbp_tuple(new_sbp, new_placement, what, x.ndim))
    back = None if grad_sbp is None else sbp_tuple(grad_sbp, new_placement, f"{what}, grad_sbp", x.ndim)
    result = redistribution.redistribute(here, x, target, back)
    return clone(x) if copy and result is x else result


def local_to_global(x: Tensor, placement: public_placement, sbp: Any, *, check_meta: bool = True, copy: bool = False) -> Tensor:
    """Return the global tensor whose pieces are the local tensors of all ranks; see `to_global`."""
    return to_global(x, placement, sbp, check_meta=check_meta, copy=copy)


def global_to_global(x: Tensor, placement: public_placement | None = None, sbp: Any = None, *, grad_sbp: Any = None, copy: bool = False) -> Tensor:
    """Return a global tensor redistributed to another placement or layout; see `to_global`."""
    return to_global(x, placement, sbp, grad_sbp=grad_sbp, copy=copy)


def to_local(x: Tensor, *, copy: bool = False) -> Tensor:
    """Return this rank's piece of a global tensor as a local tensor in the same memory, or as a copy with `copy`.

    The piece of a partial tensor is this rank's addend.  Ranks outside the placement receive an empty tensor.
    Raises: JobError for a local tensor.

    Examples:
        >>> x = flow.ones(4, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0))
        >>> x.to_local().is_global
        False
    """
    if x.traced is not None:
        return recorder(state(), "to_local").to_local(x)
    if x.layout is None:
        raise JobError(f"to_local at {user_line()}: the tensor {x.tensor_type} is already local")
    here = state()
    result = redistribution.to_local(here, x, copy=copy)
    if x.layout.placement.tag == "cuda":
        result._device = where.own_gpu()
    return result


# -------------------------------------------------------------------- devices


def device(x: Tensor) -> where.device:
    """The device of the tensor; functions with a parameter `device` create tensors on the placement of a global tensor, broadcast."""
    return where.device_of(x)


def nbytes(x: Tensor) -> int:
    """The size of the logical value in bytes."""
    return x.tensor_type.nbytes


def itemsize(x: Tensor) -> int:
    """The size of an element in bytes."""
    return x.dtype.itemsize


def is_cuda(x: Tensor) -> bool:
    """True if the tensor's device or placement is "cuda"."""
    return (where.device_of(x).type if x.layout is None else x.layout.placement.tag) == "cuda"


def cpu(x: Tensor, memory_format: Any = None) -> Tensor:
    """Return x on the host; a global tensor moves to the hosts of the same ranks."""
    check_format("cpu", memory_format, x.ndim)
    return _on_device(x, "cpu", "cpu()")


def cuda(x: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """Return x on a GPU; a global tensor moves to the GPUs of the same ranks.

    `device` is a device "cuda" or the index of a GPU, by default the current one.  Without a GPU, the memory of x remains on the host.
    Raises: PlacementError for a GPU that does not exist.
    """
    checked_bool("cuda", "non_blocking", non_blocking)
    check_format("cuda", memory_format, x.ndim)
    return _on_device(x, "cuda" if device is None else device, "cuda()", non_blocking)


def _on_device(x: Tensor, target_device: Any, what: str, direct: bool = False) -> Tensor:
    """Return x itself if it is on the device, otherwise a copy on the device.

    On the device of a global tensor, a local tensor becomes global; its values must be equal on all ranks.
    """
    if isinstance(target_device, where.device) and target_device.placement is not None:
        return on_placement(x, what, target_device.placement)
    if x.layout is not None:
        return _on_device_type(x, target_device, what)
    target = where.checked_device(what, target_device)
    assert target is not None
    if x.traced is not None or target.type == where.device_of(x).type == "cpu" or target == where.device_of(x):
        return x
    here = state()
    gpu = where.gpu_of_device(target)
    if here.building is None and gpu_of(x.array) is not gpu:
        return moved(here, x, gpu, None if target.type == "cpu" else target, direct)
    return where.marked(run(Copy(), x), target)


def on_placement(x: Tensor, what: str, placement: public_placement) -> Tensor:
    """Return a global tensor x on a placement with the sbp of x, in which P becomes B.  A local tensor x becomes broadcast.

    If the numbers of mesh dimensions differ, the sbp is B on all of them.
    Raises: DivergedError on all ranks if the values of a local tensor differ between ranks.
    """
    core = placement.core
    whole = Layout(core, (B,) * len(core.mesh))
    if x.layout is None:
        return redistribution.equal_to_global(state(), x, whole, what)
    if x.layout.placement == core:
        return x
    alike = len(core.mesh) == len(x.layout.sbp)
    sbp = tuple(B if isinstance(each, Partial) else each for each in x.layout.sbp) if alike else whole.sbp
    return redistribution.redistribute(state(), x, Layout(core, sbp))


def loaded_on(x: Tensor, what: str, target: where.device | None) -> Tensor:
    """Return the new local tensor x on a device, or a global tensor for the device of a global tensor; None is the host."""
    if target is not None and target.placement is not None:
        return on_placement(x, what, target.placement)
    return where.marked(x, target)


def _on_device_type(x: Tensor, target_device: Any, what: str) -> Tensor:
    """Return the global tensor x on the same ranks, with the device type `target_device`; raise PlacementError for another device."""
    assert x.layout is not None
    tag = target_device.type if isinstance(target_device, where.device) and not target_device.index else target_device
    if tag not in where.TYPES:
        raise PlacementError(
            f'{what} at {user_line()}: a global tensor cannot move to {target_device!r}; use "cpu", "cuda" or to_global(placement=...)'
        )
    source = x.layout.placement
    if tag == "cuda":
        note_without_gpu()
    return x if tag == source.tag else redistribution.redistribute(state(), x, replace(x.layout, placement=replace(source, tag=tag)))


def to(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Return x converted to another element type, device, placement or sbp.

    x.to(flow.float16)   x.to("cuda")   x.to("cpu", flow.float64)   x.to(y)   x.to(placement=p, sbp=s)

    The device of a global tensor selects its placement: a local tensor becomes broadcast, and must have the same values on all ranks.
    A tensor argument y selects its element type and its device, and for a global tensor x its placement and sbp.  `copy=True` never returns x itself.
    With `non_blocking=True`, the GPU may still read the page-locked memory of x after return (`pin_memory`).  `memory_format` has no effect.
    Raises: ConfigError for a device together with placement or sbp; DivergedError, on all ranks, if values of ranks differ.  ArgumentError
    and DtypeError are raised for other arguments.
    """
    copy = checked_bool("to", "copy", options.pop("copy", False))
    check_format("to", options.get("memory_format"), x.ndim)
    request = conversion_request(arguments, options)
    if "device" in request and ("placement" in request or "sbp" in request):
        raise ConfigError(
            f"to at {user_line()}: device={request['device']!r} selects a device, but placement and sbp select a layout; pass one or the other"
        )
    if "like" in request:
        request |= _layout_request(x, request.pop("like"))
    result = cast(x, request["dtype"]) if "dtype" in request else x
    if "device" in request:
        result = _on_device(result, request["device"], "to", "non_blocking" in request)
    if "placement" in request or "sbp" in request:
        result = to_global(result, request.get("placement"), request.get("sbp"))
    shared = result is x or (x.traced is None and result.array is x.array)
    return clone(result) if copy and shared else result


def conversion_request(arguments: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `to` by name: dtype, device, placement, sbp, like (a global tensor) and non_blocking, if present."""
    check_format("to", options.pop("memory_format", None))
    non_blocking = checked_bool("to", "non_blocking", options.pop("non_blocking", False))
    request: dict[str, Any] = {name: options.pop(name) for name in ("dtype", "device", "placement", "sbp") if options.get(name) is not None}
    if non_blocking:
        request["non_blocking"] = True
    if any(each is not None for each in options.values()):
        raise ArgumentError(f"to at {user_line()}: the keywords are dtype, device, placement, sbp and copy; got {sorted(options)}")
    for argument in arguments:
        if not isinstance(argument, bool) and argument is not None:
            request |= _named_argument(argument)
    return request


def _layout_request(x: Tensor, like: Tensor) -> dict[str, Any]:
    """Return the placement and sbp of a global tensor for a global tensor x, and its device for a local tensor x."""
    return {"device": where.device_of(like)} if x.layout is None else {"placement": like.placement, "sbp": like.sbp}


def type_as(x: Tensor, other: Tensor) -> Tensor:
    """Return x converted to the element type of `other`, on its device, or on its placement if `other` is global.

    On a placement, a local tensor x becomes broadcast, and must have the same values on all ranks.
    """
    result = cast(x, other.tensor_type.dtype)
    if other.layout is not None:
        return on_placement(result, "type_as", other.placement)
    return result if x.layout is not None or other.traced is not None else _on_device(result, where.device_of(other), "type_as")


def _named_argument(argument: Any) -> dict[str, Any]:
    """Return the name and value of a positional argument of `to`."""
    if isinstance(argument, Tensor):
        if argument.layout is not None:
            return {"dtype": argument.dtype, "like": argument}
        return {"dtype": argument.dtype, "device": where.device_of(argument)}
    if isinstance(argument, public_placement):
        return {"placement": argument}
    if where.is_device(argument) or isinstance(argument, int):
        return {"device": argument}
    try:
        return {"dtype": named("to", argument)}
    except DtypeError as error:
        raise DtypeError(f'{error}, nor a device ("cpu", "cuda" or "cuda:0")') from None


# -------------------------------------------------------------------- memory


def _data(x: Tensor) -> Tensor:
    """A tensor with the same memory as x, detached from the autograd graph."""
    return without_gradient(x, shows)


def _set_data(x: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise DtypeError(f"data at {user_line()}: the value must be a tensor; got {value!r}")
    tracer = building_now()
    if tracer is not None and tracer.differentiates and tracer.assign_data(x, value):
        return
    if tracer is not None:
        raise JobError(f"data at {user_line()}: the memory of a tensor cannot be replaced while {running()} runs; use x.data.copy_(value)")
    x.tensor_type, x.layout, x.array, x._device = value.tensor_type, value.layout, value.array, value._device
    x._provenance, x.strides = value._provenance, value.strides
    x.wrote()


def contiguous(x: Tensor, memory_format: Any = None) -> Tensor:
    """Return x with its elements contiguous in memory, in row-major order; return x itself if its elements are already contiguous.

    `memory_format` has no effect.
    """
    check_format("contiguous", memory_format, x.ndim)
    return x if is_contiguous(x) else clone(x)


def is_contiguous(x: Tensor, memory_format: Any = None) -> bool:
    """Return True if the elements are contiguous in memory, in row-major order or in the order of `memory_format`."""
    check_format("is_contiguous", memory_format)
    array = symbolic_array(x)
    if channels_follow(memory_format, x.ndim):
        array = array.transpose(0, *range(2, x.ndim), 1)
    return bool(array.flags.c_contiguous)


def stride(x: Tensor, dim: int | None = None) -> Any:
    """Return the strides of a local tensor in elements, or the stride of axis `dim`.  Raises: JobError for a global tensor."""
    if x.layout is not None or x.traced is not None:
        raise JobError(f"stride at {user_line()}: a global tensor has no strides; use to_local().stride()")
    steps = tuple(step // x.array.itemsize for step in x.array.strides)
    return steps if dim is None else steps[dim]


def storage_offset(x: Tensor) -> int:
    """Return the offset of a view of a local tensor in the memory of its base, in elements; 0 if x is not a view.

    Raises: JobError for a global tensor.
    """
    if x.layout is not None or x.traced is not None:
        raise JobError(f"storage_offset at {user_line()}: a global tensor has no storage offset; use to_local().storage_offset()")
    root = x
    while root.base is not None:
        root = root.base[0]
    return (address(x.array) - address(root.array)) // x.dtype.itemsize


def pin_memory(x: Tensor, device: Any = None) -> Tensor:
    """Return a copy of a local tensor on the host in page-locked memory, from which to("cuda", non_blocking=True) copies without waiting.

    Return x unchanged if it is in such memory, without a GPU, and for other tensors.
    """
    here = state()
    if x.layout is not None or x.traced is not None or here.building is not None or not gpu_count(here) or gpu_of(x.array) is not None:
        return x
    gpu = open_gpu(here, None, f"pin_memory at {user_line()}")
    assert gpu is not None
    if is_pinned(x.array):
        return x
    if x._needs_gradient:
        raise JobError(f"pin_memory at {user_line()}: {x.tensor_type} requires gradients, which a copy in page-locked memory lacks; use detach()")
    return Tensor.new(x.tensor_type, None, gpu.pinned(x.array))


def to_consistent(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Raise JobError: the function was renamed to `to_global`."""
    raise JobError(f"to_consistent at {user_line()}: to_consistent was renamed; use to_global(placement=..., sbp=...)")


def element_size(x: Tensor) -> int:
    """Return the size of an element in bytes."""
    return x.dtype.itemsize


def reduced(x: Tensor, protocol: int) -> tuple[Any, ...]:
    """Return the function `rebuilt` and its arguments, for pickle; the arguments include this rank's piece and the layout of x."""
    _portable(x, "pickle")
    array = as_numpy(x.array).copy(order="C")
    return rebuilt, (type(x), x.tensor_type, x.layout, array, x._needs_gradient, _label(x), x.__dict__)


def _label(x: Tensor) -> where.device | None:
    """Return the device of a local tensor for a copy of it; None for the host, and for a global tensor."""
    device = None if x.layout is not None else where.device_of(x)
    return None if device is None or device.type == "cpu" else device


def _portable(x: Tensor, what: str) -> None:
    if x.traced is not None or x.node is not None:
        raise JobError(
            f"{what} at {user_line()}: only leaf tensors are supported; this {x.tensor_type} was computed by {x.node or 'a graph'}; use detach() "
            "or clone()"
        )
    refuse_tracing(what, f"the elements of a tensor {x.tensor_type} are not known", "use clone(), or copy the tensor before")


def rebuilt(kind: type[Tensor], *parts: Any) -> Tensor:
    """Return a tensor from the arguments that `reduced` returned."""
    result = kind.__new__(kind)
    Tensor.__init__(result, *parts[:3])
    result._needs_gradient, result._device = parts[3:5]
    result.__dict__.update(parts[5])
    if result.layout is not None:
        result.array = placed(state(), result.array, result.layout)
    elif result._device is not None:
        result.array = on_device(where.gpu_of_device(result._device), result.array)
    return result


def copied(x: Tensor, memory: dict[int, Any]) -> Tensor:
    """Return a copy of x for copy.deepcopy, with separate memory, a separate gradient and the layout of x."""
    _portable(x, "deepcopy")
    array = duplicate(x.array)
    result = rebuilt(type(x), x.tensor_type, x.layout, array, x._needs_gradient, _label(x), deepcopy(x.__dict__, memory))
    memory[id(x)] = result
    result._gradient = deepcopy(x._gradient, memory)
    return result


class PlacementMethods:
    """Methods of tensors for placement, devices and memory."""

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
    type_as = method(type_as)
