"""Weights that are multiplied by the ranks that update them: which, what travels instead, and that the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.commands import executors_of
from jobflow.engine.session import current_session
from jobflow.engine.shared_buffers import IO_BUFFERS
from jobflow.plan.plan import Collective, Compute, Plan
from jobflow.plan.storage import is_common

RATE = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
UNITS = 301


pytestmark = pytest.mark.usefixtures("fresh")


def weight(name: str, *shape: int, trainable: bool = True) -> Any:
    return flow.get_variable(name, shape, initializer=flow.random_normal_initializer(stddev=0.05), trainable=trainable)


def dense(x: Any, name: str = "w", **more: Any) -> Any:
    return flow.matmul(x, weight(name, UNITS, 200, **more), transpose_b=True)


def loss_of(y: Any) -> Any:
    y = flow.math.reduce_mean(flow.math.square(flow.matmul(flow.nn.relu(y), weight("v", UNITS, 3))), axis=[1])
    flow.optimizer.SGD(RATE, momentum=0).minimize(y)
    return y


def trained(body: Callable[[Any], Any], shape: tuple[int, ...], ranks: int, share: bool = True, config: Any = None) -> tuple[list[Any], list[Plan]]:
    """What some steps return, then the variables; and the ranks' plans."""
    flow.clear_default_session()
    flow.config.cpu_device_num(ranks)
    flow.config.share_variables(share)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return loss_of(body(x))

    samples = np.random.default_rng(0).standard_normal((4, *shape)).astype(np.float32)
    found = [job(x) for x in samples] + [flow.get_all_variables()[name].numpy() for name in "wv"]
    world = current_session().world
    assert world is not None
    return found, [next(iter(executors_of(rank).values())).plan for rank in world.ranks]


def communication(plan: Plan) -> list[str]:
    return [f"{i.kind} {i.name}" for i in plan.body if isinstance(i, Collective)]


def products(plan: Plan) -> list[Compute]:
    """Who reads the large weight in the body."""
    return [i for i in plan.body if isinstance(i, Compute) and any(is_common(s.buffer) and s.type.shape[-1] == 200 for s in i.inputs)]


def flat(images: Any) -> Any:
    return dense(flow.reshape(images, [images.shape[0], -1]))


def filtered(images: Any) -> Any:
    strengths = flow.math.reduce_mean(flow.nn.conv2d(images, weight("k", 1, 2, 3, 3), 1, "SAME"), axis=[1, 2, 3])
    return flow.math.add(flat(images), flow.reshape(strengths, [images.shape[0], 1]))


BODIES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "matrices": (dense, (13, 200)),
    "the weight first": (lambda x: flow.transpose(flow.matmul(weight("w", UNITS, 200), x, transpose_b=True), [1, 0]), (13, 200)),
    "images": (flat, (26, 2, 10, 10)),
    # 2 of 3 ranks have enough of them to store images batch-innermost, where those are filtered
    "images, uneven": (flat, (23, 2, 10, 10)),
    "images that are filtered too": (filtered, (23, 2, 10, 10)),
}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", BODIES)
def test_numbers_are_those_of_a_copy_each(name: str, ranks: int) -> None:
    body, shape = BODIES[name]
    expected, _ = trained(body, shape, ranks, share=False)
    found, _ = trained(body, shape, ranks)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [23, 15, 26])
def test_images_that_nothing_else_reads_need_not_travel(rows: int) -> None:
    """Of 15, one rank has enough to store images batch-innermost, and one has not."""
    _, plans = trained(flat, (rows, 2, 10, 10), 2)
    assert [line.split()[0] for line in communication(plans[0])].count("all_to_all") == 1
    assert not any("reshape" in line for line in communication(plans[0]))


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_reads_all_samples_and_the_rows_it_updates(ranks: int) -> None:
    _, plans = trained(dense, (13, 200), ranks)
    assert len({plan.schedule for plan in plans}) == 1
    assert communication(plans[0])[0].startswith("all_to_all matmul")
    assert not any(line.startswith("all_gather x") for line in communication(plans[0]))
    (product,) = products(plans[1])
    (samples,) = [s for s in product.inputs if s.buffer == IO_BUFFERS]
    (read,) = [s for s in product.inputs if is_common(s.buffer)]
    (written,) = [s for i in plans[1].epilogue if isinstance(i, Compute) for s in i.outputs if s.type.shape[-1] == 200]
    assert samples.type.shape == (13, 200) and (read.offset, read.stop) == (written.offset, written.stop) and read.type.shape[0] < UNITS


def microbatched() -> Any:
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(2)
    return config


@pytest.mark.parametrize(
    ("body", "rows", "config"),
    [
        pytest.param(filtered, (26, 2, 10, 10), None, id="images are wanted in another order"),
        pytest.param(dense, 200, None, id="the product is as large as the weight"),
        pytest.param(lambda x: dense(flow.math.tanh(x)), 13, None, id="the samples would travel"),
        pytest.param(lambda x: dense(x, trainable=False), 13, None, id="nobody updates it"),
        pytest.param(lambda x: flow.math.add(dense(x), flow.math.reduce_sum(weight("w", UNITS, 200))), 13, None, id="others read it"),
        pytest.param(dense, 26, microbatched, id="it is read for each microbatch"),
    ],
)
def test_else_the_weight_is_read_whole(body: Callable[[Any], Any], rows: int | tuple[int, ...], config: Callable[[], Any] | None) -> None:
    _, plans = trained(body, (rows, 200) if isinstance(rows, int) else rows, 2, config=config and config())
    assert all(max(s.type.shape[0] for s in i.inputs if is_common(s.buffer)) == UNITS for i in products(plans[0]))
    assert not any(line.startswith("all_to_all matmul_0:") for line in communication(plans[0]))
