"""What a trace must be: the trace event format, and the laws of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CATEGORIES = {"step", "compute", "communication", "waiting"}
#: microseconds that rounding may add
ROUNDING = 0.002


def checked(path: Path, ranks: int, steps: list[int] | None) -> list[dict[str, Any]]:
    """The slices of a trace file, which is right: AssertionError if it is not.

    A JSON object with "traceEvents"; each has name, phase, process and thread; complete events a begin and a length.  One thread per rank, with a
    name; on each, slices nest; a step holds its calls, a communication its waits.
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
        numbers = [int(e["name"].split()[-1]) for e in own if e["cat"] == "step" and " step " in e["name"]]
        assert steps is None or numbers == steps, (rank, numbers)
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
    """Each slice lies within the one that was begun before and has not ended; which may be what where."""
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
    found = holders[category]
    return [] if found is None else [found, *_holders(holders, found)]


def _inside(event: Mapping[str, Any], holder: Mapping[str, Any], holders: Mapping[str, str | None]) -> bool:
    """An event of no length at the very end of what may hold it."""
    return holders[event["cat"]] == holder["cat"] and event["ts"] + event["dur"] <= holder["ts"] + holder["dur"] + ROUNDING
