"""Losses by name or import path, with label smoothing and class weights, against the same loss of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import CLASSES, CONFIG, check_same, loaded, run, samples, write_config

import jobflow as flow
from jobflow.core.errors import ConfigError
from jobflow.nn import functional
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.predict import predict

SHORT = ("training.steps=2", "checkpoint.every_steps=2", "optimizer.warmup_steps=0")
WEIGHTS = [0.5, 1.0, 2.0, 3.0]


def doubled(scores: Any, labels: Any, *, factor: float = 1.0) -> dict[str, Any]:
    """Return a cross entropy times a factor, and a metric."""
    loss = flow.nn.functional.cross_entropy(scores, labels.long(), reduction="none") * factor
    return {"loss": loss, "largest": scores.amax(1)}


def floats(scale: float = 1.0, shift: float = 0.0) -> Any:
    """Return a function from samples to float labels in the shape of the scores."""
    return lambda x: np.abs(x[:, :CLASSES]) * scale + shift


def signs(x: Any) -> Any:
    return np.sign(x[:, :CLASSES]).astype(np.float32)


def bits(x: Any) -> Any:
    return (x[:, :CLASSES] > 0).astype(np.float32)


def classes(x: Any) -> Any:
    return samples(len(x), 3)["labels"]


#: settings of `model`, the labels of samples, and the loss of scores and labels
LOSSES: dict[str, tuple[str, Any, Any]] = {
    "softmax_cross_entropy": ("label_smoothing: 0.2", classes, lambda s, t: functional.cross_entropy(s, t, label_smoothing=0.2)),
    "cross_entropy": (f"class_weights: {WEIGHTS}", classes, lambda s, t: functional.cross_entropy(s, t, flow.tensor(WEIGHTS), reduction="none")),
    "nll_loss": ("loss_arguments: {ignore_index: 1}", classes, lambda s, t: functional.nll_loss(s, t, ignore_index=1, reduction="none")),
    "multi_margin_loss": ("loss_arguments: {margin: 0.5}", classes, lambda s, t: functional.multi_margin_loss(s, t.long(), margin=0.5)),
    "mse_loss": ("", floats(), functional.mse_loss),
    "l1_loss": ("", floats(), functional.l1_loss),
    "smooth_l1_loss": ("loss_arguments: {beta: 0.5}", floats(), lambda s, t: functional.smooth_l1_loss(s, t, beta=0.5)),
    "huber_loss": ("loss_arguments: {delta: 2.0}", floats(), lambda s, t: functional.huber_loss(s, t, delta=2.0)),
    "binary_cross_entropy_with_logits": ("", bits, functional.binary_cross_entropy_with_logits),
    "kl_div": ("", floats(), functional.kl_div),
    "poisson_nll_loss": ("", floats(), functional.poisson_nll_loss),
    "soft_margin_loss": ("", signs, functional.soft_margin_loss),
    "hinge_embedding_loss": ("", signs, functional.hinge_embedding_loss),
    "multilabel_margin_loss": ("", lambda x: np.tile([1, 2, -1, -1], (len(x), 1)), functional.multilabel_margin_loss),
    "multilabel_soft_margin_loss": ("", bits, functional.multilabel_soft_margin_loss),
    "test_losses:doubled": (
        "loss_arguments: {factor: 3.0}", classes, lambda s, t: functional.cross_entropy(s, t, reduction="none") * 3.0,
    ),
    "jobflow.nn:HuberLoss": ("loss_arguments: {delta: 2.0}", floats(), lambda s, t: functional.huber_loss(s, t, delta=2.0)),
}  # fmt: skip
CHEAP = ("softmax_cross_entropy", "cross_entropy", "huber_loss", "test_losses:doubled")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in CHEAP else [pytest.mark.full]) for name in LOSSES])
def test_a_loss_by_name_is_the_mean_over_the_samples(name: str, tmp_path: Path) -> None:
    more, labels_of, expected = LOSSES[name]
    text = CONFIG.replace("  loss: softmax_cross_entropy", f'  loss: "{name}"' + (f"\n  {more}" if more else ""))
    file = write_config(tmp_path, text.replace("dropout: {rate: 0.25}", "dropout: {rate: 0}"))
    for part in ("train", "validation"):
        x = np.load(tmp_path / f"{part}.npz")["x"]
        np.savez(tmp_path / f"{part}.npz", x=x, labels=labels_of(x))
    config = loaded(file, tmp_path / "out", *SHORT)
    outcome, recorder = run(config)
    labels = np.load(tmp_path / "validation.npz")["labels"]
    scores = flow.tensor(predict(config, "validation").outputs["scores"])
    loss = expected(scores, flow.tensor(labels)).mean().item()
    assert outcome.metrics["validation/loss"] == pytest.approx(loss, rel=1e-5)
    assert evaluate(config, place="validation").metrics["validation/loss"] == pytest.approx(loss, rel=1e-5)
    assert ("validation/accuracy" in outcome.metrics) == (labels_of is classes and "ignore_index" not in more and ":" not in name)
    if "largest" in str(outcome.metrics):
        assert outcome.metrics["validation/largest"] == pytest.approx(scores.amax(1).mean().item(), rel=1e-5)
    _, other = run(loaded(file, tmp_path / "two", *SHORT, "strategy.devices=2", "strategy.accumulation=2"))
    check_same(other, recorder, [1, 2], close=2e-5)


def test_doubles_are_compared_with_scores_of_doubles(tmp_path: Path) -> None:
    text = CONFIG.replace("  loss: softmax_cross_entropy", "  loss: mean_squared_error").replace("dropout: {rate: 0.25}", "dropout: {rate: 0}")
    file = write_config(tmp_path, text)
    for part in ("train", "validation"):
        x = np.load(tmp_path / f"{part}.npz")["x"].astype(np.float64)
        np.savez(tmp_path / f"{part}.npz", x=x, labels=x[:, :CLASSES])
    config = loaded(file, tmp_path / "out", *SHORT)
    outcome, _ = run(config)
    scores, labels = predict(config, "validation").outputs["scores"], np.load(tmp_path / "validation.npz")["labels"]
    assert scores.dtype == np.float64 and outcome.metrics["validation/loss"] == pytest.approx(np.square(scores - labels).mean(), rel=1e-6)


def test_balanced_weights_follow_the_training_samples_and_are_saved(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG.replace("  layers:", "  class_weights: balanced\n  layers:"))
    config = loaded(file, tmp_path / "out", *SHORT)
    outcome, recorder = run(config)
    counts = np.bincount(np.load(tmp_path / "train.npz")["labels"], minlength=CLASSES)
    weights = [float(w) for w in counts.sum() / (len(counts) * counts)]
    (tmp_path / "train.npz").rename(tmp_path / "moved.npz")
    np.savez(tmp_path / "train.npz", x=np.zeros((1, 6), np.float32), labels=np.zeros(1, np.int32))  # an evaluation uses the saved weights
    assert evaluate(config, place="validation").metrics["validation/loss"] == pytest.approx(outcome.metrics["validation/loss"], rel=1e-6)
    (tmp_path / "moved.npz").replace(tmp_path / "train.npz")
    explicit = loaded(file, tmp_path / "explicit", *SHORT, f"model.class_weights={weights}")
    _, other = run(explicit)
    check_same(other, recorder, [1, 2])


@pytest.mark.parametrize(
    ("weights", "change", "message"),
    [
        ("[1.0, 2.0]", {}, "the model has 4 scores, but the list has 2 weights; use one weight per score"),
        ("balanced", {"labels": np.full(26, 0.5, np.float32)}, "has the label 0.5, not a class from 0"),
        ("balanced", {"labels": np.zeros(26, np.int32)}, "has 1 weight"),
    ],
)
def test_weights_that_do_not_match_are_refused(weights: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write_config(tmp_path)
    np.savez(tmp_path / "train.npz", **(samples(26, 0) | change))
    with pytest.raises(ConfigError, match=message):
        run(loaded(file, tmp_path / "out", *SHORT, f"model.class_weights={weights}"))
