"""Functions composed of several ops, on numbers of two bytes: computed in float32 throughout, and rounded once.

An op alone does so by itself (`kernels/half.py`).  Between the ops of a function a sum of squares, say, would be rounded, and 300^2 is infinite in
float16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from jobflow.core.types import DType, TensorType, float32
from jobflow.ops.scalar import cast

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[P, R]


def rounding_once(cast: Callable[[Any, DType], Any]) -> Callable[[Function[P, R]], Function[P, R]]:
    """The decorator that has a function run in float32 where its floating point tensors are all of one type of two bytes."""

    def decorate(function: Function[P, R]) -> Function[P, R]:
        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            half = _half_of(*args, *named.values())
            if half is None:
                return function(*args, **named)

            def wide(x: Any) -> Any:
                return cast(x, float32) if _dtype(x) is half else x

            wider: Any = function
            made: R = _rounded(wider(*map(wide, args), **{name: wide(x) for name, x in named.items()}), cast, half)
            return made

        return call

    return decorate


#: of functions of ops
rounded_once = rounding_once(cast)


def _dtype(x: Any) -> DType | None:
    """The element type of a tensor of floats; None of anything else."""
    found = getattr(x, "tensor_type", None)
    return found.dtype if isinstance(found, TensorType) and found.dtype.is_float else None


def _half_of(*given: Any) -> DType | None:
    dtypes = {dtype for x in given if (dtype := _dtype(x)) is not None}
    return next(iter(dtypes)) if len(dtypes) == 1 and next(iter(dtypes)).is_half else None


def _rounded(made: Any, cast: Callable[[Any, DType], Any], half: DType) -> Any:
    if isinstance(made, tuple):
        parts = [_rounded(each, cast, half) for each in made]
        return type(made)(*parts) if hasattr(made, "_fields") else tuple(parts)
    return cast(made, half) if _dtype(made) is float32 else made
