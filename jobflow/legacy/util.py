"""The namespace `flow.util`: unique strings."""

from __future__ import annotations

from itertools import count

__all__ = ["unique_str"]

_NUMBERS = count()


def unique_str(prefix: str) -> str:
    """Return `prefix` followed by a number that is unique in this process."""
    return f"{prefix}{next(_NUMBERS)}"
