"""Operations by the names of their types: published types, the programs' own types, and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from op_type_cases import CASES, X, Y

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.types import dtype_of
from jobflow.legacy.extras.op_types import OP_TYPES
from jobflow.legacy.extras.user_ops import op_type
from jobflow.ops.pointwise import Unary


def built(word: str, inputs: Any, attributes: dict[str, Any], name: str) -> list[Any]:
    """Return the first outputs of an operation, as many as the NumPy reference has."""

    kind = op_type(word)
    assert kind.inputs is not None and kind.outputs is not None
    builder = flow.user_op_builder(name).Op(word)
    for key, tensors in zip(kind.inputs, inputs, strict=False):
        builder.Input(key, tensors if isinstance(tensors, list) else [tensors])
    expected = CASES[word][2]
    if kind.outputs[0].endswith("*"):
        builder.Output(kind.outputs[0][:-1], len(expected))
    else:
        for key in kind.outputs[: len(expected) if isinstance(expected, tuple) else 1]:
            builder.Output(key)
    for key, value in attributes.items():
        builder.Attr(key, value, "")
    return builder.Build().InferAndTryRun().RemoteBlobList()


def test_every_type_has_a_case() -> None:
    listed = {key.partition(" ")[0] for key in OP_TYPES}
    assert listed - set(CASES) == {"categorical_ordinal_encode", "moving_average_min_max_observer"}  # which have variables
    assert set(CASES) <= listed


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return the outputs of all types from one job on two devices."""
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    arrays: list[Any] = []

    def number(x: Any) -> Any:
        if isinstance(x, list):
            return list(map(number, x))
        arrays.append(x)
        return len(arrays) - 1

    places = {word: tuple(map(number, samples)) for word, (samples, _, _) in CASES.items()}
    argument_type: Any = tuple[tuple(tp.Numpy.Placeholder(x.shape, dtype_of(x.dtype)) for x in arrays)]  # type: ignore[misc]

    def job(samples: Any) -> tp.Bundle[tp.Numpy]:  # type: ignore[type-var]
        outputs_by_type = {}
        for word, (_, attributes, _) in CASES.items():
            with flow.scope.placement("cpu", "0:0-1"):
                tensors = [[samples[i] for i in at] if isinstance(at, list) else samples[at] for at in places[word]]
                outputs_by_type[word] = built(word, tensors, attributes, f"{word}_op")
        return outputs_by_type

    job.__annotations__["samples"] = argument_type
    arrays_by_type: dict[str, Any] = flow.global_function()(job)(tuple(arrays))
    flow.clear_default_session()
    return arrays_by_type


@pytest.mark.parametrize("word", [word for word, case in CASES.items() if case[2] is not None])
def test_values(word: str, results: dict[str, Any]) -> None:
    expected = CASES[word][2]
    for result, reference in zip(results[word], expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(result, reference, rtol=2e-5, atol=2e-5)


class Squareplus(Unary):
    """y = (x + sqrt(x^2 + bias)) / 2"""

    bias: float = 4.0

    def formula(self, f: Any, x: Any) -> Any:
        return (x + f.sqrt(x * x + self.bias)) * 0.5


def test_a_class_of_the_program_and_modules(run: Any) -> None:
    """Find it by name; builders of modules make several operations, and `builtin_op` makes a function of tensors."""

    def body(x: Any, y: Any) -> Any:
        plus = flow.consistent_user_op_module_builder("add_n").InputSize("in", 2).Output("out").CheckAndComplete()
        plus.user_op_module.InitOpKernel()
        total = plus.OpName("first").Input("in", [x, y]).Build().InferAndTryRun().SoleOutputBlob()
        total = plus.OpName("second").Input("in", [total, y]).Build().InferAndTryRun().SoleOutputBlob()
        softer = flow.user_op_module_builder("leaky_relu").InputSize("x", 1).Output("y").Attr("alpha", 0.5)
        curve = flow.consistent_user_op_builder("curve").Op("Squareplus").Input("x", [total]).Output("z").SetAttr("bias", 1.0, "at_float")
        return curve.Build().InferAndTryRun().RemoteBlobDict()["z"][0], softer.OpName("s").Input("x", [-x]).Build().InferAndTryRun().SoleOutputBlob()

    total = X + 2 * Y
    curve, softer = run(body, X, Y)
    np.testing.assert_allclose(curve, (total + np.sqrt(total * total + 1)) / 2, rtol=1e-6)
    np.testing.assert_allclose(softer, -X / 2)
    slice_ = flow.builtin_op("slice").Input("x").Output("y").Attr("start", [1, 0]).Attr("stop", [3, 2]).Build()
    assert slice_(flow.tensor(X), step=[1, 1])[0].numpy().tolist() == X[1:3, :2].tolist()


def op(word: str) -> Any:
    return flow.user_op_builder("n").Op(word)


def of_row(x: Any) -> Any:
    return flow.math.reduce_sum(x, [0])


def sliced(x: Any, start: Any) -> Any:
    return op("slice").Input("x", [x]).Output("y").Attr("start", start).Attr("stop", [1, 1]).Attr("step", [1, 1]).Build().InferAndTryRun()


def stepped(x: Any, **more: Any) -> Any:
    builder = op("sgd_update").Input("model", [flow.get_variable("w", (4, 6), initializer=flow.ones_initializer())]).Input("model_diff", [x])
    for word, tensor in more.items():
        builder.Input(word, [tensor])
    return builder.Build().InferAndTryRun()


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a type": (lambda x: op("leaky_rely"), 'unknown operation type .leaky_rely.; did you mean "leaky_relu"'),
    "an input": (lambda x: op("gather").Input("indexes", [x]), 'no input .indexes.; did you mean "indices"'),
    "an attribute": (lambda x: op("gather").Attr("axes", 1), 'no attribute .axes.; did you mean "axis"'),
    "an output": (lambda x: op("gather").Output("y"), "no output 'y' .it has out"),
    "what is missing": (lambda x: op("gather").Input("in", [x]).Build(), "requires input 'indices', attribute 'axis', an output; set each"),
    "an input twice": (lambda x: op("relu").Input("in", [x]).Input("in", [x]), "set twice"),
    "two tensors": (lambda x: op("relu").Input("in", [x, x]), "a list of one tensor, not of 2"),
    "no list": (lambda x: op("relu").Input("in", x), "a list of tensors"),
    "a number": (lambda x: op("relu").Input("in", [1.0]), "a list of tensors"),
    "no type": (lambda x: flow.user_op_builder("n").Input("in", [x]), "call Op.type. first"),
    "too early": (lambda x: op("relu").Input("in", [x]).Output("out").Build().SoleOutputBlob(), "InferAndTryRun"),
    "a module's input": (lambda x: flow.user_op_module_builder("relu").InputSize("inn", 1), 'did you mean "in"'),
    "shapes": (lambda x: op("matmul").Input("a", [x]).Input("b", [x]).Output("out").Build().InferAndTryRun(), "the summed axis has size"),
    "a text for an integer": (lambda x: op("gather").Attr("axis", "1"), "attribute 'axis' must be an integer, or a list of integers, not '1'"),
    "a number for a list": (lambda x: op("conv2d").Attr("strides", 2), "attribute 'strides' must be a list of integers, not 2"),
    "a wrong default": (lambda x: op("ctc_loss").Attr("blank", None), "attribute 'blank' must be an integer, not None"),
    "no number for a rate": (lambda x: op("sgd_update").Attr("learning_rate_val", math.nan), "'learning_rate_val' must be a number, not nan"),
    "a share above 1": (lambda x: op("adam_update").Attr("beta2", 1.5), "'beta2' must be a number of at least 0 and below 1, not 1.5"),
    "a margin below 0": (lambda x: op("layer_norm").Attr("epsilon", -1.0), "'epsilon' must be a number of at least 0, not -1.0"),
    "an array without axes for a list": (lambda x: op("conv2d").Attr("strides", np.array(2)), "'strides' must be a list of integers, not array.2."),
    "a word for each element": (lambda x: stepped(x, skip_if=x), r"sgd_update at .*: skip_if float32.4,6. must have one element"),
    "a scale for each element": (lambda x: stepped(x, scale_by_tensor=x), r"scale_by_tensor float32.4,6. must have one element"),
    "a rate for each step": (
        lambda x: (
            op("adam_bias_correction_learning_rate").Input("learning_rate", [x]).Input("train_step", [x]).Output("out").Build().InferAndTryRun()
        ),
        r"learning_rate float32.4,6. must have one element",
    ),
    "a text for the begin of slices": (lambda x: sliced(x, "01"), "start '01', stop .1, 1., step .1, 1. must be lists of integers"),
    "begins of fewer axes than ends": (lambda x: sliced(x, [0]), "start .0., stop .1, 1., step .1, 1. must be lists of integers"),
    "parts along an axis that is none": (
        lambda x: op("split_like").Input("in", [x]).Input("like", [x]).Output("out").Attr("axis", 2).Build().InferAndTryRun(),
        "split_like at .*: axis 2 is out of range",
    ),
    "segments along an axis that is none": (lambda x: flow.math.unsorted_segment_sum_like(x, flow.argsort(x), x, axis=2), "axis 2 is out of range"),
    "heads of no size": (lambda x: flow.nn.fused_self_attention_query_mul_key_and_value(flow.reshape(x, (1, 4, 6)), 0), "got head_size 0"),
    "averages that are computed": (
        lambda x: (
            op("normalization")
            .Input("x", [x])
            .Input("gamma", [of_row(x)])
            .Input("beta", [of_row(x)])
            .Input("moving_mean", [of_row(x)])
            .Input("moving_variance", [of_row(x)])
            .Output("y")
            .Attr("training", True)
            .Attr("epsilon", 0.1)
            .Attr("momentum", 0.9)
            .Attr("axis", 1)
            .Build()
            .InferAndTryRun()
        ),
        "moving statistics must be variables",
    ),
    "a matrix of very many rows": (lambda x: flow.diag(of_row(x), 10**30), "exceeds the largest number of rows"),
    "images of very many rows": (lambda x: flow.layers.upsample_2d(flow.reshape(x, (1, 1, 4, 6)), (1e300, 1)), "the output size"),
    "a frame as large as the image": (
        lambda x: op("reflection_pad2d_grad").Input("dy", [x]).Output("dx").Attr("padding", [1, 1, 1, 1]).Build().InferAndTryRun(),
        "float32.4,6. does not have the shape of a tensor padded by",
    ),
    "a kernel that is none of the weight": (
        lambda x: op("deconv2d").Input("in", [x]).Input("weight", [x]).Output("out").Attr("kernel_size", [3, 3]).Build().InferAndTryRun(),
        r"weight float32.4,6. does not fit 2 spatial axes, .*kernel_size=.3, 3.",
    ),
    "an attribute of a class": (lambda x: op("squareplus").Attr("biass", 1), 'did you mean "bias"'),
}


@pytest.mark.parametrize(("body", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_arguments_raise(body: Any, message: str, run: Any) -> None:
    with pytest.raises(flow.JobflowError, match=message):
        run(body, X)


def test_a_plugin_of_python_kernels(tmp_path: Any) -> None:
    """Read a folder with an interface and kernels by `custom_op_module`."""
    folder = tmp_path / "user_sigmoid"
    folder.mkdir()
    call = 'return flow.user_op_builder("s").Op("user_sigmoid_forward").Input("x", [x]).Output("y").Build().InferAndTryRun().SoleOutputBlob()'
    (folder / "user_sigmoid_py_api.py").write_text(f"import jobflow as flow\n\n\ndef user_sigmoid_forward(x):\n    {call}\n")
    kernels = "import numpy as np\n\n\ndef forward(args):\n    return 1 / (1 + np.exp(-args[0]))\n\n\ndef backward(args):\n    y, dy = args\n"
    (folder / "user_sigmoid_py_kernel.py").write_text(kernels + "    return y * (1 - y) * dy\n")
    plugin = flow.experimental.custom_op_module("user_sigmoid", str(tmp_path)).py_api().cpp_def().py_kernel().build_load()
    gradients: dict[str, Any] = {}
    flow.clear_default_session()

    @flow.global_function("train")
    def job() -> tp.Numpy:
        x = flow.get_variable("x", (3,), initializer=flow.constant_initializer(0.5))
        flow.watch_diff(x, lambda dx: gradients.update(dx=dx.numpy()))
        y = plugin.api.user_sigmoid_forward(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(y)
        return y

    y = job()
    np.testing.assert_allclose(y, [1 / (1 + math.exp(-0.5))] * 3, rtol=1e-6)
    np.testing.assert_allclose(gradients["dx"], y * (1 - y), rtol=1e-6)
    flow.clear_default_session()
