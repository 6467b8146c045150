"""`train.CheckPoint` and what surrounds it: the variables of the session, saved and loaded."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from jobflow.engine.session import current_session, started_session
from jobflow.storage import manifest, sessions, store
from jobflow.storage import session_variables as stored
from jobflow.storage.remote import path_of

__all__ = ["CheckPoint", "SimpleCheckPointManager"]


class CheckPoint:
    """Saves and loads all variables of the session: parameters, optimizer slots, train steps."""

    def init(self) -> None:
        """Make sure that every variable has its first value.  With `config.enable_legacy_model_io(True)`, give it that value again."""
        session = started_session()
        if session.settings.enable_legacy_model_io:
            stored.initialize()

    def save(self, path: str) -> None:
        """Write every variable to the directory `path`; if it exists, to the first free one of path-2, path-3, ..., which a notice names."""
        stored.save(path)

    def load(self, path: str) -> None:
        """Set the variables that `path` has a value for; training goes on from there.

        A notice names variables without a value, and values without a variable.
        Raises: CheckpointError if `path` is not a checkpoint or has a value for no variable, or one of another shape; nothing has changed then.
        """
        stored.restore(path)


class SimpleCheckPointManager:
    """Numbered checkpoints in one directory: `<root>/<prefix><time>`."""

    def __init__(self, root_path: str, prefix: str = "snapshot_") -> None:
        self._root = path_of(root_path)
        self.prefix = prefix
        if isinstance(self._root, Path):
            self._root.mkdir(parents=True, exist_ok=True)

    def list_checkpoints(self) -> list[str]:
        """The names of the complete ones, oldest first."""
        if not self._root.is_dir():  # in a store there are no empty ones
            return []
        # in a store the manifest is written last; those of the legacy system have no manifest
        last = "snapshot_done" if isinstance(self._root, Path) else manifest.NAME
        return sorted(path.name for path in self._root.iterdir() if path.name.startswith(self.prefix) and (path / last).is_file())

    def latest_checkpoint(self) -> str | None:
        """The name of the newest complete one."""
        names = self.list_checkpoints()
        return names[-1] if names else None

    def initialize_or_restore(self) -> None:
        """Load the newest; if there is none, save the first."""
        with store.located("initialize_or_restore"):
            latest = sessions.on_first(started_session(), self.latest_checkpoint)
        if latest is None:
            self.save()
        else:
            stored.restore(str(self._root / latest))

    def save(self) -> None:
        """Save under a new name made of the current time."""
        current_session()
        stored.save(str(self._root / (self.prefix + datetime.now().strftime("%Y%m%d_%H%M%S_%f"))))
