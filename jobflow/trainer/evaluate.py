"""Evaluation: means of loss and outputs, and metrics, over all samples of a reader."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobflow.core.errors import CheckpointError, ConfigError, at_line
from jobflow.core.filters import Not
from jobflow.data.batches import Batches
from jobflow.data.samples import Samples, Stream
from jobflow.engine.job import Job
from jobflow.engine.session import Session
from jobflow.models.generation.key_value_cache import NAMES
from jobflow.storage import sessions, store
from jobflow.storage.remote import AnyPath
from jobflow.trainer.class_names import classes_of
from jobflow.trainer.config import Loaded
from jobflow.trainer.jobs import Jobs, open_place, prepared
from jobflow.trainer.network import line_of
from jobflow.trainer.recorded_evaluations import record_evaluation
from jobflow.trainer.resume import chosen, series_of, together
from jobflow.trainer.set_metrics.totals import Totals
from jobflow.trainer.training_run import EvaluationReport


def batches_of(jobs: Jobs, samples: Samples | Stream, fields: Iterable[str] | None = None) -> Batches:
    """Return the evaluation batches of these samples, in the order of the samples.

    `fields` names the fields to read; the default is all fields that the model uses. The result caches the ranges of rows that each rank reads, so
    repeated evaluations should reuse the result.
    """
    data, read = jobs.config.data, jobs.read if fields is None else fields
    return Batches(samples, None, data.evaluation_batch_size, False, data.prefetch, fields=list(read))


def measure(jobs: Jobs, batches: Batches, place: str, step: int = 0, epoch: int = 0, classes: Sequence[str] = ()) -> EvaluationReport:
    """Evaluate the model in one pass over the batches, and return a report with metrics named "<place>/<metric>".

    `step`, `epoch` and the names of the `classes` are only recorded in the report.
    """
    began, totals = time.perf_counter(), Totals(jobs)
    jobs.over(batches, jobs.evaluation, lambda rows, outputs: totals.add(outputs, rows))
    metrics, tables = totals.values(place)
    return EvaluationReport(step, epoch, metrics, time.perf_counter() - began, totals.samples, tables, classes)


def evaluate(loaded: Loaded, checkpoint: str | Path | None = None, place: str | None = None) -> EvaluationReport:
    """Evaluate a checkpoint on the samples of data.<place>.

    `checkpoint` defaults to the newest valid checkpoint. `place` defaults to "test", or to "validation" if there is no data.test.
    The result is added to evaluations.jsonl and to the report in the output folder of the run.
    Raises: CheckpointError without an intact checkpoint; ConfigError if the configuration has no data.<place>.
    """
    reader = place or next((p for p in ("test", "validation") if getattr(loaded.config.data, p) is not None), "test")
    if getattr(loaded.config.data, reader) is None:
        raise ConfigError(f"data.{reader}: the configuration has no reader under this key; add a reader")
    with trained(loaded, checkpoint) as (jobs, path, extra):
        samples = open_place(jobs.config, reader, extra.get("facts", {}))
        jobs.take(samples)
        restore(jobs, path, jobs.evaluation(rows_of(samples, jobs.config.data.evaluation_batch_size)))
        step, epoch = int(extra.get("step", 0)), int(extra.get("position", {}).get("epoch", 0))
        report = measure(jobs, batches_of(jobs, samples), reader, step, epoch, classes_of(jobs, extra.get("facts", {})))
        if jobs.session.writes_files:
            record_evaluation(Path(loaded.config.output), report, path)
        return report


def rows_of(samples: Samples | Stream, batch_size: int) -> int:
    """Return the number of samples in a full batch, which is smaller than `batch_size` if there are fewer samples."""
    return min(batch_size, len(samples)) if isinstance(samples, Samples) else batch_size


@contextmanager
def trained(loaded: Loaded, checkpoint: str | Path | None) -> Iterator[tuple[Jobs, AnyPath, Mapping[str, Any]]]:
    """Yield the jobs of a configuration, the path of the checkpoint, and the checkpoint's extra entries.

    `checkpoint` defaults to the newest valid checkpoint.
    Raises: CheckpointError without an intact checkpoint.
    """

    located: list[tuple[AnyPath, dict[str, Any]]] = []

    def look() -> tuple[AnyPath, dict[str, Any]] | None:
        path = chosen(series_of(loaded.config), "auto" if checkpoint is None else str(checkpoint), "name another one with --checkpoint")
        return None if path is None else (path, dict(store.load(path).extra))

    def sizes(session: Session) -> Mapping[str, int]:
        result = together(session, look)
        if result is None:
            raise CheckpointError(
                f"there is no checkpoint in {loaded.config.checkpoint.directory}; train first, or pass a checkpoint with --checkpoint"
            )
        located.append(result)
        return dict(result[1].get("sizes", {}))

    with at_line(line_of(loaded, "")), prepared(loaded, only=(), sizes=sizes) as jobs:
        path, extra = located[0]
        if jobs.network.criterion is not None:
            jobs.network.criterion.restore(extra.get("class_weights"), path)
        yield jobs, path, extra


def restore(jobs: Jobs, path: AnyPath, job: Job) -> None:
    """Compile a job, and load the session's variables from the checkpoint `path`; key-value caches are not in checkpoints."""
    jobs.session.compiled(job, job.declared_shapes(jobs.session))
    caches = any(name.startswith(NAMES) for name in jobs.session.variables)
    sessions.load(jobs.session, path, Not(f"{NAMES}*") if caches else ("*",), strict="variables", what="--checkpoint")
