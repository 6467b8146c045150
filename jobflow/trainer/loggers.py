"""The callbacks that the configuration's `logging` selects: progress, metrics files and the report."""

from __future__ import annotations

from pathlib import Path

from jobflow.trainer.callbacks import Callback
from jobflow.trainer.chrome_trace import Tracing
from jobflow.trainer.config import Loaded
from jobflow.trainer.history import History
from jobflow.trainer.metrics import metric_files
from jobflow.trainer.progress import Progress
from jobflow.trainer.report import Report
from jobflow.trainer.run_file import RunFile


def loggers(loaded: Loaded, tracing: Tracing | None = None) -> list[Callback]:
    """Return the callbacks of `logging`, the recorder of the run's history last; the report also shows the trace of `tracing`."""
    logging = loaded.config.logging
    progress = Progress(logging.progress, logging.every_steps)
    callbacks: list[Callback] = [progress, RunFile(), *metric_files(loaded.config, Path(loaded.config.output))]
    if not logging.report:
        return [*callbacks, History()]
    quiet = logging.progress == "none"
    return [*callbacks, Report(traced=lambda: None if tracing is None else tracing.traced, announce=(lambda _: None) if quiet else print)]


def recorder(callbacks: list[Callback]) -> History:
    """Return the recorder among the callbacks of `loggers`."""
    return next(one for one in callbacks if isinstance(one, History))
