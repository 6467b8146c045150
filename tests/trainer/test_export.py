"""Exports of trained models: ONNX files compute the predictions, and files of parameters start other runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from short_runs import CONFIG, loaded, run, write_config

from jobflow.cli import main
from jobflow.core.errors import JobError
from jobflow.data.readers import open_reader
from jobflow.data.samples import Samples
from jobflow.storage.export import open_any
from jobflow.trainer.config import Loaded
from jobflow.trainer.exporting import export
from jobflow.trainer.predict import predict

LISTED = CONFIG[CONFIG.index("model:") : CONFIG.index("data:")]
MODELS = {
    "layers": LISTED,
    "module": 'model: {builder: "nets_to_train:Backbone"}\n',
    "builder": 'model: {builder: "nets_to_train:backbone"}\n',
    "named": 'model: {builder: "nets_to_train:Named"}\n',
}

DIGITS = """
model: {builder: MODEL}
data: {train: {reader: digits, split: train}, test: {reader: digits, split: test}, batch_size: 8}
optimizer: {name: sgd, lr: 0.1}
training: {steps: 1}
logging: {progress: none, report: false}
"""


def one_step(model: str, folder: Path, *settings: str) -> Loaded:
    file = write_config(folder, CONFIG.replace(LISTED, model))
    config = loaded(file, folder / "out", "training.steps=1", "optimizer.warmup_steps=0", *settings)
    run(config)
    return config


def outputs_of(path: Path, x: Any) -> dict[str, Any]:
    """Run an ONNX file with the reference evaluator."""
    model = onnx.load(path)
    (name,) = [entry.name for entry in model.graph.input]
    return dict(zip([entry.name for entry in model.graph.output], ReferenceEvaluator(model).run(None, {name: x}), strict=True))


@pytest.mark.parametrize("model", [pytest.param(model, marks=pytest.mark.full if model in ("builder", "named") else ()) for model in MODELS])
def test_onnx_files_compute_the_predictions(model: str, tmp_path: Path) -> None:
    config = one_step(MODELS[model], tmp_path, *(["strategy.devices=2", "strategy.view=mirrored"] if model == "layers" else []))
    x = np.load(tmp_path / "validation.npz")["x"]
    expected = predict(config, "validation").outputs
    for name in ("train", "validation"):
        (tmp_path / f"{name}.npz").unlink()
    result = export(config, tmp_path / "deep" / "net.onnx", rows=26)
    assert {name: str(type) for name, type in result.inputs.items()} == {"x": "float32[26,6]"}
    outputs = outputs_of(result.path, x)
    assert list(outputs) == ["scores"]
    np.testing.assert_allclose(outputs["scores"], expected["scores"], rtol=2e-5, atol=1e-6)


@pytest.mark.full
def test_onnxruntime_computes_the_predictions(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
    for model in ("jobflow.models:lenet", "jobflow.models:resnet"):
        more = ", arguments: {blocks: [1, 1], width: 8}" if model.endswith("resnet") else ""
        (tmp_path / "run.yaml").write_text(DIGITS.replace("MODEL", model + more))
        config = loaded(tmp_path / "run.yaml", tmp_path / model[15:])
        run(config)
        path = export(config, tmp_path / f"{model[15:]}.onnx", rows=297).path
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        digits = open_reader("digits", split="test")
        assert isinstance(digits, Samples)
        images = digits.read(np.arange(297))["images"]
        (scores,) = session.run(["scores"], {"images": images})
        np.testing.assert_allclose(scores, predict(config, "test").outputs["scores"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("suffix", ["safetensors", pytest.param("npz", marks=pytest.mark.full)])
def test_exported_parameters_start_another_run(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = one_step(MODELS["module"], tmp_path)
    file, target = str(tmp_path / "run.yaml"), str(tmp_path / f"weights.{suffix}")
    command = ["export", file, "--set", f"output={tmp_path / 'out'}", "--to", target]
    assert main(command) == 0
    assert re.search(r"wrote .*: 9 tensors, \d+ values, from .*step-00000001", capsys.readouterr().out)
    names = set(open_any(target))
    assert names == {
        *(f"backbone.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")),
        *("head.weight", "head.bias"),
    }
    other = loaded(
        tmp_path / "run.yaml", tmp_path / "other", "training.steps=1", "optimizer.warmup_steps=0", f"start_from={target}", "optimizer.lr=1e-9"
    )
    run(other)
    np.testing.assert_allclose(predict(other, "validation").outputs["scores"], predict(config, "validation").outputs["scores"], rtol=0.2, atol=0.2)
    assert main(command) == 1
    assert "already exists; pass another name, or --force to replace a file" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    assert main([*command[:-1], "weights.onxx"]) != 0
    assert 'the suffix must be .onnx, .safetensors or .npz; did you mean ".onnx"?' in capsys.readouterr().err


def test_an_export_without_a_checkpoint_or_an_equivalent_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = one_step('model: {builder: "nets_to_train:sorted_scores"}\n', tmp_path)
    with pytest.raises(JobError, match=r"sort at .*nets_to_train.py:\d+: ONNX has no equivalent"):
        export(config, tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()
    assert main(["export", str(tmp_path / "run.yaml"), "--set", f"output={tmp_path / 'empty'}", "--to", str(tmp_path / "net.npz")]) == 1
    assert "there is no checkpoint in" in capsys.readouterr().err
