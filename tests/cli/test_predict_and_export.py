"""Predictions for files without labels, as tables with class names; and tensors in other file formats."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.cli import main
from jobflow.core.errors import ArgumentError
from jobflow.trainer.config import load
from jobflow.trainer.predict import reader_for

KINDS = ("ash", "beech", "cedar")
CONFIG = """
model:
  loss: softmax_cross_entropy
  layers: [{{dense: {{units: 3}}}}]
data:
  train:
    reader: csv
    path: {path}
    fields: {{x: [length, width], labels: kind}}
    categories: [kind]
  batch_size: 20
optimizer: {{name: adam, lr: 0.1}}
training: {{epochs: 20}}
logging: {{report: false, progress: none}}
output: {output}
"""


def table(path: Path, rows: int, seed: int, kinds: bool = True) -> Any:
    """Return a table of leaves, whose kind follows from their length, and the kind of each."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, 3, rows)
    length, width = 4.0 * kind + random.normal(0, 0.1, rows), random.normal(size=rows)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["length", "width", *(["kind"] if kinds else [])])
        writer.writerows([a, b, *([KINDS[k]] if kinds else [])] for a, b, k in zip(length, width, kind, strict=True))
    return kind


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaves")
    table(folder / "train.csv", 300, 0)
    (folder / "run.yaml").write_text(CONFIG.format(path=folder / "train.csv", output=folder / "out"))
    assert main(["train", str(folder / "run.yaml")]) == 0
    return folder / "run.yaml"


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("kinds", [True, False])
def test_a_categorical_label_is_optional(run: Path, tmp_path: Path, kinds: bool, capfd: pytest.CaptureFixture[str]) -> None:
    kind = table(tmp_path / "new.csv", 40, 1, kinds=kinds)
    words = ["predict", str(run), "--input", str(tmp_path / "new.csv"), "--output"]
    assert main([*words, str(tmp_path / "scores.csv")]) == 0
    assert "40 samples" in capfd.readouterr().out
    rows = read(tmp_path / "scores.csv")
    assert list(rows[0]) == ["row", "class", "scores_ash", "scores_beech", "scores_cedar"]
    assert np.mean([row["class"] == KINDS[k] for row, k in zip(rows, kind, strict=True)]) > 0.9
    assert main([*words, str(tmp_path / "shares.csv"), "--probabilities"]) == 0
    shares = [[float(row[f"probabilities_{name}"]) for name in KINDS] for row in read(tmp_path / "shares.csv")]
    assert np.allclose(np.sum(shares, axis=1), 1, atol=1e-6) and np.min(shares) >= 0
    assert [row["class"] for row in read(tmp_path / "shares.csv")] == [row["class"] for row in rows]
    assert main([*words, str(tmp_path / "scores.npz")]) == 0
    with np.load(tmp_path / "scores.npz") as arrays:
        assert arrays["classes"].tolist() == list(KINDS) and arrays["scores"].shape == (40, 3)


def test_one_sample_is_one(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "one.csv", 1, 2, kinds=False)
    assert main(["predict", str(run), "--input", str(tmp_path / "one.csv"), "--output", str(tmp_path / "one.npz")]) == 0
    assert "1 sample:" in capfd.readouterr().out


def test_categories_of_other_files_are_those_of_training(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file with only some of the kinds must not define its own categories."""
    (tmp_path / "test.csv").write_text("length,width,kind\n" + "8.0,0.1,cedar\n8.1,0.2,cedar\n4.0,0.3,beech\n")
    test = f"data.test={{reader: csv, path: {tmp_path / 'test.csv'}, fields: {{x: [length, width], labels: kind}}, categories: [kind]}}"
    assert main(["eval", str(run), "--set", test]) == 0
    assert "test/accuracy  100.0 %" in capfd.readouterr().out


def test_the_wrong_shape_is_named(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((5, 20), np.float32))
    assert main(["predict", str(run), "--input", str(tmp_path / "wide.npz"), "--output", str(tmp_path / "s.npz")]) == 1
    output = capfd.readouterr().err
    assert "wide.npz" in output and '"x"' in output and "float32[20]" in output and "float32[2]" in output and "trained" in output
    np.savez(tmp_path / "double.npz", x=np.zeros((5, 2)))
    assert main(["predict", str(run), "--input", str(tmp_path / "double.npz"), "--output", str(tmp_path / "s.npz")]) == 1
    assert "float64[2]" in capfd.readouterr().err


def test_probabilities_are_of_classes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "train.npz", x=np.ones((4, 3), np.float32), labels=np.ones((4, 2), np.float32))
    text = CONFIG[: CONFIG.index("data:")].replace("softmax_cross_entropy", "mean_squared_error").replace("units: 3", "units: 2").format()
    text += f"data: {{train: {{reader: numpy, path: {tmp_path / 'train.npz'}}}, batch_size: 2}}\n"
    text += f"optimizer: {{name: sgd, lr: 0.1}}\ntraining: {{steps: 1}}\nlogging: {{report: false}}\noutput: {tmp_path / 'out'}\n"
    (tmp_path / "run.yaml").write_text(text)
    np.savez(tmp_path / "new.npz", x=np.ones((4, 3), np.float32))
    words = ["predict", str(tmp_path / "run.yaml"), "--input", str(tmp_path / "new.npz"), "--output", str(tmp_path / "s.npz")]
    assert main(["train", str(tmp_path / "run.yaml")]) == 0 == main(words)
    assert main([*words, "--probabilities"]) == 2
    assert "--probabilities" in capfd.readouterr().err


def test_safetensors_out_and_in(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(sorted((run.parent / "out" / "checkpoints").iterdir())[-1])
    file = tmp_path / "weights.safetensors"
    assert main(["ckpt", "export", checkpoint, str(file)]) == 0
    assert main(["ckpt", "export", checkpoint, str(file)]) == 1, "it is there already"
    assert main(["ckpt", "export", checkpoint, str(file), "--force", "--names", "dense*"]) == 0
    assert main(["ckpt", "diff", checkpoint, str(file), "--names", "dense*"]) == 0
    assert main(["ckpt", "convert", str(file), str(tmp_path / "back")]) == 0
    capfd.readouterr()
    assert main(["ckpt", "verify", str(tmp_path / "back")]) == 0 == main(["ckpt", "diff", str(file), str(tmp_path / "back")])
    header = file.read_bytes()[8:].split(b"}}")[0]
    assert b'"dtype":"F32"' in header


def test_output_files_of_unsupported_types_raise(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(sorted((run.parent / "out" / "checkpoints").iterdir())[-1])
    for action in ("convert", "export"):
        assert main(["ckpt", action, checkpoint, str(tmp_path / "y.onnx")]) == 1
        output = capfd.readouterr().err
        assert "y.onnx" in output and ".npz" in output and ".safetensors" in output
    assert not (tmp_path / "y.onnx").exists()
    assert main(["ckpt", "convert", checkpoint, str(tmp_path / "snapshot.v2"), "--to", "legacy"]) == 0


OWN_MODULE = """
from jobflow import nn


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(256, 4), nn.Linear(4, 256)

    def forward(self, tokens, targets=None):
        scores = self.out(self.table(tokens))
        if targets is None:
            return scores
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())}


class Needy(Next):
    def forward(self, tokens, targets):
        return super().forward(tokens, targets)
"""


def test_a_reader_of_folders_accepts_no_single_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        f"model: {{layers: [{{dense: {{units: 2}}}}], loss: cross_entropy}}\ndata: {{train: {{reader: images, path: {tmp_path}}}, batch_size: 2}}\n"
        "optimizer: {name: sgd, lr: 0.1}\ntraining: {steps: 1}\n"
    )
    (tmp_path / "a.png").touch()
    with pytest.raises(ArgumentError, match=r"a\.png is a file, and the reader images of this model reads a folder; pass the folder"):
        reader_for(load(tmp_path / "own.yaml").config, tmp_path / "a.png")


def test_a_module_of_the_user_continues_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_text.py").write_text(OWN_MODULE)
    (tmp_path / "letters.txt").write_text("abcdefgh" * 40)
    config = tmp_path / "own.yaml"
    config.write_text(
        f"""
model: {{builder: "own_text:Next"}}
data:
  train: {{reader: text, level: byte, length: 8, stride: 8, path: {tmp_path}/letters.txt}}
  batch_size: 8
optimizer: {{name: adam, lr: 0.1}}
training: {{steps: 30}}
logging: {{progress: none, report: false}}
output: {tmp_path}/out
"""
    )
    assert main(["train", str(config)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["predict", str(config), "--prompt", "ab", "--length", "6", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "abcdefgh\n"
    assert main(["predict", str(config), "--prompt", "ab", "--set", "model.builder=own_text:Needy"]) == 2
    assert "own_text:Needy needs the field targets, but a prompt has tokens only" in (printed := capsys.readouterr()).err
    assert not printed.out, "the prompt is printed after its checks"
