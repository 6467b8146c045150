"""Mixed precision: statistics, parameters of normalizations and sums with float32 stay float32, in jobs and under `flow.autocast`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gpt
import numpy as np
import pytest
from parts import constant, declare, normal, sgd, values

import jobflow as flow
import jobflow.nn.functional as F
import jobflow.typing as tp
from jobflow.engine.job import job_of
from jobflow.graph.ir import Node
from jobflow.ops.batch_norm import BatchNormalize, BatchNormalizeGrad, CenteredSums, Moments, NormalizeSums, batch_norm_train
from jobflow.ops.group_norm import GroupNormalize, GroupNormalizeGrad, GroupSums, group_norm
from jobflow.ops.norm import LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, RowStatistics, layer_norm, rms_norm
from jobflow.tools.explain import laid_out

pytestmark = pytest.mark.usefixtures("fresh")

HALF, SINGLE = flow.bfloat16, flow.float32
NORMS = (
    *(LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, RowStatistics, GroupNormalize, GroupNormalizeGrad, GroupSums),
    *(BatchNormalize, BatchNormalizeGrad, CenteredSums, Moments, NormalizeSums),
)


def mixed() -> Any:
    config = flow.function_config()
    config.mixed_precision(HALF)
    return config


def nodes(job: Any) -> tuple[Node, ...]:
    return laid_out(job_of(job), 1).logical.nodes


def dtypes(job: Any) -> dict[str, Any]:
    """Return the element types of the values by name."""
    return {value.name: value.dtype for node in nodes(job) for value in node.outputs}


# ---- types of values -------------------------------------------------------------------------------------------------


def gpt_job(size: gpt.Size, half: Any, rate: float = 1e-3) -> Any:
    config = flow.function_config()
    if half is not None:
        config.mixed_precision(half)
    words = tp.Numpy.Placeholder((size.batch, size.length), dtype=flow.int32)

    @flow.global_function("train", config)
    def step(x: words, y: words) -> tp.Numpy:  # type: ignore[valid-type]
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(y, [-1]), gpt.gpt(x, size))
        flow.optimizer.AdamW(constant(rate), do_bias_correction=True, weight_decay=0.1).minimize(loss)
        return loss

    return step


def test_the_stream_and_the_statistics_of_a_gpt_are_float32() -> None:
    size = gpt.Size(batch=2, length=8, width=16, heads=2, blocks=2, words=12)
    every = nodes(gpt_job(size, HALF))
    norms = [node for node in every if isinstance(node.op, NORMS)]
    stream = [node for node in every if node.outputs[0].shape == (16, 16) and type(node.op).__name__ == "Add"]
    assert len(norms) == 10 and len(stream) >= 8
    assert {value.dtype for node in (*norms, *stream) for value in (*node.inputs, *node.outputs)} == {SINGLE}
    types = {node.name: node.outputs[0].dtype for node in every}
    assert all(types[f"block{i}-{name}"] is HALF for i in (0, 1) for name in ("qkv-bias_add", "up-bias_add")), "the biases between two products"
    assert all(types[f"block{i}-{name}-matmul"] is HALF for i in (0, 1) for name in ("qkv", "out", "up", "down"))
    assert {value.dtype for node in every if type(node.op).__name__ in ("GeluGrad", "CausalSoftmax", "SoftmaxGrad") for value in node.inputs} == {
        HALF
    }


def test_parameters_adapt_and_streams_do_not() -> None:
    def body(x: Any) -> Any:
        w = flow.get_variable("w", (6, 6), initializer=normal())
        b = flow.get_variable("b", (6,), initializer=normal())
        scale = flow.get_variable("scale", (), initializer=normal())
        product = flow.matmul(x, w)
        biased = flow.nn.bias_add(product, b, name="biased")
        scaled = flow.math.multiply(biased, scale, name="scaled")
        promoted = flow.math.add(scaled, flow.get_variable("offset", (4, 6), initializer=normal()), name="promoted")
        stream = flow.math.add(promoted, flow.matmul(flow.math.relu(promoted, name="relu"), w), name="stream")
        return flow.math.reduce_sum(flow.matmul(stream, w) + flow.matmul(scaled, w))

    types = dtypes(declare(body, tp.Numpy.Placeholder((4, 6)), config=mixed()))
    result = {name: types[name] for name in ("biased", "scaled", "promoted", "relu", "stream")}
    assert result == {"biased": HALF, "scaled": HALF, "promoted": SINGLE, "relu": SINGLE, "stream": SINGLE}


def test_gradients_of_several_readers_are_summed_in_float32() -> None:
    def body(x: Any) -> Any:
        hidden = flow.math.tanh(x * flow.get_variable("scale", (4, 6), initializer=normal()), name="hidden")
        w = flow.get_variable("w", (6, 6), initializer=normal())
        loss = flow.math.reduce_sum(flow.matmul(hidden, w) + flow.matmul(hidden, w, transpose_b=True) + flow.matmul(flow.matmul(hidden, w), w))
        sgd(0.5).minimize(loss)
        return loss

    every = nodes(declare(body, tp.Numpy.Placeholder((4, 6)), type="train", config=mixed()))
    casts = [node.inputs[0].name for node in every if type(node.op).__name__ == "Cast" and node.phase == "forward" and node.outputs[0].dtype is HALF]
    sums = [node for node in every if type(node.op).__name__ == "Add" and node.phase == "backward"]
    assert sorted(casts) == ["hidden", "w"], "equal casts are merged"
    assert len(sums) >= 4 and {value.dtype for node in sums for value in (*node.inputs, *node.outputs)} == {SINGLE}


def test_autocast_gives_the_types_of_jobs_and_of_pytorch() -> None:
    """The types are those of PyTorch's autocast on GPUs."""
    x = flow.tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 4, 4))
    w = flow.ones(4)
    with flow.autocast("cpu"):
        half = x @ x
        singles = {
            "layer_norm": F.layer_norm(half, (4,), w, w),
            "layer_norm without parameters": F.layer_norm(half, (4,)),
            "rms_norm": F.rms_norm(half, (4,)),
            "group_norm": F.group_norm(half, 2, w, w),
            "add": half + x,
            "stream": x + F.linear(half, x[0], w),
            "concatenation": flow.cat([half, x]),
        }
        halves = {
            "linear": F.linear(x, x[0], w),
            "a number": half * 2.0,
            "a tensor without axes": half * flow.tensor(2.0),
            "sum of products": half + half,
            "batch_norm": F.batch_norm(half, None, None, w, w, training=True),
            "instance_norm": F.instance_norm(half),
        }
    assert {name: y.dtype for name, y in singles.items()} == dict.fromkeys(singles, SINGLE)
    assert {name: y.dtype for name, y in halves.items()} == dict.fromkeys(halves, HALF)


# ---- the law of gradients --------------------------------------------------------------------------------------------

Norm = Callable[[Any, Any, Any], Any]
#: normalization in jobs, in functions of tensors, and the shape of gamma and beta; x is [8, 16, 32]
CASES: dict[str, tuple[Norm, Norm, tuple[int, ...]]] = {
    "layer_norm": (lambda x, g, b: layer_norm(x, g, b, 2), lambda x, g, b: F.layer_norm(x, (32,), g, b), (32,)),
    "rms_norm": (lambda x, g, b: rms_norm(x, g, 2), lambda x, g, b: F.rms_norm(x, (32,), g, 1e-5), (32,)),
    "group_norm": (lambda x, g, b: group_norm(x, 4, g, b), lambda x, g, b: F.group_norm(x, 4, g, b), (16,)),
    "instance_norm": (lambda x, g, b: group_norm(x, 16, g, b), lambda x, g, b: F.instance_norm(x, None, None, g, b), (16,)),
    "batch_norm": (lambda x, g, b: batch_norm_train(x, g, b)[0], lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True), (16,)),
}
#: relative error in the Euclidean norm; rounding to bfloat16 alone gives 1.6e-3
LAW = 2e-3


def data(shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], ...]:
    """Return x and an output gradient whose values bfloat16 represents, gamma and beta with values that it does not represent."""
    random = np.random.default_rng(3)
    x, dy = (random.integers(-127, 128, (8, 16, 32)) / 32 for _ in range(2))
    return *(each.astype(np.float32) for each in (x, random.uniform(0.5, 1.5, shape), random.normal(size=shape))), dy.astype(np.float32)


def of_tensors(norm: Norm, arrays: tuple[Any, ...], dtype: Any) -> list[np.ndarray[Any, Any] | None]:
    """Return the gradients of x, gamma and beta, under autocast unless `dtype` is float64."""
    *leaves, dy = [flow.tensor(a, dtype=dtype) for a in arrays]
    for leaf in leaves:
        leaf.requires_grad_()
    x, gamma, beta = leaves
    if dtype is flow.float64:
        y = norm(x, gamma, beta)
    else:
        with flow.autocast("cpu"):
            y = norm(x.bfloat16(), gamma, beta).bfloat16().float()
    (y * dy).sum().backward()
    return [None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]


def of_a_job(norm: Norm, arrays: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
    """Return the same gradients from a job: the changes of variables by a step of gradient descent."""
    names, dy = ("x", "gamma", "beta"), arrays[3]

    def body(weights: Any) -> Any:
        x, gamma, beta = (flow.get_variable(name, a.shape, initializer=flow.zeros_initializer()) for name, a in zip(names, arrays, strict=False))
        y = norm(flow.amp_white_identity(x), gamma, beta)
        loss = flow.math.reduce_sum(flow.amp_white_identity(y) * weights) + 0 * flow.math.reduce_sum(beta)
        sgd(1.0).minimize(loss)
        return loss

    job = declare(body, tp.Numpy.Placeholder(dy.shape), type="train", config=mixed())
    flow.load_variables(dict(zip(names, arrays, strict=False)))
    job(dy)
    after = values()
    return [before - after[name] for name, before in zip(names, arrays, strict=False)]


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_normalizations_in_bfloat16_equal_float64(case: str) -> None:
    in_job, function, shape = CASES[case]
    arrays = data(shape)
    expected = of_tensors(function, arrays, flow.float64)
    for ours in (of_tensors(function, arrays, SINGLE), of_a_job(in_job, arrays)):
        for a, b in zip(ours, expected, strict=True):
            if b is not None:
                assert a is not None
                error = np.linalg.norm(a - b) / np.linalg.norm(b)
                assert error <= LAW, f"{case}: {error:.2e}"


#: relative error of one rounding to bfloat16
ROUNDING = 1.01 / 256
LABELS = np.random.default_rng(5).integers(0, 48, 16)
LABELS[3] = -100
SHARES = np.random.default_rng(6).dirichlet(np.ones(48), 16).astype(np.float32)
WEIGHTS = np.random.default_rng(7).uniform(0.5, 1.5, 48).astype(np.float32)
#: losses of logits [16, 48] as functions of tensors
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "labels": lambda x, t: F.cross_entropy(x, t(LABELS)),
    "weights": lambda x, t: F.cross_entropy(x, t(LABELS), t(WEIGHTS), reduction="sum"),
    "smoothing": lambda x, t: F.cross_entropy(x, t(LABELS), label_smoothing=0.1),
    "probabilities": lambda x, t: F.cross_entropy(x, t(SHARES), reduction="sum"),
    "images": lambda x, t: F.cross_entropy(x.reshape(2, 8, 48).transpose(1, 2), t(LABELS).reshape(2, 8)),
}
#: losses of jobs as functions of logits, labels and probabilities
JOB_LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "labels": lambda x, labels, shares: flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x),
    "split labels": lambda x, labels, shares: flow.nn.distributed_sparse_softmax_cross_entropy_with_logits(labels, x),
    "probabilities": lambda x, labels, shares: flow.nn.softmax_cross_entropy_with_logits(shares, x),
}


def gradient_of_loss(case: str, logits: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Return the gradient of the logits, which have half precision unless `dtype` is float64."""

    def tensor(array: np.ndarray[Any, Any]) -> Any:
        return flow.tensor(array, dtype=dtype if array.dtype.kind == "f" else None)

    x = tensor(logits).requires_grad_()
    if dtype is flow.float64:
        loss = LOSSES[case](x, tensor)
    else:
        with flow.autocast("cpu"):
            loss = LOSSES[case](x.bfloat16(), tensor)
        assert loss.dtype is SINGLE
    loss.backward()
    return x.grad.numpy()


@pytest.mark.parametrize("case", LOSSES)
def test_gradients_of_losses_from_logits_in_bfloat16_equal_float64(case: str) -> None:
    logits = (np.random.default_rng(4).integers(-127, 128, (16, 48)) / 16).astype(np.float32)
    ours, expected = (gradient_of_loss(case, logits, dtype) for dtype in (SINGLE, flow.float64))
    roundings = 2 if case == "smoothing" else 1  # the sum of two gradients
    np.testing.assert_allclose(ours, expected, rtol=roundings * ROUNDING, atol=1e-6)


@pytest.mark.parametrize("case", JOB_LOSSES)
def test_losses_of_jobs_read_logits_in_half_precision(case: str) -> None:
    logits = (np.random.default_rng(4).integers(-127, 128, (16, 48)) / 16).astype(np.float32)
    changes = []
    for config in (mixed(), flow.function_config()):
        flow.clear_default_session()

        def body(labels: Any, shares: Any) -> Any:
            x = flow.get_variable("x", logits.shape, initializer=flow.zeros_initializer())
            loss = JOB_LOSSES[case](flow.amp_white_identity(x), labels, shares)
            sgd(1.0).minimize(loss)
            return loss

        job = declare(body, tp.Numpy.Placeholder((16,), dtype=flow.int64), tp.Numpy.Placeholder((16, 48)), type="train", config=config)
        flow.load_variables({"x": logits})
        job(np.abs(LABELS) % 48, SHARES)
        changes.append(values()["x"] - logits)
        gradients = [value for node in nodes(job) if type(node.op).__name__.endswith("EntropyGrad") for value in (node.inputs[0], *node.outputs)]
        assert {value.dtype for value in gradients} == {HALF if len(changes) == 1 else SINGLE}
    np.testing.assert_allclose(*changes, rtol=ROUNDING, atol=2e-6)


# ---- losses ----------------------------------------------------------------------------------------------------------


def batches(size: gpt.Size, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield words and their successors from a Markov chain, in which three successors follow each word."""
    random = np.random.default_rng(1)
    successors = random.integers(0, size.words, (size.words, 3))
    for _ in range(count):
        text = np.empty((size.batch, size.length + 1), np.int32)
        text[:, 0] = random.integers(0, size.words, size.batch)
        for i in range(size.length):
            text[:, i + 1] = successors[text[:, i], random.choice(3, size.batch, p=(0.6, 0.3, 0.1))]
        yield text[:, :-1], text[:, 1:]


def losses(size: gpt.Size, half: Any, steps: int, rate: float) -> np.ndarray[Any, Any]:
    flow.clear_default_session()
    flow.config.cpu_device_num(1)
    job = gpt_job(size, half, rate)
    return np.array([job(x.copy(), y.copy()).mean() for x, y in batches(size, steps)])


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        (gpt.Size(batch=4, length=16, width=32, heads=2, blocks=2, words=32), 40),
        pytest.param(gpt.Size(batch=8, length=32, width=64, heads=4, blocks=4, words=64), 300, marks=pytest.mark.full),
    ],
    ids=["short", "300 steps"],
)
def test_losses_in_bfloat16_follow_float32(size: gpt.Size, steps: int) -> None:
    plain, ours = (losses(size, half, steps, 1e-3) for half in (None, HALF))
    assert plain[-1] < 0.95 * plain[0], f"the loss fell from {plain[0]:.3f} to {plain[-1]:.3f} only"
    assert np.abs(ours / plain - 1).max() <= 5e-3, f"{np.abs(ours / plain - 1).max():.2%} at step {np.abs(ours / plain - 1).argmax()}"
