"""Runs of a few steps: 26 samples in batches of 8, so that an epoch is 4 steps and ends with a batch of 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from jobflow.data.batch import Batch
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import Loaded, load
from jobflow.trainer.loop import Loop, train
from jobflow.trainer.training_run import EvaluationReport, Outcome, StepReport, TrainingRun

SAMPLES, WIDTH, CLASSES = 26, 6, 4
CONFIG = """
seed: 5
model:
  loss: softmax_cross_entropy
  layers:
    - dense: {units: 12, activation: tanh}
    - dropout: {rate: 0.25}
    - dense: {units: 4}
data:
  train: {reader: numpy, path: train.npz}
  validation: {reader: numpy, path: validation.npz}
  batch_size: 8
optimizer: {name: momentum, lr: 0.05, schedule: {name: cosine}, warmup_steps: 2}
training: {steps: 9}
evaluation: {every_epochs: 1}
checkpoint: {every_steps: 1, keep_last: 99, asynchronous: false}
logging: {every_steps: 1, progress: none, report: false}
"""


def samples(count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {"x": random.normal(size=(count, WIDTH)).astype(np.float32), "labels": random.integers(0, CLASSES, count).astype(np.int32)}


def write_config(folder: Path, text: str = CONFIG, count: int = SAMPLES) -> Path:
    """Write the configuration and its data to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(("train", "validation")):
        np.savez(folder / f"{name}.npz", **samples(count, seed))
        text = text.replace(f"path: {name}.npz", f"path: {folder / name}.npz")
    (folder / "run.yaml").write_text(text)
    return folder / "run.yaml"


def loaded(file: Path, output: Path, *settings: str) -> Loaded:
    """Load a configuration for a run without a report, unless a setting asks for one."""
    return load(file, (f"output={output}", "logging.report=false", *settings))


class Recorder(Callback):
    """A callback that records the events of a run, and the samples of each step."""

    observes = True

    def __init__(self) -> None:
        self.info: TrainingRun | None = None
        self.steps: dict[int, StepReport] = {}
        self.evaluations: dict[int, EvaluationReport] = {}
        self.sample_numbers: dict[int, list[int]] = {}
        self.saves: list[str] = []
        self.events: list[str] = []

    def on_start(self, run: TrainingRun) -> None:
        self.info = run
        self.events.append("on_start")

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        self.steps[report.step] = report

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self.evaluations[report.step] = report

    def on_checkpoint(self, run: TrainingRun, path: Any) -> None:
        self.saves.append(path.name)

    def on_end(self, run: TrainingRun, outcome: Any) -> None:
        self.events.append("on_end")

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        self.events.append("on_exception")

    @property
    def losses(self) -> dict[int, float]:
        return {step: report.loss for step, report in self.steps.items()}

    @contextmanager
    def numbering(self) -> Iterator[None]:
        """Record the samples of each step."""
        inner = Loop._account

        def account(loop: Loop, batch: Batch, *rest: Any) -> None:
            inner(loop, batch, *rest)
            self.sample_numbers[loop.progress.step] = batch.numbers.tolist()

        with mock.patch.object(Loop, "_account", account):
            yield


def run(config: Loaded, *more: Callback, resume: str | None = None, **options: Any) -> tuple[Outcome, Recorder]:
    """Train; return the outcome and its recorder."""
    recorder = Recorder()
    with recorder.numbering():
        ended = train(config, resume=resume, callbacks=(recorder, *more), **options)
    assert ended.outcome is not None
    return ended.outcome, recorder


def check_same(recorder: Recorder, other: Recorder, steps: Sequence[int], close: float = 1e-6) -> None:
    """Check that both runs had the same samples, losses and evaluations in these steps."""
    for step in steps:
        assert recorder.sample_numbers[step] == other.sample_numbers[step], step
        np.testing.assert_allclose(recorder.losses[step], other.losses[step], rtol=close, err_msg=f"step {step}")
        assert recorder.steps[step].rate == other.steps[step].rate
        if step in other.evaluations:
            for name, value in other.evaluations[step].metrics.items():
                np.testing.assert_allclose(recorder.evaluations[step].metrics[name], value, rtol=close, err_msg=f"{name} after step {step}")
