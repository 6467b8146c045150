"""Builders trained for a few steps through plain job functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.types import dtype_of
from jobflow.strategies import named

Batch = Mapping[str, Any]


def job_of(function: Callable[..., Any], kind: str, batch: Batch, strategy: str | None = None, rate: float = 0.01, microbatches: int = 1) -> Any:
    """The job of a builder for batches like this one; it gives the dict that the builder returns, of arrays.  Train jobs use Adam."""
    config = flow.function_config()
    if strategy is not None:
        config.strategy(named(strategy))
    if microbatches > 1:
        config.train.num_gradient_accumulation_steps(microbatches)

    def job(*values: Any) -> Any:
        outputs = function(**dict(zip(batch, values, strict=True)))
        if kind == "train":
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [rate])
            flow.optimizer.Adam(schedule, do_bias_correction=True).minimize(outputs["loss"])
        return outputs

    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(name, place, annotation=tp.Numpy.Placeholder(array.shape, dtype=dtype_of(array.dtype))) for name, array in batch.items()
    ]
    job.__signature__ = inspect.Signature(parameters, return_annotation=tp.Bundle[tp.Numpy])  # type: ignore[attr-defined]
    declared = flow.global_function(kind, config)(job)
    return lambda arrays: declared(*arrays.values())


def begin(devices: int = 1) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)


def curve(
    function: Callable[..., Any], batches: list[dict[str, Any]], devices: int = 1, strategy: str | None = None, microbatches: int = 1
) -> list[float]:
    """The mean loss of each batch, one step each."""
    begin(devices)
    train = job_of(function, "train", batches[0], strategy, microbatches=microbatches)
    return [float(np.mean(train(batch)["loss"])) for batch in batches]


def pictures(n: int, edge: int = 12, channels: int = 1, classes: int = 4, seed: int = 0) -> dict[str, Any]:
    """Images whose brightest quarter is their label."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, classes, n).astype(np.int32)
    images = random.rand(n, channels, edge, edge).astype(np.float32) * 0.5
    for image, label in zip(images, labels, strict=True):
        image[:, :, label * edge // classes : (label + 1) * edge // classes] += 0.5
    return {"images": images, "labels": labels}


def windows(n: int, length: int, words: int = 20, seed: int = 0) -> dict[str, Any]:
    """Stretches of a text that counts, modulo `words`."""
    text = (np.random.RandomState(seed).randint(0, words, (n, 1)) + np.arange(length + 1)) % words
    return {"tokens": text[:, :-1].astype(np.int32), "targets": text[:, 1:].astype(np.int32)}


def records(n: int, seed: int = 0) -> dict[str, Any]:
    """Ids of 40 crosses and of 24 bins, and numbers; the label is whether the first id is even."""
    random = np.random.RandomState(seed)
    crosses, bins = random.randint(0, 40, (n, 5)).astype(np.int32), random.randint(0, 24, (n, 3)).astype(np.int32)
    return {"crosses": crosses, "bins": bins, "numbers": random.randn(n, 4).astype(np.float32), "labels": (crosses[:, 0] % 2).astype(np.int32)}
