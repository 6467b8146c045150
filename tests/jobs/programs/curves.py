"""Training programs whose loss curves must not depend on the number of devices, nor on the transport.

    mpiexec -n 2 python curves.py OUT single|multi NAME...      runs these and writes {program: curve} to OUT (multi: OUT.<rank>)

A program takes the number of devices and returns one number per step.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

Program = Callable[[int], list[float]]

STEPS = 20
BATCH = 24
SIDE = 12
CLASSES = 10
#: those that compute in float64, and agree to 1e-9
DOUBLE: set[str] = set()
#: too few rows, or steps too small, to learn anything in 20 steps
SLOW = {"lenet_of_1_row", "lenet_of_7_rows", "moving_statistics"}
PROGRAMS: dict[str, Program] = {}
#: where the program that runs may save
FOLDERS: list[Path] = []


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def add(name: str, program: Program, double: bool = False) -> None:
    PROGRAMS[name] = program
    if double:
        DOUBLE.add(name)


# -------------------------------------------------------------------- data and models


def batches(size: int = BATCH, seed: int = 0, dtype: Any = np.float32) -> Iterator[tuple[Any, Any]]:
    """Yield noisy pictures [n,1,12,12] of ten classes, and their labels."""
    random = np.random.RandomState(seed)
    pictures = random.randn(CLASSES, 1, SIDE, SIDE)
    for _ in range(STEPS):
        labels = random.randint(0, CLASSES, size).astype(np.int32)
        yield (0.5 * pictures[labels] + 0.3 * random.randn(size, 1, SIDE, SIDE)).astype(dtype), labels


def images_of(size: int = BATCH, dtype: Any = flow.float) -> Any:
    return tp.Numpy.Placeholder((size, 1, SIDE, SIDE), dtype=dtype)


def labels_of(size: int = BATCH) -> Any:
    return tp.Numpy.Placeholder((size,), dtype=flow.int32)


def weights() -> Any:
    return flow.truncated_normal(0.1)


def constant(rate: float) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def dense(x: Any, units: int, name: str, **options: Any) -> Any:
    return flow.layers.dense(x, units, kernel_initializer=weights(), name=name, **options)


def softmax_loss(labels: Any, logits: Any) -> Any:
    return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")


def flat(images: Any) -> Any:
    return flow.reshape(images, [images.shape[0], -1])


def mlp(images: Any, **options: Any) -> Any:
    return dense(dense(flat(images), 32, "hidden", activation=flow.nn.relu), CLASSES, "output", **options)


def wide_mlp(images: Any) -> Any:
    """Use products large enough for matrix registers, also on a quarter of 256 rows."""
    first = dense(flat(images), 512, "first", activation=flow.math.tanh)
    return dense(dense(first, 512, "second", activation=flow.math.tanh), CLASSES, "output")


def convolutions(images: Any) -> Any:
    conv1 = flow.layers.conv2d(images, 8, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=weights(), name="conv1")
    pool1 = flow.nn.max_pool2d(conv1, ksize=2, strides=2, padding="SAME", name="pool1")
    conv2 = flow.layers.conv2d(pool1, 16, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=weights(), name="conv2")
    return flat(flow.nn.max_pool2d(conv2, ksize=2, strides=2, padding="SAME", name="pool2"))


def lenet(images: Any) -> Any:
    hidden = dense(convolutions(images), 64, "hidden", activation=flow.nn.relu)
    return dense(flow.nn.dropout(hidden, rate=0.5), CLASSES, "outlayer")


def train(model: Callable[[Any], Any], optimizer: Callable[[], Any], size: int = BATCH, double: bool = False, config: Any = None) -> list[float]:
    """Return the loss curve of a classifier in the consistent view."""
    flow.config.conv_algorithm("direct")

    @flow.global_function(type="train", function_config=config)
    def train_job(images: images_of(size, flow.float64 if double else flow.float), labels: labels_of(size)) -> tp.Numpy:
        loss = softmax_loss(labels, model(images))
        optimizer().minimize(loss)
        return loss

    return curve(train_job(images, labels) for images, labels in batches(size, dtype=np.float64 if double else np.float32))


def curve(losses: Iterator[Any]) -> list[float]:
    return [float(np.mean(loss, dtype=np.float64)) for loss in losses]


def sgd(rate: float = 0.1, momentum: float = 0.9, **options: Any) -> Callable[[], Any]:
    return lambda: flow.optimizer.SGD(constant(rate), momentum=momentum, **options)


# -------------------------------------------------------------------- the seeds' programs, small


@program
def consistent_lenet(devices: int) -> list[float]:
    return train(lenet, sgd(0.05))


add("lenet_in_float64", lambda devices: train(lenet, sgd(0.05), double=True), double=True)
add("wide_mlp", lambda devices: train(wide_mlp, sgd(0.005), size=256))


def in_mirrored_view(model: Callable[[Any], Any], parts: Sequence[int], config: Any = None) -> list[float]:
    """Return the loss curve if device i has the next parts[i] rows of each batch."""
    flow.config.conv_algorithm("direct")
    config = config or flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    most = max(parts)

    @flow.global_function(type="train", function_config=config)
    def train_job(
        images: tp.ListNumpy.Placeholder((most, 1, SIDE, SIDE)), labels: tp.ListNumpy.Placeholder((most,), dtype=flow.int32)
    ) -> tp.ListNumpy:
        loss = softmax_loss(labels, model(images))
        flow.optimizer.SGD(constant(0.05), momentum=0.9).minimize(loss)
        return loss

    cuts = np.cumsum(parts)[:-1]
    return curve(np.concatenate(train_job(np.split(images, cuts), np.split(labels, cuts))) for images, labels in batches(sum(parts)))


@program
def mirrored_mlp(devices: int) -> list[float]:
    return in_mirrored_view(mlp, [BATCH // devices] * devices)


@program
def mirrored_lenet(devices: int) -> list[float]:
    return in_mirrored_view(lenet, [BATCH // devices] * devices)


#: how 24 rows lie on the devices
UNEVEN_ROWS = {1: [24], 2: [17, 7], 3: [5, 13, 6], 4: [10, 1, 9, 4]}


@program
def uneven_lenet(devices: int) -> list[float]:
    return in_mirrored_view(lenet, UNEVEN_ROWS[devices])


def microbatches(count: int) -> Any:
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(count)
    return config


add("lenet_in_microbatches", lambda devices: train(lenet, sgd(0.05), double=True, config=microbatches(5)), double=True)
add("mirrored_lenet_in_microbatches", lambda devices: in_mirrored_view(lenet, [BATCH // devices] * devices, microbatches(5)))


def split_mlp(images: Any) -> Any:
    return mlp(images, model_distribute=flow.distribute.split(axis=0))


@program
def hybrid_mlp_with_add_loss(devices: int) -> list[float]:
    config = flow.function_config()
    config.default_data_type(flow.float)
    config.train.primary_lr(0.1)
    config.train.model_update_conf({"naive_conf": {}})

    @flow.global_function(config)
    def train_job(images: images_of(), labels: labels_of()) -> tp.Numpy:
        loss = softmax_loss(labels, split_mlp(images))
        flow.losses.add_loss(loss)
        return loss

    return curve(train_job(images, labels) for images, labels in batches())


@program
def hybrid_mlp_with_optimizer(devices: int) -> list[float]:
    return train(split_mlp, sgd(0.1))


@program
def relay_lenet(devices: int) -> list[float]:
    def relay(images: Any) -> Any:
        reshaped = convolutions(images)
        with flow.scope.placement("gpu", "0:0"):
            hidden = dense(reshaped, 64, "hidden", activation=flow.nn.relu)
        hidden = flow.nn.dropout(hidden, rate=0.5)
        with flow.scope.placement("gpu", f"0:{min(1, devices - 1)}"):
            return dense(hidden, CLASSES, "outlayer")

    return train(relay, sgd(0.1, 0.5))


@program
def gpt(devices: int) -> list[float]:
    batch, length, width, heads, words = 4, 8, 16, 2, 24

    def attention(x: Any, name: str) -> Any:
        qkv = dense(x, 3 * width, f"{name}-qkv")

        def part(index: int) -> Any:
            mine = flow.slice(qkv, [None, index * width], [None, width])
            return flow.transpose(flow.reshape(mine, [batch, length, heads, width // heads]), perm=[0, 2, 1, 3])

        scores = flow.matmul(part(0), part(1), transpose_b=True)
        weights = flow.math.fused_scale_tril_softmax_dropout(scores, fill_value=-1e30, scale=1 / math.sqrt(width // heads), rate=0.1)
        mixed = flow.transpose(flow.matmul(weights, part(2)), perm=[0, 2, 1, 3])
        return dense(flow.reshape(mixed, [batch * length, width]), width, f"{name}-out")

    def block(x: Any, name: str) -> Any:
        x = x + attention(flow.layers.layer_norm(x, name=f"{name}-norm1"), name)
        wide = dense(flow.layers.layer_norm(x, name=f"{name}-norm2"), 4 * width, f"{name}-up", activation=flow.math.gelu)
        return x + dense(wide, width, f"{name}-down")

    @flow.global_function(type="train")
    def train_job(
        text: tp.Numpy.Placeholder((batch, length), dtype=flow.int32), following: tp.Numpy.Placeholder((batch, length), dtype=flow.int32)
    ) -> tp.Numpy:
        table = flow.get_variable("words", (words, width), initializer=weights())
        encoding = flow.get_variable("positions", (length, width), initializer=weights())
        x = flow.reshape(flow.gather(table, text) + flow.reshape(encoding, [1, length, width]), [batch * length, width])
        for index in range(2):
            x = block(x, f"block{index}")
        loss = softmax_loss(flow.reshape(following, [batch * length]), dense(flow.layers.layer_norm(x, name="norm"), words, "head"))
        flow.optimizer.AdamW(constant(0.01), do_bias_correction=True, weight_decay=0.1).minimize(loss)
        return loss

    random = np.random.RandomState(0)
    starts = random.randint(0, words, (STEPS, batch, 1))
    text = ((starts + np.arange(length + 1) * 5) % words).astype(np.int32)
    return curve(train_job(rows[:, :-1], rows[:, 1:]) for rows in text)


# -------------------------------------------------------------------- norms


def batch_norm_net(images: Any, activation: Any = flow.math.tanh) -> Any:
    """Use a smooth activation by default: statistics differ in the last bit, and a ReLU near 0 may magnify that."""
    conv = flow.layers.conv2d(images, 6, 3, padding="SAME", use_bias=False, kernel_initializer=weights(), name="conv")
    normed = activation(flow.layers.batch_normalization(conv, axis=1, momentum=0.8, name="bn1"))
    hidden = dense(flat(flow.nn.avg_pool2d(normed, ksize=2, strides=2, padding="SAME", name="pool")), 16, "hidden")
    return dense(activation(flow.layers.batch_normalization(hidden, axis=1, momentum=0.8, name="bn2")), CLASSES, "output")


def layer_norm_net(images: Any) -> Any:
    hidden = flow.nn.relu(flow.layers.layer_norm(dense(flat(images), 24, "hidden"), name="ln1"))
    return dense(flow.layers.layer_norm(flow.nn.dropout(dense(hidden, 16, "second"), rate=0.2), name="ln2"), CLASSES, "output")


add("batch_norm", lambda devices: train(batch_norm_net, sgd(0.05)))
add("batch_norm_in_float64", lambda devices: train(lambda images: batch_norm_net(images, flow.nn.relu), sgd(0.05), double=True), double=True)
add("layer_norm", lambda devices: train(layer_norm_net, sgd(0.05)))


@program
def moving_statistics(devices: int) -> list[float]:
    """Run a predict job after every step, on the variables and moving statistics of the train job."""

    @flow.global_function(type="train")
    def train_job(images: images_of(), labels: labels_of()) -> tp.Numpy:
        loss = softmax_loss(labels, batch_norm_net(images))
        flow.optimizer.SGD(constant(0.05), momentum=0.9).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def predict_job(images: images_of(5)) -> tp.Numpy:
        return flow.nn.softmax(batch_norm_net(images))

    flow.config.conv_algorithm("direct")
    scores = []
    for images, labels in batches():
        train_job(images, labels)
        scores.append(float(np.mean(predict_job(images[:5])[np.arange(5), labels[:5]], dtype=np.float64)))
    return scores


# -------------------------------------------------------------------- optimizers, gradients, schedules

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": sgd(0.1, 0.9),
    "SGDW": lambda: flow.optimizer.SGDW(constant(0.1), momentum=0.9, weight_decay=0.01),
    "Adam": lambda: flow.optimizer.Adam(constant(0.005)),
    "Adam_with_bias_correction": lambda: flow.optimizer.Adam(constant(0.005), do_bias_correction=True),
    "AdamW": lambda: flow.optimizer.AdamW(constant(0.005), weight_decay=0.1, weight_decay_excludes=["bias"]),
    "LazyAdam": lambda: flow.optimizer.LazyAdam(constant(0.005)),
    "RMSProp": lambda: flow.optimizer.RMSProp(constant(0.005)),
    "RMSProp_centered": lambda: flow.optimizer.RMSProp(constant(0.005), centered=True),
    "LARS": lambda: flow.optimizer.LARS(constant(1.0), lars_coefficient=0.01, weight_decay=0.01),
    "LAMB": lambda: flow.optimizer.LAMB(constant(0.02), weight_decay=0.01),
    "CombinedOptimizer": lambda: flow.optimizer.CombinedOptimizer(
        [
            flow.optimizer.SGD(constant(0.1), momentum=0.9, variables=["hidden-weight", "hidden-bias"]),
            flow.optimizer.Adam(constant(0.005), variables=["output-weight", "output-bias"]),
        ]
    ),
}


def with_optimizer(name: str, model: Callable[[Any], Any] = mlp) -> Program:
    return lambda devices: train(model, OPTIMIZERS[name], double=True)


for _name in OPTIMIZERS:
    add(_name, with_optimizer(_name), double=True)
for _name in ("LARS", "LAMB"):  # they take norms of whole variables
    add(f"{_name}_on_a_split_layer", with_optimizer(_name, split_mlp), double=True)


def clipped(model: Callable[[Any], Any]) -> Program:
    clipping = flow.optimizer.grad_clipping.by_global_norm
    return lambda devices: train(model, sgd(0.5, 0.5, grad_clipping=clipping(0.3)), double=True)


add("clipped", clipped(mlp), double=True)
add("clipped_on_a_split_layer", clipped(split_mlp), double=True)


@program
def clipped_by_configuration(devices: int) -> list[float]:
    config = flow.function_config()
    config.train.primary_lr(0.5)
    warmup = {"linear_conf": {"warmup_batches": 6, "start_multiplier": 0.1}}
    decay = {"cosine_conf": {"decay_batches": 15, "alpha": 0.1}}
    clip = {"clip_by_global_norm": {"clip_norm": 0.3}}
    config.train.model_update_conf({"momentum_conf": {"beta": 0.5}, "clip_conf": clip, "warmup_conf": warmup, "learning_rate_decay": decay})

    @flow.global_function(config)
    def train_job(images: images_of(), labels: labels_of()) -> tp.Numpy:
        loss = softmax_loss(labels, mlp(images))
        flow.losses.add_loss(loss)
        return loss

    return curve(train_job(images, labels) for images, labels in batches())


def regularized(images: Any) -> Any:
    l1_l2 = flow.regularizers.l1_l2(0.001, 0.02)
    hidden = dense(flat(images), 16, "hidden", activation=flow.nn.relu, kernel_regularizer=l1_l2, bias_regularizer=flow.regularizers.l1(0.01))
    return dense(hidden, CLASSES, "output", kernel_regularizer=flow.regularizers.l2(0.05), model_distribute=flow.distribute.split(0))


add("regularized", lambda devices: train(regularized, sgd(0.1), double=True), double=True)


@program
def several_losses(devices: int) -> list[float]:
    """Train two losses of the batch's size; the curve has both means."""

    @flow.global_function(type="train")
    def train_job(images: images_of(), labels: labels_of()) -> tuple[tp.Numpy, tp.Numpy]:
        hidden = dense(flat(images), 16, "hidden", activation=flow.nn.relu)
        first = softmax_loss(labels, dense(hidden, CLASSES, "output"))
        second = flow.math.reduce_mean(flow.math.square(dense(hidden, images.shape[2] * images.shape[3], "back") - flat(images)), axis=1)
        flow.optimizer.SGD(constant(0.1), momentum=0.9).minimize([first, second])
        return first, second

    return curve(np.stack(train_job(images, labels)) for images, labels in batches())


@program
def mean_loss(devices: int) -> list[float]:
    """Train a scalar loss: sigmoid cross entropy over all classes."""

    @flow.global_function(type="train")
    def train_job(images: images_of(), labels: labels_of()) -> tp.Numpy:
        targets = flow.one_hot(labels, CLASSES, dtype=flow.float)
        loss = flow.math.reduce_mean(flow.nn.sigmoid_cross_entropy_with_logits(targets, mlp(images)))
        flow.optimizer.Adam(constant(0.005)).minimize(loss)
        return loss

    return curve(train_job(images, labels) for images, labels in batches())


def scheduled(make: Callable[[], Any]) -> Program:
    return lambda devices: train(mlp, lambda: flow.optimizer.SGD(make(), momentum=0.9), double=True)


add(
    "warmup_linear",
    scheduled(lambda: flow.optimizer.PiecewiseConstantScheduler([9, 14], [0.1, 0.05, 0.02], warmup=flow.optimizer.warmup.linear(5, 0.1))),
    double=True,
)
add("warmup_constant", scheduled(lambda: flow.optimizer.CosineScheduler(0.2, 15, 0.1, warmup=flow.optimizer.warmup.constant(5, 0.1))), double=True)


# -------------------------------------------------------------------- sizes and devices

add("lenet_of_7_rows", lambda devices: train(lenet, sgd(0.05), size=7))
add("lenet_of_1_row", lambda devices: train(lenet, sgd(0.02), size=1))
add("batch_norm_of_3_rows", lambda devices: train(batch_norm_net, sgd(0.01), size=3))
add("split_mlp_of_7_rows", lambda devices: train(split_mlp, sgd(), size=7, double=True), double=True)


@program
def on_two_devices(devices: int) -> list[float]:
    config = flow.function_config()
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))
    return train(lenet, sgd(0.05), config=config)


@program
def mirrored_on_two_devices(devices: int) -> list[float]:
    config = flow.function_config()
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))
    return in_mirrored_view(lenet, [BATCH] if devices == 1 else [BATCH - 7, 7], config)


@program
def on_the_last_device(devices: int) -> list[float]:
    config = flow.function_config()
    config.default_placement_scope(flow.scope.placement("cpu", f"0:{devices - 1}"))
    return train(split_mlp, sgd(0.05), config=config)


@program
def saved_and_loaded(devices: int) -> list[float]:
    """Run ten steps, save, run steps that loading reverts, and run ten more."""
    folder = FOLDERS[-1] / "saved_and_loaded"

    @flow.global_function(type="train")
    def train_job(images: images_of(), labels: labels_of()) -> tp.Numpy:
        hidden = flow.math.tanh(flow.layers.batch_normalization(dense(flat(images), 16, "hidden"), axis=1, momentum=0.8, name="bn"))
        logits = dense(flow.nn.dropout(hidden, rate=0.2), CLASSES, "output", model_distribute=flow.distribute.split(0))
        loss = softmax_loss(labels, logits)
        flow.optimizer.Adam(flow.optimizer.CosineScheduler(0.01, 15), do_bias_correction=True).minimize(loss)
        return loss

    all_batches = list(batches())
    losses = curve(train_job(images, labels) for images, labels in all_batches[:10])
    check_point = flow.train.CheckPoint()
    check_point.save(str(folder))
    curve(train_job(images, labels) for images, labels in all_batches[3:7])
    check_point.load(str(folder))
    return losses + curve(train_job(images, labels) for images, labels in all_batches[10:])


# -------------------------------------------------------------------- running


def run(name: str, devices: int, folder: Path | None = None) -> list[float]:
    """Return one curve from a fresh session; checkpoints go to `folder`, or to a temporary directory."""
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    with tempfile.TemporaryDirectory() as own:
        FOLDERS.append(folder or Path(own))
        try:
            return PROGRAMS[name](devices)
        finally:
            FOLDERS.pop()
            flow.clear_default_session()


def main(out: str, client: str, *names: str) -> None:
    from jobflow.runtime.world.launched import launched

    started = launched()  # not by `mpiexec -n 1`, where there is nobody else
    flow.env.client(client)
    curves = {name: run(name, started.size if started else 1, Path(out).parent) for name in names}  # all ranks save to one place
    Path(f"{out}.{started.rank}" if started and client == "multi" else out).write_text(json.dumps(curves))


if __name__ == "__main__":
    main(*sys.argv[1:])
