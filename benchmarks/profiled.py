"""Time of a step by prepared call: every call of an executor timed over some steps.

The steps are the executor's own, with its synchronization of all ranks, and variables change as in a run.  Collectives wait for the
other ranks, so all ranks of a job profile together, and times of collectives include the waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from jobflow.core.types import Array
from jobflow.runtime.executor import Executor
from jobflow.runtime.timing import TimedCall, TimedExecutor


@dataclass(frozen=True)
class Row:
    """One instruction: `kernel` is what does the work, in `calls` calls; `seconds` the least of all steps, as a busy machine only adds."""

    name: str
    kernel: str
    what: str
    where: str
    seconds: float
    calls: int


def profiled(executor: Executor, arguments: Mapping[str, Array], steps: int = 10) -> list[Row]:
    """The instructions of a plan, and the meetings of all ranks, in the order of their execution, after one step that is not counted."""
    executor.run(arguments)
    timed = TimedExecutor(executor)
    for _ in range(steps):
        timed.run(arguments)
    least = np.min([ran.times[:, 1] - ran.times[:, 0] for ran in timed.ran], axis=0) - _clock_seconds()
    calls_by_id: dict[int, tuple[TimedCall, list[float]]] = {}
    for call, seconds in zip(timed.calls, least.tolist(), strict=True):
        calls_by_id.setdefault(id(call), (call, []))[1].append(max(0.0, seconds))
    return [Row(call.name, call.kernel, call.what, call.where, sum(times), len(times)) for call, times in calls_by_id.values()]


def _clock_seconds() -> float:
    """Return the time that timing a call adds to it."""
    clock = perf_counter
    moments = [clock() for _ in range(400)]
    return median(after - before for before, after in zip(moments, moments[1:], strict=False))


def by_kernel(rows: Iterable[Row]) -> dict[str, float]:
    """Seconds of a step per kernel, the longest first."""
    total: dict[str, float] = {}
    for row in rows:
        total[row.kernel] = total.get(row.kernel, 0.0) + row.seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))
