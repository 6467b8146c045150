"""Updates and sums that absorb the producers of their inputs, and products that skip known zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
from test_memory import attentive, computed, plan_of
from traced import Bound, Sgd, distribute, evaluate, first, trace, variable, world_of

from jobflow.compiler.front.trace import Tracer
from jobflow.core.types import TensorType, float64
from jobflow.ops.arithmetic import add, multiply
from jobflow.ops.matmul import bias_add, matmul

Array = Any
WIDE = 300


def dense(tracer: Tracer) -> Any:
    return matmul(tracer.input("x", TensorType((8, WIDE), float64)), variable(tracer, "w", WIDE, WIDE, dtype=float64))


def circular(tracer: Tracer) -> Any:
    return matmul(variable(tracer, "u", WIDE, WIDE, dtype=float64), variable(tracer, "v", WIDE, WIDE, dtype=float64))


def initial_values(*names: str) -> dict[str, Array]:
    return {name: np.random.default_rng(i).normal(size=(WIDE, WIDE)) for i, name in enumerate(names)}


def test_updates_subtract_a_product_while_computing_it() -> None:
    graph, values = trace(dense, train=True, optimizer=Sgd(0.25)), initial_values("w")
    assert computed(plan_of(graph)).count("sgdproduct") == 1
    x = np.random.default_rng(7).normal(size=(8, WIDE))
    _, expected = evaluate(graph, {"x": x}, values)
    with world_of(1) as world:
        bound = Bound(world, distribute(graph))
        bound.write(values)
        bound.run(x=x)
        np.testing.assert_allclose(bound.read("w"), expected["w"], rtol=0, atol=1e-12)


def test_gradients_summed_over_ranks_are_stored() -> None:
    assert "sgdproduct" not in computed(plan_of(trace(dense, first(2), train=True)))


def test_variables_that_are_each_others_gradients_are_read_before_the_update() -> None:
    graph, values = trace(circular, train=True), initial_values("u", "v")
    assert "sgdproduct" not in computed(plan_of(graph))
    _, expected = evaluate(graph, {}, values)
    with world_of(1) as world:
        bound = Bound(world, distribute(graph))
        bound.write(values)
        bound.run()
        for name in values:
            np.testing.assert_allclose(bound.read(name), expected[name], rtol=1e-12)


def test_products_with_causal_weights_skip_zeros() -> None:
    """Expect one product that skips zeros in the forward pass and three in the backward pass.

    The scores and the gradient of the weights are products of whole matrices.
    """
    words = computed(plan_of(trace(attentive, train=True)))
    assert words.count("lowermatmul") == 4
    assert words.count("batchmatmul") == 2


def residual(tracer: Tracer) -> Any:
    """Return x + (x w + b), and x w as a separate value with two readers."""
    x, w = tracer.input("x", TensorType((WIDE, WIDE), float64)), variable(tracer, "w", WIDE, WIDE, dtype=float64)
    return add(x, bias_add(matmul(x, w), variable(tracer, "b", WIDE, dtype=float64)))


def test_products_accumulate_into_their_addend() -> None:
    graph = trace(residual)
    assert computed(plan_of(graph)) == ["productsum"]
    x, w, b = (np.random.default_rng(i).normal(size=(WIDE, WIDE)) for i in range(3))
    values = {"w": w, "b": b[0]}
    (expected,), _ = evaluate(graph, {"x": x}, values)
    with world_of(1) as world:
        bound = Bound(world, distribute(graph))
        bound.write(values)
        np.testing.assert_allclose(bound.run(x=x)[0], expected, rtol=0, atol=1e-10)


def twice(tracer: Tracer) -> Any:
    y = matmul(tracer.input("x", TensorType((WIDE, WIDE), float64)), variable(tracer, "w", WIDE, WIDE, dtype=float64))
    return multiply(y, add(y, y))


def test_a_product_with_several_readers_is_not_absorbed() -> None:
    assert "productsum" not in computed(plan_of(trace(twice)))
