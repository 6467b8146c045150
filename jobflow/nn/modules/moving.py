"""In-place conversion of a module's tensors to another device, element type or layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import DtypeError, JobError, JobflowError, user_line
from jobflow.core.layout import B, Layout, Split
from jobflow.core.types import DType
from jobflow.engine.placements import placement
from jobflow.functional.casting import named
from jobflow.functional.global_tensors import conversion_request, to_global, to_local
from jobflow.functional.promotion import cast
from jobflow.functional.tensor_class import Tensor


def replace(x: Tensor, source: Tensor) -> None:
    """Give x the type, layout and memory of `source`; other tensors in the old memory are unchanged."""
    if source is x:
        return
    x.tensor_type, x.layout, x.array, x._device = source.tensor_type, source.layout, source.array, source._device
    x._storage, x.base, x._synced_version, x.strides = None, None, 0, source.strides


def redistributed(what: str, name: str, x: Tensor, placement: Any, sbp: Any) -> Tensor:
    """Return a redistributed copy of x, the tensor `name` of a module; a tensor without axes, which cannot be split, is replicated."""
    if x.ndim == 0 and sbp is not None:
        each = list(sbp) if isinstance(sbp, list | tuple) else [sbp]
        sbp = [B if isinstance(one, Split) else one for one in each]
    try:
        return to_global(x, placement, sbp, copy=True)
    except JobflowError as error:
        raise type(error)(f"{what}, {name}: {error}") from None


def like(what: str, name: str, x: Tensor, layout: Layout | None) -> Tensor:
    """Return a local tensor in another layout; the values are those of the first rank."""
    if layout is None:
        return x
    whole = redistributed(what, name, x, placement.of(layout.placement), [B] * len(layout.sbp))
    return redistributed(what, name, whole, None, list(layout.sbp))


def piece(name: str, x: Tensor) -> Tensor:
    """Return this rank's piece of a global tensor as a copy, and a local tensor unchanged."""
    return x if x.layout is None else to_local(x, copy=True)


def target(what: str, arguments: Sequence[Any], options: dict[str, Any]) -> tuple[Any, DType | None]:
    """Return the device and the floating point type among the arguments of `to`; None for a missing argument.

    Raises: JobError for `placement` or `sbp`; DtypeError for a type that is not floating point.
    """
    if "placement" in options or "sbp" in options:
        raise JobError(f"{what} at {user_line()}: to() cannot move a module to a placement; use to_global(placement, sbp)")
    options.pop("copy", None)
    request = conversion_request(arguments, options)
    dtype = named("to", request["dtype"]) if "dtype" in request else None
    if dtype is not None and not dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: modules can only be converted to floating point types; got {dtype.name}")
    return request["like"].device if "like" in request else request["placement"].type if "placement" in request else request.get("device"), dtype


def moved(x: Tensor, device: Any, dtype: DType | None) -> Tensor:
    """Return x on the device, cast to `dtype` if x has a floating point type."""
    result = x if device is None else x.to(device)
    return result if dtype is None or not result.dtype.is_float else cast(result, dtype)
