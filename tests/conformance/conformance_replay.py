"""Which recorded cases jobflow has names for, and what replays them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance_calls import Calls
from conformance_cases import Cases, resolved
from conformance_compare import Tensor
from conformance_modules import Modules, Optimizers, Schedules

KINDS: dict[str, type[Cases]] = {"operators": Calls, "modules": Modules, "optimizers": Optimizers, "schedules": Schedules}


def common(listing: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The entries with those names that jobflow has too, and the names that it has not."""
    available: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    missing: dict[str, set[str]] = {"functions": set(), "methods": set(), "in_place": set()}
    for entry in listing["operators"]:
        has = {
            "functions": [path for path in entry["functions"] if callable(resolved(path))],
            "methods": [name for name in entry["methods"] if hasattr(Tensor, name)],
            "in_place": [name for name in entry["in_place"] if hasattr(Tensor, name)],
        }
        for kind, names in has.items():
            missing[kind] |= set(entry[kind]) - set(names)
        if any(has.values()):
            available["operators"].append(entry | has)
    for kind in ("modules", "optimizers", "schedules"):
        available[kind] = [entry for entry in listing[kind] if callable(resolved(entry["name"]))]
        missing[kind] = {entry["name"] for entry in listing[kind]} - {entry["name"] for entry in available[kind]}
    return available, {kind: sorted(names) for kind, names in missing.items()}


def replay_of(name: str, lines: Sequence[dict[str, Any]], data: bytes) -> Cases:
    """By the kind that the record is named for."""
    return KINDS[name.partition("-")[0]](lines, data)
