"""Adaptive softmax: a log-softmax in which rare classes share features of fewer dimensions (Grave et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.functional.binary_functions import add
from jobflow.functional.joining import cat
from jobflow.functional.nn_activations import log_softmax
from jobflow.functional.nn_base import flag, real, whole
from jobflow.functional.reductions import argmax, mean
from jobflow.functional.shapes import squeeze, unsqueeze
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.container import ModuleList, Sequential
from jobflow.nn.modules.linear_layers import Linear
from jobflow.nn.modules.module import Module
from jobflow.ops.runtime_assertions import class_assertion
from jobflow.tensors.run import run

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _Output(NamedTuple):
    """Log-probabilities of the targets, and their negative mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of classes that are sorted by frequency, and the loss of targets (Grave et al. 2017).

    `cutoffs` divide the classes into a head of frequent classes and clusters of rarer ones; cluster i uses in_features / div_value^(i + 1) features.
    Raises: ArgumentError unless the cutoffs increase strictly, from 1 to n_classes - 1 at most.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        word = "AdaptiveLogSoftmaxWithLoss"
        bounds = list(cutoffs) if isinstance(cutoffs, Sequence | np.ndarray) and not isinstance(cutoffs, str) else []
        legal = bool(bounds) and all(isinstance(n, int | np.integer) for n in bounds)
        count = whole(word, "n_classes", n_classes)
        if not legal or bounds != sorted(set(bounds)) or bounds[0] < 1 or bounds[-1] > count - 1:
            raise ArgumentError(f"{word} at {user_line()}: cutoffs must be increasing ints from 1 to {count - 1}; got {cutoffs!r}")
        self.in_features, self.n_classes, self.div_value = whole(word, "in_features", in_features), count, real(word, "div_value", div_value)
        if not 0 < self.div_value < math.inf:
            raise ArgumentError(f"{word} at {user_line()}: div_value must be positive and finite; got {div_value}")
        self.cutoffs, self.head_bias = [*map(int, bounds), count], flag(word, "head_bias", head_bias)
        self.shortlist_size, self.n_clusters = self.cutoffs[0], len(bounds)
        self.head_size = self.shortlist_size + self.n_clusters
        options = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, self.head_bias, **options)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // self.div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(Sequential(Linear(in_features, width, False, **options), Linear(width, size, False, **options)))

    def reset_parameters(self) -> None:
        """Initialize all linear maps."""
        for module in (self.head, *(linear for pair in self.tail for linear in pair)):
            module.reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> _Output:
        """Return (output, loss): the log-probability of each target, and the negative mean of the log-probabilities.

        `input` is [n, in_features] with targets [n], or [in_features] with one target.
        Raises: ArgumentError for a target that is not a class, ShapeError, DtypeError for arguments that do not match.
        """
        word = type(self).__name__
        if input.ndim not in (1, 2) or tuple(target.shape) != tuple(input.shape[:-1]):
            raise ShapeError(
                f"{word} at {user_line()}: input {input.tensor_type} must be [n, {self.in_features}] or [{self.in_features}] and target "
                f"{target.tensor_type} must have one class per row"
            )
        if not target.tensor_type.dtype.is_integer:
            raise DtypeError(f"{word} at {user_line()}: target {target.tensor_type} must be integers")
        alone = input.ndim == 1
        rows = unsqueeze(input, 0) if alone else input
        labels = run(class_assertion(word, self.n_classes), unsqueeze(target, 0) if alone else target)
        head = log_softmax(self.head(rows), 1)
        output = _picked(head, labels.clamp(max=self.shortlist_size - 1))
        for i, pair in enumerate(self.tail):
            low, high = self.cutoffs[i], self.cutoffs[i + 1]
            inside = (labels >= low) & (labels < high)
            below = _picked(log_softmax(pair(rows), 1), (labels - low).clamp(0, high - low - 1))
            output = (head[:, self.shortlist_size + i] + below).where(inside, output)
        loss = mean(-output)
        return _Output(squeeze(output, 0) if alone else output, loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the log-probabilities of all classes, [n, n_classes], for `input` [n, in_features]."""
        if input.ndim != 2:
            raise ShapeError(f"log_prob at {user_line()}: input {input.tensor_type} must be [n, {self.in_features}]")
        head = log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i, pair in enumerate(self.tail):
            column = self.shortlist_size + i
            parts.append(add(log_softmax(pair(input), 1), head[:, column : column + 1]))
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """Return the class of the highest probability of each row, [n], for `input` [n, in_features]."""
        return argmax(self.log_prob(input), 1)


def _picked(logs: Tensor, labels: Tensor) -> Tensor:
    """Return the element of each row at the index of its label."""
    return squeeze(logs.gather(1, unsqueeze(labels.long(), 1)), 1)


check_layers(globals())
