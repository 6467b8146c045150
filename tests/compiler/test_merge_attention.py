"""Chains of attention become one operation where the target has a kernel for it, with the same results and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from traced import Bound, Sgd, arrays_like, evaluate, first, type_, variable, world_of

from jobflow import scope
from jobflow.compiler.compile import distribute, logical
from jobflow.compiler.front.trace import Tracer
from jobflow.core.layout import S
from jobflow.core.types import bfloat16, bool_, float32, float64
from jobflow.graph.ir import Graph
from jobflow.kernels.target import CPU, Target, target_of
from jobflow.ops import elementwise as ew
from jobflow.ops.attention import Attention, AttentionGrad
from jobflow.ops.axes import reshape, transpose
from jobflow.ops.broadcast import broadcast_to
from jobflow.ops.layout_ops import ToLayout
from jobflow.ops.masked import masked_fill
from jobflow.ops.matmul import matmul
from jobflow.ops.op import apply
from jobflow.ops.random_tensors import dropout
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.softmax import causal_softmax, softmax
from jobflow.ops.triangle import tril

GPU = target_of("gpu")
N, HEADS, LENGTH, SIZE = 2, 4, 6, 3
Weights = Callable[[Tracer, Any], Any]


def graph_of(body: Callable[[Tracer], Any], target: Target, *, train: bool = True, half: Any = None, ranks: int = 1) -> Graph:
    tracer = Tracer(name="job", placement=first(ranks), trainable=train)
    with scope.using(interpreter=tracer, placement=tracer.placement, view="consistent", namespace=()):
        returned = body(tracer)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        if train:
            tracer.minimize(Sgd(), outputs)
        return logical(replace(tracer.traced(outputs), half=half), outputs, target).graph


def words(graph: Graph) -> list[str]:
    return [node.op.word() for node in graph.nodes]


def attention(weights: Weights, groups: int = HEADS) -> Callable[[Tracer], Any]:
    """Return a body with projections of an argument to queries, keys and values, and a loss per sample."""

    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(N * LENGTH, 5))
        heads = {"q": HEADS, "k": groups, "v": groups}
        parts = []
        for name, count in heads.items():
            y = matmul(x, variable(tracer, name, 5, count * SIZE))
            y = transpose(reshape(y, (N, LENGTH, count, SIZE)), (0, 2, 1, 3))
            if count != HEADS:
                wide = broadcast_to(reshape(y, (N, count, 1, LENGTH, SIZE)), (N, count, HEADS // count, LENGTH, SIZE))
                y = reshape(wide, (N, HEADS, LENGTH, SIZE))
            parts.append(y)
        q, k, v = parts
        y = matmul(weights(tracer, matmul(q, k, transpose_b=True)), v)
        return reduce_sum(ew.square(y), (1, 2, 3))

    return body


def causal(tracer: Tracer, scores: Any) -> Any:
    return causal_softmax(scores, 0.5)


def dropped(tracer: Tracer, scores: Any) -> Any:
    return dropout(causal_softmax(scores, 0.5), 0.25, tracer.run_counter(), key="drop")


def filled(tracer: Tracer, scores: Any) -> Any:
    return softmax(tril(ew.scale(scores, 0.5), 0, -1e4))


def visible(tracer: Tracer, scores: Any) -> Any:
    mask = tracer.input("mask", type_(LENGTH, LENGTH, dtype=bool_))
    scores = ew.scale(scores, 0.5)
    return softmax(ew.where(mask, scores, ew.fill_like(scores, -math.inf)), masked=True)


def hidden(tracer: Tracer, scores: Any) -> Any:
    return softmax(masked_fill(scores, tracer.input("mask", type_(LENGTH, LENGTH, dtype=bool_)), -math.inf), masked=True)


def added(tracer: Tracer, scores: Any) -> Any:
    return softmax(ew.add(ew.scale(scores, 0.5), variable(tracer, "bias", HEADS, LENGTH, LENGTH)))


CHAINS = {each.__name__: each for each in (causal, dropped, filled, visible, hidden, added)}


def values() -> tuple[dict[str, Any], dict[str, Any]]:
    random = np.random.default_rng(0)
    x, q, k, v, bias = arrays_like(*(type_(*shape) for shape in ((N * LENGTH, 5), *[(5, HEADS * SIZE)] * 3, (HEADS, LENGTH, LENGTH))))
    mask = random.random((LENGTH, LENGTH)) > 0.4
    mask[2] = False
    return {"x": x, "mask": mask, "#run": np.array([3])}, {"q": q, "k": k, "v": v, "bias": bias}


def compared(before: Graph, after: Graph, groups: int = HEADS) -> None:
    arguments, variables = values()
    variables |= {name: variables[name][:, : groups * SIZE] for name in "kv"}
    (expected, updates), (ours, new) = (evaluate(graph, arguments, variables) for graph in (before, after))
    for mine, theirs in (*zip(ours, expected, strict=True), *((new[name], updates[name]) for name in updates)):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_becomes_attention_with_the_same_gradients(name: str) -> None:
    before, after = (graph_of(attention(CHAINS[name]), target) for target in (CPU, GPU))
    assert "attention" not in words(before) and words(after).count("attention") == words(after).count("attentiongrad") == 1
    left = {"causalsoftmax", "softmax", "tril", "dropoutmask"} & set(words(after))
    assert not left or name == "added", left  # the gradient of an added mask needs the scores
    compared(before, after)


def test_plans_of_cpus_are_unchanged() -> None:
    body = attention(causal)
    assert words(graph_of(body, CPU)) == words(graph_of(body, target_of("gpu", "numpy"))) != words(graph_of(body, GPU))


def test_repeated_heads_are_not_stored() -> None:
    before, after = (graph_of(attention(causal, groups=2), target) for target in (CPU, GPU))
    (node,) = [node for node in after.nodes if isinstance(node.op, Attention)]
    assert [value.shape[1] for value in node.inputs] == [HEADS, 2, 2]
    compared(before, after, groups=2)


def test_no_value_has_queries_and_keys() -> None:
    for name in ("causal", "dropped", "filled"):
        shapes = {value.shape[-2:] for value in graph_of(attention(CHAINS[name]), GPU).values()}
        assert (LENGTH, LENGTH) not in shapes


def test_returned_weights_keep_their_chain() -> None:
    def body(tracer: Tracer) -> Any:
        q, k, v = (tracer.input(name, type_(N, HEADS, LENGTH, SIZE)) for name in "qkv")
        weights = causal_softmax(matmul(q, k, transpose_b=True))
        return matmul(weights, v), weights

    assert "attention" not in words(graph_of(body, GPU, train=False))


def test_weights_with_another_reader_keep_their_chain() -> None:
    def twice(tracer: Tracer, scores: Any) -> Any:
        weights = causal_softmax(scores)
        return ew.add(weights, ew.square(weights))

    assert "attention" not in words(graph_of(attention(twice), GPU))


def test_operands_that_the_kernel_refuses_keep_their_chain() -> None:
    def body(tracer: Tracer) -> Any:
        q, k, v = (tracer.input(name, type_(N, HEADS, LENGTH, SIZE, dtype=float64)) for name in "qkv")
        return matmul(causal_softmax(matmul(q, k, transpose_b=True)), v)

    assert "attention" not in words(graph_of(body, GPU, train=False))


def test_a_transposed_view_of_the_keys_is_read_without_it() -> None:
    def body(tracer: Tracer) -> Any:
        q, k, v = (tracer.input(name, type_(N, HEADS, LENGTH, SIZE)) for name in "qkv")
        return matmul(causal_softmax(matmul(q, transpose(k, (0, 1, 3, 2)))), v)

    graph = graph_of(body, GPU, train=False)
    (node,) = [node for node in graph.nodes if isinstance(node.op, Attention)]
    assert [value.name for value in node.inputs] == ["q", "k", "v"]


def test_mixed_precision_computes_attention_in_half_precision() -> None:
    graph = graph_of(attention(causal), GPU, half=bfloat16)
    (forward,) = [node for node in graph.nodes if isinstance(node.op, Attention)]
    (backward,) = [node for node in graph.nodes if isinstance(node.op, AttentionGrad)]
    assert [value.dtype for value in forward.outputs] == [bfloat16, float32]
    assert {value.dtype for value in backward.outputs} == {bfloat16}


@pytest.mark.parametrize("name", ["dropped", "filled"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_ranks_split_attention(name: str, axis: int) -> None:
    """Split the samples, the heads or the queries among two ranks."""
    arguments = {"#run": np.array([3])}
    arrays = dict(zip("qkv", arrays_like(*[type_(N, HEADS, LENGTH, SIZE)] * 3), strict=True))

    def body(tracer: Tracer) -> Any:
        parts = [variable(tracer, name, N, HEADS, LENGTH, SIZE) for name in "qkv"]
        q, k, v = (apply(ToLayout((S(axis),)), x) if axis < 2 or i == 0 else x for i, x in enumerate(parts))
        y = matmul(CHAINS[name](tracer, matmul(q, k, transpose_b=True)), v)
        return reduce_sum(ew.square(y), (1, 2, 3))

    results = []
    for ranks in (1, 2):
        graph = graph_of(body, GPU, ranks=ranks)
        assert "attentiongrad" in words(graph)
        with world_of(ranks) as world:
            bound = Bound(world, distribute(graph))
            bound.write(arrays)
            outputs = bound.run(**(arguments if name == "dropped" else {}))
            results.append([*outputs, *(bound.read(each) for each in "qkv")])
            bound.close()
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
