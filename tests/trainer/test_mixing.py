"""Training with mixup, cutmix and weights of positive labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import CLASSES, CONFIG, check_same, loaded, run, write_config

from jobflow import nn
from jobflow.core.errors import ConfigError
from jobflow.data.mixed_samples import MixedSamples
from jobflow.data.readers import open_reader
from jobflow.storage import store

SMOOTHING = 0.1
#: one layer whose parameters hardly change
STILL = CONFIG.replace("- dropout: {rate: 0.25}", "- activation: {function: tanh}").replace("lr: 0.05", "lr: 1.0e-30")
MIXED = (
    CONFIG.replace("batch_size: 8", "batch_size: 8\n  mixup: 0.4").replace("steps: 9", "steps: 5").replace("every_epochs: 1", "every_epochs: null")
)


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Any, labels: Any = None) -> Any:
        scores = self.head(x)
        return {"scores": scores} if labels is None else {"loss": nn.functional.cross_entropy(scores, labels)}


def scores_of(x: Any, path: Any) -> Any:
    """Compute the scores of STILL in NumPy."""
    saved = store.load(path)
    hidden = np.tanh(np.tanh(x @ saved["dense1-weight"].T + saved["dense1-bias"]))
    return hidden @ saved["dense3-weight"].T + saved["dense3-bias"]


def test_the_loss_is_the_cross_entropy_of_mixed_and_smoothed_labels(tmp_path: Path) -> None:
    """The formula of torchvision and timm: targets s onehot(a) + (1 - s) onehot(b), smoothed, and -sum(targets * log_softmax(scores))."""
    text = STILL.replace("softmax_cross_entropy", f"softmax_cross_entropy\n  label_smoothing: {SMOOTHING}").replace(
        "size: 8", "size: 8\n  mixup: 0.4"
    )
    config = loaded(write_config(tmp_path, text), tmp_path / "out", "training.steps=3")
    outcome, recorder = run(config)
    samples = MixedSamples(open_reader("numpy", path=str(tmp_path / "train.npz")), ["x"], "labels", 0.4, None, 5)  # type: ignore[arg-type]
    one_hot = np.eye(CLASSES) * (1 - SMOOTHING) + SMOOTHING / CLASSES
    for step, indices in recorder.sample_numbers.items():
        read = samples.read(indices, 0)
        share = read["mixed_share"][:, None]
        targets = share * one_hot[read["labels"]] + (1 - share) * one_hot[read["mixed_labels"]]
        scores = scores_of(read["x"], outcome.saved)
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        assert recorder.losses[step] == pytest.approx(-(targets * logs).sum(1).mean(), rel=1e-5)
        best = scores.argmax(1)
        accuracy = share[:, 0] * (best == read["labels"]) + (1 - share[:, 0]) * (best == read["mixed_labels"])
        assert recorder.steps[step].metrics["accuracy"] == pytest.approx(accuracy.mean(), rel=1e-5)


def test_mixed_training_is_equal_on_ranks_and_after_a_resume(tmp_path: Path) -> None:
    file = write_config(tmp_path, MIXED)
    config = loaded(file, tmp_path / "out")
    _, recorder = run(config)
    _, ranks = run(loaded(file, tmp_path / "ranks", "strategy.devices=2", "strategy.accumulation=2"))
    check_same(ranks, recorder, [1, 2, 3, 4, 5], close=2e-5)
    checkpoint = tmp_path / "out" / "checkpoints" / "step-00000003"
    _, resumed = run(loaded(file, tmp_path / "later"), resume=str(checkpoint))
    check_same(resumed, recorder, [4, 5])
    with pytest.raises(ConfigError, match=r"data\.mixup: it was 0\.4, it is 0\.2"):
        run(loaded(file, tmp_path / "out", "data.mixup=0.2", "training.steps=12"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data.cutmix=1.0",), r'the field "x" is float32\[6\], and cutmix needs images \[channels, height, width\] of one size; use data.mixup'),
        (("data.train.fields={x: x}",), 'needs the field "labels", and the samples have x'),
        (("data.train.dtypes={x: int64}", "data.train.fields={x: labels, labels: labels}"), 'the field "x" has int64, and only floats and uint8'),
        (('model={builder: "test_mixing:OwnLoss", layers: null, loss: null}',), "forward of OwnLoss at .* its own loss"),
        (
            ("data.train={reader: python, function: 'test_mixing:endless', path: null}",),
            "is a stream, and a mixed sample needs a second one by number",
        ),
    ],
)
def test_samples_that_cannot_be_mixed_are_refused(settings: tuple[str, ...], message: str, tmp_path: Path) -> None:
    file = write_config(tmp_path, MIXED)
    with pytest.raises(ConfigError, match=message):
        run(loaded(file, tmp_path / "out", *settings))


def endless() -> Any:
    while True:
        yield {"x": np.zeros(6, np.float32), "labels": 1}


@pytest.mark.parametrize("weights", [pytest.param(3.0, marks=pytest.mark.full), [1.0, 2.0, 0.5, 4.0]])
def test_pos_weight_multiplies_the_loss_of_positive_labels(weights: Any, tmp_path: Path) -> None:
    text = STILL.replace("softmax_cross_entropy", f"binary_cross_entropy_with_logits\n  pos_weight: {weights}")
    file = write_config(tmp_path, text)
    for part in ("train", "validation"):
        x = np.load(tmp_path / f"{part}.npz")["x"]
        np.savez(tmp_path / f"{part}.npz", x=x, labels=(x[:, :CLASSES] > 0).astype(np.float32))
    outcome, recorder = run(loaded(file, tmp_path / "out", "training.steps=1"))
    rows = np.load(tmp_path / "train.npz")
    x, labels = (rows[name][recorder.sample_numbers[1]] for name in ("x", "labels"))
    scores = scores_of(x, outcome.saved)
    losses = np.asarray(weights) * labels * np.log1p(np.exp(-scores)) + (1 - labels) * np.log1p(np.exp(scores))
    assert recorder.losses[1] == pytest.approx(losses.mean(), rel=1e-5)


def test_pos_weight_of_another_length_is_refused(tmp_path: Path) -> None:
    text = STILL.replace("softmax_cross_entropy", "binary_cross_entropy_with_logits\n  pos_weight: [1.0, 2.0]")
    with pytest.raises(ConfigError, match="the model has 4 scores per sample, but the list has 2 weights"):
        file = write_config(tmp_path, text)
        for part in ("train", "validation"):
            np.savez(tmp_path / f"{part}.npz", x=np.zeros((26, 6), np.float32), labels=np.zeros((26, 4), np.float32))
        run(loaded(file, tmp_path / "out"))
