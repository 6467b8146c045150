"""Metrics of predicted classes, from counts over the whole set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.types import Array
from jobflow.trainer.config import schema_metrics as schema
from jobflow.trainer.set_metrics.requests import CLASS, LABELS, LIKELIHOOD, POSITION, Request

#: maximum number of classes of a confusion matrix, whose size is the square
MOST_CLASSES = 2_000


def class_numbers(labels: Array, classes: int, ignore: int | None = None) -> Array:
    """Return labels as int64, without axes; raise DataError for a label that is neither a class number nor `ignore`."""
    flat = labels.reshape(-1)
    if flat.dtype.kind in "iu" and ignore is None and flat.size and flat.min() >= 0 and flat.max() < classes:
        return flat.astype(np.int64)
    wrong = np.flatnonzero(~((flat >= 0) & (flat < classes) & (flat == np.floor(flat)) | (flat == ignore)))
    if wrong.size:
        error = DataError(
            f"label {flat[wrong[0]]:g} is not one of the {classes:,} classes of the scores; "
            f"labels are whole numbers from 0 to {classes - 1:,}, so correct the labels or the number of scores."
        )
        error.row = int(wrong[0]) // max(flat.size // max(len(labels), 1), 1)
        raise error
    return flat.astype(np.int64)


class Counted:
    """Base class of metrics that count predicted classes and labels; `classes` is the number of scores.

    The labels that `update` gets are class numbers, as int64 without axes.
    """

    states: tuple[str, ...] = ("right", "count")

    def __init__(self, options: Any) -> None:
        self.options = options
        #: the number of classes, after a job has been traced
        self.classes = 0
        self.reset()

    @property
    def requests(self) -> Mapping[str, Request]:
        return {"labels": self._request(LABELS), "value": self._request(CLASS, getattr(self.options, "threshold", None))}

    def _request(self, kind: str, threshold: float | None = None) -> Request:
        ignore = self.options.ignore if kind in (POSITION, LIKELIHOOD) else None
        return Request(kind, self.options.scores, self.options.labels, ignore, threshold)

    def reset(self) -> None:
        self.right: Any = 0
        self.count = 0


class Accuracy(Counted):
    """The fraction of labels that are predicted, as `sklearn.metrics.accuracy_score`."""

    def update(self, values: Mapping[str, Array]) -> None:
        labels = values["labels"]
        self.right += int(np.count_nonzero(labels == values["value"].reshape(-1)))
        self.count += labels.size

    def compute(self) -> float:
        return self.right / self.count if self.count else np.nan


class TopK(Counted):
    """The fraction of labels among the k largest scores, as `sklearn.metrics.top_k_accuracy_score`; of equal scores, the first class is larger."""

    @property
    def requests(self) -> Mapping[str, Request]:
        return {**super().requests, "value": self._request(POSITION)}

    def update(self, values: Mapping[str, Array]) -> None:
        self.right += int(np.count_nonzero(values["value"] < self.options.k))
        self.count += values["labels"].size

    compute = Accuracy.compute


class F1(Counted):
    """The harmonic mean of precision and recall, as `sklearn.metrics.f1_score` with zero_division=0.

    `macro` is the mean over the classes that occur in labels or predictions, and `weighted` weights it by the number of labels. `micro` counts all
    classes together, and `binary` is the value of the class `positive`.
    """

    states = ("right", "predicted", "labelled")

    def reset(self) -> None:
        self.right = self.predicted = self.labelled = np.zeros(self.classes, np.int64)

    def update(self, values: Mapping[str, Array]) -> None:
        labels, predicted = values["labels"], values["value"].reshape(-1)
        counts = (np.bincount(x, minlength=self.classes) for x in (labels[labels == predicted], predicted, labels))
        if not self.right.size:
            self.right = self.predicted = self.labelled = np.zeros(self.classes, np.int64)
        self.right, self.predicted, self.labelled = (a + b for a, b in zip((self.right, self.predicted, self.labelled), counts, strict=True))

    def compute(self) -> float:
        total = self.predicted + self.labelled
        if not total.any():
            return np.nan
        each = 2 * self.right / np.maximum(total, 1)
        match self.options.average:
            case "micro":
                return float(2 * self.right.sum() / total.sum())
            case "weighted":
                return float(each @ self.labelled / self.labelled.sum())
            case "binary":
                return float(each[self.options.positive])
        return float(each[total > 0].mean())


class ConfusionMatrix(Counted):
    """The number of samples by label (row) and predicted class (column), as `sklearn.metrics.confusion_matrix`."""

    states = ("counts",)

    def reset(self) -> None:
        self.counts = np.zeros((self.classes, self.classes), np.int64)

    def update(self, values: Mapping[str, Array]) -> None:
        size = self.classes
        pairs = np.bincount(values["labels"] * size + values["value"].reshape(-1), minlength=size * size).reshape(size, size)
        self.counts = self.counts + pairs if self.counts.size else pairs

    def compute(self) -> Array:
        return self.counts


class Perplexity(Counted):
    """The exponential of the mean of -log softmax(scores)[label], as `torchmetrics.text.Perplexity`."""

    states = ("total", "count")

    @property
    def requests(self) -> Mapping[str, Request]:
        labels = {} if self.options.ignore is None else {"labels": self._request(LABELS)}
        return {**labels, "value": self._request(LIKELIHOOD)}

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, values: Mapping[str, Array]) -> None:
        self.total += float(values["value"].sum(dtype=np.float64))
        self.count += values["value"].size

    def compute(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(self.total / self.count)) if self.count else np.nan


def check_classes(options: Any, classes: int) -> str:
    """Return the reason why a metric with these options is not defined for this number of classes, or ""."""
    if isinstance(options, schema.OfPredictedClasses) and options.threshold is not None and classes != 2:
        return f"threshold {options.threshold} needs 2 classes, and there are {classes:,}; omit it"
    if isinstance(options, schema.ConfusionMatrix) and classes > MOST_CLASSES:
        return f"a matrix of {classes:,} classes exceeds the maximum of {MOST_CLASSES:,}; omit it, or use f1"
    if isinstance(options, schema.TopK) and options.k > classes:
        return f"k is {options.k}, and there are {classes:,} classes; reduce k"
    if isinstance(options, schema.F1) and options.average == "binary":
        if classes != 2:
            return f"average binary needs 2 classes, and there are {classes:,}; use macro, micro or weighted"
        if options.positive > 1:
            return f"positive is {options.positive}, and the classes are 0 and 1; write positive: 1"
    return ""
