"""Checks of a trace: the trace event format, and jobflow's rules."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CATEGORIES = {"step", "compute", "communication", "waiting"}
#: microseconds that rounding may add
ROUNDING = 0.002


def check_trace(path: Path, ranks: int, steps: list[int] | None) -> list[dict[str, Any]]:
    """Return the slices of a valid trace file; raise AssertionError for an invalid one.

    A trace is a JSON object with "traceEvents"; each event has name, phase, process and thread.

    Complete events have begin and length, and each rank has one named thread.

    Slices nest on a thread: a step holds calls, a communication holds waits.
    """
    whole = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    assert isinstance(whole, dict) and whole["displayTimeUnit"] in ("ms", "ns")
    events = whole["traceEvents"]
    assert all(_is_event(event) for event in events), next(event for event in events if not _is_event(event))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(names) == list(range(ranks)) and all(name.startswith(f"rank {tid}") for tid, name in names.items()), names
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in slices} <= CATEGORIES and {event["tid"] for event in slices} == set(range(ranks))
    assert min(event["ts"] for event in slices) == 0
    for rank in range(ranks):
        own = [event for event in slices if event["tid"] == rank]
        _check_nesting(own)
        step_numbers = [int(e["name"].split()[-1]) for e in own if e["cat"] == "step" and " step " in e["name"]]
        assert steps is None or step_numbers == steps, (rank, step_numbers)
    return slices


def _refuse(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


def _is_event(event: Mapping[str, Any]) -> bool:
    if not (isinstance(event.get("name"), str) and isinstance(event.get("pid"), int) and isinstance(event.get("tid"), int)):
        return False
    if event.get("ph") == "M":
        return isinstance(event.get("args"), dict)
    times = [event.get(key) for key in ("ts", "dur")]
    right = all(isinstance(time, int | float) and math.isfinite(time) and time >= 0 for time in times)
    return event.get("ph") == "X" and right and isinstance(event.get("cat"), str) and isinstance(event.get("args", {}), dict)


def _check_nesting(slices: list[dict[str, Any]]) -> None:
    """Check that each slice is inside the open slice before it, in a category that may hold it."""
    holders = {"step": None, "compute": "step", "communication": "step", "waiting": "communication"}
    open_: list[dict[str, Any]] = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"], len(_holders(holders, e["cat"])))):
        while open_ and event["ts"] >= open_[-1]["ts"] + open_[-1]["dur"] - ROUNDING and not _inside(event, open_[-1], holders):
            open_.pop()
        holder = open_[-1]["cat"] if open_ else None
        assert holder == holders[event["cat"]], f"{event} in {open_[-1:]}"
        if open_:
            assert event["ts"] + event["dur"] <= open_[-1]["ts"] + open_[-1]["dur"] + ROUNDING, f"{event} is longer than {open_[-1]}"
        open_.append(event)


def _holders(holders: Mapping[str, str | None], category: str) -> list[str]:
    holder = holders[category]
    return [] if holder is None else [holder, *_holders(holders, holder)]


def _inside(event: Mapping[str, Any], holder: Mapping[str, Any], holders: Mapping[str, str | None]) -> bool:
    """Return True for an event of length zero at the end of a slice that may hold it."""
    return holders[event["cat"]] == holder["cat"] and event["ts"] + event["dur"] <= holder["ts"] + holder["dur"] + ROUNDING
