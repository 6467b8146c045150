"""The namespace `flow.profiler`: markers for NVIDIA profilers, accepted without effect. Use `jobflow train --profile` for timings."""

from __future__ import annotations

from jobflow.core.notices import notice
from jobflow.core.types import Tensor
from jobflow.legacy.arrays import identity

__all__ = ["nvtx_end", "nvtx_start", "range_pop", "range_push"]


def nvtx_start(x: Tensor, mark_prefix: str, name: str | None = None) -> Tensor:
    """Return x; the marker has no effect."""
    return identity(x, name)


def nvtx_end(x: Tensor, mark_prefix: str, name: str | None = None) -> Tensor:
    """Return x; the marker has no effect."""
    return identity(x, name)


def range_push(range_name: str) -> None:
    """Do nothing but write a notice."""
    notice("profiler.range_push and range_pop have no effect and are ignored")


def range_pop() -> None:
    """Do nothing."""
