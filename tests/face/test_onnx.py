"""Predict jobs as ONNX files, run by the reference evaluator of onnx."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, CheckpointError, JobError

RANDOM = np.random.default_rng(0)
UNIFORM = flow.random_uniform_initializer(-0.5, 0.5)
Images = tp.Numpy.Placeholder((2, 3, 9, 9))
Tokens = tp.Numpy.Placeholder((2, 5), dtype=flow.int32)
Matrix = tp.Numpy.Placeholder((4, 3))


def convolutions(x: Images) -> tp.Numpy:
    y = flow.layers.conv2d(x, 4, 3, strides=2, padding="SAME", groups=1, kernel_initializer=UNIFORM, name="first")
    y = flow.nn.leaky_relu(flow.layers.batch_normalization(y, axis=1, name="norm"), 0.1)
    y = flow.nn.max_pool2d(y, 3, 1, "SAME") + flow.nn.avg_pool2d(y, 3, 1, "SAME")
    y = flow.layers.dense(flow.reshape(y, (2, -1)), 3, kernel_initializer=UNIFORM, name="last")
    return flow.nn.softmax(y)


def attention(ids: Tokens) -> tuple[tp.Numpy, tp.Numpy]:
    table = flow.get_variable("table", (11, 8), initializer=UNIFORM)
    x = flow.layers.layer_norm(flow.gather(table, ids), name="norm")
    heads = [flow.transpose(flow.reshape(flow.layers.dense(x, 8, kernel_initializer=UNIFORM, name=n), (2, 5, 2, 4)), (0, 2, 1, 3)) for n in "qkv"]
    scores = flow.matmul(heads[0], heads[1], transpose_b=True, alpha=0.5)
    mixed = flow.matmul(flow.math.fused_scale_tril_softmax_dropout(scores, fill_value=-1e4), heads[2])
    y = flow.math.gelu(flow.reshape(flow.transpose(mixed, (0, 2, 1, 3)), (2, 5, 8)))
    return flow.matmul(y, table, transpose_b=True), flow.math.argmax(flow.matmul(y, table, transpose_b=True))


def elements(x: Matrix) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
    y = flow.concat([flow.slice(x, [None, 1], [None, 2]), flow.reverse(x, 1)], axis=1)
    z = flow.math.sigmoid(y) * flow.math.tanh(y) - flow.math.log1p(flow.math.square(y)) / 3
    chosen = flow.where(flow.math.greater(z, flow.constant(0, flow.float, (1,))), z, flow.math.exp(z))
    sums = flow.math.reduce_sum(chosen, axis=0, keepdims=True) + flow.math.reduce_max(chosen, axis=1, keepdims=True)
    one_hot = flow.one_hot(flow.cast(flow.math.abs(flow.math.round(x)), flow.int32), 4, dtype=flow.float)
    return flow.pad(sums, [[1, 0], [0, 2]], 7), flow.math.top_k(x, k=2), one_hot, flow.nn.hardswish(x) + flow.math.rsqrt(flow.math.square(x) + 1)


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "convolutions": (convolutions, RANDOM.normal(size=(2, 3, 9, 9)).astype(np.float32)),
    "attention": (attention, RANDOM.integers(0, 11, (2, 5)).astype(np.int32)),
    "elements": (elements, RANDOM.normal(size=(4, 3)).astype(np.float32)),
}


@pytest.mark.parametrize("case", CASES)
def test_an_exported_file_computes_the_results_of_the_job(fresh: None, tmp_path: Path, case: str) -> None:
    function, argument = CASES[case]
    job = flow.global_function()(function)
    expected = job(argument)
    file, saved = str(tmp_path / "net.onnx"), ""
    if case != "elements":
        saved = str(tmp_path / "weights")
        flow.checkpoint.save(saved)
    flow.onnx.export(job, saved, file, external_data=case == "attention")
    model = onnx.load(file)
    (graph_input,) = model.graph.input
    outputs = ReferenceEvaluator(model).run(None, {graph_input.name: argument})
    for name, result, reference in zip(model.graph.output, outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert result.dtype == reference.dtype and name.name.startswith("output")
        np.testing.assert_allclose(result, reference, rtol=2e-5, atol=1e-6)


class Net(flow.nn.Module):
    """A module with statistics, dropout and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = flow.nn.Sequential(flow.nn.Conv2d(3, 4, 3), flow.nn.BatchNorm2d(4), flow.nn.ReLU(), flow.nn.Dropout(0.5), flow.nn.Flatten())
        self.last = flow.nn.Linear(196, 5)

    def forward(self, images: Any) -> dict[str, Any]:
        scores = self.last(self.layers(images))
        return {"scores": scores, "best": scores.argmax(1)}


def test_an_exported_module_computes_its_outputs_in_evaluation_mode(tmp_path: Path) -> None:
    net, x, file = Net(), flow.randn(2, 3, 9, 9), tmp_path / "deep" / "net.onnx"
    net(x)
    flow.onnx.export(net, (x,), file)
    assert net.training and net.layers[3].training
    model = onnx.load(file)
    assert [entry.name for entry in model.graph.output] == ["scores", "best"]
    scores, best = ReferenceEvaluator(model).run(None, {"images": x.numpy()})
    expected = net.eval()(x)
    np.testing.assert_allclose(scores, expected["scores"].numpy(), rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(best, expected["best"].numpy())
    flow.onnx.export(net.last, flow.ones(1, 196), str(file))
    assert [entry.name for entry in onnx.load(file).graph.output] == ["output"]
    for inputs, message in {(): r"the inputs of Net are \(\); pass a tensor", (x, x): "forward of Net and 2 inputs: too many positional"}.items():
        with pytest.raises(ArgumentError, match=message):
            flow.onnx.export(net, inputs, file)


def test_jobs_that_cannot_be_exported_raise(fresh: None, tmp_path: Path) -> None:
    file = str(tmp_path / "net.onnx")

    @flow.global_function("train")
    def training(x: Matrix) -> tp.Numpy:
        loss = flow.layers.dense(x, 1, name="w", kernel_initializer=UNIFORM)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    @flow.global_function()
    def sorting(x: Matrix) -> tp.Numpy:
        return flow.sort(flow.layers.dense(x, 1, name="w", kernel_initializer=UNIFORM))

    @flow.global_function()
    def sampled(x: Matrix) -> tp.Numpy:
        return flow.random.bernoulli(x, name="coins")

    with pytest.raises(JobError, match=r"onnx.export at test_onnx.py:\d+: 3 is not a job; decorate the function with global_function"):
        flow.onnx.export(3, "", file)
    with pytest.raises(JobError, match="is a train job; export a predict job"):
        flow.onnx.export(training, "", file)
    with pytest.raises(JobError, match=r"sort at test_onnx.py:\d+: ONNX has no equivalent"):
        flow.onnx.export(sorting, "", file)
    with pytest.raises(JobError, match="samples random numbers or reads files"):
        flow.onnx.export(sampled, "", file)
    with pytest.raises(ArgumentError, match="opset 19 is not supported; pass at most 18"):
        flow.onnx.export(sorting, "", file, opset=19)
    flow.checkpoint.save(str(tmp_path / "other"), {"other": np.zeros(1)})
    with pytest.raises(CheckpointError, match='has no variable "w-bias"'):
        flow.onnx.export(sorting, str(tmp_path / "other"), file)
    flow.onnx.export(sorting, "", file, continue_on_error=True)
    assert "Sort" in [node.op_type for node in onnx.load(file).graph.node if node.domain == "jobflow"]
