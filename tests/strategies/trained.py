"""Small models that are trained for a few steps under a strategy, and what their ranks then tell each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpt
import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.layouts.box import Reroute
from jobflow.engine.session import current_session
from jobflow.graph.ir import Node
from jobflow.strategies import named

BATCH, WIDTH, CLASSES = 12, 32, 10
GPT = gpt.Size(batch=8, length=16, width=32, heads=4, blocks=2, words=64)


def normal(deviation: float = 0.1) -> Any:
    return flow.random_normal_initializer(stddev=deviation)


def mlp(images: Any) -> Any:
    """Up, down, and a head."""
    up = flow.layers.dense(images, 64, activation=flow.nn.relu, kernel_initializer=normal(), name="up")
    down = flow.layers.dense(up, 48, activation=flow.nn.relu, kernel_initializer=normal(), name="down")
    return flow.layers.dense(down, CLASSES, kernel_initializer=normal(), name="head")


def begin(devices: int) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)


def config_of(strategy: Any) -> Any:
    config = flow.function_config()
    config.default_data_type(flow.float64)
    if strategy is not None:
        config.strategy(strategy)
    return config


def mlp_job(strategy: Any, batch: int = BATCH, clip: float | None = None, microbatches: int = 1, optimizer: str = "Adam") -> Callable[..., Any]:
    config = config_of(strategy)
    if microbatches > 1:
        config.train.num_gradient_accumulation_steps(microbatches)

    @flow.global_function("train", config)
    def train_mlp(
        images: tp.Numpy.Placeholder((batch, WIDTH), dtype=flow.float64), labels: tp.Numpy.Placeholder((batch,), dtype=flow.int32)
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, mlp(images))
        clipping = None if clip is None else flow.optimizer.grad_clipping.by_global_norm(clip)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
        getattr(flow.optimizer, optimizer)(schedule, grad_clipping=clipping).minimize(loss)
        return loss

    return train_mlp


def mlp_batch(step: int, batch: int = BATCH) -> tuple[Any, Any]:
    random = np.random.RandomState(step)
    return random.randn(batch, WIDTH), random.randint(0, CLASSES, batch).astype(np.int32)


def mlp_curve(strategy: Any, devices: int, steps: int = 4, batch: int = BATCH, clip: float | None = None, optimizer: str = "Adam") -> list[float]:
    """The losses in float64."""
    begin(devices)
    job = mlp_job(strategy, batch, clip, optimizer=optimizer)
    return [float(job(*mlp_batch(step, batch)).mean()) for step in range(steps)]


def gpt_curve(strategy: Any, devices: int, steps: int = 3, size: gpt.Size = GPT) -> list[float]:
    """The losses of the example in float32, on words that follow a rule."""
    begin(devices)
    job = gpt.make_train_job(size, 1e-2, strategy=named(strategy) if isinstance(strategy, str) else strategy)
    batches = [words(step, size) for step in range(steps)]
    return [float(job(each[:, :-1], each[:, 1:]).mean()) for each in batches]


def words(step: int, size: gpt.Size) -> Any:
    """A batch in which every word follows from the one before it."""
    starts = np.random.RandomState(step).randint(0, size.words, (size.batch, 1))
    return ((starts + 3 * np.arange(size.length + 1)) % size.words).astype(np.int32)


@dataclass(frozen=True)
class Boxing:
    """A change of layout that a job has."""

    kind: str
    phase: str
    node: Node

    @property
    def size(self) -> int:
        """Bytes of the logical tensors."""
        return sum(value.tensor_type.nbytes for value in self.node.inputs)


def boxings(job: str) -> list[Boxing]:
    """All of the job's in program order, without those that tell nobody anything."""
    redistributions = []
    for compiled in current_session()._compiled.values():
        if compiled.name == job:
            for node in compiled.programs[0].graph.nodes:
                if isinstance(node.op, Reroute) and sent_by_all(node):
                    redistributions.append(Boxing(node.op.name, node.phase, node))
    return redistributions


def sent_by_all(node: Node) -> int:
    """Bytes that all ranks hand to others."""
    assert isinstance(node.op, Reroute)
    return sum(node.op.sent(*(value.tensor_type for value in node.inputs)).values())


def counted(job: str) -> dict[str, int]:
    """Return the number of items of each kind."""
    return dict(Counter(boxing.kind for boxing in boxings(job)))


def bytes_of_all(job: str) -> int:
    """Bytes that all ranks of a job hand to others in one run."""
    return sum(sent_by_all(boxing.node) for boxing in boxings(job))


def stored(suffix: str = "") -> dict[str, str]:
    """Return the storage of the trainable variables."""
    return {name: ",".join(map(str, v.sbp)) for name, v in current_session().variables.items() if v.trainable and name.endswith(suffix)}
