"""All modifications of checkpoint files, on disks and in object stores.

Every modification is one call of `Files.do`, in any process and thread. A test that observes or fails modifications passes its own factory of Files
to `use`. In a program of several processes, every process calls `use`.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from jobflow.storage.remote import AnyPath, RemotePath

T = TypeVar("T")
#: arguments of renameat2(2)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: bytes written to a store at a time, because the library may copy them
_PIECE = 2**24


class Files:
    """The modifications of one writer on rank `rank`; each writing thread has a separate instance."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def do(self, what: str, path: AnyPath, change: Callable[[], T]) -> T:
        """Run `change`, which is one system call: mkdir, create, write, sync, rename, exchange, unlink or rmdir (`what`).

        In a store, `change` is one request, or several requests that the store combines: create, write, put, copy or unlink.
        """
        return change()

    def make_directory(self, path: Path) -> None:
        self.do("mkdir", path, lambda: path.mkdir(parents=True, exist_ok=True))

    def write(self, path: AnyPath, parts: Iterable[bytes | memoryview]) -> int:
        """Write a new file from these parts and sync it; return its number of bytes."""
        if isinstance(path, RemotePath):
            return self._upload(path, parts)
        total = 0
        with self.do("create", path, lambda: open(path, "xb", buffering=0)) as file:
            for part in parts:
                left = memoryview(part).cast("B")
                total += left.nbytes
                while left:
                    count = self.do("write", path, lambda left=left: file.write(left))  # type: ignore[misc]
                    if not count:
                        raise OSError(errno.EIO, "the file system wrote 0 of the remaining bytes", str(path))
                    left = left[count:]
            self.do("sync", path, lambda: os.fsync(file.fileno()))
        return total

    def _upload(self, path: RemotePath, parts: Iterable[bytes | memoryview]) -> int:
        """Write a new object in pieces; the store creates it as a whole or not at all."""
        total = 0
        file = self.do("create", path, lambda: path.ask(lambda system, name: system.open(name, "wb")))
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                total += view.nbytes
                for start in range(0, view.nbytes, _PIECE):
                    left = view[start : start + _PIECE]
                    self.do("write", path, lambda left=left: path.ask(lambda *_: file.write(left)))  # type: ignore[misc]
            self.do("put", path, lambda: path.ask(lambda *_: file.close()))
        except BaseException:
            _give_up(file)
            raise
        return total

    def put(self, path: AnyPath, content: bytes) -> None:
        """Write a small file atomically."""
        if isinstance(path, RemotePath):
            self.do("put", path, lambda: path.ask(lambda system, name: system.pipe_file(name, content)))
            return
        new = path.with_suffix(".new")
        self.write(new, [content])
        self.rename(new, path)

    def copy(self, old: RemotePath, new: RemotePath) -> None:
        """Copy an object within a store."""
        self.do("copy", new, lambda: old.ask(lambda system, name: system.cp_file(name, new.ask(lambda _, other: other))))

    def sync_directory(self, path: Path) -> None:
        """Sync the entries of a directory to the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            self.do("sync", path, lambda: os.fsync(handle))
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """Rename `old` to `new` in one step.

        `new` must be missing, an empty directory, or a file if `old` is a file.
        """
        self.do("rename", new, lambda: os.replace(old, new))

    def exchange(self, a: Path, b: Path, between: Path) -> Path:
        """Rename directory `a` to `b`, and return the new path of the previous `b`, a directory or a file.

        Linux file systems exchange the names in one step, so the previous `b` is then at `a`. Elsewhere two renames move it to `between`.
        """
        if self.do("exchange", b, lambda: _exchanged(a, b)):
            return a
        self.rename(b, between)
        try:
            self.rename(a, b)
        except OSError:
            self.rename(between, b)
            raise
        return between

    def remove_file(self, path: AnyPath) -> None:
        if isinstance(path, RemotePath):
            self.do("unlink", path, lambda: path.ask(lambda system, name: system.rm_file(name)))
        else:
            self.do("unlink", path, lambda: os.unlink(path))

    def remove(self, path: Path) -> None:
        """Remove a file, or a directory with its contents."""
        if path.is_symlink() or not path.is_dir():
            self.remove_file(path)
            return
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            below = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                self.remove(below)
            else:
                self.remove_file(below)
        self.do("rmdir", path, lambda: os.rmdir(path))


def _give_up(file: Any) -> None:
    """Close an fsspec file without completing its object."""
    with suppress(Exception):  # the earlier error is raised
        file.discard()
    with suppress(AttributeError):
        file.closed = True


_maker: list[Callable[[int], Files]] = [Files]


def use(make: Callable[[int], Files]) -> None:
    """Set the factory of writers to `make`, which is called with a rank; `use(Files)` restores the default."""
    _maker[0] = make


def files_of(rank: int = 0) -> Files:
    """Return the writer of a rank of this process."""
    return _maker[0](rank)


def _exchanged(a: Path, b: Path) -> bool:
    """Exchange two names in one step and return True; return False if the file system lacks this operation."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):  # not supported by the file system
        return False
    raise OSError(number, os.strerror(number), str(b))
