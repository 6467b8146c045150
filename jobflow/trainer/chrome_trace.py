"""The trace of all ranks for `--profile`: a file for chrome://tracing or https://ui.perfetto.dev, and a table of the slowest ops.

    [ step 12                                                            ]      one track per rank
      [matmul][relu] ... [ all_reduce dense-kernel-grad ]  [adam]               categories: compute, communication
                              [ waiting ]                                       waiting, inside a communication

All ranks record the same steps. Starting and ending a recording are collective operations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.tables import TextTable
from jobflow.engine.session import Session, current_session
from jobflow.program.commands import executors_of
from jobflow.runtime.timing import Recording, TimedCall, TimedRun, Timeline
from jobflow.runtime.world.world import Rank
from jobflow.trainer.training_run import leave
from jobflow.trainer.units import duration_text, percent

#: key of the recording in `Rank.memory`
RECORDING = "recording"
#: microseconds in a second
MICRO = 1e6
STEP, COMPUTE, COMMUNICATION, WAITING, HOST = "step", "compute", "communication", "waiting", "host"
#: categories of the time in a step
PARTS = (COMPUTE, COMMUNICATION, WAITING, HOST)


@dataclass(frozen=True)
class Begin:
    """A command that starts a recording on each rank."""

    def __call__(self, rank: Rank, _: Any) -> None:
        rank.memory[RECORDING] = Recording(rank.index, rank.comm, executors_of(rank))


@dataclass(frozen=True)
class End:
    """A command that ends the recording on each rank and returns its timeline."""

    def __call__(self, rank: Rank, _: Any) -> Timeline:
        recording: Recording = rank.memory.pop(RECORDING)
        return recording.end()


@dataclass(frozen=True)
class Slice:
    """An interval of time on a rank, in seconds from the start of the trace."""

    rank: int
    name: str
    category: str
    begin: float
    end: float
    timed: TimedCall | None = None
    #: number of consecutive calls of the op
    calls: int = 1
    #: True in a training step, False in another job between steps
    counted: bool = True

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass
class Slow:
    """Totals of one op over all ranks, shapes and recorded steps.

    `seconds` includes `waiting`. `share` is the fraction of the time that all ranks spent in steps.
    """

    timed: TimedCall
    seconds: float = 0.0
    waiting: float = 0.0
    share: float = 0.0
    calls: int = 0


@dataclass(frozen=True)
class Traced:
    """A recorded trace, and the path of its file for the viewer."""

    path: Path
    slices: tuple[Slice, ...]
    hosts: tuple[str, ...]
    steps: int

    @property
    def ranks(self) -> int:
        return len(self.hosts)

    @property
    def counted(self) -> list[Slice]:
        """The slices inside training steps, without slices of other jobs."""
        return [item for item in self.slices if item.counted]

    def parts(self) -> dict[int, dict[str, float]]:
        """Return {rank: {category: seconds}} over the recorded steps; communication excludes waiting."""
        by_rank = {rank: dict.fromkeys(PARTS, 0.0) for rank in range(self.ranks)}
        for item in self.counted:
            own = by_rank[item.rank]
            if item.category == STEP:
                own[HOST] += item.seconds
            elif item.category == WAITING:
                own[WAITING] += item.seconds
                own[COMMUNICATION] -= item.seconds
            elif item.timed is not None:
                own[item.category] += item.seconds
                own[HOST] -= item.seconds
        return {rank: {part: max(0.0, seconds) for part, seconds in own.items()} for rank, own in by_rank.items()}

    def slowest(self, top: int | None = 20) -> list[Slow]:
        """Return the totals of the `top` slowest ops, or of all ops if `top` is None, slowest first."""
        whole = sum(item.seconds for item in self.counted if item.category == STEP) or 1.0
        rows: dict[TimedCall, Slow] = {}
        for item in self.counted:
            if item.timed is not None:
                op = replace(item.timed, what="")
                row = rows.setdefault(op, Slow(op))
                if item.category == WAITING:
                    row.waiting += item.seconds
                else:
                    row.seconds += item.seconds
                    row.share += item.seconds / whole
                    row.calls += item.calls
        return sorted(rows.values(), key=lambda row: -row.seconds)[:top]

    def text(self, top: int = 20) -> str:
        """Return two tables as text: the time of each rank by category, and the `top` slowest ops."""
        return (
            f"Inside a step, mean of {self.steps}\n{parts_table(self)}\nhost: time outside of ops, for example for arguments and results\n\n"
            f"{slowest_table(self, top)}\ntotals over all ranks and recorded steps; share of the ranks' time in steps"
        )


class Tracing:
    """A recording of `steps` training steps from step number `first`, written to a file.  Steps count from 1.

    Every rank calls `before` and `after` around each step, with equal step numbers, and `close` at the end.
    Afterwards `traced` is the trace on rank 0, and None on the other ranks.
    """

    def __init__(self, path: Path, first: int, steps: int = 10, session: Callable[[], Session] = current_session) -> None:
        self.path = Path(path)
        self.traced: Traced | None = None
        self._first, self._steps, self._session = first, steps, session
        self._begun = self._done = 0

    @property
    def recording(self) -> bool:
        return self._begun > 0

    def before(self, step: int) -> None:
        """Start the recording at the first call whose `step` has reached the first step to record.

        `step` is the number of the next step.
        """
        world = self._session().world
        if step >= self._first and not self._begun and self.traced is None and world is not None:
            world.call(Begin())
            self._begun = step

    def after(self, step: int) -> None:
        """Record that step number `step` has ended; after the last step to record, write the file."""
        if self._begun:
            self._done = step
            if step + 1 >= self._begun + self._steps:
                self.close()

    def close(self) -> None:
        """End the recording on all ranks, and write its file on rank 0; do nothing if no recording is active."""
        world = self._session().world
        if not self._begun or world is None:
            return
        first, self._begun = self._begun, 0
        self._first = self._done + 2**62  # never record again
        timelines: list[Timeline] = world.call(End())
        if self._session().writes_files:
            self.traced = write(self.path, timelines, first, self._done + 1 - first)


def write(path: Path, timelines: Sequence[Timeline], first: int, steps: int) -> Traced:
    """Write the timelines of all ranks to one file and return the trace; the first recorded step has the number `first`."""
    slices = tuple(item for recorded in timelines for item in slices_of(recorded, first, steps))
    start = min((item.begin for item in slices), default=0.0)
    slices = tuple(replace(item, begin=item.begin - start, end=item.end - start) for item in slices)
    traced = Traced(path, slices, tuple(recorded.host.partition(" ")[0] for recorded in timelines), steps)
    leave(path, json.dumps(events(traced), separators=(",", ":")).encode())
    return traced


def slices_of(recorded: Timeline, first: int, steps: int) -> Iterator[Slice]:
    """Yield slices for the runs, op calls and waits of one rank, in the time of rank 0's clock.

    The runs of a job with exactly `steps` runs are training steps; the first one has the number `first`.
    """
    waits = recorded.waits + recorded.offset
    for job, plans in recorded.runs.items():
        ran = sorted(
            ((run, calls) for runs, calls in zip(plans, recorded.calls[job], strict=True) for run in runs), key=lambda pair: float(pair[0].begin)
        )
        is_step = len(ran) == steps
        for i, (run, calls) in enumerate(ran):
            title = f"{job}: step {first + i}" if is_step else f"{job}: run {i + 1}"
            for item in run_slices(recorded, title, run, calls, waits):
                yield replace(item, counted=is_step)


def run_slices(recorded: Timeline, title: str, run: TimedRun, calls: Sequence[TimedCall], waits: np.ndarray[Any, Any]) -> Iterator[Slice]:
    """Yield a slice for one run of a plan, and slices for its ops and waits.  Consecutive calls of an op form one slice."""
    shift, rank = recorded.offset, recorded.rank
    yield Slice(rank, title, STEP, run.begin + shift, run.end + shift)
    times = run.times + shift
    at = 0
    for timed, group in groupby(calls):
        first, at = at, at + sum(1 for _ in group)
        start, stop = float(times[first, 0]), float(times[at - 1, 1])
        yield Slice(rank, timed.name, timed.category, start, stop, timed, at - first)
        if timed.category == COMMUNICATION:
            among = waits[np.searchsorted(waits[:, 0], start) : np.searchsorted(waits[:, 0], stop)]
            yield from (Slice(rank, "waiting for other ranks", WAITING, a, b, timed) for a, b in joined(among.tolist(), stop))


def joined(waits: Sequence[Sequence[float]], stop: float, gap: float = 2e-6) -> list[tuple[float, float]]:
    """Merge waits that are less than `gap` seconds apart, because a long wait is recorded in pieces; no wait ends after `stop`."""
    merged: list[tuple[float, float]] = []
    for begin, end in waits:
        if merged and begin - merged[-1][1] < gap:
            begin, _ = merged.pop()
        merged.append((begin, min(end, stop)))
    return merged


def events(traced: Traced) -> dict[str, Any]:
    """Return the trace in the Trace Event Format: complete events ("X") on one thread per rank, and the names of the threads."""
    named: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "jobflow"}}]
    for rank, host in enumerate(traced.hosts):
        named.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"rank {rank} ({host})"}})
        named.append({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": rank, "args": {"sort_index": rank}})
    return {"traceEvents": [*named, *map(event, traced.slices)], "displayTimeUnit": "ms", "otherData": {"steps": traced.steps, "ranks": traced.ranks}}


def event(item: Slice) -> dict[str, Any]:
    begin = round(item.begin * MICRO, 3)
    took = round(max(0.0, round(item.end * MICRO, 3) - begin), 3)
    fields: dict[str, Any] = {"name": item.name, "cat": item.category, "ph": "X", "ts": begin, "dur": took, "pid": 0, "tid": item.rank}
    if item.timed is not None and item.category != WAITING:
        fields["args"] = {"kernel": item.timed.kernel, "where": item.timed.where, "what": item.timed.what, "calls": item.calls}
    return fields


def parts_table(traced: Traced) -> TextTable:
    """Return a table of each rank's mean step time by category, with shares."""
    rows = []
    for rank, parts in traced.parts().items():
        whole = sum(parts.values())
        times = [f"{duration_text(seconds / max(traced.steps, 1))}  {percent(seconds / (whole or 1.0)):>7}" for seconds in parts.values()]
        rows.append([f"rank {rank}", *times, duration_text(whole / max(traced.steps, 1))])
    return TextTable(["", *PARTS, "step"], rows, right=range(1, len(PARTS) + 2))


def slowest_table(traced: Traced, top: int | None = 20) -> TextTable:
    """Return a table of the slowest ops: total milliseconds over all ranks and recorded steps, and shares of the ranks' time in steps."""
    rows = []
    for row in traced.slowest(top):
        waiting = f"{row.waiting * 1e3:,.3f}" if row.timed.category == COMMUNICATION else ""
        rows.append([row.timed.name, row.timed.where, row.timed.kernel, f"{row.seconds * 1e3:,.3f}", waiting, percent(row.share), row.calls])
    return TextTable(["op", "where", "kernel", "total ms", "waiting ms", "share", "calls"], rows, right=(3, 4, 5, 6), code=(1,))
