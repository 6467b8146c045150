"""Tensors that a train or evaluation job returns for metrics: small ones, computed on the devices from scores and labels.

Every rank receives the whole tensors, in the order of the samples, so that all ranks hold equal metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, prod
from typing import Any, NamedTuple

import jobflow.legacy.arrays as arrays
import jobflow.legacy.math as math
from jobflow.core.errors import ConfigError, did_you_mean_or
from jobflow.core.types import bool_, float32, int32
from jobflow.ops import elementwise as ew
from jobflow.ops.likelihood import negative_log_likelihood
from jobflow.ops.slices import slice_
from jobflow.ops.softmax import log_softmax, softmax
from jobflow.ops.source import arange

#: kinds of requests: an output of the model, a field of the samples, and tensors that are computed from scores and labels
OUTPUT, FIELD = "output", "field"
#: labels; the predicted class; the number of classes with a larger score than the label; -log softmax(scores)[label]; scores for AUC
LABELS, CLASS, POSITION, LIKELIHOOD, RANKING = "labels", "class", "position", "likelihood", "ranking"
#: a predicted number and its label
NUMBER, TARGET = "number", "target"
#: the output with the scores of a list of layers, or of a module that returns a tensor
SCORES = "scores"


class Request(NamedTuple):
    """A tensor for metrics; for OUTPUT and FIELD, `scores` is its name, and `labels` is empty."""

    kind: str
    scores: str
    labels: str = ""
    #: a label whose value on the devices is of no use
    ignore: int | None = None
    #: the probability above which class 1 of two classes is predicted; None for the class with the larger score
    threshold: float | None = None

    @property
    def is_raw(self) -> bool:
        return self.kind in (OUTPUT, FIELD)


class Tensors:
    """The outputs of a model and the fields of its batch, while a job is traced; `what` describes the metric and the model in messages."""

    def __init__(self, outputs: Mapping[str, Any], batch: Mapping[str, Any], model: str) -> None:
        self.outputs, self.batch, self.model = outputs, batch, model
        self.rows: int = next(iter(batch.values())).tensor_type.shape[0]

    def output(self, name: str) -> Any:
        """Return an output of the model; raise ConfigError if the model does not return it."""
        if name in self.outputs:
            return self.outputs[name]
        returned = ", ".join(self.outputs) or "nothing"
        advice = did_you_mean_or(name, self.outputs, f'add "{name}" to the dict of the model, or name another output')
        raise ConfigError(f'needs the output "{name}", and {self.model} returned {returned}{advice}')

    def field(self, name: str) -> Any:
        """Return a field of the batch; raise ConfigError if the samples do not have it."""
        if name in self.batch:
            return self.batch[name]
        advice = did_you_mean_or(name, self.batch, f"the samples have {', '.join(self.batch)}; name one of them")
        raise ConfigError(f'needs the field "{name}"{advice}')

    def labels(self, name: str) -> Any:
        """Return an output or a field with the labels; raise ConfigError if there is none."""
        if name in self.outputs or name in self.batch:
            return self.outputs.get(name, self.batch.get(name))
        known = [*self.outputs, *self.batch]
        advice = did_you_mean_or(name, known, f"name one of {', '.join(known)}, such as labels: {known[-1]}")
        raise ConfigError(f'needs labels, and neither the model nor the samples have "{name}"{advice}')

    def classes(self, request: Request) -> int:
        """Return the number of classes that scores distinguish from their labels: 2 for one score per label.

        Raises: ConfigError if the shapes do not match.
        """
        scores, labels = self.output(request.scores).tensor_type, self.labels(request.labels).tensor_type
        last = scores.shape[-1] if scores.ndim else 1
        if scores.dtype.is_float and scores.ndim > 1 and last > 1 and labels.size == prod(scores.shape[:-1]):
            return last
        if scores.dtype.is_float and scores.size == labels.size:
            return 2
        shape = "x".join(map(str, labels.shape))
        raise ConfigError(
            f'needs one label for the scores of each sample, and "{request.scores}" is {scores} and "{request.labels}" is {labels}; '
            f"return scores of shape [{shape}, classes], or [{shape}] for two classes"
        )

    def value(self, request: Request) -> Any:
        """Return the tensor of a request; its first axis is that of the samples."""
        if request.is_raw:
            value = self.output(request.scores) if request.kind == OUTPUT else self.field(request.scores)
            return self._of_rows(request.scores, _of_host(value))
        if request.kind in (NUMBER, TARGET):
            return self._predictions(request)
        classes = self.classes(request)
        scores, labels = self.output(request.scores), self.labels(request.labels)
        scores = scores if scores.tensor_type.dtype is float32 else ew.cast(scores, float32)
        if request.kind == LABELS:
            value = _of_host(labels)
        else:
            flat, targets = _flat(scores, labels, classes)
            if request.ignore is not None:  # a label within the classes, in the place of one that may not be
                targets = arrays.where(math.equal(targets, request.ignore), 0, targets)
            value = _COMPUTED[request.kind](flat, targets, classes) if request.threshold is None else _above(flat, request.threshold)
        return self._of_rows(request.scores, arrays.reshape(value, [self.rows, -1]) if value.tensor_type.size % self.rows == 0 else value)

    def _predictions(self, request: Request) -> Any:
        value, labels = self.output(request.scores), self.labels(request.labels)
        if value.tensor_type.size != labels.tensor_type.size:
            raise ConfigError(
                f'needs one label per predicted number, and "{request.scores}" is {value.tensor_type} and "{request.labels}" is '
                f"{labels.tensor_type}; give the model as many outputs as a sample has labels"
            )
        return arrays.reshape(_of_host(value if request.kind == NUMBER else labels), [self.rows, -1])

    def _of_rows(self, name: str, value: Any) -> Any:
        shape = value.tensor_type.shape
        if not shape or shape[0] % self.rows:
            raise ConfigError(f'needs "{name}" by sample, and it is {value.tensor_type} for {self.rows} samples; return one row per sample')
        return value


def _of_host(value: Any) -> Any:
    """Return a tensor with an element type of NumPy: half precision becomes float32, and bool becomes int32."""
    dtype = value.tensor_type.dtype
    if dtype is bool_:
        return ew.cast(value, int32)
    return ew.cast(value, float32) if dtype.is_float and dtype.itemsize < 4 else value


def _flat(scores: Any, labels: Any, classes: int) -> tuple[Any, Any]:
    """Return scores [labels, classes], or [labels, 1] for one score per label, and labels int32[labels]."""
    count = labels.tensor_type.size
    flat = arrays.reshape(scores, [count, scores.tensor_type.size // count])
    labels = arrays.reshape(labels, [count])
    return flat, labels if labels.tensor_type.dtype is int32 else ew.cast(labels, int32)


def _class(scores: Any, labels: Any, classes: int) -> Any:
    if scores.tensor_type.shape[1] == 1:
        return arrays.cast(math.greater(scores, 0.0), int32)
    return arrays.cast(math.argmax(scores), int32)


def _above(scores: Any, threshold: float) -> Any:
    """Return 1 where the probability of class 1 of two classes is above a threshold, else 0."""
    logits = scores if scores.tensor_type.shape[1] == 1 else _ranking(scores, None, 2)
    return arrays.cast(math.greater(logits, log(threshold / (1 - threshold))), int32)


def _position(scores: Any, labels: Any, classes: int) -> Any:
    if scores.tensor_type.shape[1] == 1:
        return arrays.cast(math.not_equal(_class(scores, labels, classes), arrays.reshape(labels, [-1, 1])), int32)
    classes_row = arrays.reshape(arange(0, classes, dtype=int32), [1, classes])
    label = arrays.reshape(labels, [-1, 1])
    own = math.reduce_max(arrays.where(math.equal(classes_row, label), scores, -3e38), axis=1, keepdims=True)
    before = math.logical_and(math.equal(scores, own), math.less(classes_row, label))
    larger = arrays.cast(math.greater(scores, own), int32)
    return math.reduce_sum(math.add(larger, arrays.cast(before, int32)), axis=1)


def _likelihood(scores: Any, labels: Any, classes: int) -> Any:
    if scores.tensor_type.shape[1] == 1:  # softmax of (0, score)
        scores = arrays.concat([math.multiply(scores, 0.0), scores], axis=1)
    return negative_log_likelihood(log_softmax(scores), labels, 1, what="perplexity")


def _ranking(scores: Any, labels: Any, classes: int) -> Any:
    count, columns = scores.tensor_type.shape
    if columns == 1:
        return scores
    if classes == 2:
        return math.subtract(slice_(scores, (0, 1), (count, 2)), slice_(scores, (0, 0), (count, 1)))
    return softmax(scores)


_COMPUTED = {CLASS: _class, POSITION: _position, LIKELIHOOD: _likelihood, RANKING: _ranking}
