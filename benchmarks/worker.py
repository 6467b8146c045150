"""One side of a comparison: a process that takes a training step when it is told to.

A worker reads one JSON object a line from its standard input and answers with one line on its standard output:

    {"do": "round", "steps": k}  ->  {"seconds": [k times]}
    {"do": "losses", "steps": k} ->  {"losses": [k mean losses]}
    {"do": "facts"}              ->  what is worth knowing: seconds to import and to the first step, versions
    {"do": "stop"}               ->  ends
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

PREFIX = "@worker "


def timed(step: Callable[[], Any], steps: int) -> list[float]:
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds


def serve(step: Callable[[], Any], loss_of: Callable[[Any], float], facts: Callable[[], dict[str, Any]], answers: bool = True) -> None:
    """Obey until told to stop.  `answers` is False on ranks that take part without reporting."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "stop":
            return
        if order["do"] == "round":
            answer: dict[str, Any] = {"seconds": timed(step, order["steps"])}
        elif order["do"] == "losses":
            answer = {"losses": [loss_of(step()) for _ in range(order["steps"])]}
        else:
            answer = facts()
        if answers:
            print(PREFIX + json.dumps(answer), flush=True)
