"""Layers: results, variables, names, and the statistics of batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jobflow import distribute, initializers, layers, math, nn, regularizers, scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import DuplicateNameError, ShapeError
from jobflow.core.layout import B, Placement, S
from jobflow.core.types import TensorType, float32, int32
from jobflow.engine.body import JobBody
from jobflow.legacy import activations
from jobflow.ops.layout_ops import ToGlobal, ToLocal
from jobflow.ops.matmul import MatMul

normal = initializers.random_normal_initializer()
TWO = Placement("cpu", (0, 1))


def namespace(name: str) -> Any:
    return scope.using(namespace=(*scope.current().namespace, name))


def traced(body: Callable[..., Any], *shapes: tuple[int, ...], train: bool = True, mirrored: bool = False) -> Tracer:
    """Return the tracer after a job of two devices with inputs of these shapes."""
    tracer = Tracer("job", TWO, trainable=train)
    job = JobBody(tracer)
    with scope.using(interpreter=job, placement=TWO, view="mirrored" if mirrored else "consistent"):
        body(*(job.handle(tracer.input(f"x{i}", TensorType(shape, float32), local=mirrored)) for i, shape in enumerate(shapes)))
    return tracer


def names(tracer: Tracer) -> list[str]:
    return [node.name for node in tracer.nodes if not node.name.startswith("x")]


# dense --------------------------------------------------------------------------------------------------------------


def test_dense(run: Any, rng: Any) -> None:
    def body(t: Any) -> Any:
        return layers.dense(t, 5, nn.relu, True, normal, normal, regularizers.l2(0.3), regularizers.l1(0.1), name="fc")

    x = rng.standard_normal((4, 3))
    y = run(body, x)
    w, b = run.job.state["fc-weight"], run.job.state["fc-bias"]
    assert w.shape == (5, 3) and b.shape == (5,) and w.dtype == np.float64
    np.testing.assert_allclose(y, np.maximum(x @ w.T + b, 0))
    assert run.job.names == ["fc-matmul", "fc-bias_add", "fc-activation"]
    weight, bias = run.job.variables["fc-weight"], run.job.variables["fc-bias"]
    assert (weight.l1, weight.l2, bias.l1, bias.l2) == (0, 0.3, 0.1, 0) and weight.trainable and bias.trainable


def test_dense_starts_as_zeros(run: Any) -> None:
    assert not run(lambda t: layers.dense(t, 2), np.ones((2, 3))).any()
    assert set(run.job.variables) == {"Dense-weight", "Dense-bias"}
    run(lambda t: layers.dense(t, 2, use_bias=False, trainable=False), np.ones((2, 3)))
    assert set(run.job.variables) == {"Dense-weight"} and not run.job.variables["Dense-weight"].trainable


def test_dense_keeps_leading_axes(run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 4, 3))
    y = run(lambda t: layers.dense(t, 5, kernel_initializer=normal, bias_initializer=normal), x)
    np.testing.assert_allclose(y, x @ run.job.state["Dense-weight"].T + run.job.state["Dense-bias"])


def test_dense_split_over_devices() -> None:
    tracer = traced(lambda t: layers.dense(t, 10, kernel_initializer=normal, model_distribute=distribute.split(0), name="out"), (4, 3))
    assert tracer.variables["out-weight"].sbp == tracer.variables["out-bias"].sbp == (S(0),)
    assert [node.op for node in tracer.nodes if isinstance(node.op, MatMul)] == [MatMul(False, True)]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3,), {}, "at least 2 axes"),
        ((2, 3, 4), {"model_distribute": distribute.split(0)}, "split\\(0\\) requires inputs of 2 axes"),
        ((2, 3), {"model_distribute": distribute.split(1)}, "model_distribute jobflow.distribute.split\\(axis=1\\)"),
        ((2, 3), {"model_distribute": "split"}, "model_distribute 'split'"),
    ],
)
def test_dense_checks_its_arguments(shape: Any, options: Any, message: str, run: Any) -> None:
    with pytest.raises(ValueError, match=rf'dense at test_layers\.py:\d+ \(layer "fc"\): .*{message}'):
        run(lambda t: layers.dense(t, 2, name="fc", **options), np.zeros(shape))


def test_two_layers_of_one_name() -> None:
    def body(t: Any) -> None:
        layers.dense(t, 3)
        layers.dense(t, 3)

    with pytest.raises(DuplicateNameError, match=r"'Dense-weight'.*already exists"):
        traced(body, (4, 3))


def test_layers_without_a_name_are_counted() -> None:
    def body(t: Any) -> None:
        for _ in range(2):
            layers.dense(t, 3, name=None)  # type: ignore[arg-type]

    assert list(traced(body, (4, 3)).variables) == ["Dense_1-weight", "Dense_1-bias", "Dense_2-weight", "Dense_2-bias"]


def test_namespaces() -> None:
    def body(t: Any) -> None:
        with namespace("a"), namespace("b"):
            layers.dense(t, 3, activation=math.tanh, name="fc")

    tracer = traced(body, (4, 3))
    assert names(tracer) == ["a-b-fc-weight", "a-b-fc-matmul", "a-b-fc-bias", "a-b-fc-bias_add", "a-b-fc-activation"]


# Convolutions -------------------------------------------------------------------------------------------------------


def test_conv2d(run: Any, rng: Any) -> None:
    def body(t: Any) -> Any:
        return layers.conv2d(t, 4, [3, 2], padding="SAME", activation=nn.relu, bias_initializer=normal, name="c1")

    x = rng.standard_normal((2, 3, 6, 5))
    y = run(body, x)
    assert run.job.names == ["c1", "c1-bias_add", "c1-activation"]
    w, b = run.job.state["c1-weight"], run.job.state["c1-bias"]
    assert w.shape == (4, 3, 3, 2) and abs(w).max() <= (6 / (18 + 24)) ** 0.5, "xavier_uniform"
    plain = run(lambda x, w: nn.conv2d(x, w, 1, "SAME"), x, w)
    np.testing.assert_allclose(y, np.maximum(plain + b[:, None, None], 0))


def test_conv_layouts_and_names(run: Any) -> None:
    def shapes(layer: Any, shape: Any, *arguments: Any, **options: Any) -> Any:
        y = run(lambda t: layer(t, 4, *arguments, **options), np.zeros(shape))
        return y.shape, {name: v.type.shape for name, v in run.job.variables.items()}

    last = shapes(layers.conv2d, (2, 6, 5, 3), 3, 2, "SAME", "NHWC")
    assert last == ((2, 3, 3, 4), {"Conv2d-weight": (4, 3, 3, 3), "Conv2d-bias": (4,)})
    assert shapes(layers.conv1d, (2, 3, 6), 3) == ((2, 4, 4), {"Conv1d-weight": (4, 3, 3), "Conv1d-bias": (4,)})
    assert shapes(layers.conv3d, (2, 3, 4, 4, 4), 2, use_bias=False) == ((2, 4, 3, 3, 3), {"Conv3d-weight": (4, 3, 2, 2, 2)})
    assert shapes(layers.conv2d, (2, 6, 5, 5), groups=2, weight_name="w", bias_name="b")[1] == {"w": (4, 3, 1, 1), "b": (4,)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_format": "NHWC", "groups": 2}, "channels first"),
        ({"groups": 3}, "must be divisible by groups 3"),
        ({"kernel_size": [1, 2, 3]}, "an int or a list of 2"),
        ({"data_format": "NHW"}, "NCHW or NHWC"),
    ],
)
def test_conv_checks_its_arguments(options: Any, message: str, run: Any) -> None:
    with pytest.raises(ValueError, match=rf'conv2d at test_layers\.py:\d+ \(layer "c"\).*{message}'):
        run(lambda t: layers.conv2d(t, 4, name="c", **options), np.zeros((2, 4, 4, 4)))


# Normalisation ------------------------------------------------------------------------------------------------------


def batch_norm(x: Any, axis: int, eps: float = 1e-3) -> Any:
    axes = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize(("shape", "axis"), [((6, 3, 2, 4), 1), ((6, 2, 4, 3), -1), ((8, 3), 1)])
def test_batch_normalization_in_a_train_job(shape: Any, axis: int, run: Any, rng: Any) -> None:
    x = rng.standard_normal(shape) * 3 + 1
    y = run(lambda t: layers.batch_normalization(t, axis, 0.9, name="bn"), x, trainable=True)
    np.testing.assert_allclose(y, batch_norm(x, axis), rtol=1e-9, atol=1e-12)
    rows = np.moveaxis(x, axis, -1).reshape(-1, 3)
    np.testing.assert_allclose(run.job.state["bn-moving_mean"], 0.1 * rows.mean(0))
    np.testing.assert_allclose(run.job.state["bn-moving_variance"], 0.9 + 0.1 * rows.var(0, ddof=1), err_msg="unbiased")
    assert {name: v.trainable for name, v in run.job.variables.items()} == {
        "bn-gamma": True,
        "bn-beta": True,
        "bn-moving_mean": False,
        "bn-moving_variance": False,
    }
    assert run.job.names == ["bn"]


@pytest.mark.parametrize("options", [{}, {"training": False}, {"trainable": False}])
def test_batch_normalization_with_moving_statistics(options: Any, run: Any, rng: Any) -> None:
    x = rng.standard_normal((5, 3))
    state = {"BatchNorm-moving_mean": np.array([1.0, 2, 3]), "BatchNorm-moving_variance": np.array([4.0, 9, 1])}
    before = {name: value.copy() for name, value in state.items()}
    y = run(lambda t: layers.batch_normalization(t, **options), x, trainable=bool(options), state=state)
    np.testing.assert_allclose(y, (x - [1, 2, 3]) / np.sqrt(np.array([4, 9, 1]) + 1e-3))
    assert all((run.job.state[name] == value).all() for name, value in before.items())
    assert run.job.variables["BatchNorm-gamma"].trainable == (options.get("trainable", True))


def test_parts_of_batch_normalization(run: Any, rng: Any) -> None:
    x = rng.standard_normal((5, 3))
    y = run(lambda t: layers.batch_normalization(t, center=False, scale=False, epsilon=0.1), x, trainable=True)
    np.testing.assert_allclose(y, batch_norm(x, 1, 0.1))
    assert set(run.job.variables) == {"BatchNorm-moving_mean", "BatchNorm-moving_variance"}
    run(lambda t: layers.batch_normalization(t, gamma_name="g", beta_name="b", moving_mean_name="m", moving_variance_name="v"), x)
    assert set(run.job.variables) == {"g", "b", "m", "v"}
    options = {"beta_initializer": normal, "gamma_initializer": normal, "gamma_regularizer": regularizers.l2(0.1)}
    z = run(lambda t: layers.batch_normalization(t, **options), x, trainable=True)
    np.testing.assert_allclose(z, batch_norm(x, 1) * run.job.state["BatchNorm-gamma"] + run.job.state["BatchNorm-beta"])
    assert run.job.variables["BatchNorm-gamma"].l2 == 0.1 and run.job.variables["BatchNorm-gamma"].type.dtype.name == "float64"


def test_half_precision_keeps_float32_statistics(run: Any, rng: Any) -> None:
    x = rng.standard_normal((50, 3)).astype(np.float16)
    y = run(layers.batch_normalization, x, trainable=True)
    assert y.dtype == np.float16 and {v.type.dtype for v in run.job.variables.values()} == {float32}
    np.testing.assert_allclose(y, batch_norm(x.astype(float), 1), atol=5e-3)


def test_batch_normalization_and_relu(run: Any, rng: Any) -> None:
    x, addend = rng.standard_normal((2, 5, 3))
    np.testing.assert_allclose(run(layers.batch_normalization_relu, x, trainable=True), np.maximum(batch_norm(x, 1), 0))
    y = run(layers.batch_normalization_add_relu, x, addend, trainable=True)
    np.testing.assert_allclose(y, np.maximum(batch_norm(x, 1) + addend, 0))


def test_moving_statistics_are_written_at_the_end_of_the_run() -> None:
    tracer = traced(lambda t: layers.batch_normalization(t, 1, name="bn"), (6, 3, 4, 4))
    assert set(tracer.updates) == {"bn-moving_mean", "bn-moving_variance"}
    assert [node.phase for node in tracer.nodes if node.op.alias] == ["update", "update"]
    assert traced(lambda t: layers.batch_normalization(t, 1, name="bn"), (6, 3, 4, 4), train=False).updates == {}


def test_moving_statistics_of_the_mirrored_view_are_the_means_over_the_devices() -> None:
    tracer = traced(lambda t: layers.batch_normalization(t, 1, name="bn"), (6, 3), mirrored=True)
    assert all(not value.local for value in tracer.updates.values())
    crossings = [node.op for node in tracer.nodes if isinstance(node.op, ToGlobal)]
    assert [str(op.sbp[0]) for op in crossings] == ["P", "P"]
    assert [node.op.sbp for node in tracer.nodes if isinstance(node.op, ToLocal)].count((B,)) >= 2


def test_layer_norm(run: Any, rng: Any) -> None:
    x = rng.standard_normal((3, 4, 5))
    y = run(lambda t: layers.layer_norm(t, begin_norm_axis=2, epsilon=0.1, name="ln"), x)
    np.testing.assert_allclose(y, (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 0.1))
    assert {name: v.type.shape for name, v in run.job.variables.items()} == {"ln-beta": (5,), "ln-gamma": (5,)}
    run(lambda t: layers.layer_norm(t, center=False, begin_params_axis=1, trainable=False), x)
    assert [(name, v.type.shape, v.trainable) for name, v in run.job.variables.items()] == [("LayerNorm-gamma", (4, 5), False)]
    run(lambda t: layers.layer_norm(t, scale=False), x)
    assert set(run.job.variables) == {"LayerNorm-beta"}


def test_prelu(run: Any, rng: Any) -> None:
    x = rng.standard_normal((2, 3, 4))
    y = run(lambda t: layers.prelu(t, normal, shared_axes=[2], name="p"), x)
    alpha = run.job.state["p-alpha"]
    assert alpha.shape == (3, 1) and run.job.names == ["p"]
    np.testing.assert_allclose(y, np.where(x > 0, x, alpha * x))
    np.testing.assert_allclose(run(layers.prelu, x), np.maximum(x, 0))
    with pytest.raises(ValueError, match=r"shared_axes \[3\]"):
        run(lambda t: layers.prelu(t, shared_axes=[3]), x)


# A network ----------------------------------------------------------------------------------------------------------


def test_a_network_traces_with_the_published_names() -> None:
    def lenet(images: Any) -> Any:
        c1 = layers.conv2d(images, 8, 5, padding="SAME", activation=nn.relu, name="conv1")
        hidden = layers.dense(math.square(nn.max_pool2d(c1, 2, 2, "SAME", name="pool1")), 4, name="hidden")
        labels = math.argmax(hidden)
        return nn.sparse_softmax_cross_entropy_with_logits(labels, nn.dropout(hidden, 0.5, name="drop"), name="loss")

    tracer = traced(lenet, (4, 1, 28, 28))
    explicit = ["conv1", "conv1-bias_add", "conv1-activation", "pool1", "hidden-matmul", "hidden-bias_add", "drop", "loss"]
    assert [name for name in names(tracer) if name in explicit] == explicit
    assert list(tracer.variables) == ["conv1-weight", "conv1-bias", "hidden-weight", "hidden-bias"]


def test_an_op_that_does_not_fit_names_the_layer_and_the_line() -> None:
    with pytest.raises(ShapeError, match=r'test_layers\.py:\d+ \(layer "product"\).*4.*5'):
        traced(lambda a, b: activations.matmul(a, b, name="product"), (3, 4), (5, 6))


def test_labels_from_an_argument() -> None:
    def body(x: Any) -> None:
        job: Any = scope.current().interpreter
        labels = job.handle(job.tracer.input("labels", TensorType((4,), int32)))
        nn.sparse_softmax_cross_entropy_with_logits(labels, x)

    assert traced(body, (4, 3)).nodes[-1].outputs[0].tensor_type == TensorType((4,), float32)
