"""Runner of steps: one process and one time limit for each, results written incrementally.

A step is a command.  Its output goes directly to the log, so a step that crashes or is late loses nothing.  The runner parses two line formats:
`RESULT {json}` is a figure, which is printed and saved, and `NOT THERE reason` says that a library or a feature is missing.  The runner prints
one line for each step:

    STEP name ok|FAILED|late seconds [remark]

All processes of a step are terminated when it exits or times out, also those in sessions of their own.  A step of pytest in which no test passed
has failed.
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
#: rounds of SIGKILL, because a process may fork meanwhile
KILLS = 3
#: output lines and failed tests printed for a step that failed or was late
TAIL, NAMED = 12, 30
#: prctl(2): signal a child when its parent dies; reparent orphans to this process
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)
RESULT, NOT_THERE = "RESULT ", "NOT THERE "
#: a failed test in pytest's lines with and without xdist, and in its summary
FAILED_TEST = re.compile(r"^(?:\[gw\d+\] \[ *\d+%\] )?(?:FAILED|ERROR) (?P<test>\S+::.*?)(?: - |\s*$)")
FAILED_ALONE = re.compile(r"^(?P<test>\S+::.*?) (?:FAILED|ERROR) +\[ *\d+%\]$")
#: the last line of pytest, and the counts in it
SUMMARY, COUNT = re.compile(r"^=+ (?P<counts>.*) in [\d.]+s.*=+$"), re.compile(r"(\d+) (passed|failed|skipped|errors?)")


@dataclass(frozen=True)
class Step:
    """A command and its limit in seconds.

    `limit` None: the remaining budget.  `expects`: the step is ok if its output matches this pattern, regardless of the exit code.
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
    LIBC.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background jobs
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _exit_by_signal)  # `timeout` must not leave the running step behind
    deadline = time.monotonic() + budget
    outcomes: list[Outcome] = []
    with (out / f"{part}.log").open("ab", buffering=0) as log, (out / f"{part}.jsonl").open("a", encoding="utf-8") as table:
        for step in steps:
            begin = time.monotonic()
            try:
                outcome = _run_step(step, out / f"{part}.log", log, deadline - begin)
            except BaseException as error:
                interrupted = Outcome(step.name, "interrupted", time.monotonic() - begin, type(error).__name__)
                table.write(json.dumps(vars(interrupted)) + "\n")
                raise
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
            step.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | step.environment,
            start_new_session=True,
            preexec_fn=lambda: LIBC.prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
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
    """Terminate all descendants; return the processes that survive SIGKILL, as in a call of a driver that hangs."""
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
    """Return the outcome for this exit code and output; `late` names the expired limit."""
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
    failed = list(dict.fromkeys(match["test"] for line in lines if (match := FAILED_TEST.match(line) or FAILED_ALONE.match(line))))
    counts = dict(reversed(pair) for line in lines if (match := SUMMARY.match(line)) for pair in COUNT.findall(match["counts"]))
    if counts and not remark:
        remark = ", ".join(f"{count} {what}" for what, count in counts.items())
    tail = [line for line in lines if line.strip()][-TAIL:]
    if late:
        return Outcome(step.name, "late", seconds, late, results, failed, tail)
    if step.expects:
        ok, why = re.search(step.expects, output, re.MULTILINE) is not None, f"no line matches {step.expects!r}"
    elif code is not None and code < 0:
        ok, why = False, f"ended by {signal.Signals(-code).name}"
    elif counts and "passed" not in counts:
        ok, why = False, f"no test passed ({remark})"
    else:
        ok, why = code == 0, f"exit code {code}" + (f" ({remark})" if counts else "")
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
