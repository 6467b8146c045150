"""Checks of the arguments of callbacks."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from jobflow.core.errors import ConfigError, user_line


def check_count(callback: str, name: str, value: Any, least: int = 1) -> None:
    """Raise ConfigError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ConfigError(f"{callback} at {user_line()}: {name} is {value!r}; pass an integer of {least} or more")


def check_number(callback: str, name: str, value: Any, valid: str, least: float, limit: float = math.inf, is_open: bool = False) -> None:
    """Raise ConfigError unless `value` is a number from `least` to below `limit`, or above `least` if `is_open`; `valid` describes the range."""
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) < limit or (is_open and value == least):
        raise ConfigError(f"{callback} at {user_line()}: {name} is {value!r}; pass {valid}")


def check_texts(callback: str, name: str, value: Any) -> list[str]:
    """Return a text or a sequence of texts as a list; raise ConfigError for other values, and for an empty sequence."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{callback} at {user_line()}: {name} is {value!r:.60}; pass a text, or a list of texts")
    return [*texts]
