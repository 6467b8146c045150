"""Models in stages, in float64: losses and variables must not depend on ranks, microbatches or schedule.

    mpiexec -n 2 python pipelines.py OUT NAME SCHEDULE ...      runs these on these ranks and writes {name schedule: numbers} to OUT

A program is a model over rows of words, and the groups of ranks of its stages.

A run returns the losses of each step and a sum over every variable.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

BATCH, LENGTH, WIDTH, WORDS, HEADS = 10, 4, 8, 11, 2
STEPS = 3
SCHEDULES = ("gpipe", "1f1b", "interleaved")

#: from the embedded words [rows * LENGTH, WIDTH] to the logits; `at(stage)` enters a stage
Model = Callable[[Any, Callable[[int], Any]], Any]
MODELS: dict[str, Model] = {}
#: number of stages of each model
STAGES = {"straight": 4, "skips": 4, "tied": 4, "transformer": 4, "there_and_back": 3}


def model(function: Model) -> Model:
    MODELS[function.__name__] = function
    return function


def variable(name: str, *shape: int) -> Any:
    return flow.get_variable(name, shape, dtype=flow.double, initializer=flow.random_normal_initializer(stddev=0.3))


def dense(x: Any, units: int, name: str) -> Any:
    return flow.nn.bias_add(flow.matmul(x, variable(f"{name}-weight", int(x.shape[1]), units)), variable(f"{name}-bias", units))


def table() -> Any:
    return variable("words", WORDS, WIDTH)


@model
def straight(x: Any, at: Callable[[int], Any]) -> Any:
    for stage in range(3):
        with at(stage):
            x = flow.math.tanh(dense(x, WIDTH + stage, f"layer{stage}"))
    with at(3):
        return dense(x, WORDS, "head")


@model
def skips(x: Any, at: Callable[[int], Any]) -> Any:
    """Let the last stage read the first stage's result, and the fourth stage read the second's."""
    with at(0):
        first = flow.math.tanh(dense(x, WIDTH, "first"))
    with at(1):
        second = flow.math.tanh(dense(first, WIDTH, "second"))
    with at(2):
        third = flow.math.tanh(dense(second, WIDTH, "third"))
    with at(3):
        return dense(first * third + second, WORDS, "head")


@model
def tied(x: Any, at: Callable[[int], Any]) -> Any:
    """Tie the embedding of the first stage to the weights of the last stage."""
    for stage in range(3):
        with at(stage):
            x = flow.math.tanh(dense(x, WIDTH, f"layer{stage}"))
    with at(3):
        return flow.matmul(x, table(), transpose_b=True)


@model
def transformer(x: Any, at: Callable[[int], Any]) -> Any:
    """Use a block of attention and a wide layer in each stage."""
    for stage in range(4):
        with at(stage):
            x = x + attention(flow.layers.layer_norm(x, name=f"norm{stage}"), f"block{stage}")
            x = x + dense(flow.math.gelu(dense(flow.layers.layer_norm(x, name=f"other{stage}"), 2 * WIDTH, f"up{stage}")), WIDTH, f"down{stage}")
    with at(3):
        return flow.matmul(flow.layers.layer_norm(x, name="norm"), table(), transpose_b=True)


def attention(x: Any, name: str) -> Any:
    def part(which: str) -> Any:
        return flow.transpose(flow.reshape(dense(x, WIDTH, f"{name}-{which}"), [-1, LENGTH, HEADS, WIDTH // HEADS]), perm=[0, 2, 1, 3])

    scores = flow.matmul(part("query"), part("key"), transpose_b=True)
    weights = flow.math.fused_scale_tril_softmax_dropout(scores, fill_value=-1e30, scale=1 / math.sqrt(WIDTH // HEADS), rate=0.0)
    mixed = flow.transpose(flow.matmul(weights, part("value")), perm=[0, 2, 1, 3])
    return dense(flow.reshape(mixed, [-1, WIDTH]), WIDTH, f"{name}-out")


@model
def there_and_back(x: Any, at: Callable[[int], Any]) -> Any:
    """Run the last layer on the first ranks too."""
    for stage in range(3):
        with at(stage):
            x = flow.math.tanh(dense(x, WIDTH, f"layer{stage}"))
    with at(0):
        return dense(x, WORDS, "head")


def train(name: str, groups: Sequence[str], microbatches: int, schedule: str | None) -> list[float]:
    """Train a model whose stage s runs on groups[s mod len(groups)]."""
    flow.clear_default_session()
    flow.config.cpu_device_num(1 + max(int(group[-1]) for group in groups))
    flow.config.seed(7)
    config = flow.function_config()
    config.default_data_type(flow.double)
    config.default_placement_scope(flow.scope.placement("cpu", groups[0]))
    config.train.num_gradient_accumulation_steps(microbatches)
    if schedule is not None:
        config.pipeline_schedule(schedule)

    def at(stage: int) -> Any:
        return flow.scope.placement("cpu", groups[stage % len(groups)])

    @flow.global_function("train", config)
    def train_job(
        text: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32), following: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32)
    ) -> tp.Numpy:
        with at(0):
            x = flow.reshape(flow.gather(table(), text), [-1, WIDTH])
        logits = MODELS[name](x, at)
        with at(0 if name == "there_and_back" else 3):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(following, [-1]), logits)
            flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.02])).minimize(loss)
        return loss

    random = np.random.RandomState(3)
    rows = random.randint(0, WORDS, (STEPS, BATCH, LENGTH + 1)).astype(np.int32)
    losses = [train_job(row[:, :-1], row[:, 1:]) for row in rows]
    sums = [np.cos(np.asarray(value.numpy(), np.float64)).sum() for _, value in sorted(flow.get_all_variables().items())]
    return [float(x) for loss in losses for x in loss] + [float(x) for x in sums]


def on_ranks(size: int, schedule: str, name: str, microbatches: int = 4) -> list[float]:
    """Train with one rank per group."""
    return train(name, [f"0:{rank}" for rank in range(size)], microbatches, schedule)


if __name__ == "__main__":
    import mpi4py.MPI

    ranks = mpi4py.MPI.COMM_WORLD.Get_size()
    out, *words = sys.argv[1:]
    results = {f"{name} {schedule}": on_ranks(ranks, schedule, name) for name, schedule in zip(words[::2], words[1::2], strict=True)}
    Path(out).write_text(json.dumps(results))
