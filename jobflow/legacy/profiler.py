"""The namespace `flow.profiler`: wall times of named blocks, and markers for NVIDIA profilers, which have no effect.

`jobflow train --profile` measures the instructions of a training run.
"""

from __future__ import annotations

from jobflow.core.lazy_imports import add_aliases
from jobflow.core.notices import notice
from jobflow.core.types import Tensor
from jobflow.functional.profiling import ProfilerAction as ProfilerAction
from jobflow.functional.profiling import ProfilerActivity as ProfilerActivity
from jobflow.functional.profiling import profile as profile
from jobflow.functional.profiling import record_function as record_function
from jobflow.functional.profiling import schedule as schedule
from jobflow.functional.profiling import supported_activities as supported_activities
from jobflow.functional.profiling import tensorboard_trace_handler as tensorboard_trace_handler
from jobflow.legacy.arrays import identity

__all__ = [
    "ProfilerAction", "ProfilerActivity", "nvtx_end", "nvtx_start", "profile", "range_pop", "range_push", "record_function", "schedule",
    "supported_activities", "tensorboard_trace_handler",
]  # fmt: skip


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


add_aliases(__name__, "jobflow.profiler")
