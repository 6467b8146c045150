"""Mistakes of beginners: the message names the line and a correction."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from jobflow.cli import main

CONFIG = """\
model: {builder: "own_answers:net"}
data:
  train: {reader: digits, split: validation, edge: 8}
  validation: {reader: digits, split: test, edge: 8}
  batch_size: 50
optimizer: {name: adam, lr: 0.01}
training: {steps: 3}
logging: {every_steps: 2, progress: plain, report: false}
"""
BUILDER = """\
import jobflow as flow


def net(images, labels=None, *, units: int = 8, rate: float = 0.25, shape=(1, 2), activation=flow.nn.relu):
    hidden = flow.layers.dense(flow.reshape(images, [images.shape[0], -1]), units, activation=activation, name="hidden")
    scores = flow.layers.dense(hidden, 10, name="scores")
    if labels is None:
        return {"scores": scores}
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_answers.py").write_text(BUILDER)
    (tmp_path / "run.yaml").write_text(CONFIG + f"output: {tmp_path / 'out'}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_answers", raising=False)
    return tmp_path / "run.yaml"


@pytest.mark.parametrize(
    ("setting", "facts"),
    [
        ("optimizer=null", ("--set optimizer=null:", "null", "optimizer: {name: ", "adam")),
        ("model.builder=own_answers.py:net", ("--set", 'did you mean "own_answers:net"')),
        ("model.builder=./own_answers.py:net", ("--set", 'did you mean "own_answers:net"')),
        ("model.builder=own_answers.net", ("--set", 'did you mean "own_answers:net"')),
        ("strategy=zero3", ("--set", "did you mean {zero: 3}?")),
        ("strategy=2x2", ("--set", "did you mean {data: 2, tensor: 2}?")),
        ("strategy=dp", ("--set", "did you mean {data: 2}?")),
        (
            "optimizer.momentum=0.9",
            ('unknown key "momentum" in optimizer (adam); only momentum and lars have it; to use it, set optimizer.name to one of them',),
        ),
    ],
)
def test_settings(file: Path, setting: str, facts: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file), "--set", setting]) == 2
    output = capfd.readouterr().err
    assert not [fact for fact in facts if fact not in output], output


def test_null_in_a_file(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    above = file.with_name("above.yaml")
    above.write_text("extends: run.yaml\noptimizer: null\n")
    alone = file.with_name("alone.yaml")
    alone.write_text(CONFIG.replace("{name: adam, lr: 0.01}", "null"))
    for written, line in ((above, 2), (alone, 6)):
        assert main(["config", "check", str(written)]) == 2
        output = capfd.readouterr().err
        assert f"{written.name}:{line}:" in output and "optimizer: {name: " in output and "adamw" in output


@pytest.mark.parametrize("key", ["checkpoint.best_metric", "evaluation.early_stopping.metric"])
def test_a_metric_that_the_model_does_not_give(file: Path, key: str, capfd: pytest.CaptureFixture[str]) -> None:
    more = (
        "evaluation: {early_stopping: {patience: 1, metric: validation/los}}\n" if "early" in key else "checkpoint: {best_metric: validation/los}\n"
    )
    file.write_text(file.read_text() + more)
    for words in (["train", str(file)], ["train", str(file), "--dry-run"]):
        assert main(words) == 2
        out, err = capfd.readouterr()
        assert f"{file.name}:10" in err and key in err and 'did you mean "validation/loss"' in err and "step 1" not in out


def test_a_warm_up_longer_than_the_run(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    longer = [str(file), "--set", "optimizer.warmup_steps=100"]
    assert main(["train", *longer]) == 0
    output = capfd.readouterr().err
    assert "optimizer.warmup_steps is 100" in output and "3 steps" in output and "0.01" in output
    assert main(["train", *longer, "--dry-run"]) == 0
    assert "optimizer.warmup_steps is 100" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--lr", "3"), "--set optimizer.lr=3"),
        (("--steps=3",), "--set training.steps=3"),
        (("--batch-size", "3"), "--set data.batch_size=3"),
        (("--learning-rate", "0.1"), "--set optimizer.lr=0.1"),
        (("--epochs",), "--set training.epochs=..."),
        (("--deviecs", "2"), '"--devices"'),
        (("optimizer.lr=0.1",), "--set optimizer.lr=0.1"),
        (("+model.arguments.units=3",), "--set model.arguments.units=3"),
        (("lr=0.1",), "--set optimizer.lr=0.1"),
        (("--optimizer.lr=0.1",), "--set optimizer.lr=0.1"),
        (("--optimizer.lr", "0.1"), "--set optimizer.lr=0.1"),
    ],
)
def test_options_that_are_keys(file: Path, words: tuple[str, ...], meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", str(file), *words])
    assert ended.value.code == 2
    assert f"did you mean {meant}?" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("train", "optimizer.lr=0.1", "RUN"), "optimizer.lr=0.1 is read as FILE; did you mean RUN --set optimizer.lr=0.1?"),
        (("verify", "lr=0.1", "RUN"), "lr=0.1 is read as job; did you mean RUN --set optimizer.lr=0.1?"),
        (("train", "--lr", "0.1", "RUN"), "did you mean --set optimizer.lr=0.1?"),
        (("launch", "-n", "2"), "unknown argument -n; did you mean --nproc_per_node?"),
        (("run", "-n", "2", "a.py"), "unknown argument -n; did you mean --ranks?"),
        (("launch", "--nproc_per_node", "2"), "there is no program; write it after the options, such as: jobflow launch --nproc_per_node 2 train.py"),
    ],
)
def test_misplaced_and_missing_words(file: Path, words: tuple[str, ...], meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word.replace("RUN", str(file)) for word in words])
    assert ended.value.code == 2
    assert meant.replace("RUN", str(file)) in capfd.readouterr().err


def test_a_setting_in_place_of_a_file(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file), "optimizer.name=adamw"]) == 2
    assert "there is no file optimizer.name=adamw; did you mean --set optimizer.name=adamw?" in capfd.readouterr().err


def test_defaults_of_builders_are_shown(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", str(file), "--set", "model.arguments.units=3"]) == 0
    shown = capfd.readouterr().out
    defaults = re.findall(r"^ +(?:# )?(units|rate|shape|activation): (.*?) +# (.*)$", shown, re.MULTILINE)
    builder = "default of own_answers:net"
    assert defaults == [("units", "3", "--set model.arguments.units=3"), ("rate", "0.25", builder), ("shape", "[1, 2]", builder)]
    assert yaml.safe_load(shown)["model"]["arguments"] == {"units": 3}, "as comments: a run that was begun without them goes on"
    file.write_text(shown)
    assert main(["config", "check", str(file)]) == 0, "what is shown is a configuration"
