"""Measuring a model: means of its loss and metrics over all samples of a reader, each counted once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobflow.checkpoint import sessions
from jobflow.data.batches import Batches
from jobflow.data.samples import Samples, Stream
from jobflow.errors import CheckpointError, ConfigError
from jobflow.notices import notice
from jobflow.trainer.config import Loaded
from jobflow.trainer.jobs import Jobs, Means, Prepared, prepared
from jobflow.trainer.resume import chosen, series_of, together
from jobflow.trainer.watching import EvaluationReport


def measure(jobs: Jobs, samples: Samples | Stream, place: str, step: int = 0, epoch: int = 0) -> EvaluationReport:
    """One pass over samples; metrics are named "<place>/<metric>"."""
    began, means, data = time.perf_counter(), Means(), jobs.config.data
    with Batches(samples, None, data.evaluation_batch_size, False, data.prefetch).start(epochs=1) as reading:
        for batch in reading:
            means.add(jobs.call(jobs.evaluation(batch.size), batch.arguments), batch.size, jobs.pieces(batch.size))
    metrics = {f"{place}/{name}": value for name, value in means.values().items()}
    return EvaluationReport(step, epoch, metrics, time.perf_counter() - began, means.samples)


def evaluate(loaded: Loaded, checkpoint: str | Path | None = None, place: str | None = None) -> EvaluationReport:
    """Measure a checkpoint, the newest good one unless named, on data.test (else data.validation), or on the data of `place`.

    CheckpointError if there is none; ConfigError if the configuration has no such data.
    """
    wanted = place or next((p for p in ("test", "validation") if getattr(loaded.config.data, p) is not None), "test")
    if getattr(loaded.config.data, wanted) is None:
        raise ConfigError(f"data.{wanted}: the configuration has no such samples to measure on")
    with prepared(loaded, only=("train", wanted)) as run:
        samples = run.samples[wanted]
        rows = run.config.data.evaluation_batch_size
        if isinstance(samples, Samples):
            rows = min(rows, len(samples))
        extra = restored(run, checkpoint, lambda: run.jobs.evaluation(rows))
        return measure(run.jobs, samples, wanted, int(extra.get("step", 0)), int(extra.get("position", {}).get("epoch", 0)))


def restored(run: Prepared, checkpoint: str | Path | None, job: Callable[[], Any]) -> dict[str, Any]:
    """Give the variables of a job the values of a checkpoint; what it says beside them."""
    session = run.session
    path = newest_of(run, checkpoint)
    made = job()
    session.compiled(made, made.declared_shapes(session))
    return sessions.load(session, path, strict="variables", what="--checkpoint")


def newest_of(run: Prepared, checkpoint: str | Path | None) -> Path:
    """The checkpoint that is meant: the newest good one unless named.  CheckpointError if there is none."""
    wish = "auto" if checkpoint is None else str(checkpoint)
    found = together(run.session, lambda: chosen(series_of(run.config), wish, notice))
    if found is None:
        raise CheckpointError(f"there is no checkpoint in {run.config.checkpoint.directory}; train first, or name one with --checkpoint")
    return found
