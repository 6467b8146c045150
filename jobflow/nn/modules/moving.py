"""Moving the tensors of a module to another device, element type or layout; they stay the same objects."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import DtypeError, JobError, JobflowError, user_line
from jobflow.core.layout import B, Split
from jobflow.core.types import DType, dtype_of
from jobflow.eager.tensor import Tensor
from jobflow.functional.global_tensors import to_global, to_local
from jobflow.functional.promotion import cast


def replace(x: Tensor, made: Tensor) -> None:
    """x is what `made` is, from now on; other tensors in its old memory are left alone."""
    if made is x:
        return
    x.type, x.layout, x.array, x._device = made.type, made.layout, made.array, made._device
    x.storage, x.base, x.seen = None, None, 0


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


def target(*args: Any, **kwargs: Any) -> tuple[Any, DType | None]:
    """Device and element type that arguments of `to` mean; None for what they do not say."""
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    kwargs.pop("non_blocking", None)
    kwargs.pop("copy", None)
    if kwargs:
        raise JobError(f"to at {user_line()}: unknown keyword {next(iter(kwargs))!r}; it takes device and dtype")
    for given in args:
        if isinstance(given, DType):
            dtype = given
        elif isinstance(given, Tensor):
            device, dtype = (given.placement.type if given.is_global else given.device), given.dtype
        elif not isinstance(given, bool) and given is not None:
            device = given
    try:
        return device, None if dtype is None else dtype_of(dtype)
    except (KeyError, TypeError):
        raise DtypeError(f"to at {user_line()}: {dtype!r} is not an element type") from None


def moved(x: Tensor, device: Any, dtype: DType | None) -> Tensor:
    """x on the device, and in the element type if it is of floats."""
    made = x if device is None else x.to(device)
    return made if dtype is None or not made.dtype.is_float else cast(made, dtype)
