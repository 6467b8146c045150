"""Losses of a configuration: `model.loss` by name or import path, with label smoothing, class weights and mixed samples.

A loss of `jobflow.nn.functional` is computed per sample, and the trainer takes the mean over the samples. So losses are equal on any number of ranks
and microbatches, also with class weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from math import isfinite
from typing import Any, cast

import numpy as np

import jobflow.legacy.arrays as arrays
import jobflow.legacy.math as math
import jobflow.nn.functional as functional
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, ConfigError, ShapeError, counted, user_line
from jobflow.core.imports import function_named
from jobflow.core.types import Array, TensorType, bool_, char, float32, float64, int8, int32, int64, uint8
from jobflow.data.mixed_samples import OTHER, SHARE
from jobflow.data.samples import Samples, Stream
from jobflow.legacy.loss_functions import class_labels
from jobflow.nn.modules.module import Module
from jobflow.ops.axes import transpose
from jobflow.ops.logit_likelihood import label_cross_entropy
from jobflow.ops.op import apply
from jobflow.ops.runtime_assertions import RuntimeAssertion, check
from jobflow.ops.source import Literal
from jobflow.trainer.config import Loaded
from jobflow.trainer.config.schema import CLASS_LOSSES

#: the field of targets
LABELS = "labels"
#: the output with the scores for metrics, in jobs with a loss
SCORES = "#scores"
#: the usual loss, of log-softmax over the last axis
USUAL = "softmax_cross_entropy"
#: losses whose labels are classes by number in the shape of the scores, instead of floats
_LISTS = ("multilabel_margin_loss",)
#: number of labels that are read at once to count classes
_ROWS = 65536
#: most classes that `balanced` counts
MOST_CLASSES = 1 << 20


@dataclass
class Criterion:
    """The loss of a configuration as a function of scores and labels."""

    name: str
    function: Callable[..., Any] | None
    arguments: Mapping[str, Any]
    smoothing: float
    #: the configured class weights: a list, "balanced", or None
    configured: tuple[float, ...] | str | None
    #: weight of the positive labels of a binary cross entropy: one number, or one per score
    positive: float | tuple[float, ...] | None
    #: the key's line, for messages
    where: Any
    #: the weights in use; None without weights, or before `balance`
    weights: tuple[float, ...] | None = field(default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.configured, str):
            self.weights = self.configured

    def __call__(self, scores: Any, labels: Any, mixed: tuple[Any, Any] | None = None) -> dict[str, Any]:
        """Return the loss per sample, the accuracy of a classifier, and the scores for metrics, with classes on the last axis.

        Return only the scores without labels. With `mixed`, from `separate_mixture`, loss and accuracy are weighted means over both labels.
        """
        if labels is None:
            return {"scores": scores}
        axes = scores.tensor_type.ndim
        is_last = axes < 3 or self.function is not None or self.name not in CLASS_LOSSES
        outputs = self._measured(scores, labels)
        if mixed is not None:
            others, share = self._measured(scores, mixed[0], None), mixed[1]
            outputs = {name: _weighted_mean(value, others[name], share) for name, value in outputs.items()}
        return {**outputs, SCORES: scores if is_last else transpose(scores, [0, *range(2, axes), 1])}

    def _measured(self, scores: Any, labels: Any, name: str | None = "loss") -> dict[str, Any]:
        """Return the loss and the metrics for `labels`; the op of the usual loss is called `name`."""
        if self.function is not None:
            return self._own(scores, labels)
        if self.name == USUAL:
            return self._of_last_axis(scores, labels, name)
        if self.name in ("mean_squared_error", "mse_loss") and not self.arguments:
            return _mean_squared_error(self.name, scores, labels)
        if self.name in CLASS_LOSSES:
            return self._of_classes(scores, labels)
        targets = _like(self.name, scores, labels, int64 if self.name in _LISTS else float32)
        arguments = dict(self.arguments)
        if self.positive is not None:
            arguments["pos_weight"] = self._positive_weight(scores.tensor_type)
        return {"loss": getattr(functional, self.name)(scores, targets, reduction="none", **arguments)}

    def _own(self, scores: Any, labels: Any) -> dict[str, Any]:
        """Return the result of an imported function: a loss, or a dict with "loss" and metrics."""
        assert self.function is not None
        result = self.function(scores, labels)
        outputs = dict(result) if isinstance(result, Mapping) else {"loss": result}
        if "loss" not in outputs or not all(isinstance(getattr(each, "tensor_type", None), TensorType) for each in outputs.values()):
            raise ConfigError(
                f'model.loss at {self.where}: {self.name} returned {result!r:.80}; return a tensor of losses, or a dict of tensors with a "loss"'
            )
        return outputs

    def _of_last_axis(self, scores: Any, labels: Any, name: str | None) -> dict[str, Any]:
        kind = scores.tensor_type
        targets = class_labels(self.name, arrays.cast(_class_numbers(self.name, scores, labels, kind.shape[-1]), int32), kind)
        accuracy = arrays.cast(math.equal(math.argmax(scores), targets), float32)
        if not self.smoothing and self.configured is None:
            # not the legacy loss, which is at most -log(1e-20)
            loss = arrays.cast(label_cross_entropy(scores, targets, kind.ndim - 1, what=self.name, name=name), kind.dtype)
            return {"loss": loss, "accuracy": accuracy}
        rows: Any = scores if kind.ndim == 2 else arrays.reshape(scores, [-1, kind.shape[-1]])
        loss = functional.cross_entropy(
            rows, cast(Any, arrays.reshape(targets, [-1])), self._weight(kind.shape[-1]), reduction="none", label_smoothing=self.smoothing
        )
        return {"loss": loss if kind.ndim == 2 else arrays.reshape(loss, list(kind.shape[:-1])), "accuracy": accuracy}

    def _of_classes(self, scores: Any, labels: Any) -> dict[str, Any]:
        """Compute a loss of `nn.functional` with class numbers as targets and the classes on axis 1."""
        kind = scores.tensor_type
        classes = kind.shape[1] if kind.ndim > 1 else 1
        targets = _class_numbers(self.name, scores, labels, classes)
        targets = arrays.cast(targets, int64 if self.name == "multi_margin_loss" or targets.tensor_type.dtype is int64 else int32)
        rows = (*kind.shape[:1], *kind.shape[2:])
        if targets.tensor_type.shape == (*rows, 1):
            targets = arrays.reshape(targets, list(rows))
        arguments = dict(self.arguments)
        if self.name == "cross_entropy":
            arguments["label_smoothing"] = self.smoothing
        loss = getattr(functional, self.name)(scores, targets, weight=self._weight(classes), reduction="none", **arguments)
        if "ignore_index" in self.arguments:  # a mean over all samples would count ignored labels as wrong
            return {"loss": loss}
        return {"loss": loss, "accuracy": arrays.cast(math.equal(math.argmax(scores, axis=1), arrays.cast(targets, int32)), float32)}

    # ---------------------------------------------------------------- class weights

    def _positive_weight(self, kind: TensorType) -> Any:
        """Return `pos_weight` as a tensor; raise ConfigError for another number of scores per sample."""
        weights = self.positive if isinstance(self.positive, tuple) else (self.positive,)
        scores = kind.shape[-1] if kind.ndim > 1 else 1
        if len(weights) not in (1, scores):
            raise ConfigError(
                f"model.pos_weight at {self.where}: the model has {counted(scores, 'score')} per sample, but the list has "
                f"{counted(len(weights), 'weight')}; write one number, or one weight per score"
            )
        return apply(Literal.of(np.asarray(weights, np.float32)))

    def _weight(self, classes: int) -> Any:
        """Return the class weights as a tensor, or None without weights; raise ConfigError for another number of classes."""
        if self.configured is None:
            return None
        if self.weights is None:
            raise ConfigError(f"model.class_weights at {self.where}: the training samples were not counted; open data.train, or write a list")
        if len(self.weights) != classes:
            what = "the classes of the training samples" if self.configured == "balanced" else "the list"
            raise ConfigError(
                f"model.class_weights at {self.where}: the model has {counted(classes, 'score')}, but {what} has "
                f"{counted(len(self.weights), 'weight')}; use one weight per score"
            )
        return apply(Literal.of(np.asarray(self.weights, np.float32)))

    def balance(self, samples: Samples | Stream) -> None:
        """Set balanced weights from the labels of the training samples, if they are configured.

        Class c has the weight n / (k n_c) for n labels of k classes, n_c of which are c; classes without samples have the weight 0.
        Raises: ConfigError for samples without class labels, or for a stream.
        """
        if self.configured != "balanced":
            return
        counts = class_counts(samples, f"model.class_weights at {self.where}: balanced")
        present = int(np.count_nonzero(counts))
        total = float(counts.sum())
        self.weights = tuple(total / (present * count) if count else 0.0 for count in counts.tolist())

    def restore(self, saved: Any, path: Any) -> None:
        """Set balanced weights from a checkpoint; raise CheckpointError for a value that is not a list of weights."""
        if self.configured != "balanced" or self.weights is not None:
            return
        good = isinstance(saved, list) and 0 < len(saved) <= MOST_CLASSES
        if not good or not all(type(each) in (int, float) and isfinite(each) and each >= 0 for each in saved):
            raise CheckpointError(f"{path} has no class weights, but model.class_weights at {self.where} is balanced; pass another checkpoint")
        self.weights = tuple(map(float, saved))


def criterion_of(loaded: Loaded) -> Criterion:
    """Return the loss of a configuration; `softmax_cross_entropy` by default."""
    model = loaded.config.model
    name = model.loss or USUAL
    function = _imported(name, dict(model.loss_arguments or {})) if ":" in name else None
    weights = ("model.class_weights", "model.pos_weight")
    where = loaded.origin(next((key for key in weights if key in loaded.origins), "model.loss"))
    arguments = dict(model.loss_arguments or {})
    return Criterion(name, function, arguments, model.label_smoothing or 0.0, model.class_weights, model.pos_weight, where)


def separate_mixture(batch: dict[str, Any]) -> tuple[Any, Any] | None:
    """Remove the other label and the fraction of the first one from a batch of mixed samples, and return both; None for other samples."""
    return (batch.pop(OTHER), batch.pop(SHARE)) if OTHER in batch else None


def _weighted_mean(value: Any, other: Any, share: Any) -> Any:
    """Return share * value + (1 - share) * other, for one `share` per row."""
    shares = arrays.reshape(share, [share.tensor_type.shape[0], *[1] * (value.tensor_type.ndim - 1)])
    return math.add(other, math.multiply(shares, math.subtract(value, other)))


class _Function(Module):
    """A module that calls a function of scores and labels, so that the function receives tensors with methods."""

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, scores: Any, labels: Any) -> Any:
        return self.function(scores, labels, **self.arguments)


def _imported(name: str, arguments: Mapping[str, Any]) -> Module:
    """Return an imported loss as a module; a class of modules, such as `jobflow.nn:HuberLoss`, is created with the arguments."""
    function = function_named(name)
    return function(**arguments) if inspect.isclass(function) and issubclass(function, Module) else _Function(function, arguments)


def class_counts(samples: Samples | Stream, what: str) -> Array:
    """Return the number of samples of each class, read from the field `labels`, as int64[classes].

    Raises: ConfigError that begins with `what` if the samples are a stream, or have no class numbers.
    """
    if not isinstance(samples, Samples):
        raise ConfigError(f"{what} needs the number of samples per class, and {samples} is a stream; write a list of weights")
    if LABELS not in samples.fields:
        raise ConfigError(f'{what} needs the field "{LABELS}", and the samples have {", ".join(samples.fields)}; write a list of weights')
    counts = np.zeros(0, np.int64)
    for start in range(0, len(samples), _ROWS):
        labels = samples.read(np.arange(start, min(start + _ROWS, len(samples))), 0, [LABELS])[LABELS].reshape(-1)
        whole = labels.astype(np.int64)
        wrong = np.flatnonzero((whole != labels) | (whole < 0) | (whole >= MOST_CLASSES))
        if wrong.size:
            sample = samples.where(start + int(wrong[0]) * min(_ROWS, len(samples) - start) // labels.size)
            raise ConfigError(
                f"{what}: {sample} has the label {labels[wrong[0]]}, not a class from 0 to {MOST_CLASSES - 1:,}; write a list of weights"
            )
        total = np.bincount(whole, minlength=len(counts))
        total[: len(counts)] += counts
        counts = total
    return counts


# -------------------------------------------------------------------- labels


def _class_numbers(what: str, scores: Any, labels: Any, classes: int) -> Any:
    """Return the labels, with a runtime assertion if a conversion to an integer could change them."""
    if labels.tensor_type.dtype in (bool_, char, int8, uint8, int32) or (what != USUAL and labels.tensor_type.dtype is int64):
        return labels
    advice = f"Classes are whole numbers from 0, and the model has {classes} scores; labels with fractions need model.loss: mean_squared_error."
    return check(RuntimeAssertion(what, "label", 0, classes - 1, problem=advice, whole=True, advice=advice), labels)


def _like(what: str, scores: Any, labels: Any, dtype: Any) -> Any:
    """Return the labels in the shape of the scores, as `dtype`; raise ShapeError if the numbers of elements differ."""
    targets, kind = arrays.cast(labels, dtype), scores.tensor_type
    if targets.tensor_type.shape == kind.shape:
        return targets
    if targets.tensor_type.size != kind.size:
        kinds = f"labels {labels.tensor_type} must have as many elements as scores {kind}"
        raise ShapeError(f"{what} at {user_line()}: {kinds}; give the last layer as many units as a sample has labels")
    return arrays.reshape(targets, list(kind.shape))


def _mean_squared_error(what: str, scores: Any, labels: Any) -> dict[str, Any]:
    element = float64 if scores.tensor_type.dtype is float64 else float32
    difference = math.subtract(scores, _like(what, scores, labels, element))
    return {"loss": math.reduce_mean(arrays.reshape(math.square(difference), [scores.tensor_type.shape[0], -1]), axis=1)}
