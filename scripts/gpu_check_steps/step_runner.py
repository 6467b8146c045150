"""Run steps one after another, each in processes of its own under a time limit of its own, and write the results as they come.

A step is a command.  Its output goes to the log as it is written, so a step that crashes or is late loses nothing.  Two kinds of lines are
read: `RESULT {json}` is a figure, which is printed and kept in the table of results, and `NOT THERE reason` says that there is nothing to
check.  The runner prints one line for each step:

    STEP name ok|FAILED|late seconds [remark]

When a step ends, or its limit strikes, all its processes are ended, also those that started a session of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

#: seconds between SIGTERM and SIGKILL at the end of a late step
GRACE = 2.0
#: rounds of SIGKILL: a killed process may have started another one meanwhile
KILLS = 3
#: lines of output that are printed of a step that failed or was late, and failed tests that are named
TAIL, NAMED = 12, 30
#: prctl(2): orphans become children of this process, so a step cannot leave processes behind
SET_CHILD_SUBREAPER = 36
RESULT, NOT_THERE = "RESULT ", "NOT THERE "
FAILED_TEST = re.compile(r"^(?:\[gw\d+\] \[ *\d+%\] )?(?:FAILED|ERROR) (?P<test>\S+::.*?)(?: - |\s*$)")


@dataclass(frozen=True)
class Step:
    """A command and its limit in seconds.

    `limit` None: all that is left of the part's time.  `expects`: the step is ok if its output matches this pattern, whatever the exit code.
    """

    name: str
    limit: float | None
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    expects: str = ""


@dataclass
class Outcome:
    """The end of a step: `state` is ok, FAILED or late."""

    step: str
    state: str
    seconds: float
    remark: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    failed_tests: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)


def run_steps(part: str, steps: Sequence[Step], out: Path, budget: float) -> list[Outcome]:
    """Run the steps within `budget` seconds.  Write `{part}.log`, the output of all steps, and `{part}.jsonl`, an outcome a line, to `out`."""
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _exit_by_signal)  # `timeout` must not leave the running step behind
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + budget
    outcomes: list[Outcome] = []
    with (out / f"{part}.log").open("ab", buffering=0) as log, (out / f"{part}.jsonl").open("a", encoding="utf-8") as table:
        for step in steps:
            outcome = _run_step(step, out / f"{part}.log", log, deadline - time.monotonic())
            outcomes.append(outcome)
            table.write(json.dumps(vars(outcome)) + "\n")
            table.flush()
            for line in _printed(outcome):
                print(line, flush=True)
    return outcomes


def _exit_by_signal(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def _run_step(step: Step, log_path: Path, log: IO[bytes], left: float) -> Outcome:
    limit = left if step.limit is None else min(step.limit, left)
    if limit <= GRACE:
        return Outcome(step.name, "late", 0.0, "not started: no time is left")
    log.write(f"\n===== {step.name}: {' '.join(step.command)}\n".encode())
    start, begin = log_path.stat().st_size, time.monotonic()
    try:
        process = subprocess.Popen(
            step.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | step.environment, start_new_session=True
        )
    except OSError as error:
        return Outcome(step.name, "FAILED", 0.0, f"not started: {error}")
    late = False
    try:
        process.wait(timeout=limit - GRACE)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        left_over = _end_children()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
    seconds = time.monotonic() - begin
    with log_path.open("rb") as written:
        written.seek(start)
        output = written.read().decode(errors="replace")
    outcome = _judged(step, process.returncode, f"limit {limit:.0f} s" if late else "", seconds, output)
    outcome.remark += f" (still running: {', '.join(left_over)})" if left_over else ""
    return outcome


def _end_children() -> list[str]:
    """End all descendants of this process: ask, wait, kill.  Return those that the system cannot kill, as in a call of a driver that hangs."""
    descendants = psutil.Process().children(recursive=True)
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(descendants, timeout=GRACE)
    for _ in range(KILLS):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=GRACE)
    return [f"process {process.pid}" for process in psutil.Process().children(recursive=True)]


def _judged(step: Step, code: int | None, late: str, seconds: float, output: str) -> Outcome:
    """The outcome of a step that ended with this exit code; `late`: which limit struck."""
    lines = output.splitlines()
    results, remark = [], ""
    for line in lines:
        if line.startswith(RESULT):
            try:
                results.append(json.loads(line[len(RESULT) :]))
            except json.JSONDecodeError:  # cut off when the process ended
                results.append({"unreadable": line})
        elif line.startswith(NOT_THERE):
            remark = f"not there: {line[len(NOT_THERE) :]}"
    failed = list(dict.fromkeys(match["test"] for line in lines if (match := FAILED_TEST.match(line))))
    tail = [line for line in lines if line.strip()][-TAIL:]
    if late:
        return Outcome(step.name, "late", seconds, late, results, failed, tail)
    if step.expects:
        ok, why = re.search(step.expects, output, re.MULTILINE) is not None, f"no line matches {step.expects!r}"
    elif code is not None and code < 0:
        ok, why = False, f"ended by {signal.Signals(-code).name}"
    else:
        ok, why = code == 0, f"exit code {code}"
    if ok:
        return Outcome(step.name, "ok", seconds, remark, results, failed)
    return Outcome(step.name, "FAILED", seconds, why, results, failed, tail)


def _printed(outcome: Outcome) -> Iterator[str]:
    for result in outcome.results:
        yield "  " + " ".join(f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in result.items())
    for test in outcome.failed_tests[:NAMED]:
        yield f"  failed: {test}"
    if len(outcome.failed_tests) > NAMED:
        yield f"  ... and {len(outcome.failed_tests) - NAMED} more"
    if not outcome.failed_tests:
        for line in outcome.tail:
            yield f"  | {line[:200]}"
    yield f"STEP {outcome.step} {outcome.state} {outcome.seconds:.1f} {outcome.remark}".rstrip()
