"""Paths in object stores (through fsspec), such as `s3://bucket/run` or `memory://run`, and local paths.

Addresses and credentials are configured as in fsspec and its backends: by environment variables (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, FSSPEC_S3_KEY, ...), files (~/.aws, ~/.config/fsspec), or `fsspec.config.conf["s3"] = {...}` in the program.

fsspec returns False for queries that fail, and its listings may come from a cache. Here each query is a request to the store, and each failure is
an error that names the URL. A local path, including `file://`, is a `Path` and never uses fsspec.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import uuid4

from jobflow.core.cache_folder import cache_folder
from jobflow.core.errors import ArgumentError, FileError, did_you_mean, user_line
from jobflow.core.extras import optional

T = TypeVar("T")
_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)


class StoreError(FileError):
    """An error for a request that a store refused or did not answer; the contents of the store are unknown."""


@dataclass(frozen=True)
class Status:
    """The status of an object or of a folder, with attribute names of `os.stat`; the size and time of a folder are 0."""

    st_size: int
    st_mtime: float
    is_folder: bool
    #: the identity of the object; a new object at the same path has another one
    mark: str


@dataclass(frozen=True, order=True)
class RemotePath:
    """The path of an object in a store, or of a folder, which is a common prefix of object names; a subset of `Path`."""

    url: str

    def __str__(self) -> str:
        return self.url

    # ---------------------------------------------------------------- names

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0]

    @property
    def is_of_one_process(self) -> bool:
        """True if only this process can read the objects (`memory://`)."""
        return self.protocol == "memory"

    @property
    def _key(self) -> PurePosixPath:
        return PurePosixPath(self.url.partition("://")[2])

    @property
    def name(self) -> str:
        return self._key.name

    @property
    def stem(self) -> str:
        return self._key.stem

    @property
    def suffix(self) -> str:
        return self._key.suffix

    @property
    def parent(self) -> RemotePath:
        return self._at(self._key.parent)

    def __truediv__(self, name: str) -> RemotePath:
        return self._at(self._key / name)

    def with_name(self, name: str) -> RemotePath:
        return self._at(self._key.with_name(name))

    def _at(self, key: PurePosixPath) -> RemotePath:
        return RemotePath(f"{self.protocol}://{'' if str(key) == '.' else key}")

    def absolute(self) -> RemotePath:
        return self

    # ---------------------------------------------------------------- requests

    def ask(self, question: Callable[[Any, str], T]) -> T:
        """Call `question` with fsspec's file system and the name of this path there; return the result.

        Raises: FileNotFoundError if the object does not exist; StoreError for all other failures.
        """
        try:
            system, path = optional("fsspec.core", self.url).url_to_fs(self.url)
            system.invalidate_cache()
            return question(system, path)
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "the object does not exist", self.url) from error
        except PermissionError as error:
            raise StoreError(f"{self.url}: the store refuses access ({_text(error)})") from error
        except Exception as error:  # whatever the library behind fsspec raises
            raise StoreError(f"{self.url}: the request to the store failed ({_text(error)})") from error

    def stat(self) -> Status:
        """Return the status of the object or folder; raise FileNotFoundError if neither exists."""
        return _status(self.ask(lambda system, path: system.info(path)))

    lstat = stat

    def _status(self) -> Status | None:
        try:
            return self.stat()
        except FileNotFoundError:
            return None

    def exists(self) -> bool:
        return self._status() is not None

    def is_file(self) -> bool:
        status = self._status()
        return status is not None and not status.is_folder

    def is_dir(self) -> bool:
        status = self._status()
        return status is not None and status.is_folder

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the objects and folders directly in a folder."""
        entries, root = self.ask(lambda system, path: (system.ls(path, detail=False), path.strip("/")))
        return (self / name for name in sorted({entry.strip("/").rpartition("/")[2] for entry in entries if entry.strip("/") != root}))

    def objects(self) -> dict[str, Status]:
        """Return all objects below a folder by relative name, with a single request."""
        entries: dict[str, Any]
        entries, root = self.ask(lambda system, path: (system.find(path, detail=True), path.strip("/")))
        inside = {name.strip("/").removeprefix(root).lstrip("/"): _status(info) for name, info in entries.items() if not name.endswith("/")}
        return {name: inside[name] for name in sorted(inside) if name}

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        return (self / name for name in self.objects() if PurePosixPath(name).match(pattern))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        return (path for path in self.iterdir() if PurePosixPath(path.name).match(pattern)) if self.is_dir() else iter(())

    def read_bytes(self) -> bytes:
        """Return the content of the object."""
        return bytes(self.ask(lambda system, path: system.cat_file(path)))

    def span(self, start: int, stop: int) -> bytes:
        """Return the bytes of the object from offset `start` up to `stop`."""
        return bytes(self.ask(lambda system, path: system.cat_file(path, start=start, end=stop))) if stop > start else b""


AnyPath = Path | RemotePath


def path_of(text: str | os.PathLike[str] | RemotePath, absolute: bool = False) -> AnyPath:
    """Return a RemotePath for a URL, and a Path for any other string or path of the user.

    Raises: ModuleNotFoundError with the installation command if the store needs a missing package; ArgumentError for an unknown
    protocol, or if `text` is not a path.
    """
    if isinstance(text, RemotePath):
        return text
    if not isinstance(text, str | os.PathLike):
        raise ArgumentError(f"a path at {user_line()} is {text!r}; pass a string or a path object")
    plain = os.fspath(text)
    url = _URL.fullmatch(plain)
    if url is None:
        return Path(os.path.abspath(plain) if absolute else plain)
    if url["protocol"].lower() in ("file", "local"):
        return Path(unquote("/" + url["rest"].lstrip("/")))
    _check_known(url["protocol"].lower(), plain)
    return RemotePath(f"{url['protocol'].lower()}://") / url["rest"].strip("/")


def is_remote(text: str) -> bool:
    """Return True for a URL, unless its protocol is `file://` or `local://`."""
    return _URL.fullmatch(text) is not None and not text.lower().startswith(("file://", "local://"))


def _check_known(protocol: str, url: str) -> None:
    registry = optional("fsspec.registry", url)
    if protocol not in {*registry.known_implementations, *registry.registry}:
        raise ArgumentError(
            f'{url} at {user_line()}: the protocol "{protocol}://" is unknown{did_you_mean(protocol, registry.known_implementations)}'
        )
    if protocol in ("s3", "s3a"):
        optional("s3fs", url)
    try:
        registry.get_filesystem_class(protocol)
    except ImportError as error:
        text = f'{url} at {user_line()}: the protocol "{protocol}://" needs a package that is not installed: {error}'
        raise ModuleNotFoundError(text, name=getattr(error, "name", None)) from error


def _status(info: dict[str, Any]) -> Status:
    folder = info.get("type") == "directory"
    times = (info.get(key) for key in ("LastModified", "mtime", "modified", "last_modified", "updated", "created"))
    time = next((moment for moment in times if isinstance(moment, datetime | int | float)), 0.0)
    seconds = time.timestamp() if isinstance(time, datetime) else float(time)
    mark = hashlib.sha256(repr(sorted((key, str(value)) for key, value in info.items())).encode()).hexdigest()
    return Status(int(info.get("size") or 0), 0.0 if folder else seconds, folder, mark)


def _text(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split()) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


# -------------------------------------------------------------------- copies on this machine


def local_copy(path: RemotePath) -> Path:
    """Return a local file with the content of an object.

    The object is downloaded once per machine into `cache_folder`; later programs reuse the file until the object changes.
    """
    status = path.stat()
    if status.is_folder:
        raise FileError(f"{path} is a folder; pass the URL of a file")
    folder = cache_folder("objects") / hashlib.sha256(f"{path.url} {status.mark}".encode()).hexdigest()[:32]
    target = folder / path.name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, or this process ends
            if not target.exists():
                _fetch(path, target, status)
    return target


def _fetch(path: RemotePath, target: Path, status: Status) -> None:
    """Download the object to a file atomically; raise StoreError if the object changes meanwhile."""
    part = target.with_name(f".{uuid4().hex}")
    try:
        path.ask(lambda system, source: system.get_file(source, os.fspath(part)))
        if part.stat().st_size != status.st_size or path.stat().mark != status.mark:
            raise StoreError(
                f"{path} was replaced or truncated during the download: {part.stat().st_size} of {status.st_size} bytes were received; "
                "read the object again"
            )
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
