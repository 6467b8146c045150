"""Machine code that was compiled before, in files that many processes share.

A file is a line that says what it is, its key, a digest of its content, and the content; it is written under another name and moved into
place when it is whole, so there are no locks.  Whatever does not fit is not used and compiled again.  Only a folder is read that belongs
to the user and that nobody else can write to: what is in it runs.
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
#: how large the folder may become; what was not used for longest goes
LIMIT = 256 << 20
#: writes between two looks at how large it is, and seconds after which a use is noted or what a dead process left goes
_LOOKS, _HOUR = 64, 3600.0


@dataclass(frozen=True)
class CacheState:
    """What `jobflow doctor` shows."""

    folder: str
    entries: int
    nbytes: int
    #: why it is not used; "" if it is
    problem: str = ""


class ObjectCache:
    """The files of one folder."""

    def __init__(self, folder: str | None = None, limit: int = LIMIT) -> None:
        self.folder = folder or str(cache_folder("loops"))
        self.limit = limit
        self._writes = 0

    def read(self, key: str) -> bytes | None:
        """What was kept under this key, or None."""
        try:
            with self._opened() as at, _file(key + _ENDING, os.O_RDONLY | os.O_NOFOLLOW, at) as file:
                _trusted(file.fileno(), f"{self.folder}/{key}{_ENDING}")
                content: bytes = file.read()
                if time.time() - os.fstat(file.fileno()).st_mtime > _HOUR:
                    with contextlib.suppress(OSError):
                        os.utime(key + _ENDING, dir_fd=at)
        except FileNotFoundError:
            return None
        except OSError as error:
            notice(f"compiled loops are not read from {self.folder}: {error}")
            return None
        head = _head(key, code := content[len(_head(key, b"")) :])
        return code if content.startswith(head) else None

    def write(self, key: str, code: bytes) -> None:
        """Keep it; where that is not possible it is compiled again the next time."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            with self._opened() as at:
                _replace(key + _ENDING, _head(key, code) + code, at)
                if self._writes % _LOOKS == 0:
                    self._bounded(at)
                self._writes += 1
        except OSError as error:
            notice(f"compiled loops are not kept in {self.folder}: {error}")

    def state(self) -> CacheState:
        try:
            with self._opened() as at:
                kept = list(_kept(at))
        except FileNotFoundError:
            kept = []
        except OSError as error:
            return CacheState(self.folder, 0, 0, str(error))
        return CacheState(self.folder, len(kept), sum(size for _, size, _ in kept))

    def clear(self) -> int:
        """Remove all that is kept; the number of files."""
        with contextlib.suppress(FileNotFoundError), self._opened() as at:
            return sum(_removed(name, at) for _, _, name in _kept(at, ""))
        return 0

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, which cannot become another one while it is used."""
        at = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _trusted(at, self.folder)
            yield at
        finally:
            os.close(at)

    def _bounded(self, at: int) -> None:
        """Remove what processes left that ended while they wrote, and of the rest what was not used for longest."""
        left, now = 0, time.time()
        for used, size, name in sorted(_kept(at, ""), reverse=True):
            left += size
            if left > self.limit or (not name.endswith(_ENDING) and now - used > _HOUR):
                _removed(name, at)


def _head(key: str, code: bytes) -> bytes:
    return _MARK + key.encode() + b"\n" + hashlib.sha256(code).digest()


def _trusted(descriptor: int, name: str) -> None:
    """PermissionError where somebody else could have written it."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{name} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & 0o022:
        raise PermissionError(f"{name} can be written by others (mode {status.st_mode & 0o777:o}): chmod go-w {name}")


@contextlib.contextmanager
def _file(name: str, flags: int, at: int) -> Iterator[Any]:
    with open(os.open(name, flags, 0o600, dir_fd=at), "wb" if flags & os.O_WRONLY else "rb") as file:
        yield file


def _replace(name: str, content: bytes, at: int) -> None:
    """The file, whole or not at all."""
    part = f".{os.urandom(16).hex()}"
    try:
        with _file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        _removed(part, at)
        raise


def _removed(name: str, at: int) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=at)
        return True
    return False


def _kept(at: int, ending: str = _ENDING) -> Iterator[tuple[float, int, str]]:
    """(last use, size, name) of the files."""
    for name in os.listdir(at):
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
            if name.endswith(ending):
                yield status.st_mtime, status.st_size, name
