"""Intended differences from PyTorch, each with its reason, from deliberate.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("deliberate.yaml")


@dataclass(frozen=True)
class Deliberate:
    """A pattern for the keys of checks, a pattern for the reported difference, and the reason."""

    key: re.Pattern[str]
    difference: re.Pattern[str]
    reason: str

    def meets(self, outcome: Any) -> bool:
        return bool(self.key.fullmatch(outcome.key) and self.difference.search(outcome.reason))


@cache
def read() -> list[Deliberate]:
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8")) or []
    return [Deliberate(re.compile(e["key"]), re.compile(e.get("difference", "")), e["reason"]) for e in entries]


def marked(outcomes: Sequence[Any]) -> list[Any]:
    """Return the outcomes; intended differences and refusals have the kind "deliberate"."""
    known = read()
    return [replace(o, kind="deliberate") if o.kind in ("different", "refused") and any(d.meets(o) for d in known) else o for o in outcomes]
