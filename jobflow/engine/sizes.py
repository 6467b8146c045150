"""Sizes of shapes in the body of a job, meshes of fewer ranks, and the limit of argument shapes."""

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


def many_shapes(what: str, limit: int) -> str:
    """Return the notice that `what`, a job or graph, was called with more than `limit` argument shapes, so old programs are dropped."""
    return (
        f"{what} has been called with more than {limit} argument shapes: programs for the least recently used shapes are dropped, "
        f"and compiled again when they are needed; keep more with config.compiled_shapes(n)"
    )


def folded(mesh: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return a mesh with the same number of dimensions for fewer ranks; inner dimensions that divide the remaining size are kept.

    folded((2, 2), 2) == (1, 2)        folded((2, 4), 2) == (2, 1)
    """
    inner: list[int] = []
    for n in reversed(mesh[1:]):
        inner.insert(0, n if size % n == 0 else 1)
        size //= inner[0]
    return (size, *inner)
