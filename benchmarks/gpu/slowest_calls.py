"""Time each call of a bfloat16 step of both models by events on the GPU, and write a table of the 25 slowest.

python slowest_calls.py --out FILE.md [--small]

The captured graph of the step is timed first.  A row is an instruction of the plan with its calls.  Bytes: each operand counted once.  A call
that takes less time than its launch shows the time of the launch, about 10 microseconds.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import run_jobflow
import step_timing
import workloads

from jobflow.engine.session import current_session
from jobflow.plan.plan import Compute, Instruction
from jobflow.program.commands import executors_of
from jobflow.runtime.executor import Executor
from jobflow.runtime.timing import described

ROWS, WARM, TIMED = 25, 3, 5
#: rows that are also printed
PRINTED = 5


@dataclass(frozen=True)
class Row:
    operation: str
    name: str
    where: str
    calls: int
    ms: float
    nbytes: int

    @property
    def tb_per_s(self) -> float:
        return self.nbytes / self.ms / 1e9 if self.ms else 0.0


def executor_of_the_job() -> Executor:
    """Return the executor with the most calls: the training step."""
    world = current_session().world
    assert world is not None
    return max(executors_of(world.ranks[0]).values(), key=lambda executor: len(executor.body))


def graph_ms(executor: Executor) -> float:
    """Return the median GPU time of the captured graphs of a step, in milliseconds."""
    cupy = importlib.import_module("cupy")
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    times = []
    for _ in range(TIMED):
        begin.record(executor.device.stream)
        for replays in executor.replays:
            for function, arguments in replays.launches():
                function(*arguments)
        end.record(executor.device.stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end))
    return median(times)


def timed_calls(executor: Executor, step: Any, batches: list[Any], turns: int) -> list[list[float]]:
    """Time each call with events and return milliseconds per step, for `turns` steps."""
    cupy = importlib.import_module("cupy")
    plain, replays = (executor.body[:], executor.epilogue[:]), executor.replays
    executor.replays = []  # single calls, no graphs
    events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in (*plain[0], *plain[1])]

    def wrapped(call: Any, begin: Any, end: Any) -> Any:
        function, arguments = call

        def run() -> None:
            begin.record(executor.device.stream)
            function(*arguments)
            end.record(executor.device.stream)

        return run, ()

    every = [wrapped(call, *pair) for call, pair in zip((*plain[0], *plain[1]), events, strict=True)]
    executor.body[:], executor.epilogue[:] = every[: len(plain[0])], every[len(plain[0]) :]
    times = []
    try:
        for turn in range(turns):
            step(batches[turn % len(batches)])
            executor.device.synchronize()
            times.append([cupy.cuda.get_elapsed_time(*pair) for pair in events])
    finally:
        executor.body[:], executor.epilogue[:] = plain
        executor.replays = replays
    return times


def rows(executor: Executor, times: list[list[float]]) -> list[Row]:
    """Return one row per instruction, slowest first."""
    middle = [median(column) for column in zip(*times, strict=True)]
    spent: dict[int, tuple[Instruction, list[float]]] = {}
    for instruction, ms in zip(executor.call_instructions, middle, strict=True):
        spent.setdefault(id(instruction), (instruction, []))[1].append(ms)
    return sorted((row(instruction, each) for instruction, each in spent.values()), key=lambda row: -row.ms)


def row(instruction: Instruction, ms: list[float]) -> Row:
    words = described(instruction)
    slots = (*instruction.inputs, *instruction.outputs) if isinstance(instruction, Compute) else ()
    operands = {(slot.buffer, slot.offset): slot.type.nbytes for slot in slots}
    return Row(words.kernel, words.name, words.where, len(ms), sum(ms), sum(operands.values()))


def table(title: str, every: list[Row]) -> Iterable[str]:
    whole = sum(row.ms for row in every) or 1.0
    yield from (f"## {title}", "", f"{sum(row.calls for row in every)} calls, {whole:.2f} ms of the GPU", "")
    yield from ("| ms | share | calls | MB | TB/s | operation | name | line |", "|---:|---:|---:|---:|---:|---|---|---|")
    for row in every[:ROWS]:
        figures = f"{row.ms:.3f} | {row.ms / whole:.1%} | {row.calls} | {row.nbytes / 1e6:.1f} | {row.tb_per_s:.2f}"
        yield f"| {figures} | {row.operation} | {row.name} | {Path(row.where).name} |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")
    parser.add_argument("--small", action="store_true", help="small models")
    options = parser.parse_args()
    options.out.write_text("", encoding="utf-8")
    for model, size in workloads.sizes(options.small).items():
        importlib.import_module("jobflow").clear_default_session()
        batch = size.batches[0]
        step = run_jobflow.prepared(model, batch, "bfloat16", options.small, host=False)
        batches = workloads.batches(size, batch)
        step_timing.run_steps(step, batches, WARM, 0)
        executor = executor_of_the_job()
        step_timing.emit(figure="graph", model=model, batch=batch, gpu_ms=graph_ms(executor))
        every = rows(executor, timed_calls(executor, step, batches, TIMED))
        with options.out.open("a", encoding="utf-8") as file:
            file.write("\n".join(table(f"{model}, batch {batch}, bfloat16", every)) + "\n")
        whole = sum(row.ms for row in every)
        step_timing.emit(figure="calls", model=model, batch=batch, calls=sum(row.calls for row in every), gpu_ms=whole)
        for row in every[:PRINTED]:
            where = Path(row.where).name
            step_timing.emit(figure="call", operation=row.operation, name=row.name, line=where, ms=row.ms, tb_per_s=row.tb_per_s)
        del executor, step  # their memory on the GPU, before the next model


if __name__ == "__main__":
    main()
