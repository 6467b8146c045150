"""Names of metrics and classes, and the methods of own metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: methods without which a class is not a metric
METHODS = ("reset", "update", "compute")


def metric_name(kind: str, options: Mapping[str, Any]) -> str:
    """Return the name of a metric in progress, files and reports: the option `name`, else the kind.

    A top-k accuracy is "top_5", and an own metric has the name of its class in lower case: "own:TopHits" -> "top_hits".
    """
    if options.get("name"):
        return str(options["name"])
    if kind == "own":
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.split("[:.]", str(options.get("builder", "")))[-1]).lower()
    return f"top_{options.get('k')}" if kind == "top_k" else kind


def class_texts(classes: Sequence[str], count: int) -> list[str]:
    """Return the names of `count` classes, or their numbers if there are not as many names."""
    return list(classes) if len(classes) == count else [str(i) for i in range(count)]


def lacking(metric: Any) -> str:
    """Return the first method that a class or object lacks as a metric, or ""."""
    return next((name for name in METHODS if not callable(getattr(metric, name, None))), "")
