"""One line on standard error for the person who watches."""

from __future__ import annotations

import sys

_said: set[str] = set()


def say(text: str) -> None:
    """Print ``jobflow: text``."""
    print(f"jobflow: {text}", file=sys.stderr, flush=True)


def notice(text: str) -> None:
    """`say`, but each text only once in a process."""
    if text not in _said:
        _said.add(text)
        say(text)
