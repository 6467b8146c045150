"""A cache of compiled machine code, in files shared by all processes of the user.

A file contains a magic number, its key, a digest of its content, and the content.  The file is written under a temporary name and renamed when
complete, so no locks are needed.  Files that do not match are ignored, and their code is compiled again.  Because the content is executed,
the folder must belong to the user and be writable by no other user.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from typing import Any

from jobflow.core.cache_folder import cache_folder
from jobflow.core.dataclass import dataclass
from jobflow.core.notices import notice

_MARK = b"jobflow machine code 2\n"
_ENDING = ".code"
#: maximal size of the folder in bytes; the least recently used files are removed first
LIMIT = 256 << 20
#: number of writes between two checks of the size, and seconds after which a use is recorded or an incomplete file is removed
_WRITES_PER_CHECK, _HOUR = 64, 3600.0


@dataclass(frozen=True)
class CacheState:
    """The folder, number of entries, size in bytes and problem of the cache, as printed by `jobflow doctor`."""

    folder: str
    entries: int
    nbytes: int
    #: the reason the cache is not used, or ""
    problem: str = ""


class ObjectCache:
    """A cache of machine code in one folder."""

    def __init__(self, folder: str | None = None, limit: int = LIMIT) -> None:
        self.folder = folder or str(cache_folder("loops"))
        self.limit = limit
        self._writes = 0

    def read(self, key: str) -> bytes | None:
        """Return the code stored under this key, or None if no valid file exists."""
        try:
            with self._opened() as at, _file(key + _ENDING, os.O_RDONLY | os.O_NOFOLLOW, at) as file:
                _check_trusted(file.fileno(), f"{self.folder}/{key}{_ENDING}")
                content: bytes = file.read()
                if time.time() - os.fstat(file.fileno()).st_mtime > _HOUR:
                    with contextlib.suppress(OSError):
                        os.utime(key + _ENDING, dir_fd=at)
        except FileNotFoundError:
            return None
        except OSError as error:
            notice(f"cannot read compiled loops from {self.folder}: {error}")
            return None
        head = _head(key, code := content[len(_head(key, b"")) :])
        return code if content.startswith(head) else None

    def write(self, key: str, code: bytes) -> None:
        """Store the code under this key; on failure, print a notice.  The next process then compiles the code again."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            with self._opened() as at:
                _replace(key + _ENDING, _head(key, code) + code, at)
                if self._writes % _WRITES_PER_CHECK == 0:
                    self._limit_size(at)
                self._writes += 1
        except OSError as error:
            notice(f"cannot store compiled loops in {self.folder}: {error}")

    def state(self) -> CacheState:
        try:
            with self._opened() as at:
                files = list(_files(at))
        except FileNotFoundError:
            files = []
        except OSError as error:
            return CacheState(self.folder, 0, 0, str(error))
        return CacheState(self.folder, len(files), sum(size for _, size, _ in files))

    def clear(self) -> int:
        """Remove all files; return their number."""
        with contextlib.suppress(FileNotFoundError), self._opened() as at:
            return sum(_remove(name, at) for _, _, name in _files(at, ""))
        return 0

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Yield a descriptor of the folder, so that no other folder can replace it during use; raise PermissionError if it is not trusted."""
        at = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _check_trusted(at, self.folder)
            yield at
        finally:
            os.close(at)

    def _limit_size(self, at: int) -> None:
        """Remove incomplete files that are older than an hour, and the least recently used files above the size limit."""
        left, now = 0, time.time()
        for used, size, name in sorted(_files(at, ""), reverse=True):
            left += size
            if left > self.limit or (not name.endswith(_ENDING) and now - used > _HOUR):
                _remove(name, at)


def _head(key: str, code: bytes) -> bytes:
    return _MARK + key.encode() + b"\n" + hashlib.sha256(code).digest()


def _check_trusted(descriptor: int, name: str) -> None:
    """Raise PermissionError if another user could have written the file or folder."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{name} belongs to user {status.st_uid}, not to user {os.geteuid()}; remove it or choose another cache folder")
    if status.st_mode & 0o022:
        raise PermissionError(f"{name} is writable by other users (mode {status.st_mode & 0o777:o}); run chmod go-w {name}")


@contextlib.contextmanager
def _file(name: str, flags: int, at: int) -> Iterator[Any]:
    with open(os.open(name, flags, 0o600, dir_fd=at), "wb" if flags & os.O_WRONLY else "rb") as file:
        yield file


def _replace(name: str, content: bytes, at: int) -> None:
    """Write a file in the folder with the descriptor `at` atomically, by renaming a temporary file."""
    part = f".{os.urandom(16).hex()}"
    try:
        with _file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        _remove(part, at)
        raise


def _remove(name: str, at: int) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=at)
        return True
    return False


def _files(at: int, ending: str = _ENDING) -> Iterator[tuple[float, int, str]]:
    """Yield (time of the last use, size in bytes, name) of the files with this ending in the folder with the descriptor `at`."""
    for name in os.listdir(at):
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
            if name.endswith(ending):
                yield status.st_mtime, status.st_size, name
