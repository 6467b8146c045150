"""All changes that checkpoints make to the file system, or to a store of objects, go through this module; tests make them fail here.

Every change is one call of `Files.do`, in whatever process and thread it is made.  A test that wants to see or to break changes gives
`use` a maker of its own Files; in a program of several processes each of them calls `use`.
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
#: of renameat2(2)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: bytes that are given to a store at a time, which may copy them
_PIECE = 2**24


class Files:
    """What the writer of rank `rank` changes; each thread that writes has one of its own."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def do(self, what: str, path: AnyPath, change: Callable[[], T]) -> T:
        """Make one change, which is one system call; `what` is mkdir, create, write, sync, rename, exchange, unlink or rmdir.

        In a store it is one request, or a few that the store makes one of: create, write, put, copy or unlink.
        """
        return change()

    def make_directory(self, path: Path) -> None:
        self.do("mkdir", path, lambda: path.mkdir(parents=True, exist_ok=True))

    def write(self, path: AnyPath, parts: Iterable[bytes | memoryview]) -> int:
        """A new file with these parts, on the disk when this returns; how many bytes it has."""
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
                        raise OSError(errno.EIO, "the file system takes no more bytes", str(path))
                    left = left[count:]
            self.do("sync", path, lambda: os.fsync(file.fileno()))
        return total

    def _upload(self, path: RemotePath, parts: Iterable[bytes | memoryview]) -> int:
        """The same in a store, which has all of it or nothing; never more than some pieces of it are copied."""
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
        """A small file that is there as a whole or not at all, whoever looks."""
        if isinstance(path, RemotePath):
            self.do("put", path, lambda: path.ask(lambda system, name: system.pipe_file(name, content)))
            return
        new = path.with_suffix(".new")
        self.write(new, [content])
        self.rename(new, path)

    def copy(self, old: RemotePath, new: RemotePath) -> None:
        """An object once more, in the same store."""
        self.do("copy", new, lambda: old.ask(lambda system, name: system.cp_file(name, new.ask(lambda _, other: other))))

    def sync_directory(self, path: Path) -> None:
        """The names in a directory are on the disk when this returns."""
        handle = os.open(path, os.O_RDONLY)
        try:
            self.do("sync", path, lambda: os.fsync(handle))
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """`old` takes the place of `new`, which does not exist, is an empty directory, or is a file if `old` is, in one step."""
        self.do("rename", new, lambda: os.replace(old, new))

    def exchange(self, a: Path, b: Path, between: Path) -> Path:
        """Directory `a` takes the name of `b`; where `b` is then.

        In one step where the file system can (Linux), and `b` is called `a`; else in two, and it is called `between`.
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
        """A directory with all that is in it."""
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            below = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                self.remove(below)
            else:
                self.remove_file(below)
        self.do("rmdir", path, lambda: os.rmdir(path))


def _give_up(file: Any) -> None:
    """Close a file of fsspec without completing its object."""
    with suppress(Exception):  # what went wrong before is the error to show
        file.discard()
    with suppress(AttributeError):
        file.closed = True


_maker: list[Callable[[int], Files]] = [Files]


def use(make: Callable[[int], Files]) -> None:
    """From now on `make(rank)` gives what changes files, in this process; `use(Files)` is as it was."""
    _maker[0] = make


def files_of(rank: int = 0) -> Files:
    """What changes files for a rank of this process."""
    return _maker[0](rank)


def _exchanged(a: Path, b: Path) -> bool:
    """Swap two names in one step; False if the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):  # the file system cannot; anything else is an error
        return False
    raise OSError(number, os.strerror(number), str(b))
