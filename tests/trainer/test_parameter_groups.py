"""Optimizers by name or import path, parameter groups, clipping, and schedules of configurations, against loops of tensors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import CONFIG, check_same, loaded, run, write_config

import jobflow as flow
from jobflow import nn, optim
from jobflow.core.errors import ConfigError
from jobflow.storage import store
from jobflow.trainer.config import ConfigErrors

#: a model without random numbers, in the order of the samples
MODEL = """
seed: 5
model: {builder: "test_parameter_groups:Net", loss: cross_entropy}
data:
  train: {reader: numpy, path: train.npz}
  validation: {reader: numpy, path: validation.npz}
  batch_size: 12
  shuffle: false
optimizer: OPTIMIZER
training: {steps: 4}
evaluation: {every_epochs: 1}
checkpoint: {every_steps: 2, keep_last: 99, asynchronous: false}
logging: {every_steps: 1, progress: none, report: false}
"""


class Net(nn.Module):
    """Two layers with names for patterns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(nn.functional.tanh(self.body(x)))


def by_hand(folder: Path, groups: Any, clip: Any = None) -> list[float]:
    """Return the losses of four steps of a loop over tensors with the optimizer of `groups(net)`."""
    flow.manual_seed(5)
    net = Net()
    optimizer = groups(net)
    arrays, losses = np.load(folder / "train.npz"), []
    for step in range(4):
        rows = slice(step % 2 * 12, step % 2 * 12 + 12)
        loss = nn.functional.cross_entropy(net(flow.tensor(arrays["x"][rows])), flow.tensor(arrays["labels"][rows]))
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            clip(net.parameters())
        optimizer.step()
        losses.append(loss.item())
    return losses


def spared(net: Net, decay: float, lr: float = 0.1) -> Any:
    vectors = [p for p in net.parameters() if p.ndim < 2]
    return optim.AdamW([{"params": [p for p in net.parameters() if p.ndim > 1]}, {"params": vectors, "weight_decay": 0.0}], lr, weight_decay=decay)


def headed(net: Net) -> Any:
    own = [
        {"params": [net.head.bias], "lr": 0.5, "weight_decay": 0.2},
        {"params": [net.head.weight], "lr": 0.01},
        {"params": [net.body.weight]},
        {"params": [net.body.bias], "weight_decay": 0.0},
    ]
    return optim.AdamW(own, 0.1, weight_decay=0.5)


#: the configured optimizer, that of a loop, and the clipping of the loop
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    '{name: "jobflow.optim:AdamW", lr: 0.1, arguments: {weight_decay: 0.5}}': (lambda net: spared(net, 0.5), None),
    '{name: "jobflow.optim:AdamW", lr: 0.1, arguments: {weight_decay: 0.5}, groups: [{match: "*.bias", weight_decay: 0.5}]}': (
        lambda net: optim.AdamW(net.parameters(), 0.1, weight_decay=0.5), None,
    ),
    '{name: "jobflow.optim:AdamW", lr: 0.1, arguments: {weight_decay: 0.5}, '
    'groups: [{match: head.bias, lr: 0.5, weight_decay: 0.2}, {match: ["head.*"], lr: 0.01}]}': (
        headed, None,
    ),
    "{name: sgd, lr: 0.5, clip_value: 0.01}": (
        lambda net: optim.SGD(net.parameters(), 0.5), lambda p: nn.utils.clip_grad_value_(p, 0.01),
    ),
    '{name: "nets_to_train:Signs", lr: 0.01}': (lambda net: optim.Lion(net.parameters(), 0.01, betas=(0.0, 0.0)), None),
    '{name: "jobflow.optim:Adam", lr: 0.1, arguments: {betas: [0.8, 0.9], amsgrad: true}}': (
        lambda net: optim.Adam(net.parameters(), 0.1, betas=(0.8, 0.9), amsgrad=True), None,
    ),
    "{name: adagrad, lr: 0.1, lr_decay: 0.5, weight_decay: 0.1}": (
        lambda net: optim.Adagrad(net.parameters(), 0.1, lr_decay=0.5, weight_decay=0.1), None,
    ),
    "{name: adadelta, lr: 1.0, rho: 0.8}": (lambda net: optim.Adadelta(net.parameters(), 1.0, rho=0.8), None),
    "{name: radam, lr: 0.1, beta2: 0.9, weight_decay: 0.1}": (
        lambda net: optim.RAdam(net.parameters(), 0.1, (0.9, 0.9), weight_decay=0.1), None,
    ),
    "{name: nadam, lr: 0.1, weight_decay: 0.1, decoupled: true}": (
        lambda net: optim.NAdam(net.parameters(), 0.1, weight_decay=0.1, decoupled_weight_decay=True), None,
    ),
    "{name: adamax, lr: 0.1}": (lambda net: optim.Adamax(net.parameters(), 0.1), None),
    "{name: lion, lr: 0.01, weight_decay: 0.1}": (lambda net: optim.Lion(net.parameters(), 0.01, weight_decay=0.1), None),
    "{name: rprop, lr: 0.01, grow: 1.5}": (lambda net: optim.Rprop(net.parameters(), 0.01, (0.5, 1.5)), None),
    "{name: asgd, lr: 0.1, lambd: 0.01}": (lambda net: optim.ASGD(net.parameters(), 0.1, 0.01), None),
    "{name: sparse_adam, lr: 0.1}": (lambda net: optim.SparseAdam(net.parameters(), 0.1), None),
}  # fmt: skip
CHEAP = 5


def settings(text: str) -> str:
    return MODEL.replace("OPTIMIZER", text)


@pytest.mark.parametrize("text", [pytest.param(text, marks=[] if i < CHEAP else [pytest.mark.full]) for i, text in enumerate(OPTIMIZERS)])
def test_an_optimizer_trains_as_a_loop_does(text: str, tmp_path: Path) -> None:
    groups, clip = OPTIMIZERS[text]
    file = write_config(tmp_path, settings(text), 24)
    _, recorder = run(loaded(file, tmp_path / "out"))
    np.testing.assert_allclose([*recorder.losses.values()], by_hand(tmp_path, groups, clip), rtol=2e-5)
    whole = recorder if text in [*OPTIMIZERS][2:4] else None
    for how in ("devices=2 accumulation=2", "devices=2 zero=3") if whole else ():
        _, other = run(loaded(file, tmp_path / how, *(f"strategy.{each}" for each in how.split())))
        check_same(other, recorder, range(1, 5), close=2e-5)


def test_groups_are_shown_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "{name: adamw, lr: 0.1, weight_decay: 0.5, groups: [{match: head.*, lr: 0.01}]}"
    _, recorder = run(loaded(write_config(tmp_path, settings(text), 24), tmp_path / "out", "training.steps=1"))
    assert recorder.info is not None
    lines = [line.split() for line in recorder.info.before.splitlines()]
    assert lines[1:] == [
        ["lr", "weight", "decay", "parameters", "values", "names"],
        ["0.1", "0.5", "1", "48", "body.weight"],
        ["0.1", "0", "1", "8", "body.bias"],
        ["0.01", "0.5", "1", "32", "head.weight"],
        ["0.01", "0", "1", "4", "head.bias"],
    ]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("[{match: haed.*, lr: 0.1}]", r'optimizer.groups.0.match: no trained parameter matches "haed.\*"; did you mean "head'),
        ('[{match: ["head.*", "tail"], lr: 0.1}]', r'optimizer.groups.0.match.1: no trained parameter matches "tail"; the parameters are body'),
        ("[{match: head.*, lr: 0.1}, {match: head.bias, lr: 0.2}]", "optimizer.groups.1: earlier groups match all its parameters"),
    ],
)
def test_a_group_without_parameters_is_refused(groups: str, message: str, tmp_path: Path) -> None:
    file = write_config(tmp_path, settings(f"{{name: adamw, lr: 0.1, groups: {groups}}}"), 24)
    with pytest.raises(ConfigError, match=message):
        run(loaded(file, tmp_path / "out"))


PLATEAU = "{name: plateau, factor: 0.5, patience: 1, min_delta: 100.0, cooldown: 1, min_lr: 0.02}"


def test_a_plateau_lowers_the_rate_and_resumes_exactly(tmp_path: Path) -> None:
    file = write_config(tmp_path, settings(f"{{name: adam, lr: 0.1, schedule: {PLATEAU}}}"), 24)
    sets = ("training.steps=10", "evaluation.every_epochs=null", "evaluation.every_steps=1")
    _, recorder = run(loaded(file, tmp_path / "out", *sets))
    rates = [recorder.steps[step].rate for step in range(1, 11)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.02, 0.02, 0.02, 0.02])
    assert store.load(tmp_path / "out" / "checkpoints" / "step-00000010")["learning-rate-factor"] == pytest.approx(0.2)
    for step, more in ((2, ()), (4, ("strategy.devices=2", "strategy.zero=1"))):
        out = tmp_path / f"from {step}"
        shutil.copytree(tmp_path / "out" / "checkpoints" / f"step-{step:08}", out / "checkpoints" / f"step-{step:08}")
        _, rest = run(loaded(file, out, *sets, *more))
        assert list(rest.steps) == list(range(step + 1, 11))
        check_same(rest, recorder, list(rest.steps), close=2e-5)
    shutil.copytree(tmp_path / "out" / "checkpoints" / "step-00000004", tmp_path / "other" / "checkpoints" / "step-00000004")
    constant = write_config(tmp_path / "constant", settings("{name: adam, lr: 0.1}"), 24)
    _, other = run(loaded(constant, tmp_path / "other", *sets, f"data.train.path={tmp_path / 'train.npz'}"))
    assert other.steps[5].rate == 0.1


def test_one_cycle_and_functions_set_the_rates(tmp_path: Path) -> None:
    for text, rates in {
        "{name: one_cycle}": [0.004, 0.1, 4e-7],
        '{name: "nets_to_train:halving", arguments: {every: 1}}': [0.1, 0.05, 0.025],
    }.items():
        file = write_config(tmp_path, CONFIG.replace("lr: 0.05, schedule: {name: cosine}, warmup_steps: 2", f"lr: 0.1, schedule: {text}"))
        _, recorder = run(loaded(file, tmp_path / text[7:12], "training.steps=3", "optimizer.schedule.rise=0.67" if "cycle" in text else "seed=5"))
        assert [step.rate for step in recorder.steps.values()] == pytest.approx(rates, rel=0.02)


def test_problems_of_optimizers_name_their_line(tmp_path: Path) -> None:
    for text, message in {
        '{name: "jobflow.optim:Muon", lr: 0.1}': "a step needs whole matrices",
        '{name: "jobflow.optim:Adam", lr: 0.1, arguments: {betas: [2.0, 0.9]}}': "betas must be",
    }.items():
        with pytest.raises(ConfigError, match=message):
            run(loaded(write_config(tmp_path, settings(text), 24), tmp_path / "out"))
    for text, message in {
        '{name: "jobflow.optim:Optimizer", lr: 0.1}': "defines no `rule`",
        '{name: "nets_to_train:plain", lr: 0.1}': "is no optimizer",
        '{name: "jobflow.optim:Adam", lr: 0.1, arguments: {beta: 2.0}}': 'takes no argument "beta"; did you mean "betas"',
    }.items():
        with pytest.raises(ConfigErrors, match=message):
            loaded(write_config(tmp_path, settings(text), 24), tmp_path / "out")
