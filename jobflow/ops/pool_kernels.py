"""Pooling on the CPU: calls prepared once, over views whose innermost run is as long as the memory order allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.ops.base import Binder, Call
from jobflow.ops.windows import Window
from jobflow.types import Array, Xp


def counts(xp: Xp, window: Window, spatial: Sequence[int], out: Sequence[int], dtype: Any) -> Array:
    """How many positions of each window lie inside the image, shaped like the output's spatial axes."""
    count = xp.ones((1,) * len(out), dtype)
    for a, k in enumerate(window.kernel):
        along = [0] * out[a]
        for reach in (window.reach(a, tap, spatial[a], out[a]) for tap in range(k)):
            if reach is not None:
                for i in range(out[a])[reach[1]]:
                    along[i] += 1
        shape = [1] * len(out)
        shape[a] = out[a]
        count = count * xp.asarray(along, dtype).reshape(shape)
    return count


def bind_max(window: Window, device: Binder, x: Array, y: Array) -> list[Call] | None:
    return None


def bind_max_grad(window: Window, device: Binder, x: Array, y: Array, dy: Array, dx: Array) -> list[Call] | None:
    return None


def bind_avg(window: Window, device: Binder, x: Array, y: Array) -> list[Call] | None:
    return None


def bind_avg_grad(window: Window, device: Binder, dy: Array, dx: Array) -> list[Call] | None:
    return None
