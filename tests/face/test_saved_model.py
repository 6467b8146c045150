"""Predict jobs saved with their variables, and run from the files in a separate session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, CheckpointError, JobError

IMAGES = np.random.default_rng(0).normal(size=(4, 1, 6, 6)).astype(np.float32)


def net(images: Any) -> Any:
    initial = flow.random_uniform_initializer(-0.5, 0.5)
    hidden = flow.layers.conv2d(images, 3, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=initial, name="conv")
    hidden = flow.nn.max_pool2d(flow.layers.batch_normalization(hidden, axis=1, name="norm"), 2, 2, "VALID")
    return flow.layers.dense(flow.reshape(hidden, (hidden.shape[0], -1)), 2, kernel_initializer=initial, name="scores")


def jobs() -> tuple[Any, Any, dict[str, str]]:
    names: dict[str, str] = {}

    @flow.global_function("train")
    def training(images: tp.Numpy.Placeholder((4, 1, 6, 6))) -> tp.Numpy:
        loss = flow.math.square(net(images))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    @flow.global_function()
    def predicting(images: tp.Numpy.Placeholder((4, 1, 6, 6))) -> tp.Numpy:
        scores = net(images)
        names.update(scores=scores.logical_blob_name, images=images.logical_blob_name)
        return flow.nn.softmax(scores)

    return training, predicting, names


@pytest.fixture
def saved(fresh: None, tmp_path: Path) -> tuple[Path, Any]:
    """Save a model to a folder; return the folder and the job's result."""
    training, predicting, names = jobs()
    training(IMAGES)
    expected = predicting(IMAGES)
    builder = flow.saved_model.ModelBuilder(str(tmp_path / "models")).ModelName("net").Version(2)
    graph = builder.AddFunction(predicting)
    graph.AddSignature("classes").Input("image", names["images"]).Output("score", names["scores"])
    graph.AddSignature("twice").Input("x", names["images"]).Output("a", names["scores"]).Output("b", names["scores"]).Complete()
    builder.Save()
    with pytest.raises(CheckpointError, match="2 already exists; choose another version"):
        builder.Save()
    training(IMAGES)  # which the saved model does not see
    return tmp_path / "models", expected


@pytest.mark.parametrize("devices", [1, 2])
def test_a_saved_job_returns_equal_results(saved: tuple[Path, Any], devices: int) -> None:
    folder, expected = saved
    option = flow.serving.SessionOption()
    option.device_num = devices
    with flow.serving.InferenceSession(option) as session:
        session.load_saved_model(str(folder))
        session.launch()
        outputs = session.run("predicting", image=IMAGES)
        assert list(outputs) == ["score"] and (session.list_jobs(), session.list_inputs(), session.list_outputs()) == (
            ["predicting"],
            ["image"],
            ["score"],
        )
        scores = np.exp(outputs["score"])
        np.testing.assert_allclose(scores / scores.sum(1, keepdims=True), expected, rtol=1e-5)
        np.testing.assert_array_equal(outputs[0], outputs["score"])
        assert session.input_info("image") == {"shape": (4, 1, 6, 6), "dtype": np.float32}
        assert session.output_info("score", "predicting") == {"shape": (4, 2), "dtype": np.float32}
    assert "System-Train-TrainStep-training" in flow.get_all_variables()  # the program's own session goes on


def test_signatures_are_chosen(saved: tuple[Path, Any]) -> None:
    with flow.serving.InferenceSession() as session:
        session.load_saved_model(str(saved[0]), model_version=2, graph_name="predicting", signature_name="twice")
        session.launch()
        outputs = session.run("predicting", x=IMAGES)
        np.testing.assert_array_equal(outputs["a"], outputs["b"])
        with pytest.raises(ArgumentError, match="unknown input 'image'; choose from x"):
            session.run("predicting", image=IMAGES)
        with pytest.raises(ArgumentError, match="requires the input 'x'"):
            session.run("predicting")


def test_batches_of_another_size(fresh: None, tmp_path: Path) -> None:
    @flow.global_function()
    def doubled(x: tp.Numpy.Placeholder((4, 3))) -> tuple[tp.Numpy, tp.Numpy]:
        return x * 2, flow.math.reduce_sum(x, axis=1)

    builder = flow.saved_model.ModelBuilder(str(tmp_path))
    builder.AddFunction(doubled).Complete().Save()  # type: ignore[union-attr]
    with flow.serving.InferenceSession() as session:
        session.load_saved_model(str(tmp_path))
        session.set_job_batch_size("doubled", 2)
        session.launch()
        outputs = session.run("doubled", x=np.ones((2, 3), np.float32))
        assert outputs["output_0"].tolist() == [[2] * 3] * 2 and outputs["output_1"].tolist() == [3, 3]


def test_jobs_that_cannot_be_saved_raise(fresh: None, tmp_path: Path) -> None:
    training, predicting, _ = jobs()
    builder = flow.saved_model.ModelBuilder(str(tmp_path))
    with pytest.raises(JobError, match="the model has no job"):
        builder.Save()
    with pytest.raises(JobError, match=r"ModelBuilder.AddFunction at test_saved_model.py:\d+: 3 is not a job; decorate the function"):
        builder.AddFunction(3)
    builder.AddFunction(training)
    with pytest.raises(JobError, match="is a train job; save a predict job that has the same variables"):
        builder.Save()
    for output, text in (
        ("scares-bias_add/out", 'no tensor "scares-bias_add/out"; did you mean "scores-bias_add/out"'),
        ("scores-bias_add/out", "has no input"),
    ):
        builder = flow.saved_model.ModelBuilder(str(tmp_path))
        builder.AddFunction(predicting).AddSignature("s").Output("y", output)
        with pytest.raises(JobError, match=text):
            builder.Save()
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_models_raise(saved: tuple[Path, Any]) -> None:
    folder, session = saved[0], flow.serving.InferenceSession()
    with pytest.raises(CheckpointError, match=r"has no version 3; it has \[2\]"):
        session.load_saved_model(str(folder), 3)
    file = folder / "2" / "saved_model.json"
    tree = json.loads(file.read_text())
    tree["graphs"]["predicting"]["nodes"][2]["op"][0] = "System"
    file.write_text(json.dumps(tree))
    session.load_saved_model(str(folder))
    with pytest.raises(CheckpointError, match="this version of jobflow has no class 'System'; load the model with the version that saved it"):
        session.launch()
    session.close()
    file.write_text('{"format": 2}')
    with pytest.raises(CheckpointError, match="has another format than"):
        session.load_saved_model(str(folder))


@pytest.fixture
def saved_gather(fresh: None, tmp_path: Path) -> tuple[Path, Any]:
    """Save a job with a runtime assertion and a requested layout; return the file and the job's result."""
    names: dict[str, str] = {}

    @flow.global_function()
    def rows(indices: tp.Numpy.Placeholder((3, 1), dtype=flow.int32)) -> tp.Numpy:
        table = flow.get_variable("table", (4, 2), initializer=flow.random_uniform_initializer(-1, 1))
        result = flow.hierarchical_parallel_cast(flow.gather_nd(table, indices), ["B"])
        names["rows"] = result.logical_blob_name
        return result

    expected = rows(INDICES)
    builder = flow.saved_model.ModelBuilder(str(tmp_path / "models")).ModelName("rows").Version(1)
    builder.AddFunction(rows).AddSignature("rows").Input("indices", "indices/out").Output("rows", names["rows"])
    builder.Save()
    return tmp_path / "models" / "1" / "saved_model.json", expected


INDICES = np.array([[3], [0], [2]], np.int32)


def test_files_with_op_names_of_earlier_versions_load(saved_gather: tuple[Path, Any]) -> None:
    file, expected = saved_gather
    text = file.read_text()
    for new, old in (("RuntimeAssertion", "Checked"), ("requested_by", "asked")):
        assert text.count(f'"{new}"') == 1
        text = text.replace(f'"{new}"', f'"{old}"')
    file.write_text(text)
    with flow.serving.InferenceSession() as session:
        session.load_saved_model(str(file.parents[1]))
        session.launch()
        np.testing.assert_array_equal(session.run("rows", indices=INDICES)["rows"], expected)


def test_an_unknown_attribute_in_a_file_raises(saved_gather: tuple[Path, Any]) -> None:
    file, _ = saved_gather
    file.write_text(file.read_text().replace('"requested_by"', '"reqested_by"'))
    with flow.serving.InferenceSession() as session:
        session.load_saved_model(str(file.parents[1]))
        with pytest.raises(CheckpointError, match=r"op ToLayout has no attribute .reqested_by. in this version"):
            session.launch()
