"""Sizes of shapes in the body of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Size(int):
    """A declared size of a shape, and the size of the current call as `now`.

    Functions that receive a `Size` in a shape use `now`, as in reshape(x, (x.shape[0], -1)).
    """

    now: int

    @classmethod
    def of(cls, declared: int, now: int) -> Size:
        """Return a `Size` with the declared size `declared` and the size `now` in the current call."""
        size = cls(declared)
        size.now = now
        return size


def sizes(shape: Iterable[Any]) -> tuple[int, ...]:
    """Return a shape as integers, with each `Size` replaced by its size in the current call."""
    return tuple(n.now if isinstance(n, Size) else int(n) for n in shape)
