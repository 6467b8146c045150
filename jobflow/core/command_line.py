"""Types of command line arguments, for `type=` of argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of integers from `least` to `most`, inclusive; None means no upper limit."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
            legal = f"a whole number of at least {least}" + (f" and at most {most}" if most is not None else "")
            raise argparse.ArgumentTypeError(f"{text!r} is not {legal}")
        return int(text)

    return read


def not_negative(text: str) -> float:
    """Parse a finite number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number of at least 0")
    return number
