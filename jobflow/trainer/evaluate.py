"""Evaluation: means of loss and metrics over all samples of a reader."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobflow.checkpoint import sessions, store
from jobflow.core.errors import CheckpointError, ConfigError, at_line
from jobflow.core.notices import notice
from jobflow.core.remote import AnyPath
from jobflow.data.batches import Batches
from jobflow.data.samples import Samples, Stream
from jobflow.engine.job import Job
from jobflow.trainer.config import Loaded
from jobflow.trainer.jobs import Jobs, Means, Prepared, open_place, prepared
from jobflow.trainer.network import line_of
from jobflow.trainer.resume import chosen, series_of, together
from jobflow.trainer.watching import EvaluationReport


def batches_of(jobs: Jobs, samples: Samples | Stream) -> Batches:
    """The batches of a measurement.  Who measures again and again keeps them: they remember what ranks read of them."""
    data, fields = jobs.config.data, list(jobs.network.taken(jobs.fields))
    return Batches(samples, None, data.evaluation_batch_size, False, data.prefetch, fields=fields)


def measure(jobs: Jobs, batches: Batches, place: str, step: int = 0, epoch: int = 0) -> EvaluationReport:
    """One pass over samples; metrics are named "<place>/<metric>"."""
    began, means = time.perf_counter(), Means()
    with batches.start(epochs=1) as reading:
        for batch in reading:
            with batch.told():
                outputs = jobs.call(jobs.evaluation(batch.size), batch.arguments)
            means.add(outputs, batch.size, jobs.pieces(batch.size))
    metrics = {f"{place}/{name}": value for name, value in means.values().items()}
    return EvaluationReport(step, epoch, metrics, time.perf_counter() - began, means.samples)


def evaluate(loaded: Loaded, checkpoint: str | Path | None = None, place: str | None = None) -> EvaluationReport:
    """Measure a checkpoint, the newest good one unless named, on data.test (else data.validation), or on data.<place>.

    CheckpointError if there is none; ConfigError if the configuration has no such data.
    """
    wanted = place or next((p for p in ("test", "validation") if getattr(loaded.config.data, p) is not None), "test")
    if getattr(loaded.config.data, wanted) is None:
        raise ConfigError(f"data.{wanted}: the configuration has no such samples")
    with at_line(line_of(loaded, "")), prepared(loaded, only=()) as run:
        path, extra = newest(run, checkpoint)
        samples = open_place(run.config, wanted, extra.get("facts", {}))
        run.take(wanted, samples)
        restore(run, path, run.jobs.evaluation(rows_of(samples, run.config.data.evaluation_batch_size)))
        return measure(run.jobs, batches_of(run.jobs, samples), wanted, int(extra.get("step", 0)), int(extra.get("position", {}).get("epoch", 0)))


def rows_of(samples: Samples | Stream, batch_size: int) -> int:
    """How long the first batch is."""
    return min(batch_size, len(samples)) if isinstance(samples, Samples) else batch_size


def newest(run: Prepared, checkpoint: str | Path | None) -> tuple[AnyPath, Mapping[str, Any]]:
    """The checkpoint that is meant, the newest good one unless named, and what it says beside the variables.  CheckpointError if there is none."""
    wish = "auto" if checkpoint is None else str(checkpoint)

    def look() -> tuple[AnyPath, dict[str, Any]] | None:
        path = chosen(series_of(run.config), wish, notice)
        return None if path is None else (path, dict(store.load(path).extra))

    found = together(run.session, look)
    if found is None:
        raise CheckpointError(f"there is no checkpoint in {run.config.checkpoint.directory}; train first, or name one with --checkpoint")
    return found


def restore(run: Prepared, path: AnyPath, job: Job) -> None:
    """Give the variables of a job the values that a checkpoint has."""
    run.session.compiled(job, job.declared_shapes(run.session))
    sessions.load(run.session, path, strict="variables", what="--checkpoint")
