"""Builders for tests of the trainer."""

from __future__ import annotations

from typing import Any

import jobflow as flow
from jobflow import models


def plain(x: Any, labels: Any = None, *, units: int = 4) -> dict[str, Any]:
    """Return the loss and the correctness of each sample, from one layer."""
    scores = flow.layers.dense(x, units, kernel_initializer=flow.random_normal_initializer(stddev=0.3), name="scores")
    if labels is None:
        return {"scores": scores}
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores, name="loss")
    right = flow.cast(flow.math.equal(flow.math.argmax(scores), flow.cast(labels, flow.int32)), flow.float32)
    return {"loss": loss, "accuracy": right}


def reduced(x: Any, labels: Any = None) -> dict[str, Any]:
    """Return the same as means over the batch, and a metric with several numbers per sample."""
    outputs = plain(x, labels)
    if labels is None:
        return outputs
    return {"loss": flow.math.reduce_mean(outputs["loss"]), "accuracy": flow.math.reduce_mean(outputs["accuracy"]), "mean": x}


def sorted_scores(x: Any, labels: Any = None) -> dict[str, Any]:
    """Return sorted scores."""
    outputs = plain(x, labels)
    return outputs if labels is not None else {"scores": flow.sort(outputs["scores"])}


def summed(x: Any, labels: Any = None) -> dict[str, Any]:
    """Return the same as a sum over the batch of 26 samples."""
    outputs = plain(x, labels)
    if labels is None:
        return outputs
    return {"loss": flow.math.reduce_sum(outputs["loss"]) / 26, "mean": x}


def rooted(x: Any, labels: Any = None) -> dict[str, Any]:
    """Return the same as a root over the batch."""
    outputs = plain(x, labels)
    return outputs if labels is None else {"loss": flow.math.sqrt(flow.math.reduce_mean(outputs["loss"]))}


def steep(x: Any, labels: Any = None) -> dict[str, Any]:
    """Return a finite loss whose gradient, of a square root, is infinite once its variable is 0."""
    outputs = plain(x, labels)
    if labels is None:
        return outputs
    start = flow.get_variable("falling", (1,), initializer=flow.constant_initializer(0.5))
    not_below_zero = flow.math.multiply(start, flow.cast(flow.math.greater(start, 0.0), flow.float32))  # whose gradient is 0 times infinity
    return {**outputs, "loss": flow.math.add(outputs["loss"], flow.math.sqrt(not_below_zero, name="root"))}


def exploding(x: Any, labels: Any = None) -> dict[str, Any]:
    """Return a loss that becomes infinite."""
    outputs = plain(x, labels)
    if labels is None:
        return outputs
    growing = flow.get_variable("growing", (1,), initializer=flow.constant_initializer(1.0))
    huge = flow.math.exp(flow.math.multiply(growing, 60.0), name="explode")
    return {**outputs, "loss": flow.math.subtract(outputs["loss"], flow.math.multiply(huge, 1e-20))}


def nameless(x: Any, labels: Any = None) -> Any:
    """Return a value that no builder may return."""
    return plain(x, labels)["loss"]


def halving(step: int, lr: float, every: int) -> float:
    """Return a learning rate that is halved after each `every` steps."""
    return float(lr * 0.5 ** (step // every))


class Signs(flow.optim.SGD):
    """An optimizer of own formula: that of Lion without a mean."""

    def rule(self, group: Any) -> Any:
        return flow.optim.Lion([flow.zeros(1, requires_grad=True)]).rule({**group, "betas": (0.0, 0.0)})


REDUCED = {
    "mean": lambda loss: flow.math.reduce_mean(loss),
    "percent": lambda loss: flow.math.multiply(flow.math.reduce_mean(loss), 100.0),
    "two means": lambda loss: flow.math.add(flow.math.reduce_mean(loss), flow.math.reduce_mean(flow.math.exp(loss))),
    "perplexity": lambda loss: flow.math.exp(flow.math.reduce_mean(loss)),
    "sum": lambda loss: flow.math.reduce_sum(loss),
    "root": lambda loss: flow.math.sqrt(flow.math.reduce_mean(flow.math.square(loss))),
    "maximum": lambda loss: flow.math.reduce_max(loss),
    "variance": lambda loss: flow.math.reduce_variance(loss),
    "distance from the mean": lambda loss: flow.math.reduce_mean(flow.math.square(flow.math.subtract(loss, flow.math.reduce_mean(loss)))),
    "whole part": lambda loss: flow.cast(flow.cast(flow.math.reduce_mean(loss), flow.int32), flow.float),
    "ratio": lambda loss: flow.math.divide(flow.math.reduce_sum(loss), flow.math.reduce_sum(flow.math.square(loss))),
}


def measured(x: Any, labels: Any = None, *, kind: str) -> dict[str, Any]:
    """Return a loss per sample, and a metric reduced over the batch."""
    outputs = plain(x, labels)
    return outputs if labels is None else {"loss": outputs["loss"], "metric": REDUCED[kind](outputs["loss"])}


class CrossEntropy(flow.nn.Module):
    """A module that reduces a cross entropy itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = flow.nn.Linear(6, 4)

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        scores = self.layer(x)
        if labels is None:
            return {"scores": scores}
        loss = flow.nn.functional.cross_entropy(scores, labels.long())
        return {"loss": loss, "nats": loss, "norm": self.layer.weight.square().sum()}


class Counting(flow.nn.Module):
    """A metric that is a sum of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = flow.nn.Linear(6, 4)

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        scores = self.layer(x)
        if labels is None:
            return {"scores": scores}
        return {"loss": flow.nn.functional.cross_entropy(scores, labels), "hits": (scores.argmax(1) == labels).sum()}


class Changing(flow.nn.Module):
    """A module whose program is a class attribute, as if its code changed between two runs."""

    function = "relu"
    extra = False

    def __init__(self) -> None:
        super().__init__()
        nn = flow.nn
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(0.25), nn.Linear(8, 4)

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        scores = self.last(self.drop(getattr(flow.nn.functional, self.function)(self.first(x))))
        if labels is None:
            return {"scores": scores}
        loss = flow.nn.functional.cross_entropy(scores, labels.long(), reduction="none")
        return {"loss": loss, **({"sure": scores.amax(1)} if self.extra else {})}


class Large(flow.nn.Module):
    """A module with scores far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = flow.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * 1000.0


class Scores(flow.nn.Module):
    """A module whose parameters are arguments of the configuration; the configuration adds the loss."""

    def __init__(self, units: int = 12, drop: float = 0.25) -> None:
        super().__init__()
        nn = flow.nn
        self.layers = nn.Sequential(nn.Linear(6, units), nn.BatchNorm1d(units), nn.Tanh(), nn.Dropout(drop), nn.Linear(units, 4))

    def forward(self, input: Any) -> Any:
        return self.layers(input)


class Backbone(flow.nn.Module):
    """A module with a backbone, which has batch statistics, and a head."""

    def __init__(self, classes: int = 4, units: int = 5) -> None:
        super().__init__()
        nn = flow.nn
        self.backbone = nn.Sequential(nn.Linear(6, units), nn.BatchNorm1d(units), nn.Tanh(), nn.Dropout(0.25))
        self.head = nn.Linear(units, classes)

    def forward(self, input: Any) -> Any:
        return self.head(self.backbone(input))


class Small(flow.nn.Module):
    """A module with the parameters of a recorded file of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = flow.nn.Linear(2, 3)

    def forward(self, input: Any) -> Any:
        return self.fc(input)


def backbone(x: Any, labels: Any = None, *, classes: int = 4) -> dict[str, Any]:
    """Return the loss and the scores of a builder with a backbone, which has batch statistics, and a head."""
    with flow.scope.namespace("backbone"):
        y = flow.layers.dense(x, 5, kernel_initializer=flow.random_normal_initializer(stddev=0.3), name="dense")
        y = flow.math.tanh(flow.layers.batch_normalization(y, axis=1, name="norm"))
    scores = flow.layers.dense(y, classes, kernel_initializer=flow.random_normal_initializer(stddev=0.3), name="head")
    return {"scores": scores} if labels is None else {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores, name="loss")}


class Named(Scores):
    """A module that takes fields by name and returns metrics."""

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        scores = self.layers(x)
        if labels is None:
            return {"scores": scores}
        loss = flow.nn.functional.cross_entropy(scores, labels.long(), reduction="none")
        return {"loss": loss, "sure": flow.nn.functional.softmax(scores, 1).amax(1)}


def scores(units: int = 12) -> flow.nn.Module:
    """Return a module, as annotated."""
    return Scores(units)


def no_module(units: int = 12) -> flow.nn.Module:
    """Return no module, against the annotation."""
    return units  # type: ignore[return-value]


def unnamed(tokens: Any, targets: Any = None) -> dict[str, Any]:
    """Return scores of the next token under another name."""
    table = flow.get_variable("table", (128, 128), initializer=flow.zeros_initializer())
    logits = flow.gather(table, tokens)
    return {"logits": logits} if targets is None else {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(targets, logits, name="loss")}


def scored(x: Any, labels: Any = None) -> dict[str, Any]:
    """Return the fields `x` as scores, multiplied by a variable that starts at 1."""
    scores = flow.math.multiply(x, flow.get_variable("one", (1,), initializer=flow.constant_initializer(1.0)))
    if labels is None:
        return {"scores": scores}
    return {"loss": flow.math.reduce_mean(flow.math.square(scores), axis=1), "scores": scores}


def gpt_without_cache(tokens: Any, targets: Any = None, **arguments: Any) -> dict[str, Any]:
    """Return the results of `models.gpt`, which reads whole windows."""
    return models.gpt(tokens, targets, **arguments)


class LlamaWithoutCache(models.Llama):
    """A Llama that reads whole windows."""

    def forward(self, tokens: Any, targets: Any = None) -> Any:
        return super().forward(tokens, targets)
