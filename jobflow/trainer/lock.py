"""A lock that allows one training at a time in a directory: a file that names the training process until its end.

    runs/lenet/train.lock                         on a disk: one file, written under the lock of the file system
    s3://bucket/lenet/train.lock.0a1b2c...        in a store: one object per training; a training that detects another one exits

A lock of a dead process is detected by the process id on the same machine, else by the file's age. A running training updates the time of its
file every few seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, FileError, JobError
from jobflow.core.notices import notice
from jobflow.runtime.thread_start import start_thread
from jobflow.storage.file_system import files_of
from jobflow.storage.owner import Owner
from jobflow.storage.remote import AnyPath, RemotePath, StoreError
from jobflow.storage.untrusted import HEADER, content, json_tree

NAME = "train.lock"
#: seconds between heartbeats, and seconds without a heartbeat after which a lock counts as abandoned
BEAT, STALE = 10.0, 120.0
#: seconds to wait for another process that accesses the lock at the same time
PATIENCE = 5.0


@dataclass(frozen=True)
class Held:
    """The content of a lock file: the process that holds the lock, the time of acquisition, and a unique token."""

    owner: Owner
    since: str
    token: str

    def text(self) -> str:
        return json.dumps({**asdict(self.owner), "since": self.since, "token": self.token}) + "\n"

    @classmethod
    def read(cls, path: AnyPath) -> Held:
        """Return the content of a lock file; if the content is invalid, the host name of the owner is empty."""
        try:
            tree = json_tree(content(path, HEADER))
            return cls(Owner.of(tree), str(tree["since"]), str(tree["token"]))
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, FileError):
            return cls(Owner("", 0, ""), "", "")


class Lock(ABC):
    """The lock of a directory, held from `take` to `release`."""

    def __init__(self, folder: AnyPath, name: str, token: str) -> None:
        self.path = folder / name
        self._mine = Held(Owner.here(), datetime.now().astimezone().isoformat(" ", "seconds"), token)
        self._over = threading.Event()
        self._signs: threading.Thread | None = None

    def take(self) -> None:
        """Acquire the lock.

        Raises: ConfigError with the process and its host if another training holds the lock; OSError if the directory is not writable.
        Raises: JobError if no thread can be started.
        """
        self._claim()
        try:
            self._signs = start_thread(self._live, NAME)
        except JobError:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock if this process still holds the lock."""
        self._over.set()
        if self._signs is not None:
            self._signs.join(PATIENCE)
        with suppress(OSError):
            if self._is_mine():
                self._remove(self.path)

    def check(self, now: float) -> None:
        """Raise ConfigError if another training holds the lock; ignore an abandoned lock with a notice.

        `now` is the current time of the file system or the store.
        """
        for path in self._others():
            with suppress(FileNotFoundError):
                self._check(path, Held.read(path), now - path.lstat().st_mtime)

    def _check(self, path: AnyPath, other: Held, idle: float) -> None:
        who, alive = other.owner, other.owner.is_alive
        named = f"process {who.pid} on {who.host}" if who.host else "an unknown process"
        if alive or (alive is None and idle < STALE):
            since = f" since {other.since}" if other.since else ""
            rest = "" if alive else f"; if that process has ended, wait {STALE:.0f} seconds or remove the file"
            raise ConfigError(
                f"{path.parent} is in use: {named} trains there{since} ({path}){rest}. Wait until it ends, stop it, or {self._elsewhere}"
            )
        notice(f"{path} is an abandoned lock of {named}, and is ignored")
        self._is_left(path)

    def _is_mine(self) -> bool:
        return Held.read(self.path).token == self._mine.token

    def _live(self) -> None:
        """Update the time of the lock file every BEAT seconds until the release, so that other machines detect a running training.

        If the file was removed, write it again.
        """
        while not self._over.wait(BEAT):
            with suppress(OSError):
                if self._is_removed():
                    self._take_again()
                elif self._is_mine():
                    self._sign()

    def _is_removed(self) -> bool:
        try:
            self.path.lstat()
        except FileNotFoundError:
            return True
        return False

    def _take_again(self) -> None:
        """Write a removed lock file again, and create its folder if necessary; if another training holds the lock now, print a notice."""
        notice(f"{self.path} was removed during training; it is created again")
        if isinstance(self.path, Path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._claim()
        except ConfigError as error:
            notice(f"two trainings write to one folder: {error}")

    #: advice to a second training
    _elsewhere: str

    @abstractmethod
    def _claim(self) -> None:
        """Write the lock; raise ConfigError if another training holds the lock."""

    @abstractmethod
    def _others(self) -> list[AnyPath]:
        """Return paths of possible locks of other trainings."""

    @abstractmethod
    def _is_left(self, path: AnyPath) -> None:
        """Handle an abandoned lock of another process."""

    @abstractmethod
    def _sign(self) -> None:
        """Set the time of the lock to the current time."""

    @abstractmethod
    def _remove(self, path: AnyPath) -> None: ...


class FolderLock(Lock):
    """The lock of a directory on a disk."""

    path: Path
    _elsewhere = "train elsewhere with --output DIR"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NAME, uuid4().hex)

    def _claim(self) -> None:
        fresh = self.path.with_name(f".{NAME}.{self._mine.token}")
        try:
            fresh.write_text(self._mine.text(), encoding="utf-8")
            with _alone(self.path.parent):
                self.check(now=fresh.stat().st_mtime)
                os.replace(fresh, self.path)
        finally:
            fresh.unlink(missing_ok=True)

    def _others(self) -> list[AnyPath]:
        return [self.path]

    def _is_left(self, path: AnyPath) -> None:
        """Keep the abandoned file, because this process overwrites the file with its own lock."""

    def _sign(self) -> None:
        os.utime(self.path)

    def _remove(self, path: AnyPath) -> None:
        self.path.unlink()


class StoreLock(Lock):
    """The lock of a directory in an object store.

    A store has no locks. So each training writes a separate object, and then lists the objects of other trainings. If two trainings start at the
    same time, at least one detects the other and exits.
    """

    _elsewhere = "set another checkpoint.directory"

    def __init__(self, folder: RemotePath) -> None:
        token = uuid4().hex
        super().__init__(folder, f"{NAME}.{token}", token)

    def _claim(self) -> None:
        try:
            self._sign()
            self.check(now=self.path.stat().st_mtime)
        except BaseException:
            with suppress(OSError):
                self._remove(self.path)
            raise

    def _others(self) -> list[AnyPath]:
        return [path for path in self.path.parent.iterdir() if path.name.startswith(f"{NAME}.") and path != self.path]

    def _is_left(self, path: AnyPath) -> None:
        self._remove(path)

    def _sign(self) -> None:
        files_of().put(self.path, self._mine.text().encode())

    def _remove(self, path: AnyPath) -> None:
        files_of().remove_file(path)


def lock_of(folder: AnyPath) -> Lock:
    """Return the lock of a directory on a disk or in an object store."""
    return StoreLock(folder) if isinstance(folder, RemotePath) else FolderLock(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Acquire an exclusive `flock` on a folder for the block; continue without it after PATIENCE seconds or if locks are unsupported."""
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
