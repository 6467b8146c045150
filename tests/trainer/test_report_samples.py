"""Samples of texts and images in the report: files, limits of the page, resumed runs, and wrong values."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from short_runs import CONFIG, loaded, write_config

from jobflow.core.errors import ConfigError
from jobflow.trainer import Callback, TrainingRun, train
from jobflow.trainer.parameter_average import ParameterAverage
from jobflow.trainer.report_samples import ImageSamples, TextSamples
from jobflow.trainer.shown_samples import MOST_BYTES, samples_section, write_sample
from jobflow.trainer.training_run import CallbackError, EvaluationReport

TEXT = """
model: {builder: "jobflow.models:gpt", arguments: {words: 256, length: 8, width: 8, heads: 1, blocks: 1}}
data:
  train: {reader: text, level: byte, path: here.txt, length: 8, stride: 8, split: train}
  validation: {reader: text, level: byte, path: here.txt, length: 8, split: validation}
  batch_size: 4
optimizer: {name: sgd, lr: 0.1}
training: {steps: 4}
evaluation: {every_steps: 2}
checkpoint: {every_steps: 2}
logging: {progress: none, report: true}
callbacks:
  - callback: jobflow.trainer.report_samples:TextSamples
    arguments: {prompts: [to be, or], count: 5, top_p: 0.9}
"""


def _text(folder: Path, *settings: str) -> Any:
    (folder / "here.txt").write_text("to be or not to be, that is the question; " * 4)
    (folder / "text.yaml").write_text(TEXT.replace("here.txt", str(folder / "here.txt")))
    return loaded(folder / "text.yaml", folder / "out", *settings)


@pytest.mark.full
def test_generated_texts_are_in_the_report_and_equal_after_a_resume(tmp_path: Path) -> None:
    whole = train(_text(tmp_path))
    texts = {path.relative_to(tmp_path / "out").as_posix(): path.read_text() for path in (tmp_path / "out").glob("samples/*/*.txt")}
    assert sorted(texts) == [f"samples/step-0000000{step}/text_{number}.txt" for step in (2, 4) for number in (1, 2)]
    assert texts["samples/step-00000002/text_1.txt"].startswith("to be") and len(texts["samples/step-00000002/text_1.txt"]) >= 6
    assert whole.report is not None and "<h3>step 4</h3>" in whole.report.read_text()
    for settings in (("training.steps=2",), ("strategy.devices=2",)):
        train(_text(tmp_path, f"output={tmp_path / 'parts'}", *settings))
    parts = {path.relative_to(tmp_path / "parts").as_posix(): path.read_text() for path in (tmp_path / "parts").glob("samples/*/*.txt")}
    assert parts == texts


def test_images_of_samples_and_outputs_are_shown(tmp_path: Path) -> None:
    file = write_config(tmp_path / "run", CONFIG.replace("steps: 9", "steps: 1"))
    images = np.random.default_rng(0).integers(0, 256, (26, 3, 4, 5), np.uint8)
    for name in ("train", "validation"):
        np.savez(tmp_path / "run" / f"{name}.npz", x=images, labels=np.zeros(26, np.int32))
    layers = "model.layers=[flatten, {dense: {units: 12}}, {reshape: {shape: [3, 4]}}, flatten, {dense: {units: 4}}]"
    train(loaded(file, tmp_path / "out", layers), callbacks=[ImageSamples(4), ParameterAverage()])
    shown = np.asarray(Image.open(tmp_path / "out" / "samples" / "step-00000001" / "x.png"))
    assert (
        shown.shape == (9, 11, 3) and (shown[:4, :5] == images[0].transpose(1, 2, 0)).all() and (shown[5:, 6:] == images[3].transpose(1, 2, 0)).all()
    )


PICTURES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "gray": (np.zeros((4, 5)), (4, 5)),
    "colour": (np.ones((4, 5, 3)), (4, 5, 3)),
    "channels first": (np.ones((3, 4, 5), bool), (4, 5, 3)),
    "several": (np.zeros((5, 4, 6, 1)), (9, 20)),
    "several without channels": (np.zeros((2, 4, 6)), (4, 13)),
    "large": (np.zeros((3000, 20), np.uint8), (1000, 7)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_have_bounded_sizes(name: str, tmp_path: Path) -> None:
    value, shape = PICTURES[name]
    write_sample(tmp_path, 3, "own/picture", value)
    assert np.asarray(Image.open(io.BytesIO((tmp_path / "samples" / "step-00000003" / "own_picture.png").read_bytes()))).shape == shape


@pytest.mark.parametrize("value", [3, np.zeros((2, 4, 5, 6)), np.array(["a"]), None], ids=["number", "channels", "texts", "None"])
def test_other_values_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match=r"run.show at test_report_samples.py:\d+: (.* channels|the sample)"):
        write_sample(tmp_path, 1, "own", value)


def test_the_page_has_the_newest_samples_within_its_limit(tmp_path: Path) -> None:
    for step in range(1, 12):
        write_sample(tmp_path, step, "note", "<b>" * 10_000)
        (tmp_path / "samples" / f"step-{step:08d}" / "noise.png").write_bytes(bytes(900_000))
    section = samples_section(tmp_path)
    assert [one["step"] for one in section] == [str(step) for step in range(11, 3, -1)]
    assert sum(len(content) for one in section for _, _, content in one["samples"]) <= MOST_BYTES
    assert all(len(content) < 11_000 for one in section for name, _, content in one["samples"] if name == "note")


class Shows(Callback):
    """Make wrong requests, and record their errors."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        for name, (request, _) in WRONG.items():
            try:
                request(run)
            except CallbackError as error:
                self.refused[name] = str(error)


def write_in_averages(run: TrainingRun) -> None:
    with run.averages():
        run.write("dense1-bias", np.zeros(12))


WRONG: dict[str, tuple[Any, str]] = {
    "a name": (lambda run: run.show("a\nb", "text"), r"run.show at test_report_samples.py:\d+: .a\nb. is no name of a value"),
    "a field": (lambda run: run.predict({"y": np.zeros((1, 6))}), r'the model needs the field "x"; the batch has y'),
    "a shape": (lambda run: run.predict({"x": np.zeros((1, 7))}), r'"x" has rows of shape \[6\], and the array has the shape \[1, 7\]'),
    "a write": (write_in_averages, r"the run uses averages here; write parameters outside of run.averages\(\)"),
}


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    file, shows = write_config(tmp_path / "run", CONFIG.replace("steps: 9", "steps: 1")), Shows()
    train(loaded(file, tmp_path / "out"), callbacks=[shows, ParameterAverage()])
    for name, (_, message) in WRONG.items():
        assert re.search(message, shows.refused[name]), shows.refused


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    for wrong in (lambda: TextSamples([]), lambda: TextSamples(["a"], count=0), lambda: ImageSamples(0)):
        with pytest.raises(ConfigError, match=r"Samples at test_report_samples.py:\d+: (prompts|count) is .*; pass "):
            wrong()
    file = write_config(tmp_path / "run", CONFIG.replace("steps: 9", "steps: 1"))
    for callback, message in ((TextSamples(["a"]), "use a reader of text"), (ImageSamples(show="y"), 'there is no "y"')):
        with pytest.raises(CallbackError, match=message):
            train(loaded(file, tmp_path / "out", "checkpoint.resume=never"), callbacks=[callback])
