"""Paths of values: keys and positions with dots between them, "optimizer.lr", "model.layers.0"; a key that has dots in it is in quotes."""

from __future__ import annotations

import json
import re

_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+')


def below(path: str, *steps: str | int) -> str:
    """The path of what stands under some steps from a path."""
    return ".".join([*([path] if path else []), *map(_written, steps)])


def _written(step: str | int) -> str:
    text = str(step)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set('."') else text


def steps_of(path: str) -> list[str]:
    """The steps of a path."""
    return [json.loads(step) if step.startswith('"') else step for step in _STEP.findall(path)]


def split(path: str) -> tuple[str, str]:
    """The path of what something stands in, and its key there."""
    *above, key = steps_of(path)
    return below("", *above), key


def is_in(path: str, other: str) -> bool:
    """Whether a path is another one or leads to something inside of it."""
    return path == other or path.startswith(f"{other}.") or not other
