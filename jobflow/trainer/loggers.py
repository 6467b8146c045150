"""The callbacks that the configuration's `logging` selects: progress, metrics files and the report."""

from __future__ import annotations

from pathlib import Path

from jobflow.trainer.callbacks import Callback
from jobflow.trainer.chrome_trace import Tracing
from jobflow.trainer.config import Loaded
from jobflow.trainer.history import History
from jobflow.trainer.metrics import metric_files
from jobflow.trainer.notebook_progress import NotebookProgress, notebook_shell
from jobflow.trainer.progress import Progress
from jobflow.trainer.report import Report
from jobflow.trainer.run_file import RunFile
from jobflow.trainer.shown_samples import SampleFolder


def loggers(loaded: Loaded, tracing: Tracing | None = None) -> list[Callback]:
    """Return the callbacks of `logging`, with the recorder of the run's history; the report also shows the trace of `tracing`."""
    logging = loaded.config.logging
    shell = notebook_shell() if logging.progress == "auto" else None
    files = [RunFile(), SampleFolder(), *metric_files(loaded.config, Path(loaded.config.output))]
    quiet = logging.progress == "none" or shell is not None
    report = Report(traced=lambda: None if tracing is None else tracing.traced, announce=(lambda _: None) if quiet else print)
    recorded = report if logging.report else History()
    # the output in a notebook shows the report, so it follows the recorder
    return [*files, recorded, NotebookProgress(shell)] if shell is not None else [Progress(logging.progress, logging.every_steps), *files, recorded]


def recorder(callbacks: list[Callback]) -> History:
    """Return the recorder among the callbacks of `loggers`."""
    return next(one for one in callbacks if isinstance(one, History))
