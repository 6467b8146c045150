"""Tests that equal nodes are merged, and that unused nodes are removed."""

from __future__ import annotations

from typing import Any

import numpy as np
from traced import first, on, run, text, trace, type_, variable

from jobflow import scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.types import float32, float64
from jobflow.ops.activation import relu, tanh
from jobflow.ops.arithmetic import add, divide, multiply
from jobflow.ops.op import apply
from jobflow.ops.random_tensors import dropout
from jobflow.ops.source import Constant, constant


def ops(graph: Any) -> list[str]:
    return [node.op.word() for node in graph.nodes]


def test_equal_nodes_are_merged() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        return multiply(add(relu(x), relu(x)), tanh(relu(x)))

    assert text(trace(body)) == (
        "job job on cpu[0]\n"
        "  %x: float32[2] = Input(key=x)()\n"
        "  %relu_0: float32[2] = Relu()(%x)\n"
        "  %add_0: float32[2] = Add()(%relu_0, %relu_0)\n"
        "  %tanh_0: float32[2] = Tanh()(%relu_0)\n"
        "  %multiply_0: float32[2] = Multiply()(%add_0, %tanh_0)\n"
        "  return %multiply_0\n"
    )


def test_equal_chains_are_merged() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        return tanh(relu(x)), tanh(relu(x))

    graph = trace(body)
    assert ops(graph) == ["input", "relu", "tanh"]
    assert graph.outputs[0] is graph.outputs[1]


def test_nodes_with_other_attributes_types_or_placements_are_not_merged() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        with scope.using(placement=on(1)):
            there = relu(x)
        ones = [apply(Constant((2,), dtype, 1)) for dtype in (float32, float64)]
        return (relu(x), there, *ones, constant(2.0, (2,), float32))

    assert sorted(ops(trace(body, first(2)))) == ["constant"] * 3 + ["input", "relu", "relu"]


def test_zeros_of_both_signs_are_not_merged() -> None:
    """Use 0.0 and -0.0, which are equal, although 1 / 0.0 and 1 / -0.0 are not."""

    def body(tracer: Tracer) -> Any:
        one = tracer.input("x", type_(1))
        return divide(one, constant(0.0, (1,), float32)), divide(one, constant(-0.0, (1,), float32))

    up, down = run(1, body, x=np.ones(1, np.float32))
    assert (up[0], down[0]) == (np.inf, -np.inf)


def test_random_ops_with_different_keys_are_not_merged() -> None:
    def body(tracer: Tracer, keys: tuple[str, str]) -> Any:
        x, counter = tracer.input("x", type_(50)), tracer.run_counter()
        return tuple(dropout(x, 0.5, counter, key=key) for key in keys)

    two, one = (trace(lambda t, keys=keys: body(t, keys)) for keys in (("a", "b"), ("a", "a")))
    assert two.outputs[0] is not two.outputs[1]
    assert one.outputs[0] is one.outputs[1], "the same key means the same numbers"


def test_updates_are_never_merged() -> None:
    def body(tracer: Tracer) -> Any:
        return variable(tracer, "w", 2), variable(tracer, "v", 2)

    assert ops(trace(body, train=True)).count("sgdupdate") == 2


def test_unused_nodes_are_removed() -> None:
    def body(tracer: Tracer) -> Any:
        x, unused = tracer.input("x", type_(2)), tracer.input("unused", type_(2))
        tanh(add(unused, variable(tracer, "w", 2)))
        return relu(x)

    graph = trace(body)
    assert (ops(graph), [value.name for value in graph.inputs], list(graph.reads)) == (["input", "relu"], ["x"], [])
    assert list(graph.variables) == ["w"], "a variable exists once it was declared"


def test_a_variable_without_readers_is_still_written() -> None:
    def body(tracer: Tracer) -> Any:
        variable(tracer, "w", 2, dtype=float64, trainable=False)
        x = tracer.input("x", type_(2, dtype=float64))
        tracer.assign("w", tanh(x))
        return relu(variable(tracer, "v", 2, dtype=float64)), relu(variable(tracer, "v", 2, dtype=float64))

    _, new = run(2, body, train=True, variables={"w": np.zeros(2), "v": np.ones(2)}, x=np.array([0.5, 1.0]))
    np.testing.assert_allclose(new["w"], np.tanh([0.5, 1.0]))
