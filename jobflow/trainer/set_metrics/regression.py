"""Metrics of predicted numbers, over the whole set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.trainer.set_metrics.requests import NUMBER, TARGET, Request


class Summed:
    """Base class of metrics from sums over all elements of predictions and labels."""

    states: tuple[str, ...] = ("total", "count")

    def __init__(self, options: Any) -> None:
        self.options = options
        self.reset()

    @property
    def requests(self) -> Mapping[str, Request]:
        scores, labels = self.options.scores, self.options.labels
        return {"labels": Request(TARGET, scores, labels), "value": Request(NUMBER, scores, labels)}

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def errors(self, values: Mapping[str, Array]) -> Array:
        """Return predictions minus labels in float64."""
        difference: Array = values["value"].astype(np.float64) - values["labels"].astype(np.float64)
        return difference


class Mae(Summed):
    """The mean absolute error over all elements, as `sklearn.metrics.mean_absolute_error`."""

    def update(self, values: Mapping[str, Array]) -> None:
        errors = self.errors(values)
        self.total += float(np.abs(errors).sum())
        self.count += errors.size

    def compute(self) -> float:
        return self.total / self.count if self.count else np.nan


class Rmse(Summed):
    """The root of the mean squared error over all elements, as `torchmetrics.MeanSquaredError(squared=False)`."""

    def update(self, values: Mapping[str, Array]) -> None:
        errors = self.errors(values)
        self.total += float(np.square(errors).sum())
        self.count += errors.size

    def compute(self) -> float:
        return float(np.sqrt(self.total / self.count)) if self.count else np.nan


class R2(Summed):
    """The coefficient of determination, as `sklearn.metrics.r2_score`: 1 - squared errors / squared deviations, averaged over the outputs.

    An output with constant labels has 1 without errors, else 0. The deviations are merged batch by batch with the formula of Chan et al. (1979).
    """

    states = ("count", "mean", "deviations", "squares")

    def reset(self) -> None:
        self.count = 0
        self.mean = self.deviations = self.squares = np.zeros(0)

    def update(self, values: Mapping[str, Array]) -> None:
        rows = len(values["labels"])
        labels = values["labels"].astype(np.float64).reshape(rows, -1)
        squares = np.square(self.errors(values)).reshape(rows, -1).sum(0)
        mean = labels.mean(0)
        deviations = np.square(labels - mean).sum(0)
        if not self.count:
            self.count, self.mean, self.deviations, self.squares = rows, mean, deviations, squares
            return
        count = self.count + rows
        step = mean - self.mean
        self.deviations = self.deviations + deviations + np.square(step) * (self.count * rows / count)
        self.mean = self.mean + step * (rows / count)
        self.squares = self.squares + squares
        self.count = count

    def compute(self) -> float:
        if self.count < 2:
            return np.nan
        constant = self.deviations == 0
        each = 1 - self.squares / np.where(constant, 1.0, self.deviations)
        return float(np.where(constant, np.where(self.squares == 0, 1.0, 0.0), each).mean())
