"""Own metrics for tests, named by import path."""

from __future__ import annotations

from typing import Any

import numpy as np


class Hits:
    """The accuracy, from counts and from all scores."""

    states = ("hits", "labels", "scores")

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def reset(self) -> None:
        self.hits, self.labels = 0, np.zeros(0, np.int32)
        self.scores: list[Any] = []

    def update(self, outputs: dict[str, Any], batch: dict[str, Any]) -> None:
        self.hits += int((outputs["scores"].argmax(1) == batch["labels"]).sum())
        self.labels = np.concatenate([self.labels, batch["labels"]])
        self.scores.append(outputs["scores"])

    def compute(self) -> float:
        same = int((np.concatenate(self.scores).argmax(1) == self.labels).sum())
        assert same == self.hits
        return self.factor * same / len(self.labels)


class Mean(Hits):
    """The mean of the field `x`, which is no label."""

    outputs = ()
    fields = ("x",)
    states = ("total", "count")

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, outputs: dict[str, Any], batch: dict[str, Any]) -> None:
        assert outputs == {}
        self.total += float(batch["x"].sum())
        self.count += batch["x"].size

    def compute(self) -> float:
        return self.total / self.count


class Failing(Hits):
    """A metric whose update raises an exception."""

    def update(self, outputs: dict[str, Any], batch: dict[str, Any]) -> None:
        raise ZeroDivisionError("no labels")


class Text(Hits):
    """A metric whose value is not a number."""

    def compute(self) -> Any:
        return "good"


class Named(Hits):
    """A metric with a state that a checkpoint cannot contain."""

    states = ("name",)
    name = "x"


class Unfinished:
    """A class without compute()."""

    def reset(self) -> None:
        """Do nothing."""

    def update(self, outputs: Any, batch: Any) -> None:
        """Do nothing."""
