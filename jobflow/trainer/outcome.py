"""How a run ended, and the exit codes that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jobflow.core.remote import AnyPath

#: end: all steps are done.  early: nothing got better.  interrupt: Ctrl-C.  terminated: SIGTERM, or the time is up.  nan: not finite.
Stopped = Literal["end", "early", "interrupt", "terminated", "nan"]

DONE = 0
NOT_FINITE = 3
#: saved; the same command goes on
AGAIN = 75
INTERRUPTED = 130

#: by the way to end: the exit code, what it is called, and whether it is good news
ENDS: dict[str, tuple[int, str, str]] = {
    "end": (DONE, "done", "good"),
    "early": (DONE, "stopped early", "good"),
    "interrupt": (INTERRUPTED, "interrupted", "plain"),
    "terminated": (AGAIN, "terminated", "plain"),
    "nan": (NOT_FINITE, "not finite", "bad"),
}


@dataclass(frozen=True)
class Outcome:
    """The end of a run; `step` and `epoch` are those done, over all runs that were resumed."""

    step: int
    epoch: int
    #: the last known: "train/loss", "validation/loss", "test/accuracy" ...
    metrics: Mapping[str, float]
    stopped: Stopped
    #: the checkpoint of this step, if one was saved
    saved: AnyPath | None = None
    #: why it stopped, for people
    message: str = ""
    #: sums over this process' run: seconds of training, and of it waiting for data
    seconds: float = field(default=0.0, compare=False)

    @property
    def exit_code(self) -> int:
        """What `jobflow train` ends with."""
        return ENDS[self.stopped][0]
