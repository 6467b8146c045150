"""Predictions of a checkpoint for samples in files, and generated text."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from short_runs import SAMPLES, WIDTH, loaded, run, samples, write_config

from jobflow.core.errors import ArgumentError, CheckpointError, ConfigError
from jobflow.trainer.config import Loaded
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.predict import generate, predict, rows

TEXT = """
seed: 1
model: {builder: "jobflow.models:gpt", arguments: {length: 8, width: 16, heads: 2, blocks: 1}}
data: {train: {reader: text, path: here.txt, length: 8, stride: 2}, batch_size: 16, drop_last: true}
optimizer: {name: adam, lr: 0.02}
training: {steps: 60}
checkpoint: {every_steps: 60}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("trained")
    config = loaded(write_config(folder), folder / "out", "training.steps=4")
    run(config)
    return config


def test_files_and_configured_samples_have_equal_predictions(trained: Loaded, tmp_path: Path) -> None:
    known = predict(trained, "validation", tmp_path / "known.npz")
    assert known.samples == SAMPLES and known.outputs["scores"].shape == (SAMPLES, 4)
    np.testing.assert_array_equal(np.load(tmp_path / "known.npz")["scores"], known.outputs["scores"])
    # a file without labels, in the same order
    np.savez(tmp_path / "new.npz", x=samples(SAMPLES, 1)["x"])
    new = predict(trained, tmp_path / "new.npz", tmp_path / "out" / "new.csv")
    np.testing.assert_array_equal(new.outputs["scores"], known.outputs["scores"])
    table = list(csv.DictReader((tmp_path / "out" / "new.csv").read_text().splitlines()))
    assert list(table[0]) == ["class", "scores_0", "scores_1", "scores_2", "scores_3"] and len(table) == SAMPLES
    assert [int(row["class"]) for row in table] == known.outputs["scores"].argmax(axis=1).tolist()
    np.testing.assert_allclose([float(row["scores_2"]) for row in table], known.outputs["scores"][:, 2], rtol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["known.npz", "new.npz", "out"], "nothing is left beside"


def test_a_prediction_does_not_depend_on_devices_or_batches(trained: Loaded) -> None:
    one = predict(trained, "train").outputs["scores"]
    file, output = Path(trained.files[0]), Path(trained.config.output)
    for settings in (("strategy.devices=3",), ("strategy.devices=2", "strategy.view=mirrored"), ("data.evaluation_batch_size=5",)):
        np.testing.assert_allclose(predict(loaded(file, output, *settings), "train").outputs["scores"], one, rtol=1e-5, atol=1e-6)


def test_tables_name_classes() -> None:
    scores = {"scores": np.array([[0.0, 1.0], [3.0, 2.0]]), "length": np.array([7, 8])}
    assert list(rows(scores, ["cat", "dog"])) == [
        ["class", "scores_cat", "scores_dog", "length"],
        ["dog", 0.0, 1.0, 7],
        ["cat", 3.0, 2.0, 8],
    ]
    assert list(rows({"scores": np.array([0.5])}, [])) == [["scores"], [0.5]]


def test_wrong_inputs_of_predict_raise(trained: Loaded, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the suffix of predictions must be \.npz or \.csv"):
        predict(trained, "train", tmp_path / "scores.txt")
    with pytest.raises(ArgumentError, match=r"there is no such file; pass an existing file or folder, or one of train, validation, test"):
        predict(trained, tmp_path / "nothing.npz")
    with pytest.raises(ConfigError, match=r"data\.test: the configuration has no reader under this key; add a reader"):
        predict(trained, "test")
    builder = ("model.layers=null", "model.loss=null", "model.builder=nets_to_train:plain")
    built = loaded(Path(trained.files[0]), Path(trained.config.output), *builder)
    np.savez(tmp_path / "wrong.npz", y=np.zeros((3, WIDTH), np.float32))
    with pytest.raises(ConfigError, match='needs a field "x"'):
        predict(built, tmp_path / "wrong.npz")
    with pytest.raises(ConfigError, match="only models that were trained on text"):
        generate(trained, "a", 3)


def test_evaluation_needs_a_checkpoint(trained: Loaded, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        evaluate(loaded(Path(trained.files[0]), tmp_path))
    with pytest.raises(ConfigError, match=r"data\.test: the configuration has no reader under this key; add a reader"):
        evaluate(trained, place="test")
    steps = Path(trained.config.checkpoint.directory)
    reports = [evaluate(trained, steps / f"step-{step:08d}") for step in (1, 4)]
    assert [report.step for report in reports] == [1, 4] and reports[0].metrics != reports[1].metrics
    assert evaluate(trained).metrics == reports[1].metrics and evaluate(trained, steps).metrics == reports[1].metrics


def test_a_text_model_continues_a_prompt(tmp_path: Path) -> None:
    words = "abcdefgh "
    (tmp_path / "here.txt").write_text(words * 60)
    (tmp_path / "run.yaml").write_text(TEXT.replace("here.txt", str(tmp_path / "here.txt")))
    config = loaded(tmp_path / "run.yaml", tmp_path / "out")
    _, recorder = run(config)
    assert recorder.losses[60] < 0.3 < 3 < recorder.losses[1]
    pieces: list[str] = []
    text = generate(config, "abc", 12, temperature=0.0, say=pieces.append)
    assert text == "defgh abcdef" == "".join(pieces) and len(pieces) == 12
    drawn = [generate(config, "a", 30, temperature=5.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and set(drawn[0]) <= set(words)
    assert generate(config, "ab", 5, top_k=1, seed=9) == "cdefg"


SPLIT = ["strategy.devices=2", "strategy.tensor=2"]


@pytest.mark.parametrize(
    ("model", "other", "calls"),
    [
        ("Llama", "LlamaWithoutCache", [SPLIT]),
        pytest.param(
            "gpt", "gpt_without_cache", [[], ["strategy.devices=2"], SPLIT, ["strategy.devices=2", "strategy.view=mirrored"]], marks=pytest.mark.full
        ),
    ],
)
def test_a_cache_changes_no_text(model: str, other: str, calls: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("abcdefgh " * 60)
    (tmp_path / "run.yaml").write_text(TEXT.replace("here.txt", str(tmp_path / "here.txt")).replace(":gpt", f":{model}"))

    def text(*settings: str) -> str:
        return generate(loaded(tmp_path / "run.yaml", tmp_path / "out", *settings), "abc", 14, temperature=2.0, seed=2)

    run(loaded(tmp_path / "run.yaml", tmp_path / "out", "training.steps=2"))
    without = text(f"model.builder=nets_to_train:{other}")
    assert len(set(without)) > 5
    assert [text(*call) for call in calls] == [without] * len(calls)


def test_a_text_model_without_scores_raises(tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("abcdefgh " * 60)
    model = TEXT[TEXT.index("model:") : TEXT.index("data:")]
    changed = TEXT.replace(model, 'model: {builder: "nets_to_train:unnamed"}\n').replace("steps: 60", "steps: 1")
    (tmp_path / "run.yaml").write_text(changed.replace("here.txt", str(tmp_path / "here.txt")))
    config = loaded(tmp_path / "run.yaml", tmp_path / "out")
    run(config)
    with pytest.raises(ConfigError, match=r'nets_to_train:unnamed at .* returned logits; return a dict with "scores"'):
        generate(config, "abc", 3)
