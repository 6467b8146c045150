"""One side of a comparison: a worker process that runs training steps on request.

A worker reads one JSON object a line from its standard input and answers with one line on its standard output:

    {"do": "round", "steps": k}  ->  {"seconds": [k times]}
    {"do": "losses", "steps": k} ->  {"losses": [k mean losses]}
    {"do": "facts"}              ->  seconds to import and to the first step, versions
    {"do": "inside"}             ->  the time of a step by part, if the worker measures it
    {"do": "stop"}               ->  ends
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

#: the processor time of this process is the better measure if others use the core
CLOCK = time.process_time if os.environ.get("BENCHMARK_CLOCK") == "cpu" else time.perf_counter
PREFIX = "@worker "
#: parts of a round of short calls
PARTS = 5


def timed(step: Callable[[], Any], steps: int) -> list[float]:
    seconds = []
    for _ in range(steps):
        start = CLOCK()
        step()
        seconds.append(CLOCK() - start)
    return seconds


def means(call: Callable[[], Any], calls: int) -> list[float]:
    """Return the seconds of a call as means of a few runs of many calls, for calls below the clock's resolution."""
    each = max(1, calls // PARTS)
    seconds = []
    for _ in range(PARTS):
        start = CLOCK()
        for _ in range(each):
            call()
        seconds.append((CLOCK() - start) / each)
    return seconds


def serve(
    step: Callable[[], Any],
    loss_of: Callable[[Any], float],
    facts: Callable[[], dict[str, Any]],
    inside: Callable[[], dict[str, Any]] = dict,
    answers: bool = True,
) -> None:
    """Answer requests until "stop".  `answers` is False on ranks that participate without reporting."""
    does: dict[str, Callable[[int], dict[str, Any]]] = {
        "round": lambda steps: {"seconds": timed(step, steps)},
        "losses": lambda steps: {"losses": [loss_of(step()) for _ in range(steps)]},
        "facts": lambda _: facts(),
        "inside": lambda _: inside(),
    }
    obey(does, answers)


def obey(does: dict[str, Callable[[int], dict[str, Any]]], answers: bool = True) -> None:
    """Run the function that each line of the standard input names, with its "steps", until "stop"."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "stop":
            return
        answer = does[order["do"]](order.get("steps", 1))
        if answers:
            print(PREFIX + json.dumps(answer), flush=True)
