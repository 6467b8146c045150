"""Losses per element, without a reduction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import divide, multiply, subtract
from jobflow.ops.op import LETTERS, Grads, Sample, sample
from jobflow.ops.pointwise import FLOATS, Pointwise, call, check_dtypes, sample_data
from jobflow.ops.runtime_assertions import assert_bounds
from jobflow.ops.scalar import cast, clip, negate, shift
from jobflow.ops.transcendental import log

_BINARY = "binary_cross_entropy"


class SigmoidCrossEntropy(Pointwise):
    """Cross entropy of logits x and labels z: loss = max(x, 0) - x z + log(1 + exp(-|x|)).

    The labels have the shape of x and any element type.
    """

    def infer(self, x: TensorType, labels: TensorType) -> TensorType:
        check_dtypes("sigmoid_cross_entropy", FLOATS, x)
        if labels.shape != x.shape:
            raise ShapeError(f"sigmoid_cross_entropy: labels {labels} and logits {x} differ in shape; pass one label per logit")
        return x

    def rule(self, x: TensorType, labels: TensorType) -> Rule:
        letters = LETTERS[: x.ndim]
        return Rule(f"{letters},{letters}->{letters}")

    def formula(self, f: Any, x: Any, labels: Any) -> Any:
        return f.softplus(x) - x * f.cast(labels, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), 3 * sample_data(1, 4, 3), sample_data(2, 4, 3, low=0.0, high=1.0))
        yield sample(cls(), sample_data(3, 5), np.array([0, 1, 1, 0, 1], np.int32))


class BinaryCrossEntropy(Pointwise):
    """Cross entropy of probabilities x and targets t: loss = -(t log x + (1 - t) log(1 - x)).

    Logarithms are limited to at least -100, and x (1 - x) in the gradient to at least 1e-12.
    """

    def infer(self, x: TensorType, target: TensorType) -> TensorType:
        check_dtypes(_BINARY, FLOATS, x, target)
        if target.shape != x.shape:
            raise ShapeError(f"{_BINARY}: input {x} and target {target} differ in shape; pass one target per probability")
        return x

    def rule(self, x: TensorType, target: TensorType) -> Rule:
        letters = LETTERS[: x.ndim]
        return Rule(f"{letters},{letters}->{letters}")

    def formula(self, f: Any, x: Any, target: Any) -> Any:
        yes, no = (f.maximum(logarithm, -100.0) for logarithm in (f.log(x), f.log1p(-x)))
        return (target - 1.0) * no - target * yes

    def grad(self, x: Tensor, target: Tensor, loss: Tensor, dloss: Tensor) -> Grads:
        dtype = x.tensor_type.dtype
        p, t, d = (cast(each, dtype.arithmetic) for each in (x, target, dloss))
        rest = shift(negate(p), 1.0)
        dx = multiply(d, divide(subtract(p, t), clip(multiply(p, rest), 1e-12)))
        odds = subtract(clip(log(rest), -100.0), clip(log(p), -100.0))
        return cast(dx, dtype), cast(multiply(d, odds), dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 4, 3, low=0.1, high=0.9), sample_data(2, 4, 3, low=0.1, high=0.9))


class SmoothL1(Pointwise):
    """Huber-like loss of d = prediction - label: d^2 / (2 beta) where |d| < beta, else |d| - beta / 2."""

    beta: float = 1.0

    def infer(self, prediction: TensorType, label: TensorType) -> TensorType:
        check_dtypes("smooth_l1_loss", FLOATS, prediction, label)
        if prediction.shape != label.shape:
            raise ShapeError(f"smooth_l1_loss: prediction {prediction} and label {label} differ in shape; pass one label per prediction")
        return prediction

    def rule(self, prediction: TensorType, label: TensorType) -> Rule:
        letters = LETTERS[: prediction.ndim]
        return Rule(f"{letters},{letters}->{letters}")

    def formula(self, f: Any, prediction: Any, label: Any) -> Any:
        d = f.absolute(prediction - label)
        return f.where(d < self.beta, d * d * (0.5 / self.beta if self.beta else 0.0), d - 0.5 * self.beta)

    def gradient(self, f: Any, prediction: Any, label: Any, loss: Any, dloss: Any) -> Any:
        away = prediction - label
        d = (f.clip(away / self.beta, -1.0, 1.0) if self.beta else f.sign(away)) * dloss
        return d, -d

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.7), sample_data(1, 4, 5), sample_data(2, 4, 5))


def sigmoid_cross_entropy(logits: Tensor, labels: Tensor, *, name: str | None = None) -> Tensor:
    """Return max(x, 0) - x z + log(1 + exp(-|x|)), the cross entropy, for each logit x and its label z.

    The labels have the shape of `logits` and any element type; raise ShapeError for other shapes.
    """
    return call(SigmoidCrossEntropy(), logits, labels, name=name)


def binary_cross_entropy(x: Tensor, target: Tensor, *, name: str | None = None) -> Tensor:
    """Return the cross entropy of each probability in x with its target. A runtime assertion checks that x and `target` are in [0, 1] or NaN.

    Raises ShapeError if the shapes of x and `target` differ.
    """
    probabilities = [assert_bounds(each, _BINARY, low=0.0, high=1.0, nan=True, noun=noun) for noun, each in (("input", x), ("target", target))]
    return call(BinaryCrossEntropy(), *probabilities, name=name)


def smooth_l1(prediction: Tensor, label: Tensor, beta: float = 1.0, *, name: str | None = None) -> Tensor:
    """Return the smooth L1 loss for each d = prediction - label: d^2 / (2 beta) where |d| < beta, else |d| - beta / 2.

    Raises ShapeError if the shapes of `prediction` and `label` differ.
    """
    return call(SmoothL1(beta), prediction, label, name=name)
