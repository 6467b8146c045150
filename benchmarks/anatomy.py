"""The time of a job's step on the first rank: by kernel, in the executor's loop, and in the call around the plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from profiled import by_kernel, profiled

from jobflow.engine.job import job_of
from jobflow.engine.session import current_session
from jobflow.program.commands import executors_of
from jobflow.runtime.world.world import Rank

LOOPED = 20_000


@dataclass(frozen=True)
class Profile:
    """A command for the ranks: time every instruction of a bound plan over some real steps."""

    number: int
    steps: int

    def __call__(self, rank: Rank, feeds: Mapping[str, Any]) -> dict[str, Any]:
        executor = executors_of(rank)[self.number]
        rows = profiled(executor, feeds, self.steps)
        return {
            "kernels": by_kernel(rows),
            "instructions": len(rows),
            "calls": len(executor.body) + len(executor.epilogue),
            "loop_ns": loop_seconds() * 1e9,
        }


def nothing() -> None:
    """The cheapest kernel there is."""


def loop_seconds() -> float:
    """Return the time that the loop over prepared calls adds to each kernel, compared with calling it directly."""
    calls: Any = [(nothing, ())] * LOOPED
    whole, bare = [], []
    for _ in range(9):
        start = time.perf_counter()
        for f, a in calls:
            f(*a)
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        for _ in calls:
            nothing()
        bare.append(time.perf_counter() - start)
    return (median(whole) - median(bare)) / LOOPED


def anatomy(declared: Callable[..., Any], arguments: tuple[Any, ...], steps: int) -> dict[str, Any]:
    """The first rank's profile of a job, and the median seconds of whole calls of it right after."""
    session, job = current_session(), job_of(declared)
    assert session.world is not None
    bound = job.signature.bind(arguments, session.world.size)
    compiled = session.compiled(job, tuple(value.shape for _, _, value in bound))
    profile = session.world.call(Profile(compiled.number, steps), compiled.feeds(compiled.arguments(bound, session.runs.get(job.name, 0))))[0]
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        declared(*arguments)
        seconds.append(time.perf_counter() - start)
    return dict(profile) | {"call_s": median(seconds)}
