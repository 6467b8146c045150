"""Names of the classes that a model distinguishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobflow.trainer.criterion import LABELS
from jobflow.trainer.jobs import Jobs


def labels_of(jobs: Jobs, fields: Iterable[str]) -> list[str]:
    """Return the names in `fields` that a prediction does not read, such as the labels."""
    network = jobs.network
    return [name for name in fields if (name not in network.needed if network.needed else name == LABELS)]


def classes_of(jobs: Jobs, facts: Mapping[str, Any]) -> list[str]:
    """Return the class names of the training samples: folders, or the categories of the only label column; [] if they are unknown."""
    if facts.get("classes"):
        return list(facts["classes"])
    fields, categories = jobs.config.data.train.arguments.get("fields"), facts.get("categories")
    if not isinstance(fields, Mapping) or not isinstance(categories, Mapping):
        return []
    columns = [fields[name] for name in labels_of(jobs, fields) if isinstance(fields[name], str) and fields[name] in categories]
    return list(categories[columns[0]]) if len(columns) == 1 else []
