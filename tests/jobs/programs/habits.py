"""Programs in the style of the legacy documentation and benchmarks: their results must not depend on the devices.

    mpiexec -n 2 python habits.py OUT      runs all of them and writes {program: [numbers]} to OUT

A program takes the number of devices and yields arrays, all of them of float64 or integers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

Program = Callable[[int], Iterator[Any]]

PROGRAMS: dict[str, Program] = {}
BATCH = 8
CLASSES = 5


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def of(*shape: int, dtype: Any = flow.float64) -> Any:
    return tp.Numpy.Placeholder(shape, dtype=dtype)


def constant(rate: float) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def normal(deviation: float = 0.2) -> Any:
    return flow.random_normal_initializer(stddev=deviation)


def steps(count: int = 4) -> Iterator[np.random.RandomState]:
    """Yield a random generator for each step."""
    random = np.random.RandomState(7)
    for _ in range(count):
        yield random


def pictures(random: np.random.RandomState, size: int = BATCH) -> tuple[Any, Any]:
    return random.randn(size, 1, 8, 8), random.randint(0, CLASSES, size).astype(np.int32)


@program
def two_players(devices: int) -> Iterator[Any]:
    """Share variables between two train jobs; each reads the other's variables with trainable=False."""

    def generator(noise: Any, trainable: bool) -> Any:
        h = flow.layers.dense(noise, 8, kernel_initializer=normal(), trainable=trainable, name="g_fc1")
        h = flow.layers.batch_normalization(h, axis=-1, trainable=trainable, name="g_bn")
        return flow.math.tanh(flow.layers.dense(flow.nn.leaky_relu(h), 4, kernel_initializer=normal(), trainable=trainable, name="g_fc2"))

    def discriminator(x: Any, trainable: bool) -> Any:
        w = [flow.get_variable(f"d_w{i}", shape, flow.float64, initializer=normal(), trainable=trainable) for i, shape in enumerate([(4, 8), (8, 1)])]
        h = flow.nn.dropout(flow.nn.leaky_relu(flow.matmul(x, w[0]), 0.3), rate=0.3)
        return flow.matmul(h, w[1])

    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.consistent_view())

    @flow.global_function(type="train", function_config=config)
    def train_generator(noise: of(BATCH, 3), ones: of(BATCH, 1)):  # type: ignore[no-untyped-def,valid-type]
        generated = generator(noise, True)
        loss = flow.nn.sigmoid_cross_entropy_with_logits(ones, discriminator(generated, False), name="g_loss")
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
        return loss, generated

    @flow.global_function(type="train", function_config=config)
    def train_discriminator(noise: of(BATCH, 3), images: of(BATCH, 4), ones: of(BATCH, 1)):  # type: ignore[no-untyped-def,valid-type]
        fake = flow.nn.sigmoid_cross_entropy_with_logits(ones * 0.0, discriminator(generator(noise, False), True), name="fake")
        real = flow.nn.sigmoid_cross_entropy_with_logits(ones, discriminator(images, True), name="real")
        flow.optimizer.Adam(constant(0.01), beta1=0.5).minimize(fake + real)
        return fake, real

    ones = np.ones((BATCH, 1))
    for random in steps():
        noise, images = random.randn(BATCH, 3), random.randn(BATCH, 4)
        for blob in (*train_discriminator(noise, images, ones).get(), *train_generator(noise, ones).get()):
            yield blob.numpy()
    for _, variable in sorted(flow.get_all_variables().items()):
        yield variable.numpy()


@program
def wide_and_deep(devices: int) -> Iterator[Any]:
    """Split tables along rows and columns, constrain the layouts of lookups, and compute metrics in a callback."""

    def looked_up(name: str, ids: Any, width: int, axis: int) -> Any:
        table = flow.get_variable(
            name, (30, width), flow.float64, initializer=flow.random_uniform_initializer(-0.1, 0.1), distribute=flow.distribute.split(axis)
        )
        embedded = flow.gather(params=table, indices=ids)
        embedded = flow.parallel_cast(embedded, distribute=flow.distribute.split(0), gradient_distribute=flow.distribute.broadcast())
        return flow.reshape(embedded, shape=(-1, embedded.shape[-1] * embedded.shape[-2]))

    @flow.global_function(type="train")
    def train_job(
        labels: of(BATCH, 1, dtype=flow.int32),  # type: ignore[valid-type]
        features: of(BATCH, 3),  # type: ignore[valid-type]
        wide: of(BATCH, 2, dtype=flow.int64),  # type: ignore[valid-type]
        deep: of(BATCH, 4, dtype=flow.int64),  # type: ignore[valid-type]
    ) -> tp.Callback[tp.Numpy]:
        h = flow.concat([looked_up("deep_table", deep, 4, 1), features], axis=1)
        for i in range(2):
            h = flow.layers.dense(h, 8, activation=flow.math.relu, kernel_initializer=flow.glorot_uniform_initializer(), name=f"fc{i}")
        score = flow.layers.dense(h, 1, kernel_initializer=flow.glorot_uniform_initializer(), name="score")
        logits = score + flow.math.reduce_sum(looked_up("wide_table", wide, 1, 0), axis=[1], keepdims=True)
        loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        flow.optimizer.LazyAdam(constant(0.01)).minimize(loss)
        return flow.math.reduce_mean(loss)

    losses: list[Any] = []
    for random in steps():
        tables = random.randint(0, 30, (BATCH, 2)), random.randint(0, 30, (BATCH, 4))
        train_job(random.randint(0, 2, (BATCH, 1)), random.randn(BATCH, 3), *tables)(losses.append)
    yield from losses
    for name in ("wide_table", "deep_table"):
        yield flow.get_all_variables()[name].numpy()


@program
def channels_last(devices: int) -> Iterator[Any]:
    """Write convolutions with get_variable, channels last, an inner branch, and named weights."""

    def convolved(name: str, x: Any, filters: int, size: int = 3) -> Any:
        shape = (filters, size, size, x.shape[3])
        first = flow.kaiming_initializer(shape, data_format="NHWC")
        w = flow.get_variable(f"{name}-weight", shape, x.dtype, initializer=first, regularizer=flow.regularizers.l2(0.001))
        b = flow.get_variable(f"{name}-bias", (filters,), x.dtype, initializer=flow.zeros_initializer())
        y = flow.nn.bias_add(flow.nn.conv2d(x, w, 1, "SAME", "NHWC", name=name), b, "NHWC")
        return flow.layers.batch_normalization(y, axis=3, momentum=0.9, name=f"{name}_bn")

    @flow.global_function(type="train")
    def train_job(images: of(BATCH, 1, 8, 8), labels: of(BATCH, dtype=flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        x = flow.transpose(images, perm=[0, 2, 3, 1])
        with flow.scope.namespace("block"):
            y = flow.math.relu(convolved("a", x, 4) + convolved("b", x, 4, 1))
        y = flow.nn.max_pool2d(y, ksize=3, strides=2, padding="SAME", data_format="NHWC")
        y = flow.nn.avg_pool2d(y, ksize=4, strides=1, padding="VALID", data_format="NHWC")
        logits = flow.layers.dense(flow.reshape(y, [BATCH, -1]), CLASSES, kernel_initializer=normal(), name="fc")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        schedule = flow.optimizer.PiecewiseScalingScheduler(0.1, [2], 0.1)
        flow.optimizer.SGDW(schedule, momentum=0.9, weight_decay=0.01, weight_decay_excludes=["-bias", "_bn-"]).minimize(loss)
        return loss

    for random in steps():
        yield train_job(*pictures(random))
    yield flow.get_all_variables()["block-a-weight"].numpy()


@program
def old_spelling(devices: int) -> Iterator[Any]:
    """Train by configuration, with default values as argument types and a dict of futures as result."""
    config = flow.FunctionConfig()
    config.default_data_type(flow.float64)
    config.default_distribute_strategy(flow.distribute.consistent_strategy())
    config.train.primary_lr(0.1)
    config.train.model_update_conf(
        {
            "momentum_conf": {"beta": 0.9},
            "learning_rate_decay": {"cosine_conf": {"decay_batches": 10}},
            "warmup_conf": {"linear_conf": {"warmup_batches": 2, "start_multiplier": 0.1}},
            "clip_conf": {"clip_by_global_norm": {"clip_norm": 1.0}},
        }
    )

    @flow.global_function(config)
    def TrainNet(images=flow.FixedTensorDef((BATCH, 1, 8, 8), dtype=flow.double), labels=flow.FixedTensorDef((BATCH, 1), dtype=flow.int32)):  # type: ignore[no-untyped-def]  # noqa: B008
        with flow.deprecated.variable_scope("net"):
            y = flow.layers.conv2d(images, 3, [3, 3], strides=[2, 2], padding=((0, 0), (0, 0), (1, 1), (1, 1)), activation=flow.nn.relu, name="conv")
            logits = flow.layers.dense(flow.reshape(y, (y.shape[0], -1)), CLASSES, kernel_initializer=flow.truncated_normal(0.1), name="fc")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
        flow.losses.add_loss(loss)
        correct = flow.math.argmax(logits) == flow.reshape(labels, (BATCH,))
        return {"loss": loss, "predictions": flow.nn.softmax(logits), "correct": correct}

    outputs: list[Any] = []
    for random in steps():
        images, labels = pictures(random)
        TrainNet(images, labels.reshape(-1, 1)).async_get(lambda out: outputs.extend(out[key].numpy() for key in sorted(out)))
    yield from outputs


@program
def distribute_specs(devices: int) -> Iterator[Any]:
    """Split a layer over the devices by hand, with constraints on tensors and gradients; watch gradients."""
    split, broadcast = flow.distribute.split, flow.distribute.broadcast()
    values: list[Any] = []

    def keep(value: tp.Numpy) -> None:
        values.append(value)

    @flow.global_function(type="train")
    def train_job(images: of(BATCH, 1, 8, 8), labels: of(BATCH, dtype=flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        x = flow.flatten(images, 1).with_distribute(broadcast)
        w1 = flow.get_variable("w1", (12, 64), flow.float64, initializer=normal(), distribute=split(0))
        h = flow.parallel_cast(flow.math.tanh(flow.matmul(x, w1, transpose_b=True)), distribute=split(1), gradient_distribute=split(1))
        w2 = flow.get_variable("w2", (12, CLASSES), flow.float64, initializer=normal(), parallel_distribution=["S(0)"])
        logits = flow.hierarchical_parallel_cast(flow.matmul(h, w2), ["S(0)"], "manual", ["B"]).with_gradient_distribute(split(1))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits.with_distribute(split(1)))
        for value in (logits, w1, loss):
            flow.watch(value, keep)
            flow.watch_diff(value, keep)
        flow.optimizer.LAMB(constant(0.01)).minimize(loss)
        return loss

    for random in steps():
        yield train_job(*pictures(random))
    yield from values


@program
def stations(devices: int) -> Iterator[Any]:
    """Place layers on single devices and on some of them by hand; place one job on the last device alone."""
    last = f"0:{devices - 1}"

    @flow.global_function(type="train")
    def train_job(images: of(BATCH, 1, 8, 8), labels: of(BATCH, dtype=flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        x = flow.flatten(images, 1)
        with flow.scope.placement("gpu", "0:0"):
            h = flow.layers.dense(x, 12, activation=flow.math.gelu, kernel_initializer=normal(), name="h")
        with flow.scope.placement("gpu", last):
            logits = flow.layers.dense(flow.nn.dropout(h, 0.2), CLASSES, kernel_initializer=normal(), name="o")
        with flow.scope.placement("cpu", "0:0-1"):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.RMSProp(constant(0.01), centered=True).minimize(loss)
        return loss

    config = flow.function_config()
    config.default_placement_scope(flow.scope.placement("gpu", last))

    @flow.global_function(function_config=config)
    def lonely(x: of(3, 2)) -> tp.Numpy:  # type: ignore[valid-type]
        return flow.math.sigmoid(x) * flow.get_variable("scale", (2,), flow.float64, initializer=flow.ones_initializer())

    for random in steps():
        yield train_job(*pictures(random))
        yield lonely(random.randn(3, 2))


@program
def assignments(devices: int) -> Iterator[Any]:
    """Assign arguments, variables and computed tensors to variables that are stored whole or split."""

    @flow.global_function()
    def job(x: of(5, 3)) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
        whole = flow.get_variable("whole", (5, 3), flow.float64, initializer=flow.ones_initializer())
        split = flow.get_variable("split", (5, 3), flow.float64, initializer=flow.zeros_initializer(), distribute=flow.distribute.split(0))
        total = flow.get_variable("total", (3,), flow.float64, initializer=flow.zeros_initializer())
        flow.assign(total, total + flow.math.reduce_sum(x, axis=0))
        flow.assign(split, whole)
        flow.assign(whole, x)
        return {"whole": whole, "split": [split], "total": (total, x)}

    for random in steps():
        results = job(random.randn(5, 3))
        yield from (results["whole"], results["split"][0], *results["total"])


@program
def tensors(devices: int) -> Iterator[Any]:
    """Call many small functions in one predict job."""

    @flow.global_function()
    def job(x: of(6, 4), y: of(6, 4), i: of(6, dtype=flow.int32)) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
        return [
            flow.slice(x, begin=[None, 1], size=[None, 2]), flow.slice_v2(x, [(None, None, 2), (3, None, -1)]), flow.reverse(x, [0]),
            flow.concat([x, y], axis=1), flow.concat(values=[x, y], axis=0), flow.stack([x, y], axis=1), flow.pad(x, [(1, 0), (0, 1)]),
            flow.transpose(x, perm=[1, 0]), flow.cast(x * 3, dtype=flow.int32), flow.where(x > y, x, y), x > y, i == 3, i != 3, x <= 0.5,
            flow.one_hot(i, depth=5, dtype=flow.double), flow.math.logical_and(x > 0, y > 0), flow.math.argmax(x), flow.gather(x, i),
            flow.math.reduce_sum(x, axis=1, keepdims=True), flow.math.reduce_max(x, 0), flow.math.reduce_mean(x), flow.math.reduce_std(x),
            flow.math.reduce_any(i, axis=0), flow.math.reduce_logsumexp(x, 1), flow.math.l2_normalize(x, 1), flow.nn.softmax(x, axis=0),
            flow.squeeze(flow.expand_dims(x, 1), axis=[1]), flow.clip(x, -0.5, 0.5), 2.0 / x, 1.0 - x, x % y, flow.expand(x, [2, 6, 4]),
            flow.matmul(x, y, transpose_b=True), flow.constant(3, flow.int32, (2,)), flow.math.squared_difference(x, y),
        ]  # fmt: skip

    for random in steps(2):
        yield from job(random.randn(6, 4), random.randn(6, 4), random.randint(0, 5, 6).astype(np.int32))


# -------------------------------------------------------------------- running


def run(name: str, devices: int) -> list[Any]:
    """Return the arrays of a program from a fresh session."""
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    try:
        return [np.array(array) for array in PROGRAMS[name](devices)]
    finally:
        flow.clear_default_session()


def main(out: str) -> None:
    from jobflow.runtime.world.launched import launched

    started = launched()
    assert started is not None, "this is for mpiexec"
    results = {name: [array.tolist() for array in run(name, started.size)] for name in PROGRAMS}
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
