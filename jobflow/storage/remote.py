"""Paths in stores of objects, such as `s3://bucket/run`, and `memory://run` for one process, by fsspec; and local paths beside them.

Addresses and credentials are given in the ways of fsspec and of the library behind it: variables of the environment (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, FSSPEC_S3_KEY, ...), files (~/.aws, ~/.config/fsspec), or `fsspec.config.conf["s3"] = {...}` in the program.

fsspec's own questions answer "no" where nobody could be asked, and its listings may be those of a minute ago.  Here each question is put to the
store, and whatever goes wrong is an error that names the URL.  A local path, `file://` included, is a `Path` and never goes by way of fsspec.
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
    """A store could not be asked, or refused: nothing is known of what is in it."""


@dataclass(frozen=True)
class Status:
    """What a store says about an object, or about a folder, which has neither size nor time; the names are those of `os.stat`."""

    st_size: int
    st_mtime: float
    is_folder: bool
    #: differs from that of another object in the same place
    mark: str


@dataclass(frozen=True, order=True)
class RemotePath:
    """An object in a store, or a folder: what the names of objects begin with.  It has those methods of a `Path` that are needed here."""

    url: str

    def __str__(self) -> str:
        return self.url

    # ---------------------------------------------------------------- names

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0]

    @property
    def is_of_one_process(self) -> bool:
        """Whether other processes see other objects there."""
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

    # ---------------------------------------------------------------- questions

    def ask(self, question: Callable[[Any, str], T]) -> T:
        """The answer of the store; the question is given fsspec's file system and what this path is called there.

        Raises: FileNotFoundError; StoreError for all else that goes wrong.
        """
        try:
            system, path = optional("fsspec.core", self.url).url_to_fs(self.url)
            system.invalidate_cache()
            return question(system, path)
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", self.url) from error
        except PermissionError as error:
            raise StoreError(f"{self.url}: the store does not permit it ({_text(error)})") from error
        except Exception as error:  # whatever the library behind fsspec raises
            raise StoreError(f"{self.url}: the store gives no answer that can be used ({_text(error)})") from error

    def stat(self) -> Status:
        """FileNotFoundError if there is neither an object nor a folder of that name."""
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
        found = self._status()
        return found is not None and not found.is_folder

    def is_dir(self) -> bool:
        found = self._status()
        return found is not None and found.is_folder

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[RemotePath]:
        """What lies directly in a folder."""
        entries, root = self.ask(lambda system, path: (system.ls(path, detail=False), path.strip("/")))
        return (self / name for name in sorted({entry.strip("/").rpartition("/")[2] for entry in entries if entry.strip("/") != root}))

    def objects(self) -> dict[str, Status]:
        """All objects below a folder, by their names in it; asked for at once."""
        found: dict[str, Any]
        found, root = self.ask(lambda system, path: (system.find(path, detail=True), path.strip("/")))
        inside = {name.strip("/").removeprefix(root).lstrip("/"): _status(info) for name, info in found.items() if not name.endswith("/")}
        return {name: inside[name] for name in sorted(inside) if name}

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        return (self / name for name in self.objects() if PurePosixPath(name).match(pattern))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        return (path for path in self.iterdir() if PurePosixPath(path.name).match(pattern)) if self.is_dir() else iter(())

    def read_bytes(self) -> bytes:
        """The object as a whole."""
        return bytes(self.ask(lambda system, path: system.cat_file(path)))

    def span(self, start: int, stop: int) -> bytes:
        """Some of its bytes."""
        return bytes(self.ask(lambda system, path: system.cat_file(path, start=start, end=stop))) if stop > start else b""


AnyPath = Path | RemotePath


def path_of(text: str | os.PathLike[str] | RemotePath, absolute: bool = False) -> AnyPath:
    """The path that somebody gives, in a store if it is a URL.

    Raises: ModuleNotFoundError that says how to install what the store needs; ArgumentError for a URL of which nobody knows what it is.
    """
    if isinstance(text, RemotePath):
        return text
    if not isinstance(text, str | os.PathLike):
        raise ArgumentError(f"a path is a text, not {text!r} (at {user_line()})")
    plain = os.fspath(text)
    url = _URL.fullmatch(plain)
    if url is None:
        return Path(os.path.abspath(plain) if absolute else plain)
    if url["protocol"].lower() in ("file", "local"):
        return Path(unquote("/" + url["rest"].lstrip("/")))
    _check_known(url["protocol"].lower(), plain)
    return RemotePath(f"{url['protocol'].lower()}://") / url["rest"].strip("/")


def is_remote(text: str) -> bool:
    """Whether a text is the URL of something in a store."""
    return _URL.fullmatch(text) is not None and not text.lower().startswith(("file://", "local://"))


def _check_known(protocol: str, url: str) -> None:
    registry = optional("fsspec.registry", url)
    if protocol not in {*registry.known_implementations, *registry.registry}:
        raise ArgumentError(f'{url} at {user_line()}: no store is known as "{protocol}://"{did_you_mean(protocol, registry.known_implementations)}')
    if protocol in ("s3", "s3a"):
        optional("s3fs", url)
    try:
        registry.get_filesystem_class(protocol)
    except ImportError as error:
        raise ModuleNotFoundError(f"{url} needs another package: {error}", name=getattr(error, "name", None)) from error


def _status(info: dict[str, Any]) -> Status:
    folder = info.get("type") == "directory"
    times = (info.get(key) for key in ("LastModified", "mtime", "modified", "last_modified", "updated", "created"))
    time = next((found for found in times if isinstance(found, datetime | int | float)), 0.0)
    seconds = time.timestamp() if isinstance(time, datetime) else float(time)
    mark = hashlib.sha256(repr(sorted((key, str(value)) for key, value in info.items())).encode()).hexdigest()
    return Status(int(info.get("size") or 0), 0.0 if folder else seconds, folder, mark)


def _text(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split()) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


# -------------------------------------------------------------------- copies on this machine


def local_copy(path: RemotePath) -> Path:
    """A file with the content of an object: fetched once for all processes of this machine, kept for later programs while the object stays as it is.

    It lies in `cache_folder`.
    """
    status = path.stat()
    if status.is_folder:
        raise FileError(f"{path}: it is a folder, not a file")
    folder = cache_folder("objects") / hashlib.sha256(f"{path.url} {status.mark}".encode()).hexdigest()[:32]
    target = folder / path.name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or this process ends
            if not target.exists():
                _fetch(path, target, status)
    return target


def _fetch(path: RemotePath, target: Path, status: Status) -> None:
    """The object as a file, whole or not at all."""
    part = target.with_name(f".{uuid4().hex}")
    try:
        path.ask(lambda system, source: system.get_file(source, os.fspath(part)))
        if part.stat().st_size != status.st_size or path.stat().mark != status.mark:
            raise StoreError(
                f"{path}: it was replaced while it was being read, or broke off: {part.stat().st_size} of {status.st_size} bytes have come"
            )
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
