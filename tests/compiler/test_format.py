"""Images around convolutions, and only these, are stored with the batch innermost."""

from __future__ import annotations

from typing import Any

import numpy as np
from traced import distribute, evaluate, first, run, trace, type_

from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.rank.format import memory_orders
from jobflow.compiler.rank.lower import lower
from jobflow.core.types import TensorType, float64
from jobflow.kernels.target import CPU, Target, target_of
from jobflow.ops.activation import relu, tanh
from jobflow.ops.arithmetic import add
from jobflow.ops.axes import reshape
from jobflow.ops.conv import conv
from jobflow.ops.pool import max_pool
from jobflow.plan.storage import RankMemory

SMALLEST = CPU.patterns.formats.fewest_samples


def innermost(body: Any, n: int = 1, target: Target = CPU) -> set[str]:
    """Return the names of values stored with the batch innermost."""
    orders = memory_orders(lower(distribute(trace(body, first(n))), RankMemory(0, {}), target))
    assert all(order == (*range(1, len(order)), 0) for order in orders.values())
    return {item.name for item in orders}


def image(tracer: Tracer, batch: int = 2 * SMALLEST) -> Any:
    return tracer.input("x", TensorType((batch, 3, 6, 6), float64))


def weight(tracer: Tracer) -> Any:
    return tracer.input("w", TensorType((4, 3, 3, 3), float64), split=False)


def test_operands_of_convolutions_have_the_batch_innermost() -> None:
    def body(tracer: Tracer) -> Any:
        y = relu(conv(image(tracer), weight(tracer), padding="same"))
        return reshape(max_pool(y, 2, 2), (2 * SMALLEST, 36))

    assert innermost(body) == {"x", "conv_0", "relu_0", "maxpool_0"}
    assert innermost(body, target=target_of("cpu", "reference")) == set()


def test_values_joined_to_images_elementwise_have_the_batch_innermost() -> None:
    def body(tracer: Tracer) -> Any:
        x = image(tracer)
        y = tanh(x)
        return conv(add(x, y), weight(tracer)), tanh(tracer.input("z", type_(16, 3, 6, 6)))

    assert innermost(body) == {"x", "tanh_0", "add_0", "conv_0"}


def test_few_samples_are_stored_in_c_order() -> None:
    def body(tracer: Tracer) -> Any:
        return conv(image(tracer, SMALLEST), weight(tracer))

    assert innermost(body) == {"x", "conv_0"}
    assert innermost(body, n=2) == set(), "a rank has half of them"


def test_programs_without_images_are_stored_in_c_order() -> None:
    assert innermost(lambda t: relu(t.input("x", type_(100, 100)))) == set()


def test_memory_orders_do_not_change_results() -> None:
    def body(tracer: Tracer) -> Any:
        y = conv(image(tracer), weight(tracer), padding="same")
        return reshape(max_pool(add(y, tanh(y)), 2, 2), (2 * SMALLEST, 36)), y

    random = np.random.default_rng(0)
    x, w = random.normal(size=(2 * SMALLEST, 3, 6, 6)), random.normal(size=(4, 3, 3, 3))
    expected, _ = evaluate(trace(body), {"x": x, "w": w}, {})
    for n in (1, 2):
        for ours, theirs in zip(run(n, body, x=x, w=w), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
