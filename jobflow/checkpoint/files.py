"""The one door through which checkpoints change the file system; where tests let writing fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


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

    def remove(self, path: Path) -> None:
        """A directory with all that is in it."""
        self.do("remove", path, lambda: shutil.rmtree(path))
