"""Negative log-likelihood against its definition, and invalid labels."""

from __future__ import annotations

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError
from jobflow.ops.likelihood import negative_log_likelihood


def test_classes_on_any_axis() -> None:
    x, labels = np.log(np.random.default_rng(1).uniform(0.1, 1.0, (2, 5, 3))), np.array([[0, -1, 4], [2, 3, -1]])
    with scope.using(interpreter=laws.Immediate()):
        loss = negative_log_likelihood(laws.Result(x), laws.Result(labels), 1, ignored=-1).array
    for n, i in np.ndindex(labels.shape):
        assert loss[n, i] == (0.0 if labels[n, i] < 0 else -x[n, labels[n, i], i])


@pytest.mark.parametrize(
    ("x", "labels", "error", "words"),
    [
        (np.zeros((2, 3)), np.array([0, 3]), ArgumentError, r"label 3 .* \[0, 3\), the range of the 3 classes, nor is it the ignored -100"),
        (np.zeros((2, 3)), np.array([0, -1]), ArgumentError, r"label -1 "),
        (np.zeros((2, 3)), np.array([0.0, 1.0]), DtypeError, r"labels float64\[2\] are not integers"),
        (np.zeros((2, 3)), np.array([0, 1, 2]), ShapeError, r"labels int64\[3\] must have the shape \[2\]"),
    ],
)
def test_mismatched_arguments_raise(x: np.ndarray, labels: np.ndarray, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words), scope.using(interpreter=laws.Immediate()):
        negative_log_likelihood(laws.Result(x), laws.Result(labels), 1, -100)
