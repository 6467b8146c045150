"""The output and checkpoint directories of a run: their creation, and their locks against other trainings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

from jobflow.core.errors import ConfigError
from jobflow.engine.session import Session
from jobflow.storage import drafts, sessions
from jobflow.storage.owner import file_time
from jobflow.storage.remote import AnyPath, RemotePath, is_remote
from jobflow.storage.series import Series
from jobflow.trainer.config import Loaded
from jobflow.trainer.lock import Lock, lock_of
from jobflow.trainer.resume import together


def make_directory(key: str, origin: object, path: AnyPath) -> None:
    """Create a local directory, and check that the local or remote directory is writable; raise ConfigError if not.

    `key` and `origin` name the configuration value in the message.
    """
    try:
        if isinstance(path, RemotePath):
            drafts.check_writable(path)
            return
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"{origin}: {key}: {path} is not writable: {error.strerror or error}; set a writable directory") from None


def without_failure(change: Callable[[], None], path: AnyPath) -> None:
    """Call `change`, which checks or acquires the lock at `path`; raise ConfigError if the call raises OSError."""
    try:
        change()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read and written: {error.strerror or error}; correct its permissions") from None


def distinct(folders: Sequence[Path]) -> list[Path]:
    """Return the distinct folders that are not inside another folder of the list."""
    once = list(dict.fromkeys(folders))
    return [folder for folder in once if not any(other != folder and folder.is_relative_to(other) for other in once)]


def _check_shared(session: Session, source: object, path: Path) -> None:
    """Raise ConfigError unless all nodes see the directory of the checkpoints."""
    probe = together(session, lambda: path.resolve() / f".shared.{uuid4().hex}")
    try:
        together(session, partial(without_failure, probe.touch, path))
        if reason := sessions.missing_on(session.start(), probe):
            raise ConfigError(f"{source}: checkpoint.directory: {reason}")
    finally:
        if session.writes_files:
            probe.unlink(missing_ok=True)


def _check_other(lock: Lock, folder: Path) -> None:
    """Raise ConfigError if another training holds a lock in the file system of a folder."""
    lock.check(file_time(folder))


@contextmanager
def only_one(session: Session, loaded: Loaded, series: Series) -> Iterator[None]:
    """Lock the output and checkpoint directories against other trainings."""
    if is_remote(loaded.config.output):
        raise ConfigError(
            f"{loaded.origin('output')}: output: {loaded.config.output} is remote; pass a local directory (only checkpoint.directory may be remote)"
        )
    places: dict[str, AnyPath] = {"output": Path(loaded.config.output), "checkpoint.directory": series.directory}
    for key, path in places.items():
        together(session, partial(make_directory, key, loaded.origin(key), path))
    if isinstance(series.directory, Path):
        _check_shared(session, loaded.origin("checkpoint.directory"), series.directory)
    output, *saved = (path.resolve() for path in places.values() if isinstance(path, Path))
    own: list[AnyPath] = [*distinct([output, *saved]), *(path for path in places.values() if isinstance(path, RemotePath))]
    held: list[Lock] = []
    try:
        for lock in map(lock_of, own):
            together(session, partial(without_failure, lock.take, lock.path))
            held.append(lock)
        # a run may save in the output directory of another one, or vice versa
        for folder in {output, *saved, *(path.parent for path in saved)} - set(own):
            other = lock_of(folder)
            together(session, partial(without_failure, partial(_check_other, other, output), other.path))
        yield
    finally:
        for lock in held if session.writes_files else ():
            lock.release()
