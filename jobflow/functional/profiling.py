"""PyTorch's profiler: wall times of blocks that a program names.

    with profile() as prof:
        with record_function("forward"):
            ...
    print(prof.key_averages().table())

Operations of tensors are not recorded; `jobflow train --profile` and `jobflow explain` show the instructions of jobs.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum
from functools import wraps
from types import TracebackType
from typing import Any, NamedTuple, Self

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional.switches import checked_bool

__all__ = [
    "ProfilerAction", "ProfilerActivity", "emit_nvtx", "profile", "record_function", "schedule", "supported_activities", "tensorboard_trace_handler",
]  # fmt: skip


class ProfilerActivity(Enum):
    """A device whose work PyTorch's profiler records."""

    CPU = 0
    XPU = 1
    CUDA = 2


class ProfilerAction(Enum):
    """The action of a profiler in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


class Block(NamedTuple):
    """One execution of a named block; `begin` and `end` are values of time.perf_counter() in seconds."""

    name: str
    begin: float
    end: float
    thread: int


#: the profilers that record blocks now
_active: list[profile] = []


class record_function:
    """A `with` block or decorated function whose wall time profilers record under `name`."""

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str):
            raise ArgumentError(f"record_function at {user_line()}: name must be a string; got {name!r}")
        self.name = name

    def __enter__(self) -> Self:
        self.begin = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        block = Block(self.name, self.begin, time.perf_counter(), threading.get_ident())
        for profiler in _active:
            profiler.blocks.append(block)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with record_function(self.name):
                return function(*arguments, **named)

        return call


@dataclass(frozen=True)
class Average:
    """The runs of one block: their number and seconds."""

    key: str
    count: int
    seconds: float

    @property
    def cpu_time_total(self) -> float:
        """The wall time of all runs in microseconds."""
        return self.seconds * 1e6

    @property
    def cpu_time(self) -> float:
        """The mean wall time of a run in microseconds."""
        return self.cpu_time_total / self.count


class Averages(list[Average]):
    """The recorded blocks by name, with the longest first."""

    def table(self, sort_by: Any = None, row_limit: int = 100, **options: Any) -> str:
        """Return the first `row_limit` blocks as a text table of name, number of runs, total and mean time."""
        wide = max([len("name"), *(len(each.key) for each in self)])
        lines = [f"{'name':{wide}}  calls     total        mean"]
        lines += [f"{each.key:{wide}}  {each.count:5}  {each.seconds * 1e3:8.3f} ms  {each.cpu_time / 1e3:8.3f} ms" for each in self[:row_limit]]
        return "\n".join(lines)


class profile:
    """A recorder of the wall times of `record_function` blocks, as a `with` block or between `start` and `stop`.

    `schedule` selects the steps that are recorded; after the last of them, `on_trace_ready` is called with the profiler.
    The other arguments of PyTorch have no effect.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        use_cuda: bool | None = None,
        enabled: bool = True,
        **options: Any,
    ) -> None:
        for name, function in (("schedule", schedule), ("on_trace_ready", on_trace_ready)):
            if function is not None and not callable(function):
                raise ArgumentError(f"profile at {user_line()}: {name} must be a function; got {function!r}")
        self.enabled = checked_bool("profile", "enabled", enabled)
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.step_num = 0
        self.blocks: list[Block] = []

    def _action(self) -> ProfilerAction:
        return ProfilerAction.RECORD if self.schedule is None else self.schedule(self.step_num)

    def _switch(self) -> None:
        """Start or stop the recording, as the schedule requires for the current step."""
        on = self.enabled and self._action() in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if on and self not in _active:
            _active.append(self)
        elif not on and self in _active:
            _active.remove(self)

    def start(self) -> None:
        """Start the recording, unless the schedule excludes the current step."""
        self._switch()

    def stop(self) -> None:
        """End the recording, and call `on_trace_ready` unless there is a schedule."""
        if self in _active:
            _active.remove(self)
        if self.on_trace_ready is not None and self.schedule is None:
            self.on_trace_ready(self)

    def step(self) -> None:
        """End a step: call `on_trace_ready` if the schedule saves after this step, and apply the schedule to the next step."""
        if self.schedule is not None and self._action() is ProfilerAction.RECORD_AND_SAVE and self.on_trace_ready is not None:
            self.on_trace_ready(self)
        self.step_num += 1
        self._switch()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def events(self) -> list[Block]:
        """Return the recorded blocks."""
        return list(self.blocks)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Averages:
        """Return count and times of the recorded blocks by name."""
        by_name: dict[str, list[float]] = {}
        for block in self.blocks:
            by_name.setdefault(block.name, []).append(block.end - block.begin)
        rows = [Average(name, len(times), sum(times)) for name, times in by_name.items()]
        return Averages(sorted(rows, key=lambda row: -row.seconds))

    def total_average(self) -> Average:
        """Return count and times of all recorded blocks together."""
        return Average("Total", max(len(self.blocks), 1), sum(block.end - block.begin for block in self.blocks))

    def export_chrome_trace(self, path: Any) -> None:
        """Write the recorded blocks as a trace file for Chrome and Perfetto."""
        events = [
            {"name": each.name, "ph": "X", "ts": each.begin * 1e6, "dur": (each.end - each.begin) * 1e6, "pid": os.getpid(), "tid": each.thread}
            for each in self.blocks
        ]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, **options: Any) -> Callable[[int], ProfilerAction]:
    """Return a schedule of cycles of `wait`, `warmup` and `active` steps, after `skip_first` steps; `repeat` 0 means cycles without end.

    Raises: ArgumentError for a negative number, or without active steps.
    """
    steps = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip_first}
    for name, number in steps.items():
        least = int(name == "active")
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ArgumentError(f"profiler.schedule at {user_line()}: {name} must be an integer of at least {least}; got {number!r}")

    def action(step: int) -> ProfilerAction:
        cycle, at = divmod(step - skip_first, wait + warmup + active)
        if step < skip_first or (repeat and cycle >= repeat) or at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if at + 1 < wait + warmup + active else ProfilerAction.RECORD_AND_SAVE

    return action


def tensorboard_trace_handler(dir_name: Any, worker_name: str | None = None, use_gzip: bool = False) -> Callable[[profile], None]:
    """Return a function for `on_trace_ready` that writes a trace file into the folder."""

    def write(profiler: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        name = worker_name or f"{os.getpid()}"
        profiler.export_chrome_trace(os.path.join(dir_name, f"{name}.{profiler.step_num}.pt.trace.json"))

    return write


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that are recorded: blocks on the host."""
    return {ProfilerActivity.CPU}


class emit_nvtx(record_function):
    """A `with` block without markers for NVIDIA profilers."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        super().__init__("emit_nvtx")
