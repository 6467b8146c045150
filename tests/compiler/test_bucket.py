"""Gradients are reduced together, in the order of their variables, after all other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from traced import Bound, arrays_like, distribute, evaluate, first, trace, type_, variable, world_of

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts import bucket as bucketing
from jobflow.compiler.layouts.box import Reroute
from jobflow.core.layout import B, Placement, S
from jobflow.core.types import float64
from jobflow.engine.job import job_of
from jobflow.graph.ir import Graph, Variable
from jobflow.ops.activation import relu
from jobflow.ops.batch_norm import batch_norm_train
from jobflow.ops.layout_ops import ToLayout
from jobflow.ops.matmul import bias_add, matmul
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.source import Constant
from jobflow.tools.explain import explain


def network(tracer: Tracer, widths: tuple[int, ...] = (4, 3, 5, 2)) -> Any:
    x = tracer.input("x", type_(6, widths[0]))
    for i, (inside, outside) in enumerate(zip(widths, widths[1:], strict=False)):
        x = relu(bias_add(matmul(x, variable(tracer, f"w{i}", inside, outside)), variable(tracer, f"b{i}", outside)))
    return x


def reduced(graph: Graph) -> list[list[str]]:
    """Return, per all_reduce, the variables whose gradients it sums."""
    physical = distribute(graph)
    of = {value: node.inputs[0].name for node in physical.graph.nodes if node.op.alias for value in node.inputs}
    for node in reversed(physical.graph.nodes):
        if isinstance(node.op, ToLayout) and node.outputs[0] in of:
            of[node.inputs[0]] = of[node.outputs[0]]
    return [[of.get(value, value.name) for value in node.outputs] for node in physical.graph.nodes if isinstance(node.op, Reroute)]


def test_small_gradients_share_a_bucket_in_the_order_of_variables() -> None:
    assert reduced(trace(network, first(2), train=True)) == [["w0", "b0", "w1", "b1", "w2", "b2"]]


def normalized(tracer: Tracer) -> Any:
    x = matmul(tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3))
    return batch_norm_train(x, variable(tracer, "gamma", 3), variable(tracer, "beta", 3))[0]


def test_sums_of_a_batch_norm_share_a_collective() -> None:
    mean, moments, sums, weights = reduced(trace(normalized, first(2), train=True))
    assert (len(mean), len(moments), weights) == (1, 2, ["w"])
    assert sums[:2] == ["gamma", "beta"] and len(sums) == 3


def test_buckets_do_not_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect buckets of 48 + 12, 60 + 20 and 40 + 8 bytes."""
    monkeypatch.setattr(bucketing, "LIMIT", 80)
    assert reduced(trace(network, first(2), train=True)) == [["w0", "b0"], ["w1", "b1"], ["w2", "b2"]]


def test_a_gradient_above_the_limit_has_its_own_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "LIMIT", 30)
    assert reduced(trace(network, first(2), train=True)) == [["w0"], ["b0"], ["w1"], ["b1"], ["w2"], ["b2"]]


def test_buckets_do_not_mix_element_types() -> None:
    def body(tracer: Tracer) -> Any:
        x, y = tracer.input("x", type_(6, 4)), tracer.input("y", type_(6, 4, dtype=float64))
        product = relu(matmul(x, variable(tracer, "w", 4, 3)))
        return reduce_sum(product), matmul(y, variable(tracer, "v", 4, 3, dtype=float64))

    graph = trace(lambda t: body(t)[0], first(2), train=True)
    assert reduced(graph)[-1] == ["w"]


def test_split_variables_are_not_in_buckets() -> None:
    def body(tracer: Tracer) -> Any:
        x = relu(matmul(tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 4)))
        return matmul(x, variable(tracer, "v", 4, 2, sbp=S(1)))

    physical = distribute(trace(body, first(2), train=True))
    kinds = {node.op.name: [value.name for value in node.outputs] for node in physical.graph.nodes if isinstance(node.op, Reroute)}
    assert "reduce_scatter" in kinds and len(kinds["all_reduce"]) == 1


def test_sums_of_the_forward_pass_are_not_moved() -> None:
    """Sum a partial loss for its reader, before the gradients exist."""

    def body(tracer: Tracer) -> Any:
        return relu(reduce_sum(network(tracer)))

    physical = distribute(trace(body, first(2), train=True))
    nodes = physical.graph.nodes
    sums = [(i, node) for i, node in enumerate(nodes) if isinstance(node.op, Reroute)]
    forward = next(i for i, node in enumerate(nodes) if node.op.word() == "relu" and node.outputs[0].tensor_type.shape == ())
    assert [len(node.inputs) for _, node in sums] == [1, 6]
    assert sums[0][0] < forward < sums[1][0]


def test_bucketing_keeps_inputs_before_their_readers() -> None:
    computed = set()
    for node in distribute(trace(network, first(4), train=True)).graph.nodes:
        assert all(value in computed for value in node.inputs), node
        computed.update(node.outputs)


GRID = Placement("cpu", (0, 1, 2, 3), (2, 2))
STORED = {"w0": ((4, 5), S(1)), "b0": ((5,), S(0)), "w1": ((5, 3), S(0))}


def two_layers(tracer: Tracer) -> Any:
    """Return two layers, data parallel along the first mesh dimension, with variables split along the second as in `STORED`."""
    w0, b0, w1 = (
        tracer.variable(Variable(name, type_(*shape, dtype=float64), Constant(shape, float64, 0.0), tracer.placement, (B, sbp)))
        for name, (shape, sbp) in STORED.items()
    )
    y = relu(bias_add(matmul(tracer.input("x", type_(7, 4, dtype=float64)), w0), b0))
    return matmul(y, w1)


def test_gradients_in_several_layouts_share_a_collective() -> None:
    """Use gradients in columns, pieces and rows; along the data dimension, all are summed among the same ranks."""
    assert reduced(trace(two_layers, GRID, train=True))[-1] == list(STORED)


def test_a_bucket_of_several_layouts_sums_all_gradients() -> None:
    graph = trace(two_layers, GRID, train=True)
    x, *values = arrays_like(type_(7, 4, dtype=float64), *(type_(*shape, dtype=float64) for shape, _ in STORED.values()))
    variables = dict(zip(STORED, values, strict=True))
    with world_of(4) as world:
        bound = Bound(world, distribute(graph))
        bound.write(variables)
        bound.run(x=x)
        _, expected = evaluate(graph, {"x": x}, variables)
        for name in STORED:
            np.testing.assert_allclose(bound.read(name), expected[name], rtol=1e-12)


def test_a_bucket_of_several_layouts_sends_whole_cache_lines() -> None:
    """Send 64-byte lines: 3 or 2 columns of w0, 3 or 2 numbers of b0, 3 or 2 rows of w1."""
    (node,) = (node for node in distribute(trace(two_layers, GRID, train=True)).graph.nodes if len(node.inputs) == 3 and isinstance(node.op, Reroute))
    sent = node.op.sent(*(value.tensor_type for value in node.inputs))
    assert sent == {rank: 128 + 64 + 128 if rank % 2 == 0 else 64 + 64 + 64 for rank in range(4)}


def test_one_rank_has_no_buckets() -> None:
    assert reduced(trace(network, first(1), train=True)) == []


def test_squares_for_the_global_norm_share_a_collective() -> None:
    """Clip by the global norm with half of the weights split; one message contains the squares of all gradients."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        for i in range(4):
            layout = flow.distribute.broadcast() if i % 2 else flow.distribute.split(0)
            w = flow.get_variable(f"w{i}", (6, 6), initializer=flow.random_normal_initializer(), distribute=layout)
            x = flow.math.tanh(flow.matmul(x, w))
        clipping = flow.optimizer.grad_clipping.by_global_norm(1.0)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), grad_clipping=clipping).minimize(x)
        return x

    lines = explain(job_of(job), devices=2, stages=["boxing"]).splitlines()
    assert [line.split()[2] for line in lines if "squaresum" in line] == ["squaresum_0..squaresum_2"]
