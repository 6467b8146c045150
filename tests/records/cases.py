"""Programs for what examples, configurations and docs lack: every strategy, optimizer, initializer, schedule of a pipeline and kind of step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn

STEPS = 20
SIZES = (1, 2, 4)


@dataclass(frozen=True)
class Way:
    """One way to run a program: what is called, on one client or on so many `ranks`."""

    name: str
    run: Callable[[], Any]
    ranks: int | None = None
    #: of the layouts a hash is kept, because they are long and stand elsewhere in short
    brief: bool = False
    #: takes seconds
    slow: bool = False
    #: how far numbers may lie apart on another class of machine, relative, at the first and at the last step
    tolerance: tuple[float, float] = (1e-6, 1e-5)


def _random_values(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def _start(devices: int) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)


# -------------------------------------------------------------------- strategies of a job

ONE = ("dp",)
TWO = ("dp", "tp", "pp", "zero=1,least=1", "zero=2,least=1", "zero=3,least=1", "consistent", "mirrored")
TWO += ("pipeline=2,microbatches=4", "pipeline=2,microbatches=4,schedule=gpipe")
FOUR = (*TWO[:8], "2x2", "2x1x2", "data=2,tensor=2,zero=3,least=1", "pipeline=2,data=2,microbatches=4")
FOUR += ("pipeline=4,microbatches=3", "pipeline=2,data=2,stages=4,microbatches=4,schedule=interleaved")


def transformer(devices: int, strategy: str, microbatches: int = 1, checkpointing: bool = False) -> None:
    """The GPT of the examples, small; with stages it has a second block."""
    import gpt

    _start(devices)
    blocks = 2 if "pipeline" in strategy or strategy == "pp" else 1
    size = gpt.Size(batch=8, length=8, width=16, heads=2, blocks=blocks, words=32, checkpointing=checkpointing)
    job = gpt.make_train_job(size, 1e-2, strategy=flow.strategies.named(strategy), microbatches=microbatches)
    random = np.random.RandomState(0)
    for _ in range(STEPS):
        windows = random.randint(0, 32, (8, 9)).astype(np.int32)
        job(windows[:, :-1], windows[:, 1:])


def _strategies() -> Iterator[Way]:
    for devices, names in ((1, ONE), (2, TWO), (4, FOUR)):
        for name in names:
            yield Way(f"{devices} {name}", partial(transformer, devices, name))
    for name in ("dp", "zero=2,least=1"):
        yield Way(f"2 {name}, accumulated", partial(transformer, 2, name, 3))
    yield Way("4 2x2, recomputed", partial(transformer, 4, "2x2", 1, True))


# -------------------------------------------------------------------- optimizers of a job


def _rate(value: float = 0.05) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [value])


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: flow.optimizer.SGD(_rate(), momentum=0),
    "SGD momentum": lambda: flow.optimizer.SGD(_rate(), momentum=0.9),
    "SGDW": lambda: flow.optimizer.SGDW(_rate(), momentum=0.9, weight_decay=0.01),
    "Adam": lambda: flow.optimizer.Adam(_rate()),
    "Adam corrected": lambda: flow.optimizer.Adam(_rate(), do_bias_correction=True),
    "AdamW": lambda: flow.optimizer.AdamW(_rate(), weight_decay=0.01, do_bias_correction=True),
    "LazyAdam": lambda: flow.optimizer.LazyAdam(_rate()),
    "RMSProp": lambda: flow.optimizer.RMSProp(_rate(0.01)),
    "RMSProp centered": lambda: flow.optimizer.RMSProp(_rate(0.01), centered=True),
    "LARS": lambda: flow.optimizer.LARS(_rate()),
    "LAMB": lambda: flow.optimizer.LAMB(_rate(), weight_decay=0.01),
    "clipped": lambda: flow.optimizer.SGD(_rate(), momentum=0.9, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.5)),
    "combined": lambda: flow.optimizer.CombinedOptimizer(
        [
            flow.optimizer.SGD(_rate(), momentum=0, variables=["up-weight", "up-bias"]),
            flow.optimizer.Adam(_rate(), variables=["down-weight", "down-bias"]),
        ]
    ),
    "warmup": lambda: flow.optimizer.SGD(flow.optimizer.CosineScheduler(0.1, 15, 0.1, warmup=flow.optimizer.warmup.linear(5, 0.1)), momentum=0),
    "exponential": lambda: flow.optimizer.SGD(flow.optimizer.ExponentialScheduler(0.1, 5, 0.5), momentum=0),
    "polynomial": lambda: flow.optimizer.SGD(flow.optimizer.PolynomialScheduler(0.1, 15, 0.001, 2.0), momentum=0),
    "inverse": lambda: flow.optimizer.SGD(flow.optimizer.InverseTimeScheduler(0.1, 5, 0.5), momentum=0),
    "natural": lambda: flow.optimizer.SGD(flow.optimizer.NaturalExpScheduler(0.1, 5, 0.5), momentum=0),
    "linear cosine": lambda: flow.optimizer.SGD(flow.optimizer.LinearCosineScheduler(0.1, 15), momentum=0),
    "piecewise": lambda: flow.optimizer.SGD(flow.optimizer.PiecewiseScalingScheduler(0.1, [5, 10], [0.5, 0.1]), momentum=0),
}


def optimized(make: Callable[[], Any], devices: int, strategy: str = "dp") -> None:
    """Two dense layers under an optimizer of jobs."""
    _start(devices)
    config = flow.function_config()
    config.strategy(flow.strategies.named(strategy))

    @flow.global_function("train", config)
    def step(x: tp.Numpy.Placeholder((8, 6)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        init = flow.xavier_uniform_initializer()
        hidden = flow.layers.dense(x, 8, activation=flow.math.tanh, kernel_initializer=init, kernel_regularizer=flow.regularizers.l2(0.01), name="up")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.layers.dense(hidden, 4, kernel_initializer=init, name="down"))
        make().minimize(loss)
        return loss

    x, y = _random_values(0, 8, 6), (np.arange(8) % 4).astype(np.int32)
    for _ in range(STEPS):
        step(x, y)


def _optimizers() -> Iterator[Way]:
    for name, make in OPTIMIZERS.items():
        yield Way(f"1 {name}", partial(optimized, make, 1))
    for name in ("SGD momentum", "AdamW", "RMSProp centered", "LARS", "LAMB", "clipped"):
        yield Way(f"2 zero1 {name}", partial(optimized, OPTIMIZERS[name], 2, "data=2,zero=1,least=1"))


# -------------------------------------------------------------------- optimizers of tensors

TENSOR_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD dampened": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "Adam": ("Adam", {"lr": 0.05, "weight_decay": 0.01}),
    "Adam amsgrad": ("Adam", {"lr": 0.05, "amsgrad": True}),
    "AdamW": ("AdamW", {"lr": 0.05, "weight_decay": 0.01}),
    "RMSprop": ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "Adagrad": ("Adagrad", {"lr": 0.05, "lr_decay": 0.1}),
    "Adadelta": ("Adadelta", {"lr": 1.0}),
    "LAMB": ("LAMB", {"lr": 0.05}),
}


def _model() -> Any:
    flow.manual_seed(1)
    everywhere = flow.placement.all("cpu")
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 4))
    return model.to_global(everywhere, flow.sbp.broadcast)


def _batch(layout: Any) -> tuple[Any, Any]:
    everywhere = flow.placement.all("cpu")
    y = (np.arange(8) % 4).astype(np.int32)
    return flow.tensor(_random_values(0, 8, 6), placement=everywhere, sbp=layout), flow.tensor(y, placement=everywhere, sbp=layout)


def at_once(name: str, options: dict[str, Any]) -> None:
    """A module that is trained op by op."""
    model = _model()
    optimizer = getattr(flow.optim, name)(model.parameters(), **options)
    schedule = flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15, 0.01)
    x, y = _batch(flow.sbp.split(0))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        loss.item()


def _tensor_optimizers() -> Iterator[Way]:
    for name, (optimizer, options) in TENSOR_OPTIMIZERS.items():
        yield Way(f"1 rank {name}", partial(at_once, optimizer, options), ranks=1)
    for name in ("SGD nesterov", "AdamW", "LAMB"):
        yield Way(f"2 ranks {name}", partial(at_once, *TENSOR_OPTIMIZERS[name]), ranks=2)


# -------------------------------------------------------------------- graphs


class Step(nn.Graph):
    """A training step of a module."""

    def __init__(self, model: Any, optimizer: Any, setup: Callable[[Any], None]) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        setup(self)

    def build(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def in_a_graph(name: str, options: dict[str, Any], setup: Callable[[Any], None]) -> None:
    """The same module, trained as a graph."""
    model = _model()
    step = Step(model, getattr(flow.optim, name)(model.parameters(), **options), setup)
    x, y = _batch(flow.sbp.split(0))
    for _ in range(STEPS):
        step(x, y).mean().item()


def _recomputed(graph: Any) -> None:
    graph.model.to(nn.graph.GraphModule).activation_checkpointing = True


GRAPHS: dict[str, Callable[[Any], None]] = {
    "plain": lambda graph: None,
    "zero 1": lambda graph: graph.config.enable_zero(stage=1, shard_min_size=1),
    "zero 2": lambda graph: graph.config.enable_zero(stage=2, shard_min_size=1),
    "zero 3": lambda graph: graph.config.enable_zero(stage=3, shard_min_size=1),
    "accumulated": lambda graph: graph.config.set_gradient_accumulation_steps(2),
    "recomputed": _recomputed,
    "bfloat16": lambda graph: graph.config.enable_amp(dtype=flow.bfloat16),
}


def _graphs() -> Iterator[Way]:
    half = {"bfloat16": (1e-2, 5e-2)}
    for n in SIZES:
        for name, setup in GRAPHS.items():
            if n == 2 or name == "plain":
                options = {"tolerance": half[name]} if name in half else {}
                yield Way(f"{n} rank{'s' * (n > 1)} {name}", partial(in_a_graph, "Adam", {"lr": 0.05}, setup), ranks=n, **options)
    for name in ("SGD nesterov", "Adam amsgrad", "RMSprop", "Adagrad", "Adadelta", "LAMB"):
        yield Way(f"1 rank {name}", partial(in_a_graph, *TENSOR_OPTIMIZERS[name], GRAPHS["plain"]), ranks=1)


# -------------------------------------------------------------------- kinds of steps


def half_precision(devices: int, dtype: Any) -> None:
    """Half precision with a dynamic loss scale, regions that are computed again, and clipping."""
    _start(devices)
    config = flow.function_config()
    config.mixed_precision(dtype)

    @flow.checkpointed
    def block(x: Any, name: str) -> Any:
        return flow.layers.dense(x, 6, flow.math.tanh, kernel_initializer=flow.random_normal_initializer(stddev=0.3), name=name)

    @flow.global_function("train", config)
    def step(x: tp.Numpy.Placeholder((8, 6)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        logits = flow.layers.dense(block(block(x, "a"), "b"), 4, kernel_initializer=flow.ones_initializer(), name="c")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        scale = flow.optimizer.loss_scale.dynamic_loss_scale(256.0, increment_period=4)
        flow.optimizer.SGD(_rate(0.1), loss_scale_policy=scale, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0)).minimize(loss)
        return loss

    x, y = _random_values(0, 8, 6), (np.arange(8) % 4).astype(np.int32)
    for i in range(STEPS):
        step(np.where(i == 3, np.float32(np.inf), x), y)


def layers(devices: int) -> None:
    """Convolutions, statistics of batches, dropout, and layers that are split by their units."""
    _start(devices)

    @flow.global_function("train")
    def step(x: tp.Numpy.Placeholder((8, 3, 8, 8)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        init = flow.variance_scaling_initializer(2.0, "fan_in", "random_normal", "NCHW")
        z = flow.layers.conv2d(x, 4, 3, padding="SAME", kernel_initializer=init, name="conv")
        z = flow.nn.relu(flow.layers.batch_normalization(z, axis=1, name="norm"))
        z = flow.nn.dropout(flow.reshape(flow.nn.avg_pool2d(z, 2, 2, "VALID"), [8, -1]), rate=0.3)
        split = flow.distribute.split(axis=0)
        z = flow.layers.dense(z, 8, flow.nn.relu, kernel_initializer=flow.xavier_normal_initializer(), model_distribute=split, name="wide")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.layers.dense(z, 4, model_distribute=split, name="classes"))
        flow.optimizer.Adam(_rate(0.01)).minimize(loss)
        return loss

    for i in range(STEPS):
        step(_random_values(i, 8, 3, 8, 8), (np.arange(8) % 4).astype(np.int32))


def first_values(devices: int) -> None:
    """Variables of every initializer, and every random op."""
    _start(devices)
    makes = {
        "constant": flow.constant_initializer(0.5),
        "zeros": flow.zeros_initializer(),
        "ones": flow.ones_initializer(),
        "uniform": flow.random_uniform_initializer(-0.1, 0.1),
        "normal": flow.random_normal_initializer(stddev=0.1),
        "truncated": flow.truncated_normal_initializer(stddev=0.1),
        "xavier": flow.xavier_uniform_initializer(),
        "xavier-normal": flow.xavier_normal_initializer(),
        "glorot": flow.glorot_uniform_initializer(),
        "kaiming": flow.kaiming_initializer((6, 10)),
        "scaling": flow.variance_scaling_initializer(1.0, "fan_avg", "truncated_normal"),
    }

    @flow.global_function()
    def shown() -> tp.Bundle[tp.Numpy]:
        return {name: flow.math.square(flow.get_variable(name, (6, 10), initializer=make)) for name, make in makes.items()}

    shown()


def _kinds() -> Iterator[Way]:
    for n in (1, 2):
        for name, dtype in (("bfloat16", flow.bfloat16), ("float16", flow.float16)):
            yield Way(f"{n} {name}", partial(half_precision, n, dtype), tolerance=(1e-2, 5e-2))
    for n in SIZES:
        yield Way(f"{n} layers", partial(layers, n))
        yield Way(f"{n} first values", partial(first_values, n))


CASES: dict[str, tuple[Way, ...]] = {
    "strategies": tuple(_strategies()),
    "optimizers": tuple(_optimizers()),
    "tensor_optimizers": tuple(_tensor_optimizers()),
    "graphs": tuple(_graphs()),
    "steps": tuple(_kinds()),
}
