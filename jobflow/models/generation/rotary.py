"""Rotary position embeddings (Su et al. 2021), in the order of Llama: the first half of a head is rotated with the second half."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import jobflow.functional as flow
from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.types import float32, float64
from jobflow.functional.dispatch import is_tensor


def rotary_embedding(x: Any, at: Any, base: float = 10000.0) -> Any:
    """Rotate each pair (x[i], x[i + size / 2]) of a head by the angle at * base ** (-2 i / size), for tokens at the positions `at`.

    Shapes: x [batch, heads, tokens, size], at [tokens] or [batch, tokens] -> [batch, heads, tokens, size].
    """
    for name, argument in {"x": x, "at": at}.items():
        if not is_tensor(argument):
            raise ArgumentError(f"rotary_embedding at {user_line()}: {name} is of the type {type(argument).__name__}; pass a tensor")
    if not isinstance(base, Real) or not 0 < base < math.inf:
        raise ArgumentError(f"rotary_embedding at {user_line()}: base is {base!r}; pass a finite number above 0")
    if x.ndim != 4 or x.shape[-1] % 2 or not at.ndim or at.shape[-1] != x.shape[2]:
        raise ShapeError(
            f"rotary_embedding at {user_line()}: x {list(x.shape)} must be [batch, heads, tokens, even size], and at {list(at.shape)} "
            f"one number per token"
        )
    size = x.shape[-1]
    exact = float64 if x.dtype is float64 else float32
    rates = base ** (flow.arange(size // 2, dtype=exact, device=x.device) * (-2 / size))  # [size / 2]
    angles = at.to(exact)[..., None, :, None] * rates  # [batch, 1, tokens, size / 2]
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., : size // 2], x[..., size // 2 :]
    return flow.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
