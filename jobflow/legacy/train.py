"""The classes `train.CheckPoint` and `train.SimpleCheckPointManager`, which save and load the session's variables."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from jobflow.engine.session import current_session, started_session
from jobflow.storage import manifest, sessions, store
from jobflow.storage import session_variables as stored
from jobflow.storage.remote import path_of

__all__ = ["CheckPoint", "SimpleCheckPointManager"]


class CheckPoint:
    """A writer and reader of all variables of the session: parameters, optimizer slots, train steps."""

    def init(self) -> None:
        """Do nothing, because variables are initialized at first use; with `config.enable_legacy_model_io(True)`, initialize all variables again."""
        session = started_session()
        if session.settings.enable_legacy_model_io:
            stored.initialize()

    def save(self, path: str) -> None:
        """Write every variable to the directory `path`; if `path` exists, write to the first unused name of path-2, path-3, ..., with a notice."""
        stored.save(path)

    def load(self, path: str) -> None:
        """Set the variables that the checkpoint `path` contains.

        A notice lists variables missing in the checkpoint, and values without a variable.

        Raises: CheckpointError if `path` is not a checkpoint, matches no variable, or has a variable of another shape; no variable is changed then.
        """
        stored.restore(path)


class SimpleCheckPointManager:
    """A directory of numbered checkpoints `<root>/<prefix><time>`."""

    def __init__(self, root_path: str, prefix: str = "snapshot_") -> None:
        self._root = path_of(root_path)
        self.prefix = prefix
        if isinstance(self._root, Path):
            self._root.mkdir(parents=True, exist_ok=True)

    def list_checkpoints(self) -> list[str]:
        """Return the names of complete checkpoints, from the oldest on."""
        if not self._root.is_dir():  # object stores have no empty folders
            return []
        # an object store receives the manifest last; checkpoints of OneFlow have no manifest
        last = "snapshot_done" if isinstance(self._root, Path) else manifest.NAME
        return sorted(path.name for path in self._root.iterdir() if path.name.startswith(self.prefix) and (path / last).is_file())

    def latest_checkpoint(self) -> str | None:
        """Return the name of the newest complete checkpoint, or None."""
        names = self.list_checkpoints()
        return names[-1] if names else None

    def initialize_or_restore(self) -> None:
        """Load the newest checkpoint; if there is none, save a first checkpoint."""
        with store.located("initialize_or_restore"):
            latest = sessions.on_first(started_session(), self.latest_checkpoint)
        if latest is None:
            self.save()
        else:
            stored.restore(str(self._root / latest))

    def save(self) -> None:
        """Save all variables to a new checkpoint whose name contains the current time."""
        current_session()
        stored.save(str(self._root / (self.prefix + datetime.now().strftime("%Y%m%d_%H%M%S_%f"))))
