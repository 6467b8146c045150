"""Builders: what they return with and without labels, that they learn, and that devices change nothing."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import building
import numpy as np
import pytest

from jobflow import models
from jobflow.core.errors import ArgumentError, ShapeError

BUILDERS: dict[str, Any] = {
    "lenet": (partial(models.lenet, classes=4, filters=(4, 8), hidden=16, dropout=0.25), partial(building.pictures, 12)),
    "resnet": (partial(models.resnet, classes=4, blocks=(1, 1), width=4), partial(building.pictures, 12, channels=3)),
    "mlp": (partial(models.mlp, classes=4, hidden=(16, 24), split=("hidden2",)), partial(building.pictures, 12)),
    "gpt": (partial(models.gpt, words=20, length=8, width=16, heads=4, blocks=2), partial(building.windows, 8, 8)),
    "wide_deep": (partial(models.wide_deep, cross_rows=40, bin_rows=24, width=8, hidden=(8,)), partial(building.records, 12)),
}
LABELS = ("labels", "targets")


def inputs(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in batch.items() if name not in LABELS}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_learns(name: str) -> None:
    builder, make = BUILDERS[name]
    losses = building.curve(builder, [make()] * 30)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", BUILDERS)
def test_numbers_are_one_per_sample_and_scores_come_without_labels(name: str) -> None:
    builder, make = BUILDERS[name]
    building.begin()
    batch = make()
    rows = len(next(iter(batch.values())))
    measured = building.job_of(builder, "predict", batch)(batch)
    assert {key: value.shape for key, value in measured.items()} == dict.fromkeys(measured, (rows,))
    (scores,) = building.job_of(builder, "predict", inputs(batch))(inputs(batch)).values()
    expected = {"gpt": (8, 8, 20), "wide_deep": (12,)}.get(name, (12, 4))
    assert scores.shape == expected
    np.testing.assert_allclose(measured["loss"], losses_of(scores, batch), rtol=1e-4, atol=1e-6)
    if "accuracy" in measured:
        right = (scores > 0) if name == "wide_deep" else np.argmax(scores, axis=1)
        np.testing.assert_array_equal(measured["accuracy"], (right == batch["labels"]).astype(np.float32))


def losses_of(scores: Any, batch: dict[str, Any]) -> Any:
    """-log p of the labels in float64, the mean over the positions of a window."""
    wide = scores.astype(np.float64)
    if wide.ndim == 1:
        return np.log1p(np.exp(-np.where(batch["labels"] == 1, wide, -wide)))
    logs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    labels = batch["targets"] if wide.ndim == 3 else batch["labels"]
    losses = -np.take_along_axis(logs, labels[..., np.newaxis], axis=-1)[..., 0]
    return losses.reshape(len(losses), -1).mean(axis=1)


@pytest.mark.parametrize("devices", (2, 4))
@pytest.mark.parametrize("name", BUILDERS)
def test_devices_change_no_loss(name: str, devices: int) -> None:
    builder, make = BUILDERS[name]
    batches = [make(seed=seed) for seed in range(3)]
    np.testing.assert_allclose(building.curve(builder, batches, devices, "dp"), building.curve(builder, batches), rtol=2e-5)


@pytest.mark.parametrize("strategy", ("tp", "pp", "2x2", "zero3"))
def test_the_transformer_has_the_same_losses_under_strategies(strategy: str) -> None:
    builder, make = BUILDERS["gpt"]
    batches = [make(seed=seed) for seed in range(3)]
    devices, microbatches = 4 if strategy == "2x2" else 2, 4 if strategy == "pp" else 1
    np.testing.assert_allclose(building.curve(builder, batches, devices, strategy, microbatches), building.curve(builder, batches), rtol=2e-5)


def test_recomputing_changes_no_loss() -> None:
    builder, make = BUILDERS["gpt"]
    batches = [make(seed=seed) for seed in range(3)]
    np.testing.assert_allclose(building.curve(partial(builder, recompute=True), batches), building.curve(builder, batches), rtol=1e-6)


def test_windows_mask_their_padding() -> None:
    builder, make = BUILDERS["gpt"]
    building.begin()
    tokens = make(seed=3)["tokens"]
    whole = building.job_of(builder, "predict", {"tokens": tokens})({"tokens": tokens})["scores"]
    short = building.job_of(builder, "predict", {"tokens": tokens[:, :5]})({"tokens": np.ascontiguousarray(tokens[:, :5])})["scores"]
    np.testing.assert_allclose(short, whole[:, :5], rtol=1e-5, atol=1e-6)


def test_bytes_of_pixels_are_scaled() -> None:
    building.begin()
    builder = partial(models.lenet, classes=4, filters=(4,), hidden=8)
    floats = {"images": np.linspace(0, 1, 2 * 6 * 6, dtype=np.float32).reshape(2, 1, 6, 6)}
    grey = {"images": np.rint(floats["images"][:, 0] * 255).astype(np.uint8)}
    first, second = (building.job_of(builder, "predict", batch)(batch)["scores"] for batch in (floats, grey))
    np.testing.assert_allclose(first, second, atol=0.01)


@pytest.mark.parametrize(
    ("builder", "batch", "error", "words"),
    (
        (partial(models.mlp, split=("hiden1",)), building.pictures(2), ArgumentError, 'unknown layer "hiden1"; did you mean "hidden1"?'),
        (models.lenet, {"images": np.zeros((2, 5), np.float32)}, ShapeError, "must have 3 axes"),
        (partial(models.gpt, length=4), building.windows(2, 5), ArgumentError, "windows of 5 tokens exceed length 4"),
        (partial(models.gpt, length=4, width=10, heads=4), building.windows(2, 4), ArgumentError, "width 10 must be divisible by heads 4"),
    ),
)
def test_mistakes_are_named(builder: Any, batch: dict[str, Any], error: type[Exception], words: str) -> None:
    building.begin()
    with pytest.raises(error, match=re.escape(words)):
        building.job_of(builder, "predict", batch)(batch)
