"""A program that ends while a checkpoint is being written.  Arguments: directory, "good" or "full"."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from layouts import IDS, begin

from jobflow.engine.session import started_session
from jobflow.storage import file_system as files
from jobflow.storage import sessions
from jobflow.storage.file_system import Files

T = TypeVar("T")


class Slow(Files):
    """Slow files, with a full disk at the end on request."""

    def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
        if what == "sync":
            time.sleep(0.05)
            if sys.argv[2] == "full" and self.rank == 1:
                raise OSError(28, "No space left on device", str(path))
        return change()


files.use(Slow)
job = begin(2)
job(IDS)
saving = sessions.save(started_session(), Path(sys.argv[1]) / "last", asynchronous=True)
assert not saving.done
