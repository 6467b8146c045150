"""Means and metrics of the training samples over an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobflow.core.types import Array
from jobflow.data.batch import Batch
from jobflow.trainer.jobs import Jobs
from jobflow.trainer.set_metrics.totals import Totals
from jobflow.trainer.training_run import EvaluationReport

#: the first part of the names of these means and metrics
PREFIX = "train_epoch"


class Epochs:
    """Means and metrics of the training samples since the start of the epoch.

    The outputs of the last step are added later, once its gradients are known to be finite: a step that changes no variable is repeated.
    """

    def __init__(self, jobs: Jobs, classes: Sequence[str]) -> None:
        self._totals, self._classes = Totals(jobs), classes
        #: False if the steps of this epoch before the resumed checkpoint were not recorded
        self._is_whole = True
        self._pending: tuple[dict[str, Array], Batch] | None = None

    def step(self, outputs: dict[str, Array], batch: Batch) -> None:
        """Record the outputs of a step, after `settle`."""
        self._pending = outputs, batch

    def settle(self) -> None:
        """Add the outputs of the last step, unless they are added."""
        if self._pending is not None:
            (outputs, batch), self._pending = self._pending, None
            with batch.told():
                self._totals.add(outputs, batch.size)

    def drop(self) -> None:
        """Discard the outputs of the last step, which is repeated."""
        self._pending = None

    def ended(self, step: int, epoch: int) -> EvaluationReport | None:
        """Return the report of an epoch and start the next one; return None if a part of the epoch was not recorded."""
        self.settle()
        metrics, tables = self._totals.values(PREFIX)
        report = EvaluationReport(step, epoch, metrics, 0.0, self._totals.samples, tables, self._classes)
        self._totals.reset()
        was_whole, self._is_whole = self._is_whole, True
        return report if was_whole else None

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint as a JSON tree."""
        return self._totals.state()

    def restore(self, state: Mapping[str, Any], sample: int, path: Any) -> None:
        """Set the state from a checkpoint at this sample of an epoch; raise CheckpointError if the state is damaged."""
        self._totals.restore(state, path)
        self._is_whole = sample == 0 or bool(state)
