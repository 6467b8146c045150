"""The one door through which checkpoints change the file system; where tests let writing fail."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
#: of renameat2(2)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class Files:
    """Every single change is one call of `do`, which a test may replace by a failure."""

    def do(self, what: str, path: Path, change: Callable[[], T]) -> T:
        """Make one change; `what` is mkdir, create, write, sync, rename or remove."""
        return change()

    def make_directory(self, path: Path) -> None:
        self.do("mkdir", path, lambda: path.mkdir(parents=True, exist_ok=True))

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        """A new file with these parts, on the disk when this returns."""
        with self.do("create", path, lambda: open(path, "xb")) as file:
            for part in parts:
                self.do("write", path, lambda part=part: file.write(part))  # type: ignore[misc]
            file.flush()
            self.do("sync", path, lambda: os.fsync(file.fileno()))

    def sync_directory(self, path: Path) -> None:
        """The names in a directory are on the disk when this returns."""
        handle = os.open(path, os.O_RDONLY)
        try:
            self.do("sync", path, lambda: os.fsync(handle))
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """`old` takes the place of `new`, which does not exist or is an empty directory, in one step."""
        self.do("rename", new, lambda: os.replace(old, new))

    def exchange(self, a: Path, b: Path) -> None:
        """Two directories swap their names; in one step where the system can (Linux), else by way of a third name."""
        self.do("exchange", b, lambda: _exchange(a, b))

    def remove(self, path: Path) -> None:
        """A directory with all that is in it."""
        self.do("remove", path, lambda: shutil.rmtree(path))


def _exchange(a: Path, b: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):  # the file system cannot; anything else is an error
            raise OSError(number, os.strerror(number), str(b))
    between = b.with_name(f".{b.name}.replaced")
    os.replace(b, between)
    os.replace(a, b)
    os.replace(between, a)
