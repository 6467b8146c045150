"""`flow.util`."""

from __future__ import annotations

from itertools import count

__all__ = ["unique_str"]

_NUMBERS = count()


def unique_str(prefix: str) -> str:
    """Return the prefix with a number that is new in this process."""
    return f"{prefix}{next(_NUMBERS)}"
