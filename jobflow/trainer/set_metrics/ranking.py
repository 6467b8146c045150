"""The area under the ROC curve, exact or from a histogram of scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.types import Array
from jobflow.trainer.set_metrics.requests import LABELS, RANKING, Request


class Auc:
    """The area under the ROC curve, as `sklearn.metrics.roc_auc_score`; for more than 2 classes, the mean of each class against the rest.

    Without `bins`, all scores are stored, up to `limit`. With `bins`, probabilities are counted in this number of intervals of equal width. Scores
    in the same interval count as equal, as in `torchmetrics.classification.AUROC` with thresholds.
    """

    def __init__(self, options: Any) -> None:
        self.options = options
        self.classes = 0
        self.states = ("positive", "negative") if options.bins else ("scores", "labels", "count")
        self.reset()

    @property
    def requests(self) -> Mapping[str, Request]:
        return {
            "labels": Request(LABELS, self.options.scores, self.options.labels),
            "value": Request(RANKING, self.options.scores, self.options.labels),
        }

    def reset(self) -> None:
        #: the number of elements of `scores`
        self.count = 0
        self.scores: list[Array] = []
        self.labels: list[Array] = []
        self.positive = self.negative = np.zeros((0, 0), np.int64)

    def update(self, values: Mapping[str, Array]) -> None:
        labels = values["labels"]
        if not labels.size:  # all are ignored
            return
        scores = values["value"].reshape(labels.size, -1)
        if self.options.bins:
            self._count(scores, labels)
            return
        self.count += scores.size
        if self.count > self.options.limit:
            raise DataError(
                f"the exact area keeps every score, and there are more than {self.options.limit:,}; "
                f"count them in intervals, such as {{auc: {{bins: 1000}}}}, or raise auc.limit"
            )
        self.scores.append(scores.copy())
        self.labels.append(labels.astype(np.int32))

    def _count(self, scores: Array, labels: Array) -> None:
        bins, columns = self.options.bins, scores.shape[1]
        if not self.positive.size:
            self.positive = self.negative = np.zeros((columns, bins), np.int64)
        shares = scores if columns > 1 else 1 / (1 + np.exp(-np.clip(scores.astype(np.float64), -700, 700)))
        places = np.clip((shares * bins).astype(np.int64), 0, bins - 1) + np.arange(columns) * bins
        of_class = labels[:, None] == (np.arange(columns) if columns > 1 else 1)
        self.positive, self.negative = (
            total + np.bincount(places[chosen], minlength=columns * bins).reshape(columns, bins)
            for total, chosen in ((self.positive, of_class), (self.negative, ~of_class))
        )

    def compute(self) -> float:
        if self.options.bins:
            return float(np.mean([area(p, n) for p, n in zip(self.positive, self.negative, strict=True)])) if self.positive.size else np.nan
        if not self.scores:
            return np.nan
        scores, labels = np.concatenate(self.scores), np.concatenate(self.labels)
        areas = []
        for column in range(scores.shape[1]):
            chosen = labels == (column if scores.shape[1] > 1 else 1)
            values, places = np.unique(scores[:, column], return_inverse=True)
            counts = (np.bincount(places.reshape(-1)[each], minlength=values.size) for each in (chosen, ~chosen))
            areas.append(area(*counts))
        return float(np.mean(areas))


def area(positive: Array, negative: Array) -> float:
    """Return the share of pairs in which the positive sample has the larger score; equal scores count half.

    The arguments are numbers of samples by score, in ascending order. NaN if one of the two classes has no samples.
    """
    below = np.cumsum(negative) - negative
    pairs = float(positive.sum()) * float(negative.sum())
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs else np.nan
