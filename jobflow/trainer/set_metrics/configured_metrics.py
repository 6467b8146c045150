"""All metrics of a configuration: their names, the tensors that jobs return for them, and running metrics over a set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobflowError
from jobflow.core.types import Array
from jobflow.trainer.config import Loaded
from jobflow.trainer.set_metrics.classification import F1, Accuracy, ConfusionMatrix, Perplexity, TopK, check_classes, class_numbers
from jobflow.trainer.set_metrics.metric_names import metric_name
from jobflow.trainer.set_metrics.own import Own
from jobflow.trainer.set_metrics.ranking import Auc
from jobflow.trainer.set_metrics.regression import R2, Mae, Rmse
from jobflow.trainer.set_metrics.requests import FIELD, NUMBER, OUTPUT, TARGET, Tensors

#: prefix of the results of a job for metrics
PREFIX = "#metric "
#: kind of a metric in a configuration -> its class
KINDS: Mapping[str, Any] = {
    "accuracy": Accuracy,
    "top_k": TopK,
    "f1": F1,
    "auc": Auc,
    "confusion_matrix": ConfusionMatrix,
    "perplexity": Perplexity,
    "mae": Mae,
    "rmse": Rmse,
    "r2": R2,
    "own": Own,
}


@dataclass(frozen=True)
class Declared:
    """One metric of a configuration; `where` is its source position."""

    name: str
    kind: str
    options: Any
    where: str

    def make(self) -> Any:
        """Return the metric in its initial state."""
        with self.named():
            return KINDS[self.kind](self.options)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the position and the name of this metric to an error in the block."""
        try:
            yield
        except JobflowError as error:
            error.args = (f"{self.where}: metric {self.name}: {error}", *error.args[1:])
            raise

    @property
    def identity(self) -> str:
        """The kind and the options, which must be equal for a state to be restored."""
        return json.dumps([self.kind, self.options.model_dump(mode="json")], sort_keys=True)


class SetMetrics:
    """The metrics of a configuration, in its order."""

    def __init__(self, loaded: Loaded) -> None:
        self.declared = [
            Declared(
                metric_name(entry.kind, entry.arguments.model_dump()), entry.kind, entry.arguments, f"{loaded.origin(f'metrics.{i}')}: metrics.{i}"
            )
            for i, entry in enumerate(loaded.config.metrics)
        ]
        #: metrics in their initial state, which determine the requests
        self._plain = [each.make() for each in self.declared]
        requests = dict.fromkeys(request for metric in self._plain for request in metric.requests.values())
        self.keys = {request: f"{PREFIX}{number}" for number, request in enumerate(requests)}
        #: numbers of classes by position, after a job has been traced
        self._classes: dict[int, int] = {}

    @property
    def scalars(self) -> list[str]:
        """The names of metrics that are numbers, which excludes confusion matrices."""
        return [each.name for each in self.declared if each.kind != "confusion_matrix"]

    @property
    def fields(self) -> list[str]:
        """The fields of samples that metrics may read in addition to those of the model."""
        return [name for one in self.keys for name in ([one.scores] if one.kind == FIELD else [one.labels] if not one.is_raw else [])]

    @property
    def outputs(self) -> set[str]:
        """The outputs of the model that are averaged no longer, because metrics use them."""
        return {name for one in self.keys if one.kind != FIELD for name in ((one.scores,) if one.kind == OUTPUT else (one.scores, one.labels))} - {
            "loss"
        }

    def results(self, outputs: Mapping[str, Any], batch: Mapping[str, Any], model: str) -> dict[str, Any]:
        """Return the tensors that a job returns for metrics, while it is traced; raise ConfigError if the model or the samples lack one."""
        tensors, results = Tensors(outputs, batch, model), {}
        for i, (each, metric) in enumerate(zip(self.declared, self._plain, strict=True)):
            with each.named():
                for request in metric.requests.values():
                    if not request.is_raw and request.kind not in (NUMBER, TARGET):
                        self._classes[i] = tensors.classes(request)
                        if wrong := check_classes(each.options, self._classes[i]):
                            raise ConfigError(wrong)
                    if self.keys[request] not in results:
                        results[self.keys[request]] = tensors.value(request)
        return results

    def start(self) -> Running:
        """Return running metrics in their initial state."""
        return Running(self)

    def separate(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Remove the results for metrics from the outputs of a job, and return them."""
        return {name: outputs.pop(name) for name in [*outputs] if name.startswith(PREFIX)}


class Running:
    """Metrics over a set of batches; `metrics` has one per declared metric."""

    def __init__(self, of: SetMetrics) -> None:
        self.of = of
        self.metrics = [each.make() for each in of.declared]
        #: names of results by name of a value of each metric, and its ignored label
        self._keys = [{name: of.keys[request] for name, request in metric.requests.items()} for metric in self.metrics]
        self._ignored = [getattr(each.options, "ignore", None) for each in of.declared]

    def update(self, results: Mapping[str, Array]) -> None:
        """Add a batch; raise an error that names the metric if it cannot use the values."""
        known: dict[tuple[str, int, int | None], tuple[Array, Array | None]] = {}
        for i, (each, metric, keys, ignore) in enumerate(zip(self.of.declared, self.metrics, self._keys, self._ignored, strict=True)):
            with each.named():
                values = {name: results[key] for name, key in keys.items()}
                if i in self.of._classes:
                    metric.classes = self.of._classes[i]
                    if "labels" in values:
                        labels = keys["labels"], metric.classes, ignore
                        if labels not in known:  # metrics share the check of their labels
                            known[labels] = _known_labels(values["labels"], metric.classes, ignore)
                        values = _counted(values, *known[labels])
                metric.update(values)

    def values(self) -> dict[str, Any]:
        """Return numbers by name, and an array for a confusion matrix."""
        values = {}
        for each, metric in zip(self.of.declared, self.metrics, strict=True):
            with each.named():
                values[each.name] = metric.compute()
        return values

    def reset(self) -> None:
        """Return to the initial state."""
        for each, metric in zip(self.of.declared, self.metrics, strict=True):
            with each.named():
                metric.reset()

    def states(self) -> Iterator[tuple[Declared, dict[str, Any]]]:
        """Yield each metric with the values of its states by name."""
        for each, metric in zip(self.of.declared, self.metrics, strict=True):
            yield each, {name: getattr(_holder(metric), name, None) for name in metric.states}

    def restore(self, name: str, state: Mapping[str, Any]) -> None:
        """Set the states of a metric."""
        for each, metric in zip(self.of.declared, self.metrics, strict=True):
            if each.name == name:
                for key in metric.states:
                    setattr(_holder(metric), key, state[key])


def _known_labels(labels: Array, classes: int, ignore: int | None) -> tuple[Array, Array | None]:
    """Return labels as class numbers without ignored ones, and a mask of the others; the mask is None without ignored labels."""
    flat = class_numbers(labels, classes, ignore)
    if ignore is None:
        return flat, None
    mask: Array = flat != ignore
    return flat[mask], mask


def _counted(values: Mapping[str, Array], labels: Array, mask: Array | None) -> dict[str, Array]:
    """Return the values of a metric with known labels, without rows of ignored labels."""
    if mask is None:
        return {**values, "labels": labels}
    return {name: labels if name == "labels" else value.reshape(len(mask), -1)[mask] for name, value in values.items()}


def _holder(metric: Any) -> Any:
    """Return the object whose attributes are the states: for an own metric, the user's object."""
    return metric.metric if isinstance(metric, Own) else metric
