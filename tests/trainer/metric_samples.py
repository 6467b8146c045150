"""Samples with fixed scores and labels, and the metrics that scikit-learn 1.9 computes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 37


def samples(task: str) -> dict[str, Any]:
    """Return scores `x` and labels; some classes are rare, some scores of the binary task are equal."""
    random = np.random.default_rng(11)
    x = random.normal(size=(SAMPLES, {"classes": 5, "binary": 1, "numbers": 2}[task])).astype(np.float32)
    if task == "classes":
        labels = np.where(random.random(SAMPLES) < 0.5, x.argmax(1), random.integers(0, 5, SAMPLES)).astype(np.int32)
        labels[labels == 4] = 3
        labels[:2] = 4
        return {"x": x, "labels": labels}
    if task == "binary":
        x = np.round(x * 2) / 2
        return {"x": x, "labels": (x[:, 0] + random.normal(size=SAMPLES) > 0).astype(np.int32)}
    return {"x": x, "labels": (x * 0.8 + random.normal(size=x.shape) + 3).astype(np.float32)}


def write(folder: Path, task: str) -> Path:
    """Write the samples to a file, and return its path."""
    np.savez(folder / f"{task}.npz", **samples(task))
    return folder / f"{task}.npz"
