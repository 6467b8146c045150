"""Compositions of ops on half precision tensors: computed in float32 and rounded once.

Kernels of single ops already compute in float32 (`kernels/half.py`).  Between the ops of a function, intermediate results such as a sum of
squares would be rounded, and 300^2 is infinite in float16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jobflow.core.scope as scope
from jobflow.core.types import DType, TensorType, float32
from jobflow.ops.scalar import cast

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[P, R]


def rounding_once(cast: Callable[[Any, DType], Any]) -> Callable[[Function[P, R]], Function[P, R]]:
    """Return a decorator for functions of tensors, which computes in float32 if all floating point arguments have the same half precision type.

    The float32 results of the function are then rounded to this type.  Under `autocast`, the ops select their element types.  `cast` converts tensors
    between element types.
    """

    def decorate(function: Function[P, R]) -> Function[P, R]:
        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            half = None if scope.current().autocast is not None else _half_of(*args, *named.values())
            if half is None:
                return function(*args, **named)

            def wide(x: Any) -> Any:
                return cast(x, float32) if _dtype(x) is half else x

            wider: Any = function
            result: R = _rounded(wider(*map(wide, args), **{name: wide(x) for name, x in named.items()}), cast, half)
            return result

        return call

    return decorate


#: the decorator for functions of ops
rounded_once = rounding_once(cast)


def _dtype(x: Any) -> DType | None:
    """Return the element type of x if x is a floating point tensor, else None."""
    tensor_type = getattr(x, "tensor_type", None)
    return tensor_type.dtype if isinstance(tensor_type, TensorType) and tensor_type.dtype.is_float else None


def _half_of(*arguments: Any) -> DType | None:
    dtypes = {dtype for x in arguments if (dtype := _dtype(x)) is not None}
    return next(iter(dtypes)) if len(dtypes) == 1 and next(iter(dtypes)).is_half else None


def _rounded(result: Any, cast: Callable[[Any, DType], Any], half: DType) -> Any:
    if isinstance(result, tuple):
        parts = [_rounded(each, cast, half) for each in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return cast(result, half) if _dtype(result) is float32 else result
