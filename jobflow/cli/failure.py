"""How errors are printed: the user's own lines first, and jobflow's only with --traceback."""

from __future__ import annotations

import traceback
from itertools import dropwhile
from types import TracebackType

from jobflow.core.errors import is_ours, is_users

HEAD = "Traceback of your code (--traceback shows jobflow's lines, too):\n"


def of_users(error: BaseException) -> str | None:
    """An error that somebody else's code has raised, with the lines of that code alone; None if there are none, so that it is jobflow's own."""
    frames = lines(error.__traceback__)
    if not frames:
        return None
    return f"{HEAD}{''.join(frames)}{''.join(traceback.format_exception_only(error)).rstrip()}"


def of_cause(error: BaseException) -> str:
    """The lines of somebody else's code in which the cause of an error was raised, to stand before it; "" if there are none."""
    cause = error.__cause__
    frames = lines(cause.__traceback__) if cause is not None else []
    return f"{HEAD}{''.join(frames)}" if frames else ""


def lines(trace: TracebackType | None) -> list[str]:
    """The frames from the first of the user's on, without jobflow's."""
    theirs = [(frame, line) for frame, line in traceback.walk_tb(trace) if not is_ours(frame)]
    return traceback.StackSummary.extract(dropwhile(lambda one: not is_users(one[0]), theirs)).format()
