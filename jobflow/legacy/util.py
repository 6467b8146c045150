"""`flow.util`."""

from __future__ import annotations

from itertools import count

__all__ = ["unique_str"]

_NUMBERS = count()


def unique_str(prefix: str) -> str:
    """The prefix and a number that no call of this process has had."""
    return f"{prefix}{next(_NUMBERS)}"
