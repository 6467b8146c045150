"""Download of a file once per node.

The first process that creates ``<file>.lock`` downloads to a temporary file and renames it. Other processes wait until the lock is removed. If
the file is then missing, the download failed and is not repeated.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jobflow.runtime.thread_start import start_thread

#: timeout of a download in seconds, for the response and for each read
PATIENCE = 3.0
#: age in seconds from which on a lock is considered abandoned
STALE = 15.0
PIECE = 1 << 18


def fetch(url: str, target: Path, patience: float = PATIENCE) -> bool:
    """Download `url` to `target` unless it exists; return False if the download fails.

    Raises: OSError if `target` cannot be written.
    """
    lock = target.with_name(target.name + ".lock")
    try:
        handle = _take(lock)
    except FileExistsError:
        _wait(lock)
        return target.exists()
    try:
        os.close(handle)
        return target.exists() or _download(url, target, lock, patience)
    finally:
        lock.unlink(missing_ok=True)


def _take(lock: Path) -> int:
    return os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def _wait(lock: Path) -> None:
    """Wait until the lock is removed; remove it if no process has touched it for `STALE` seconds."""
    with contextlib.suppress(FileNotFoundError):
        while time.time() - lock.stat().st_mtime < STALE:
            time.sleep(0.05)
        lock.unlink(missing_ok=True)


def _download(url: str, target: Path, lock: Path, patience: float) -> bool:
    try:
        with _answer(url, patience) as source, _replacing(target) as file:
            while piece := source.read(PIECE):
                file.write(piece)
                os.utime(lock)
            expected = source.headers["Content-Length"]
            if expected is not None and file.tell() != int(expected):
                raise ConnectionError(f"the download of {url} ended after {file.tell()} of {expected} bytes")
    except (TimeoutError, urllib.error.URLError, ConnectionError, http.client.HTTPException):
        return False
    return True


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `target` atomically after success and is removed after an error."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=target.name + ".") as folder:
        part = Path(folder) / "part"
        with part.open("wb") as file:
            yield file
        part.replace(target)


@contextlib.contextmanager
def _answer(url: str, patience: float) -> Iterator[Any]:
    """Yield the opened `url`; raise TimeoutError if there is no response within `patience` seconds.

    A socket timeout does not bound host name resolution. The connection is therefore opened on a thread, and a late thread is abandoned.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def connect() -> None:
        try:
            answers.put(urllib.request.urlopen(url, timeout=patience))
        except OSError as error:
            answers.put(error)

    start_thread(connect, "download")
    try:
        answer = answers.get(timeout=patience)
    except queue.Empty:
        raise TimeoutError(f"no response within {patience:g} s from {url}") from None
    if isinstance(answer, OSError):
        raise answer
    with contextlib.closing(answer):
        yield answer
