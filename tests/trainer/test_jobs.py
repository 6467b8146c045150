"""Jobs of a configuration: means over true counts, every layer, every optimizer, every schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import CONFIG, SAMPLES, loaded, run, samples, write_config

import jobflow as flow
import jobflow.optimizer as opt
from jobflow.core.errors import ConfigError, JobError
from jobflow.trainer import jobs
from jobflow.trainer.config import load
from jobflow.trainer.evaluate import batches_of, evaluate, measure
from jobflow.trainer.jobs import Means, devices_of, prepared, session_of, summed
from jobflow.trainer.optimizing import optimizer_from, rule_of, schedule_from
from jobflow.trainer.parameter_groups import weight_decay_of
from jobflow.trainer.predict import predict

PLAIN = CONFIG.replace(CONFIG[CONFIG.index("model:") : CONFIG.index("data:")], "model: {builder: 'nets_to_train:plain'}\n")
TWO_STEPS = ("training.steps=2", "optimizer.lr=0.3")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("plain"), PLAIN)


def by_hand(scores: Any, labels: Any) -> tuple[float, float]:
    """Return the mean loss and accuracy of all samples, in float64."""
    wide = scores.astype(np.float64)
    losses = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(labels)), labels]
    return float(losses.mean()), float((wide.argmax(axis=1) == labels).mean())


# -------------------------------------------------------------------- weighting


def test_sums_are_over_rows() -> None:
    assert summed(np.arange(6.0), 6, [6]) == 15
    assert summed(np.array([2.0, 5.0]), 5, [3, 2]) == 16, "a mean of 3 rows and one of 2"
    assert summed(np.array([2.0]), 5, [3, 2]) == 10
    means = Means()
    assert means.values() == {}
    means.add({"loss": np.full(8, 1.0)}, 8, [8])
    means.add({"loss": np.array([6.0])}, 2, [2])
    assert means.values() == {"loss": 2.0} and means.samples == 10


@pytest.mark.parametrize("net", ["plain", "reduced"])
@pytest.mark.parametrize(
    "strategy", [("devices=1",), ("devices=3",), ("devices=3", "view=mirrored"), ("devices=2", "pipeline=2", "data=1")], ids=" ".join
)
def test_an_uneven_last_batch_counts_by_its_samples(net: str, strategy: tuple[str, ...], file: Path, tmp_path: Path) -> None:
    # 26 samples in batches of 8, 8, 8 and 2: the last one is too short for three ranks of the mirrored view
    settings = (f"model.builder=nets_to_train:{net}", *TWO_STEPS, *(f"strategy.{setting}" for setting in strategy))
    config = loaded(file, tmp_path, *settings)
    outcome, _ = run(config)
    report = evaluate(config, place="train")
    known = samples(SAMPLES, 0)
    scores = predict(config, "train").outputs["scores"]
    loss, accuracy = by_hand(scores, known["labels"])
    assert report.samples == SAMPLES and report.step == 2
    np.testing.assert_allclose([report.metrics["train/loss"], report.metrics["train/accuracy"]], [loss, accuracy], rtol=1e-6)
    if net == "reduced":
        np.testing.assert_allclose(report.metrics["train/mean"], known["x"].astype(np.float64).mean(), rtol=1e-5)
    assert outcome.metrics["validation/loss"] == pytest.approx(evaluate(config).metrics["validation/loss"], rel=1e-6)


def test_a_step_of_parts_of_unequal_length_is_that_of_the_whole(file: Path, tmp_path: Path) -> None:
    for net in ("plain", "reduced"):
        settings = (f"model.builder=nets_to_train:{net}", "data.batch_size=26", "training.steps=3", "optimizer.lr=0.3")
        _, whole = run(loaded(file, tmp_path / net / "whole", *settings))
        # cut into 2, and 13 rows among 3 ranks
        for name, how in (
            ("mirrored", ("strategy.view=mirrored", "strategy.devices=3")),
            ("parts", ("strategy.accumulation=2", "strategy.devices=2")),
        ):
            _, recorder = run(loaded(file, tmp_path / net / name, *settings, *how))
            np.testing.assert_allclose([*recorder.losses.values()], [*whole.losses.values()], rtol=2e-6)


def test_a_sum_over_the_batch_is_the_same_with_any_split(file: Path, tmp_path: Path) -> None:
    settings = ("model.builder=nets_to_train:summed", "data.batch_size=26", "training.steps=3", "optimizer.lr=0.3")
    _, whole = run(loaded(file, tmp_path / "whole", *settings))
    modes = {"parts": ("accumulation=2",), "pipeline": ("devices=2", "pipeline=2", "microbatches=13")}
    for name, how in modes.items():
        _, recorder = run(loaded(file, tmp_path / name, *settings, *(f"strategy.{setting}" for setting in how)))
        np.testing.assert_allclose([*recorder.losses.values()], [*whole.losses.values()], rtol=2e-6)


@pytest.mark.parametrize("in_file", [True, False])
def test_a_root_over_the_batch_is_refused_with_the_key_of_accumulation(in_file: bool, file: Path, tmp_path: Path) -> None:
    settings, where = ["model.builder=nets_to_train:rooted", *TWO_STEPS], r"--set strategy\.accumulation=2"
    if in_file:
        lines = [*file.read_text().splitlines(), "strategy:", "  accumulation: 2"]
        file.write_text("\n".join(lines))
        where = rf"{file.name}:{len(lines)} \(strategy\.accumulation\)"
    else:
        settings.append("strategy.accumulation=2")
    request = f"the 2 microbatches requested at {where} do not reproduce"
    with pytest.raises(JobError, match=rf"sqrt at nets_to_train\.py:\d+: the loss of job train combines rows of the batch.*{request}"):
        run(loaded(file, tmp_path, *settings))


def test_a_batch_shorter_than_its_microbatches_has_fewer(file: Path) -> None:
    with prepared(loaded(file, file.parent / "out", "strategy.accumulation=4")) as alone:
        assert [alone.microbatches(rows) for rows in (8, 5, 2, 1)] == [4, 4, 2, 1]
        assert alone.pieces(5, 2) == [3, 2]
    with prepared(loaded(file, file.parent / "out", "strategy.accumulation=4", "strategy.view=mirrored", "strategy.devices=2")) as two:
        assert [two.microbatches(rows) for rows in (8, 7, 5, 2, 1)] == [4, 2, 1, 1, 1]
        assert two.pieces(5) == [3, 2] and two.pieces(1) == [1]
        assert two.mirrored(2) and not two.mirrored(1)


def test_a_second_evaluation_has_equal_results(file: Path) -> None:
    with prepared(loaded(file, file.parent / "out")) as run_:
        batches = batches_of(run_, run_.samples["validation"])
        first, second = (measure(run_, batches, "validation") for _ in range(2))
        assert first.metrics == second.metrics and first.samples == SAMPLES


# -------------------------------------------------------------------- what a configuration may say

LAYERS = """
model:
  loss: softmax_cross_entropy
  layers:
    - conv2d: {filters: 4, kernel_size: [3, 3], activation: swish}
    - batch_norm: {}
    - max_pool2d: {}
    - conv2d: {filters: 6, groups: 2, strides: 1, padding: valid, use_bias: false}
    - activation: {function: gelu}
    - avg_pool2d: {size: 2, strides: 1}
    - reshape: {shape: [6, -1]}
    - layer_norm: {}
    - flatten: {}
    - dropout: {rate: 0.1}
    - dense: {units: 10}
data:
  train: {reader: digits, split: test}
  batch_size: 199
"""


def test_every_layer_can_be_listed(tmp_path: Path) -> None:
    rest = CONFIG[CONFIG.index("optimizer:") :].replace("evaluation: {every_epochs: 1}\n", "").replace("steps: 9", "steps: 2")
    write_config(tmp_path, LAYERS + rest)
    _, recorder = run(loaded(tmp_path / "run.yaml", tmp_path))
    assert all(np.isfinite(loss) and 1.5 < loss < 4 for loss in recorder.losses.values())
    pooled = LAYERS[: LAYERS.index("    - reshape")] + "    - global_avg_pool2d: {}\n    - dense: {units: 10}\n" + LAYERS[LAYERS.index("data:") :]
    write_config(tmp_path, pooled + rest)
    _, recorder = run(loaded(tmp_path / "run.yaml", tmp_path / "pooled"))
    assert len(recorder.losses) == 2


def test_tables_and_squares(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = random.integers(0, 9, (26, 3)).astype(np.int32)
    np.savez(tmp_path / "words.npz", words=words, labels=words.sum(axis=1).astype(np.float32))
    text = """
model:
  loss: mean_squared_error
  layers: [{embedding: {rows: 9, units: 4}}, {flatten: {}}, {dense: {units: 1}}]
data: {train: {reader: numpy, path: words.npz}, batch_size: 26}
optimizer: {name: adam, lr: 0.1}
training: {steps: 60}
checkpoint: {every_steps: 60}
""".replace("words.npz", str(tmp_path / "words.npz"))
    (tmp_path / "run.yaml").write_text(text)
    _, recorder = run(loaded(tmp_path / "run.yaml", tmp_path))
    assert recorder.losses[60] < 0.05 * recorder.losses[1] and not recorder.steps[1].metrics


OPTIMIZERS: list[tuple[str, Any]] = [
    ("{name: sgd, lr: 0.1}", opt.SGDW(opt.PiecewiseConstantScheduler([], [0.1]), momentum=0.0, weight_decay=0.0)),
    ("{name: sgd, lr: 0.1, weight_decay: 0.5}", opt.SGDW(opt.PiecewiseConstantScheduler([], [0.1]), momentum=0.0, weight_decay=0.5)),
    (
        "{name: momentum, lr: 0.1, momentum: 0.8, clip_norm: 2.0}",
        opt.SGDW(opt.PiecewiseConstantScheduler([], [0.1]), momentum=0.8, weight_decay=0.0, grad_clipping=opt.grad_clipping.by_global_norm(2.0)),
    ),
    (
        "{name: adamw, lr: 0.1, weight_decay: 0.5, bias_correction: false}",
        opt.AdamW(opt.PiecewiseConstantScheduler([], [0.1]), weight_decay=0.5, do_bias_correction=False),
    ),
    ("{name: lamb, lr: 0.1, beta2: 0.99}", opt.LAMB(opt.PiecewiseConstantScheduler([], [0.1]), beta2=0.99, weight_decay=0.0)),
    ("{name: lars, lr: 0.1, coefficient: 0.01}", opt.LARS(opt.PiecewiseConstantScheduler([], [0.1]), lars_coefficient=0.01, weight_decay=0.0)),
    ("{name: rmsprop, lr: 0.1, centered: true}", opt.RMSProp(opt.PiecewiseConstantScheduler([], [0.1]), centered=True)),
]


@pytest.mark.parametrize("text, expected", OPTIMIZERS, ids=[text for text, _ in OPTIMIZERS])
def test_optimizers(text: str, expected: Any, tmp_path: Path) -> None:
    write_config(tmp_path, PLAIN.replace(PLAIN[PLAIN.index("optimizer:") : PLAIN.index("training:")], f"optimizer: {text}\n"))
    optimizer: Any = optimizer_from(load(tmp_path / "run.yaml").config, 9)
    assert optimizer.loss_scale_policy == opt.loss_scale.halt_where_not_finite()
    assert rule_of(optimizer.options, weight_decay_of(optimizer.options)) == expected.step_op("weight")
    assert optimizer.clippings == (() if expected.grad_clipping is None else (expected.grad_clipping,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{name: adam, lr: 0.1, beta1: 0.8}", lambda x: flow.optim.Adam([x], betas=(0.8, 0.999))),
        ("{name: adamw, lr: 0.1, weight_decay: 0.5, epsilon: 0.01}", lambda x: flow.optim.AdamW([x], weight_decay=0.5, eps=0.01)),
    ],
)
def test_adam_has_the_formula_of_tensors(text: str, expected: Any, tmp_path: Path) -> None:
    write_config(tmp_path, PLAIN.replace(PLAIN[PLAIN.index("optimizer:") : PLAIN.index("training:")], f"optimizer: {text}\n"))
    options = load(tmp_path / "run.yaml").config.optimizer
    optimizer = expected(flow.zeros(2, requires_grad=True))
    # without weight decay, decoupled decay makes no difference
    assert rule_of(options, weight_decay_of(options)) == replace(optimizer.rule(optimizer.param_groups[0]), decoupled=True)


@pytest.mark.parametrize(
    "text, rates",
    [
        ("{name: constant}", {0: 0.4, 99: 0.4}),
        ("{name: cosine}", {0: 0.4, 5: 0.2, 10: 0.0}),
        ("{name: cosine, steps: 20, alpha: 0.5}", {0: 0.4, 10: 0.3, 20: 0.2, 30: 0.2}),
        ("{name: linear, end_lr: 0.1}", {0: 0.4, 5: 0.25, 10: 0.1, 20: 0.1}),
        ("{name: polynomial, power: 2.0, steps: 10}", {0: 0.4, 5: 0.1, 10: 0.0}),
        ("{name: exponential, steps: 2, decay_rate: 0.5}", {0: 0.4, 2: 0.2, 4: 0.1}),
        ("{name: one_cycle, steps: 11, start: 0.25, end: 0.0}", {0: 0.1, 10: 0.0, 20: 0.0}),
        ('{name: "nets_to_train:halving", arguments: {every: 2}}', {0: 0.4, 2: 0.2, 4: 0.1}),
        ("{name: piecewise, boundaries: [2, 4], scales: [0.5, 0.25]}", {2: 0.4, 3: 0.2, 5: 0.1}),
    ],
)
def test_schedules(text: str, rates: dict[int, float], tmp_path: Path) -> None:
    write_config(tmp_path, PLAIN.replace("lr: 0.05, schedule: {name: cosine}, warmup_steps: 2", f"lr: 0.4, schedule: {text}"))
    schedule = schedule_from(load(tmp_path / "run.yaml").config.optimizer, 10)
    assert {step: schedule.rate(step) for step in rates} == pytest.approx(rates)
    if "one_cycle" in text:
        return
    warm = schedule_from(load(tmp_path / "run.yaml", ["optimizer.warmup_steps=4"]).config.optimizer, 10)
    assert [warm.rate(step) for step in range(4)] == pytest.approx([0.1, 0.175, 0.25, 0.325])


def test_devices(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(file, ["strategy.tensor=2", "strategy.data=2"]).config
    assert devices_of(config) == 4 and devices_of(load(file, ["strategy.devices=3"]).config) == 3 and devices_of(load(file).config) == 1
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert devices_of(load(file).config) == 2
    with pytest.raises(ConfigError, match=r"strategy\.devices is 3, but MPICH started 2 ranks; start 3, or set devices: all"):
        devices_of(load(file, ["strategy.devices=3"], look_outside=False).config)


@pytest.mark.parametrize(("device", "gpus", "on_gpus"), [("auto", 0, 0), ("auto", 1, 1), ("cpu", 1, 0), ("cuda", 0, 1), ("cuda", 1, 1)])
def test_device_selects_the_kind_of_ranks(file: Path, monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, on_gpus: int) -> None:
    """Without a GPU, ranks of "cuda" run on CPUs, with the notice of the world."""
    monkeypatch.setattr(jobs.cuda, "available", lambda: gpus)
    with session_of(load(file, [f"strategy.device={device}"]).config) as session:
        assert bool(session.settings.gpu_device_num) == bool(on_gpus)
