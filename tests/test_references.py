"""The same numbers as others: networks against PyTorch's autograd, optimizers against hand-written formulas, in float64.

The files are written by tests/references/record.py, which also says what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

HERE = Path(__file__).parent / "references"
PLACES, PLACES_SEED = 200, 5
TOLERANCE = 1e-9
Array = np.ndarray[Any, Any]


def stored(name: str) -> dict[str, Array]:
    with np.load(HERE / f"{name}.npz") as archive:
        return dict(archive)


def check(reference: dict[str, Array], name: str, actual: Array) -> None:
    """`found` against the whole recorded tensor, or against its recorded sums and places."""
    scale = max(1.0, float(np.abs(actual).max()))
    compared = 0
    for key, expected in reference.items():
        if key == name:
            value = actual
        elif key == f"{name}|places":
            value = actual.reshape(-1)[np.random.RandomState(PLACES_SEED).randint(0, actual.size, PLACES)]
        elif key.startswith(f"{name}|sum"):
            summed_to = int(key.removeprefix(f"{name}|sum"))
            value = actual.sum(axis=tuple(axis for axis in range(actual.ndim) if axis != summed_to))
        else:
            continue
        np.testing.assert_allclose(value, expected, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=key)
        compared += 1
    assert compared, f"nothing recorded for {name}"


def mlp(x: Any) -> Any:
    x = flow.reshape(x, [x.shape[0], -1])
    return flow.layers.dense(flow.layers.dense(x, 512, activation=flow.nn.relu, name="hidden"), 10, name="output")


def lenet(x: Any) -> Any:
    for name, filters in (("conv1", 32), ("conv2", 64)):
        x = flow.layers.conv2d(x, filters, 5, padding="SAME", activation=flow.nn.relu, name=name)
        x = flow.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")
    x = flow.reshape(x, [x.shape[0], -1])
    return flow.layers.dense(flow.layers.dense(x, 512, activation=flow.nn.relu, name="hidden"), 10, name="outlayer")


def batch_norm(x: Any) -> Any:
    x = flow.layers.conv2d(x, 8, 3, padding="SAME", name="conv")
    x = flow.nn.relu(flow.layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=1e-3, name="bn"))
    return flow.layers.dense(flow.reshape(x, [x.shape[0], -1]), 5, name="out")


def layer_norm(x: Any) -> Any:
    y = flow.layers.layer_norm(x, begin_norm_axis=2, epsilon=1e-5, name="ln1")
    y = flow.layers.dense(flow.layers.dense(y, 48, activation=flow.math.gelu, name="up"), 16, name="down")
    y = flow.layers.dense(flow.layers.layer_norm(x + y, begin_norm_axis=2, epsilon=1e-5, name="ln2"), 7, name="out")
    return flow.reshape(y, [-1, 7])


NETS: dict[str, Callable[[Any], Any]] = {"mlp": mlp, "lenet": lenet, "batch_norm": batch_norm, "layer_norm": layer_norm}


def drawn(entries: list[Any]) -> dict[str, Array]:
    return {name: np.random.RandomState(seed).standard_normal(shape) * scale + offset for name, shape, seed, scale, offset in entries}


def values() -> dict[str, Array]:
    return {name: np.array(variable.numpy()) for name, variable in flow.get_all_variables().items()}


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("net", sorted(NETS))
def test_network_equals_autograd(net: str, devices: int) -> None:
    """Plain SGD with rate 1 takes every weight down by exactly its gradient."""
    reference = stored(f"net_{net}")
    weights = drawn(json.loads(str(reference["entries"])))
    images, labels = weights.pop("input"), reference["labels"]
    flow.config.cpu_device_num(devices)

    @flow.global_function(type="train")
    def train_job(
        x: tp.Numpy.Placeholder(images.shape, dtype=flow.float64), answers: tp.Numpy.Placeholder(labels.shape, dtype=flow.int32)
    ) -> tuple[tp.Numpy, tp.Numpy]:
        logits = NETS[net](x)
        losses = flow.nn.sparse_softmax_cross_entropy_with_logits(answers, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(losses)
        return logits, losses

    flow.load_variables(weights)
    logits, losses = train_job(images, labels)
    after = values()
    check(reference, "logits", logits)
    check(reference, "losses", losses)
    for name, before in weights.items():
        check(reference, f"grad|{name}", before - after[name])
    for key in (key for key in reference if key.startswith("moved|")):
        check(reference, key, after[key.removeprefix("moved|")])


def constant(rate: float = 0.0625) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def piecewise() -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([3, 6], [0.25, 0.0625, 0.03125])


def warmed() -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [0.0625], warmup=flow.optimizer.warmup.linear(4, 0.25))


def clip(norm: float) -> Any:
    return flow.optimizer.grad_clipping.by_global_norm(norm)


CASES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: flow.optimizer.SGD(constant(), momentum=0),
    "sgd_piecewise": lambda: flow.optimizer.SGD(piecewise(), momentum=0),
    "sgd_cosine": lambda: flow.optimizer.SGD(flow.optimizer.CosineScheduler(0.0625, 8, alpha=0.25), momentum=0),
    "sgd_warmup": lambda: flow.optimizer.SGD(warmed(), momentum=0),
    "sgd_clipped": lambda: flow.optimizer.SGD(constant(), momentum=0, grad_clipping=clip(2.0)),
    "sgd_l1_l2_clipped": lambda: flow.optimizer.SGD(constant(), momentum=0, grad_clipping=clip(3.0)),
    "momentum": lambda: flow.optimizer.SGD(constant()),
    "momentum_piecewise": lambda: flow.optimizer.SGD(piecewise()),
    "sgdw": lambda: flow.optimizer.SGDW(constant(), momentum=0.9, weight_decay=0.125),
    "adam": lambda: flow.optimizer.Adam(constant()),
    "adam_corrected": lambda: flow.optimizer.Adam(constant(), do_bias_correction=True),
    "adamw": lambda: flow.optimizer.AdamW(constant(), weight_decay=0.125),
    "adamw_corrected": lambda: flow.optimizer.AdamW(constant(), weight_decay=0.125, do_bias_correction=True),
    "rmsprop": lambda: flow.optimizer.RMSProp(constant()),
    "rmsprop_centered": lambda: flow.optimizer.RMSProp(constant(), centered=True),
}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("case", sorted(CASES))
def test_optimizer_follows_its_formula(case: str, devices: int) -> None:
    """The loss sum(w * g) has the gradient g whatever w is."""
    reference = stored("optimizers")
    first, gradients = reference["first"], reference["gradients"]
    flow.config.cpu_device_num(devices)
    regularizer = flow.regularizers.l1_l2(0.5, 0.25) if "l1_l2" in case else None

    @flow.global_function(type="train")
    def train_job(g: tp.Numpy.Placeholder(first.shape, dtype=flow.float64)) -> tp.Numpy:
        w = flow.get_variable("w", first.shape, flow.float64, initializer=flow.zeros_initializer(), regularizer=regularizer)
        loss = flow.math.reduce_sum(w * g)
        CASES[case]().minimize(loss)
        return loss

    flow.load_variables({"w": first})
    for step, gradient in enumerate(gradients):
        train_job(gradient)
        np.testing.assert_allclose(values()["w"], reference[f"path|{case}"][step], rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"step {step}")
    after = values()
    for key in (key for key in reference if key.startswith(f"slot|{case}|")):
        if f"w-{key.split('|')[2]}" in after:
            np.testing.assert_allclose(after[f"w-{key.split('|')[2]}"], reference[key], rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
