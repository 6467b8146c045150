"""Where the time of a step goes: every prepared call of an executor timed over some steps.

The steps are real ones: variables change as they do in a run.  Collectives wait for the other ranks, so all ranks of a job
profile together, and what is measured at a collective includes the waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from jobflow.ops.base import Call
from jobflow.plan.plan import Collective, Compute, Instruction
from jobflow.runtime.executor import Executor
from jobflow.types import Array


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
    """The instructions of a plan in the order of their execution, after one step that is not counted."""
    executor.run(arguments)
    calls = [*executor.body, *executor.epilogue]
    clock = _clock_seconds()
    each: list[list[float]] = []
    with np.errstate(all="ignore"):
        for _ in range(steps):
            executor.feed(arguments)
            each.append(_timed(calls))
    seconds = [max(0.0, min(times) - clock) for times in zip(*each, strict=True)]
    found: dict[int, tuple[Instruction, list[float]]] = {}
    for instruction, time in zip(executor.origin, seconds, strict=True):
        found.setdefault(id(instruction), (instruction, []))[1].append(time)
    return [_row(instruction, times) for instruction, times in found.values()]


def _timed(calls: Sequence[Call]) -> list[float]:
    times = []
    for f, a in calls:
        start = perf_counter()
        f(*a)
        times.append(perf_counter() - start)
    return times


def _clock_seconds() -> float:
    """What timing a call adds to it."""
    nothing: Call = (_nothing, ())
    return median(_timed([nothing] * 200))


def _nothing() -> None:
    return None


def _row(instruction: Instruction, times: list[float]) -> Row:
    match instruction:
        case Compute(op, inputs, outputs, name, where):
            kernel = op.word()
            shapes = " ".join("x".join(map(str, slot.type.shape)) or "()" for slot in (*inputs, *outputs))
        case Collective(kind, _, slot, _, _, _, _, _, name, where):
            kernel, shapes = kind, f"{slot.type}"
        case _:
            kernel, shapes = "send" if instruction.sends else "receive", f"{instruction.slot.type}"
            name, where = instruction.name, instruction.where
    return Row(name, kernel, shapes, str(where), sum(times), len(times))


def by_kernel(rows: Iterable[Row]) -> dict[str, float]:
    """Seconds of a step per kernel, the longest first."""
    total: dict[str, float] = {}
    for row in rows:
        total[row.kernel] = total.get(row.kernel, 0.0) + row.seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def profile_text(rows: Sequence[Row], top: int = 20) -> str:
    """A table of the kernels, and one of the `top` longest instructions."""
    whole = sum(row.seconds for row in rows) or 1.0
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.kernel] = counts.get(row.kernel, 0) + 1
    lines = [f"{'kernel':32}{'times':>6}{'us':>12}{'share':>8}"]
    lines += [f"{kernel:32}{counts[kernel]:6d}{seconds * 1e6:12.1f}{seconds / whole:8.1%}" for kernel, seconds in by_kernel(rows).items()]
    lines += [f"{'all':32}{len(rows):6d}{whole * 1e6:12.1f}{1:8.1%}", "", f"{'instruction':44}{'kernel':28}{'us':>12}{'calls':>6}  shapes"]
    longest = sorted(rows, key=lambda row: -row.seconds)[:top]
    lines += [f"{row.name:44.44}{row.kernel:28}{row.seconds * 1e6:12.1f}{row.calls:6d}  {row.what}" for row in longest]
    return "\n".join(lines)
