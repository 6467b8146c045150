"""Means and metrics over a set of batches, and their state in a checkpoint in the middle of an epoch."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from jobflow.core.errors import CheckpointError, DataError
from jobflow.core.types import Array
from jobflow.storage.untrusted import whole
from jobflow.trainer.jobs import Jobs, Means

#: maximum number of bytes of the states of a metric in a checkpoint
MOST_BYTES = 2**26
#: element types of a state: bool, whole numbers and floats
_KINDS = "biuf"


class Totals:
    """Means of the outputs of a job, and the configured metrics, over all batches that were added."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._means = Means()
        self._metrics = jobs.set_metrics.start()
        #: metrics whose state a resumed run lacks, because they were configured differently
        self._partial: set[str] = set()

    @property
    def samples(self) -> int:
        """The number of samples that were added."""
        return self._means.samples

    def add(self, outputs: dict[str, Array], rows: int) -> None:
        """Add the outputs of a job for a batch of `rows` samples; removes the results for metrics from `outputs`."""
        results = self._jobs.set_metrics.separate(outputs)
        self._means.add(outputs, rows, self._jobs.pieces(rows))
        self._metrics.update(results)

    def values(self, prefix: str) -> tuple[dict[str, float], dict[str, Array]]:
        """Return all numbers, and all confusion matrices, by "<prefix>/<name>"; metrics replace means of the same name."""
        values = {**self._means.values(), **{name: value for name, value in self._metrics.values().items() if name not in self._partial}}
        tables = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        return (
            {f"{prefix}/{name}": value for name, value in values.items() if name not in tables},
            {f"{prefix}/{name}": table for name, table in tables.items()},
        )

    def reset(self) -> None:
        """Return to the initial state."""
        self._means = Means()
        self._metrics.reset()
        self._partial.clear()

    def state(self) -> dict[str, Any]:
        """Return the state as a JSON tree; raise DataError for a state that is too large, or that is not numbers or arrays."""
        if not self.samples:
            return {}
        metrics = {}
        for each, states in self._metrics.states():
            with each.named():
                metrics[each.name] = [each.identity, {name: _encoded(name, value) for name, value in states.items()}]
        return {"samples": self._means.samples, "sums": dict(self._means.sums), "metrics": metrics}

    def restore(self, state: Mapping[str, Any], path: Any) -> None:
        """Set the state from a checkpoint; raise CheckpointError if the state is damaged.

        Metrics that were not configured equally are omitted from the values until the next reset.
        """
        self.reset()
        if not state:
            return
        try:
            self._means = Means(whole(state["samples"]), {str(name): float(value) for name, value in state["sums"].items()})
            for each, states in self._metrics.states():
                identity, saved = state["metrics"].get(each.name, (None, {}))
                if identity == each.identity:
                    self._metrics.restore(each.name, {name: _decoded(saved[name]) for name in states})
                else:
                    self._partial.add(each.name)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"{path}: the metrics of the epoch are damaged ({type(error).__name__}: {error}); pass another checkpoint"
            ) from None


def _encoded(name: str, value: Any) -> Any:
    """Return the JSON tree of a state: a number, an array, or a list of arrays that is joined along the first axis."""
    if isinstance(value, bool | int | float):
        return value
    listed = isinstance(value, list)
    if listed and not value:
        return []
    try:
        array = np.concatenate([np.atleast_1d(each) for each in value]) if listed else np.asarray(value)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in _KINDS or array.dtype.byteorder == ">":
        raise DataError(f"its state {name} is {value!r:.60} of type {type(value).__name__}; use numbers, arrays, or lists of arrays of numbers")
    if array.nbytes > MOST_BYTES:
        raise DataError(
            f"its state {name} has {array.nbytes:,} bytes, and a checkpoint in the middle of an epoch stores at most {MOST_BYTES:,}; "
            f"save at the end of epochs only, or reduce the state"
        )
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data, "listed": listed}


def _decoded(tree: Any) -> Any:
    """Return the state of a JSON tree; raise ValueError for an element type that is not a number, or for a wrong length."""
    if isinstance(tree, bool | int | float) or tree == []:
        return tree
    dtype = np.dtype(str(tree["dtype"]))
    if dtype.kind not in _KINDS:
        raise ValueError(f"element type {dtype}")
    shape = tuple(map(whole, tree["shape"]))
    array = np.frombuffer(base64.b64decode(tree["data"], validate=True), dtype).reshape(shape).copy()
    return [array] if tree["listed"] else array
