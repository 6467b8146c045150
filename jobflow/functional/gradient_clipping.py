"""Gradient clipping, by the norm of all gradients together or element by element."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, PlacementError, user_line
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import Array, TensorType, float32, float64
from jobflow.core.types import Tensor as Value
from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.nn_base import EPSILON, assign, composing, flag, real
from jobflow.functional.promotion import cast
from jobflow.functional.typed import Tensor
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops.arithmetic import Multiply
from jobflow.ops.scalar import Clip
from jobflow.tensors.convert import convert_array, empty, gathered
from jobflow.tensors.gpus import as_numpy, gpu_of, on_device, placed, write
from jobflow.tensors.run import run
from jobflow.tensors.state import EagerState, gradients, running, state
from jobflow.tensors.tensor import own


def _with_gradients(what: str, parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of the parameters that have a gradient; raise JobError while a graph or a job is traced."""
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    recorder = state().building
    if recorder is not None and recorder.differentiates:
        return [gradient for p in tensors if (gradient := recorder.gradient_of(p)) is not None]
    if recorder is not None:
        raise JobError(
            f"{what} at {user_line()}: gradients cannot be clipped in {running()}; set clip_grad_max_norm or grad_clipping= of the optimizer"
        )
    return [p._gradient for p in tensors if p._gradient is not None]


def _one_kind(here: EagerState, what: str, tensors: Sequence[Tensor]) -> None:
    if here.rank.size > 1 and len({x.is_global for x in tensors}) > 1:
        raise PlacementError(
            f"{what} at {user_line()}: gradients of local and global tensors cannot be combined, because local gradients may differ between ranks; "
            "clip local and global gradients separately"
        )


def _power_sum(x: Tensor, p: float) -> Value:
    """Return sum |x|^p, or max |x| for infinite p; the result may be partial."""
    with composing(x):
        if x.dtype.is_half:
            x = cast(x, float32)
        if p == math.inf:
            return rd.reduce_max(ew.absolute(x))
        return rd.square_sum(x) if p == 2.0 else rd.reduce_sum(ew.scalar_power(ew.absolute(x), p))


def _number(here: EagerState, x: Value) -> float:
    assert isinstance(x, Tensor)
    if x.layout is None:
        return float(as_numpy(x.array))
    return float(gathered(here, x, "the norm of gradients").reshape(()))


def _together(here: EagerState, parts: Sequence[Value], p: float) -> float:
    """Return the sum of the scalar tensors `parts`, or their maximum for infinite p, as a float.

    Parts on the same placement are combined first, to gather once per placement.
    """
    places: dict[Placement | None, Value] = {}
    for part in parts:
        assert isinstance(part, Tensor)
        where = None if part.layout is None else part.layout.placement
        wide = cast(part, float64)
        if where not in places:
            places[where] = wide
            continue
        with composing(wide):
            before = places[where]
            places[where] = ew.maximum(before, wide) if p == math.inf else ew.add(before, wide)
    totals = [_number(here, x) for x in places.values()]
    return max(totals) if p == math.inf else sum(totals)


def total_norm(tensors: Sequence[Tensor], p: float) -> float:
    """Return the p-norm of all tensors as one vector, on every rank; all ranks must call this function."""
    here = state()
    if not tensors:
        return 0.0
    with gradients(False):
        total = _together(here, [_power_sum(x, p) for x in tensors], p)
    return total if p == math.inf else total ** (1.0 / p)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients in place so that their common norm is at most max_norm; return the norm before clipping.

    The norm is the `norm_type`-norm of all logical gradients as one vector, independent of their layouts and placements.  The result is a
    tensor on the placement of the first gradient.  All ranks must call this function.  `foreach` has no effect.
    Raises: PlacementError for local and global gradients together; ArgumentError for a norm that is NaN or infinite, if
    `error_if_nonfinite`.

    Examples:
        >>> x = flow.ones(4, requires_grad=True)
        >>> (x * 2).sum().backward()
        >>> nn.utils.clip_grad_norm_([x], max_norm=1.0)
        tensor(4., dtype=jobflow.float32)
        >>> x.grad
        tensor([0.5000, 0.5000, 0.5000, 0.5000], dtype=jobflow.float32)
    """
    what = "clip_grad_norm_"
    here, p = state(), float(norm_type)
    grads = _with_gradients(what, parameters)
    _one_kind(here, what, grads)
    if here.building is not None and grads:
        return _clipped_when_run(what, grads, float(max_norm), p, error_if_nonfinite)
    norm = total_norm(grads, p)
    if error_if_nonfinite and not math.isfinite(norm):
        raise ArgumentError(f"{what} at {user_line()}: the norm of the gradients is {norm}, but error_if_nonfinite=True requires a finite norm")
    factor = min(float(max_norm) / (norm + EPSILON), 1.0)
    if factor < 1.0 or math.isnan(factor):
        factors: dict[object, Array] = {}
        for x in grads:
            _scale(x, factor, factors, what)
    return _stated(here, norm, grads)


def _scale(x: Tensor, factor: float, factors: dict[object, Array], what: str) -> None:
    """Multiply the elements of x by a number, in place; `factors` has the number on each GPU, by GPU and element type.

    The number is an operand of the kernel and no part of its text, because it changes at each step.
    """
    array = own(x, what)
    gpu = gpu_of(array)
    if gpu is None:
        array[...] = array * array.dtype.type(factor)
    else:
        gpu.activate()
        key = gpu.index, array.dtype
        if key not in factors:
            factors[key] = gpu.upload(np.array(factor, array.dtype))
        gpu.calls_like(Multiply(), array).run(None, (array, factors[key]), (array,))
    x.wrote()


def _clipped_when_run(what: str, grads: Sequence[Tensor], max_norm: float, p: float, error_if_nonfinite: bool) -> Tensor:
    """Record the clipping of gradients in the traced program, and return their norm as a value of the program."""
    if error_if_nonfinite:
        raise JobError(
            f"{what} at {user_line()}: error_if_nonfinite=True needs the norm, which has no value while {running()} runs; omit the argument"
        )
    here, first = state(), grads[0]
    with gradients(False):
        norm = _norm_when_run(grads, p)
        with composing(norm):
            factor = _tensor(ew.divide(ew.fill_like(norm, max_norm), ew.shift(norm, EPSILON)))
            limit = ew.fill_like(factor, 1.0)
            factor = _tensor(ew.where(ew.greater(factor, limit), limit, factor))
        for x in grads:
            scale = _on_ranks_of(here, cast(factor, x.tensor_type.dtype), x)
            with composing(x):
                scaled = _tensor(ew.multiply(x, scale))
            here.building.write(x, scaled)
        return _on_ranks_of(here, cast(norm, first.tensor_type.dtype), first)


def _norm_when_run(tensors: Sequence[Tensor], p: float) -> Tensor:
    """Record the p-norm of all tensors as one vector, a float64 value of the traced program."""
    total = _added([_power_sum(x, p) for x in tensors], p)
    with composing(total):
        return total if p == math.inf else _tensor(rooted(total, p))


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Return the `norm_type`-norm of all tensors as one vector; all ranks must call this function.  `foreach` has no effect.

    Raises: ArgumentError for a norm that is NaN or infinite, if `error_if_nonfinite`; PlacementError for local and global tensors together.
    """
    what = "get_total_norm"
    here, p = state(), real(what, "norm_type", norm_type)
    if not p > 0:
        raise ArgumentError(f"{what} at {user_line()}: norm_type must be positive; got {norm_type}")
    parts = _tensors(what, "tensors", tensors)
    _one_kind(here, what, parts)
    if here.building is not None and parts:
        with gradients(False):
            return _on_ranks_of(here, cast(_norm_when_run(parts, p), parts[0].tensor_type.dtype), parts[0])
    norm = total_norm(parts, p)
    if flag(what, "error_if_nonfinite", error_if_nonfinite) and not math.isfinite(norm):
        raise ArgumentError(f"{what} at {user_line()}: the norm of the tensors is {norm}, but error_if_nonfinite=True requires a finite norm")
    return _stated(here, norm, parts)


def _tensors(what: str, name: str, value: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return one tensor or several as a list; raise ArgumentError for other arguments."""
    parts = [value] if isinstance(value, Tensor) else list(value) if isinstance(value, Iterable) else [value]
    for part in parts:
        if not isinstance(part, Tensor):
            raise ArgumentError(f"{what} at {user_line()}: {name} must be a tensor or tensors; got {part!r}")
    return parts


def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Multiply the gradients of the parameters, in place, by min(1, max_norm / (total_norm + 1e-6)).  `foreach` has no effect."""
    what = "clip_grads_with_norm_"
    grads = _with_gradients(what, _tensors(what, "parameters", parameters))
    bound = real(what, "max_norm", max_norm)
    with gradients(False):
        with composing(total_norm):
            factor = _tensor(ew.clip(ew.divide(ew.fill_like(total_norm, bound), ew.shift(total_norm, EPSILON)), None, 1.0))
        for x in grads:
            scale = _on_ranks_of(state(), cast(factor, x.tensor_type.dtype), x)
            with composing(x):
                scaled = _tensor(ew.multiply(x, scale))
            assign(state(), x, scaled, what)


def _added(parts: Sequence[Value], p: float) -> Tensor:
    """Return the float64 sum of the scalar tensors `parts`, or their maximum for infinite p, on the placement of the first part.

    Parts on the same placement are combined first.
    """
    here, places = state(), dict[Placement | None, Tensor]()
    for part in map(_tensor, parts):
        wide = cast(part, float64)
        where = None if part.layout is None else part.layout.placement
        places[where] = _both(places[where], wide, p) if where in places else wide
    first, *others = places.values()
    for other in others:
        first = _both(first, _on_ranks_of(here, other, first), p)
    return first


def _both(a: Tensor, b: Tensor, p: float) -> Tensor:
    with composing(a):
        return _tensor(ew.maximum(a, b) if p == math.inf else ew.add(a, b))


def rooted(total: Tensor, p: float) -> Value:
    """Return the p-th root of a sum of p-th powers."""
    return ew.sqrt(total) if p == 2.0 else ew.scalar_power(total, 1.0 / p)


def _on_ranks_of(here: EagerState, number: Tensor, x: Tensor) -> Tensor:
    """Return the scalar `number`, broadcast on the placement of x; unchanged if `number` or x is local."""
    if x.layout is None or number.layout is None:
        return number
    whole = Layout(x.layout.placement, (B,) * len(x.layout.sbp))
    return number if number.layout == whole else here.building.change(number, whole, None)


def _tensor(x: Value) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def _stated(here: EagerState, norm: float, grads: Sequence[Tensor]) -> Tensor:
    """Return the norm as a tensor on the placement of the first gradient, or as a local tensor if this gradient is local or missing."""
    type = TensorType((), grads[0].dtype if grads else float32)
    where = grads[0].layout.placement if grads and grads[0].layout is not None else None
    value = np.array(norm, type.dtype.numpy)
    if where is None:
        return Tensor.new(type, None, on_device(gpu_of(grads[0].array) if grads else None, value))
    layout = Layout(where, (B,) * len(where.mesh))
    return Tensor.new(type, layout, placed(here, value, layout) if here.rank.index in where.ranks else empty(type))


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clip every element of the gradients, in place, to [-clip_value, clip_value]; partial gradients are summed first.  `foreach` has no effect."""
    here, bound = state(), float(clip_value)
    with gradients(False):
        for x in _with_gradients("clip_grad_value_", parameters):
            clipped: Tensor = run(Clip(-bound, bound), x)
            if here.building is not None:
                here.building.write(x, clipped if clipped.layout == x.layout or x.layout is None else here.building.change(clipped, x.layout, None))
                continue
            if x.layout is not None and clipped.layout is not None:
                clipped = Tensor.new(
                    x.tensor_type, x.layout, convert_array(here, clipped.array, x.tensor_type, clipped.layout, x.layout, "a clipped gradient")
                )
            write(own(x, "clip_grad_value_"), clipped.array)
            x.wrote()


globals().update(all_of(__name__, globals(), __name__, of_tensors))
