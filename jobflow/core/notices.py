"""One-line notices to the user on standard error, each distinct notice once per process."""

from __future__ import annotations

import sys
import threading

_PRINTED: set[str] = set()
_saying = threading.Lock()


def notice(text: str) -> None:
    """Print ``jobflow: text`` to standard error, unless this process has already printed it."""
    with _saying:
        if text in _PRINTED:
            return
        _PRINTED.add(text)
    print(f"jobflow: {text}", file=sys.stderr, flush=True)


def forget() -> None:
    """Reset the record of printed notices, for tests."""
    _PRINTED.clear()
