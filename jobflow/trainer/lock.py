"""One training at a time in a directory: a file there names the process that trains, and is removed when it ends.

What a process left that died is recognised: on the same machine by asking for the process, else by the file's time, which whoever trains
sets anew every few seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from jobflow.checkpoint.owner import Owner
from jobflow.core.errors import ConfigError, FileError
from jobflow.core.notices import notice
from jobflow.core.untrusted import HEADER, content, json_tree, whole

NAME = "train.lock"
#: seconds between two signs of life, and after which a lock without one is taken for abandoned
BEAT, STALE = 10.0, 120.0
#: seconds that are waited for who looks at the lock in the same moment
PATIENCE = 5.0


@dataclass(frozen=True)
class Held:
    """What a lock says: who trains, since when."""

    owner: Owner
    since: str
    token: str

    def text(self) -> str:
        return json.dumps({**asdict(self.owner), "since": self.since, "token": self.token}) + "\n"

    @classmethod
    def read(cls, path: Path) -> Held:
        """What stands in the file; an owner without name if that is not readable."""
        try:
            tree = json_tree(content(path, HEADER))
            owner = Owner(str(tree["host"]), whole(tree["pid"]), str(tree["start"]), str(tree["space"]))
            return cls(owner, str(tree["since"]), str(tree["token"]))
        except (ValueError, KeyError, TypeError, FileError):
            return cls(Owner("", 0, ""), "", "")


class Lock:
    """The lock of a directory, held from `take` to `release`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._mine = Held(Owner.here(), datetime.now().astimezone().isoformat(" ", "seconds"), uuid4().hex)
        self._over = threading.Event()

    def take(self) -> None:
        """Raises: ConfigError, which names the process and its host, if another training has it; OSError if nothing can be written there."""
        fresh = self.path.with_name(f".{NAME}.{self._mine.token}")
        try:
            fresh.write_text(self._mine.text(), encoding="utf-8")
            with _alone(self.path.parent):
                self.check(now=fresh.stat().st_mtime)
                os.replace(fresh, self.path)
        finally:
            fresh.unlink(missing_ok=True)
        threading.Thread(target=self._live, name="train.lock", daemon=True).start()

    def release(self) -> None:
        """Another one may train here; nothing if that has been so for long."""
        self._over.set()
        with suppress(OSError):
            if self._is_mine():
                self.path.unlink()

    def _is_mine(self) -> bool:
        return Held.read(self.path).token == self._mine.token

    def check(self, now: float) -> None:
        """ConfigError if another training has the lock; `now` by the clock of the file system."""
        try:
            touched = self.path.lstat().st_mtime
            other = Held.read(self.path)
        except FileNotFoundError:
            return
        who, alive = other.owner, other.owner.is_alive
        named = f"process {who.pid} on {who.host}" if who.host else "a process that cannot be read from it"
        if alive or (alive is None and now - touched < STALE):
            since = f" since {other.since}" if other.since else ""
            rest = "" if alive else f"; if that process is no more, wait {STALE:.0f} seconds or remove the file"
            raise ConfigError(
                f"{self.path.parent} is in use: {named} trains there{since} ({self.path}){rest}. "
                f"Wait until it ends, stop it, or train elsewhere with --output DIR"
            )
        notice(f"{self.path} was left by {named}, which has ended")

    def _live(self) -> None:
        """Signs of life, for those who cannot ask for the process."""
        while not self._over.wait(BEAT):
            with suppress(OSError):
                if self._is_mine():
                    os.utime(self.path)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else of this machine is in such a block; without that guarantee where the file system has no locks."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
        yield
    finally:
        os.close(handle)
