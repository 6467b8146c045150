"""The files of a run, with links that a page in the run's folder can follow from a disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jobflow.core.dataclass import dataclass
from jobflow.core.tables import TextTable
from jobflow.storage.remote import AnyPath
from jobflow.trainer.lock import NAME as LOCK
from jobflow.trainer.units import size_text

if TYPE_CHECKING:
    from jobflow.trainer.training_run import TrainingRun

#: the content of the files of a run by name
CONTENTS = {
    "metrics.jsonl": "metrics of steps, evaluations and epochs, as JSON lines",
    "metrics.csv": "metrics of steps, evaluations and epochs, as a table",
    "run.json": "configuration, evaluations and end of the run",
    "evaluations.jsonl": "results of `jobflow eval`",
    "curves.png": "the curves as a picture",
    "trace.json": "timeline of each rank, for https://ui.perfetto.dev",
    "tensorboard": "events for TensorBoard",
    "samples": "texts and images that callbacks showed",
    "checkpoints": "checkpoints",
}
#: maximum number of other files that are listed
MOST_FILES = 40


@dataclass(frozen=True)
class Link:
    """A text of a table that links to a file; without `href`, only a text."""

    text: str
    href: str = ""

    def __str__(self) -> str:
        return self.text


def relative_link(path: AnyPath | str, folder: Path) -> Link:
    """Return a link to a file or folder, relative to the folder of a page; only the text for a path in a remote store."""
    if not isinstance(path, Path):
        return Link(str(path))
    relative = os.path.relpath(path, folder)
    return Link(relative, quote(relative) + ("/" if path.is_dir() else ""))


def files_table(run: TrainingRun, page: Path) -> TextTable:
    """Return a table of the configuration files and of the files in the output folder, for the page at the path `page`."""
    rows: list[Sequence[Any]] = [
        (relative_link(Path(name), page.parent), "configuration", _size(Path(name))) for name in run.loaded.files if Path(name).is_file()
    ]
    hidden = {page.resolve(), (run.output / LOCK).resolve()}
    present = sorted(path for path in run.output.glob("*") if not path.name.startswith(".") and path.resolve() not in hidden)
    known = [run.output / name for name in CONTENTS if run.output / name in present]
    others = [path for path in present if path not in known]
    rows += [(relative_link(path, page.parent), CONTENTS.get(path.name, ""), _size(path)) for path in [*known, *others[:MOST_FILES]]]
    if len(others) > MOST_FILES:
        rows.append((f"and {len(others) - MOST_FILES} more", "", ""))
    return TextTable(["file", "content", "size"], rows, right=(2,), code=(0,))


def _size(path: Path) -> str:
    return "folder" if path.is_dir() else size_text(path.stat().st_size)
