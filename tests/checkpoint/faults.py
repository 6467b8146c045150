"""Faulty changes of the file system: at the N-th change of a rank the process dies, or the change fails.

Ways to die, by SIGKILL:
  before  before the change
  after   after the change
  torn    after a part of a write; other changes as `before`
  power   as `after`; then every unsynced file loses bytes at its end, as in a power failure
Ways to fail:
  EIO, ENOSPC   the change fails with this error
  short         a write makes a part and returns its size, as a system may; the next write continues
  partly        a write makes a part, and then the disk is full
"""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jobflow.storage import file_system as files
from jobflow.storage.file_system import Files

T = TypeVar("T")
DEATHS = ("before", "after", "torn", "power")
FAILURES = ("EIO", "ENOSPC", "short", "partly")
NEVER = 10**9


@dataclass
class Fault:
    """A fault at change number `at` of rank `rank`; `log` contains the changes so far."""

    rank: int = 0
    at: int = NEVER
    how: str = "before"
    seed: int = 0
    log: list[tuple[int, str, str]] = field(default_factory=list)
    met: bool = False
    #: file -> a descriptor of it, for files with bytes that are not synced
    _open: dict[Path, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: dict[int, int] = field(default_factory=dict)

    def install(self) -> None:
        """Apply the fault to all later changes in this process."""
        files.use(lambda rank=0: FaultyFiles(rank, self))

    def number(self, rank: int, what: str, path: Path) -> int:
        """Return the number of a change among those of its rank."""
        with self._lock:
            result = self._count.get(rank, 0)
            self._count[rank] = result + 1
            self.log.append((rank, what, path.name))
            return result

    def part(self, total: int) -> int:
        """Return a part of a number of bytes, less than all."""
        return random.Random(self.seed).randrange(total) if total else 0

    def watch(self, what: str, path: Path, result: Any) -> None:
        """Record files that are not synced."""
        with self._lock:
            if what == "create":
                self._open[path] = os.dup(result.fileno())
            elif what == "sync" and path in self._open:
                os.close(self._open.pop(path))

    def die(self) -> NoReturn:
        with self._lock:
            for handle in self._open.values() if self.how == "power" else ():
                os.ftruncate(handle, self.part(os.fstat(handle).st_size + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")


class FaultyFiles(Files):
    """Files with a fault."""

    def __init__(self, rank: int, fault: Fault) -> None:
        super().__init__(rank)
        self._fault = fault

    def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
        fault = self._fault
        if fault.number(self.rank, what, path) != fault.at or self.rank != fault.rank:
            result = change()
            fault.watch(what, path, result)
            return result
        fault.met = True
        part = _part_of(what, change, fault)
        if fault.how in DEATHS:
            if fault.how == "torn":
                part()
            elif fault.how != "before":
                fault.watch(what, path, change())
            fault.die()
        if fault.how == "short":
            return part() if what == "write" else change()
        if fault.how == "partly":
            part()
        number = errno.EIO if fault.how == "EIO" else errno.ENOSPC
        raise OSError(number, os.strerror(number), str(path))


def _part_of(what: str, change: Callable[..., T], fault: Fault) -> Callable[[], Any]:
    """Return a call that makes a part of a write, whose bytes are the change's default argument; None for other changes."""
    if what != "write":
        return lambda: None
    assert change.__defaults__ is not None  # type: ignore[attr-defined]
    (left,) = change.__defaults__  # type: ignore[attr-defined]
    return lambda: change(left[: max(1, fault.part(left.nbytes))])
