"""Moving the tensors of a module to another device, element type or layout; they stay the same objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import DtypeError, JobError, JobflowError, user_line
from jobflow.core.layout import B, Split
from jobflow.core.types import DType
from jobflow.functional.casting import named
from jobflow.functional.global_tensors import conversion_request, to_global, to_local
from jobflow.functional.promotion import cast
from jobflow.functional.tensor_class import Tensor


def replace(x: Tensor, made: Tensor) -> None:
    """x is what `made` is, from now on; other tensors in its old memory are left alone."""
    if made is x:
        return
    x.tensor_type, x.layout, x.array, x._device = made.tensor_type, made.layout, made.array, made._device
    x.storage, x.base, x.seen, x.strides = None, None, 0, made.strides


def laid(what: str, name: str, x: Tensor, placement: Any, sbp: Any) -> Tensor:
    """A tensor on a placement in a layout; one without axes, which cannot be split, as copies."""
    if x.ndim == 0 and sbp is not None:
        each = list(sbp) if isinstance(sbp, list | tuple) else [sbp]
        sbp = [B if isinstance(one, Split) else one for one in each]
    try:
        return to_global(x, placement, sbp, copy=True)
    except JobflowError as error:
        raise type(error)(f"{what}, {name}: {error}") from None


def piece(name: str, x: Tensor) -> Tensor:
    """This rank's piece, in memory of its own; local tensors as they are."""
    return x if x.layout is None else to_local(x, copy=True)


def target(what: str, arguments: Sequence[Any], options: dict[str, Any]) -> tuple[Any, DType | None]:
    """Device and element type, of floats, that arguments of `to` ask for; None for what they do not say."""
    if "placement" in options or "sbp" in options:
        raise JobError(f"{what} at {user_line()}: modules go to a placement by to_global(placement, sbp)")
    options.pop("copy", None)
    asked = conversion_request(arguments, options)
    dtype = named("to", asked["dtype"]) if "dtype" in asked else None
    if dtype is not None and not dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: modules have floating point parameters, not {dtype.name}")
    return asked["placement"].type if "placement" in asked else asked.get("device"), dtype


def moved(x: Tensor, device: Any, dtype: DType | None) -> Tensor:
    """x on the device, and in the element type if it is of floats."""
    made = x if device is None else x.to(device)
    return made if dtype is None or not made.dtype.is_float else cast(made, dtype)
