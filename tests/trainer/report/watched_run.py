"""A simulated run: reports as the loop would send them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobflow.engine.compiled import Compiled
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import Origin
from jobflow.trainer.training_run import EvaluationReport, StepReport, TrainingRun

PLAIN: dict[str, Any] = {
    "name": "digits & <letters>",
    "model": {"builder": "models:lenet", "arguments": {"classes": 10}, "layers": [{"dense": {"units": 8}}, {"dense": {"units": 4}}]},
    "optimizer": {"name": "adam", "lr": 0.001, "betas": [0.9, 0.999], "clip_norm": None},
    "strategy": {
        "view": "consistent",
        "data": 2,
        "tensor": 1,
        "pipeline": 1,
        "zero": 1,
        "accumulation": 1,
        "microbatches": None,
        "recompute": False,
        "precision": "float32",
    },
}
ORIGINS = {
    "name": Origin("/somewhere/base.yaml", 2, 7),
    "model.builder": Origin("/somewhere/run.yaml", 4, 3),
    "optimizer.lr": Origin("--set optimizer.lr=0.001"),
    "model.layers.1.dense.units": Origin("/somewhere/run.yaml", 9, 5),
}


@dataclass
class SourcedConfig:
    """A configuration with its sources."""

    plain: dict[str, Any] = field(default_factory=lambda: PLAIN)
    origins: dict[str, Any] = field(default_factory=lambda: ORIGINS)
    files: tuple[str, ...] = (__file__,)


@dataclass
class Finished:
    """The outcome of a run."""

    step: int = 120
    epoch: int = 3
    metrics: dict[str, float] = field(default_factory=lambda: {"validation/loss": 0.25, "validation/accuracy": 0.9375})
    stopped: str = "end"
    message: str = ""


def info(
    output: Path, *, steps: int = 120, first: int = 0, per_epoch: int = 40, compiled: Callable[[], Compiled | None] = lambda: None
) -> TrainingRun:
    return TrainingRun(PLAIN["name"], SourcedConfig(), output, 2, steps, first, per_epoch, 40 * 16, 16, None, compiled)


def step_of(number: int, per_epoch: int = 40, **changes: Any) -> StepReport:
    values = {
        "loss": 2.0 * math.exp(-number / 20),
        "metrics": {"accuracy": 1 - math.exp(-number / 20)},
        "seconds": 0.01,
        "samples": 16,
        "rate": 0.001,
    }
    return StepReport(**{"step": number, "epoch": (number - 1) // per_epoch, **values, "waited": 0.001, **changes})


def evaluation_of(number: int, per_epoch: int = 40) -> EvaluationReport:
    loss = 2.0 * math.exp(-number / 20) + 0.1
    return EvaluationReport(number, number // per_epoch, {"validation/loss": loss, "validation/accuracy": 1 - loss / 3}, 0.05, 64)


def drive(callback: Callback, run: TrainingRun, last: int | None = None) -> None:
    """Send all events from the start to step `last`, without an end."""
    callback.on_start(run)
    for number in range(run.first_step + 1, (last or run.steps) + 1):
        callback.on_step(run, step_of(number))
        if number % run.steps_per_epoch == 0:
            callback.on_evaluation(run, evaluation_of(number))


def end(callback: Callback, run: TrainingRun, **outcome: Any) -> None:
    callback.on_end(run, Finished(**outcome))
