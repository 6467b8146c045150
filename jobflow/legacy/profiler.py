"""`flow.profiler`: marks for profilers of NVIDIA.  They are accepted: `jobflow train --profile` says what each operation takes."""

from __future__ import annotations

from jobflow.core.notices import notice
from jobflow.core.types import Tensor
from jobflow.legacy.arrays import identity

__all__ = ["nvtx_end", "nvtx_start", "range_pop", "range_push"]


def nvtx_start(x: Tensor, mark_prefix: str, name: str | None = None) -> Tensor:
    """x."""
    return identity(x, name)


def nvtx_end(x: Tensor, mark_prefix: str, name: str | None = None) -> Tensor:
    """x."""
    return identity(x, name)


def range_push(range_name: str) -> None:
    """Accepted, without effect."""
    notice("profiler.range_push and range_pop have no effect and are ignored")


def range_pop() -> None:
    """Accepted, without effect."""
