"""Time training steps the same way on both sides, and print the figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import workloads


def emit(**result: Any) -> None:
    """Print a line that `scripts/gpu_check` and the scripts of this folder read."""
    print("RESULT " + json.dumps(result), flush=True)


def run_steps(step: Callable[[tuple[Any, ...]], float], batches: list[tuple[Any, ...]], count: int, first: int) -> tuple[list[float], list[float]]:
    """Run `count` steps and return their seconds and losses; `first` is the index of the first step.  A step ends when its loss is on the host."""
    seconds, losses = [], []
    for index in range(first, first + count):
        begin = time.perf_counter()
        losses.append(step(batches[index % len(batches)]))
        seconds.append(time.perf_counter() - begin)
    return seconds, losses


def figures(
    model: str, small: bool, batch: int, precision: str, side: str, warm: list[float], timed: list[float], losses: list[float]
) -> dict[str, Any]:
    """Return a row of the comparison; `warm` and `timed` are the seconds of the steps."""
    middle, items = median(timed), workloads.sizes(small)[model].items(batch)
    return {
        "figure": "step",
        "side": side,
        "model": model,
        "batch": batch,
        "precision": precision,
        "ms": middle * 1e3,
        "fastest_ms": min(timed) * 1e3,
        "slowest_ms": max(timed) * 1e3,
        "items_per_s": items / middle,
        f"loss_{workloads.EARLIER}": losses[workloads.EARLIER - 1],
        f"loss_{workloads.COMPARED}": losses[workloads.COMPARED - 1],
        "first_step_s": warm[0],
    }
