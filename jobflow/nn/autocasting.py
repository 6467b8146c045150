"""Mixed precision by `flow.autocast`: products in half precision, losses and other reductions in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.notices import notice
from jobflow.core.types import DType, bfloat16, float16
from jobflow.runtime.device import cuda_device

__all__ = ["autocast", "get_autocast_dtype", "is_autocast_available", "is_autocast_enabled"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
#: default element type by kind of device
_DEFAULTS = {"cpu": bfloat16, "cuda": float16}


class autocast:
    """A `with` block or decorator inside which matrix products and convolutions of float32 tensors run in half precision.

    Losses, norms and other reductions run in float32; other operations run in the widest type of their inputs.  The bias of a product has the type of
    the product.  Gradients of float32 tensors are float32.
    `dtype` is bfloat16 or float16, by default bfloat16 for `device_type` "cpu", and float16 for "cuda".  Without a GPU, "cuda" has no effect, as in
    PyTorch.  `enabled=False` switches an outer block off.  `cache_enabled` has no effect.

    As `cuda.amp.autocast`, the first argument is `enabled`.
    """

    def __init__(self, device_type: str | bool = "cuda", dtype: DType | None = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        if isinstance(device_type, bool):  # cuda.amp.autocast(enabled, dtype, cache_enabled)
            enabled = device_type
        what = f"autocast at {user_line()}"
        kind = "cuda" if isinstance(device_type, bool) else _kind(what, device_type)
        if dtype is not None and not isinstance(dtype, DType):
            raise ArgumentError(f"{what}: dtype must be bfloat16 or float16; got {dtype!r}")
        for name, value in (("enabled", enabled), ("cache_enabled", cache_enabled)):
            if value is not None and not isinstance(value, bool):
                raise ArgumentError(f"{what}: {name} must be True or False; got {value!r}")
        half = _DEFAULTS[kind] if dtype is None else dtype
        if enabled and half not in (bfloat16, float16):
            notice(f"{what}: dtype={half} has no effect; pass bfloat16 or float16")
        if enabled and kind == "cuda" and not cuda_device.available():
            notice(f'{what}: device_type="cuda" has no effect without a GPU; pass "cpu"')
            enabled = False
        self.device, self.fast_dtype = kind, half
        self._enabled = bool(enabled) and half in (bfloat16, float16)
        self._entered: list[Any] = []

    def __enter__(self) -> Self:
        changed = scope.using(autocast=self.fast_dtype if self._enabled else None)
        changed.__enter__()
        self._entered.append(changed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Return `function` wrapped so that each call runs inside this block."""

        @wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with self:
                return function(*args, **kwargs)

        return call


def _kind(what: str, device_type: Any) -> str:
    kind = device_type.partition(":")[0] if isinstance(device_type, str) else getattr(device_type, "type", None)
    if kind not in _DEFAULTS:
        raise ArgumentError(f'{what}: device_type must be "cpu" or "cuda"; got {device_type!r}')
    return kind


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Return True inside of an `autocast` block that has an effect."""
    if device_type is not None:
        _kind(f"is_autocast_enabled at {user_line()}", device_type)
    return scope.current().autocast is not None


def get_autocast_dtype(device_type: str) -> DType:
    """Return the element type of products under `autocast`; outside of a block, the default type for the kind of device."""
    dtype: DType | None = scope.current().autocast
    return _DEFAULTS[_kind(f"get_autocast_dtype at {user_line()}", device_type)] if dtype is None else dtype


def is_autocast_available(device_type: str) -> bool:
    """Return True if `autocast` has an effect for the kind of device: for "cpu", and for "cuda" with a GPU."""
    return isinstance(device_type, str) and (device_type == "cpu" or (device_type == "cuda" and cuda_device.available() > 0))
