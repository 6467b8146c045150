"""Mixed precision: which nodes are computed in half precision, and which stay float32."""

from __future__ import annotations

from typing import Any

import pytest
from traced import evaluate, first, trace, type_, variable

from jobflow.compiler.front.trace import Tracer
from jobflow.core.types import DType, bfloat16, float16, float32, float64, int32
from jobflow.graph.ir import Graph, Value
from jobflow.graph.training import Watch
from jobflow.ops import elementwise as ew
from jobflow.ops.activation import relu, sigmoid
from jobflow.ops.loss import sparse_softmax_cross_entropy
from jobflow.ops.matmul import bias_add, matmul
from jobflow.ops.op import apply
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.scalar import InHalf
from jobflow.ops.shape import transpose

SHORT = {float16: "16", bfloat16: "16", float32: "32", float64: "64", int32: "int"}


def precisions(graph: Graph) -> str:
    """Return the word of each forward node, except sources and casts, and the bits of its first output."""
    nodes = [n for n in graph.nodes if n.phase == "forward" and n.inputs and not isinstance(n.op, ew.Cast)]
    return " ".join(f"{node.op.word()}:{SHORT[node.outputs[0].dtype]}" for node in nodes)


def two_layers(tracer: Tracer) -> Any:
    x, w, b, v = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3), variable(tracer, "b", 3), variable(tracer, "v", 3, 5)
    hidden = relu(bias_add(matmul(x, w), b))
    return reduce_sum(sigmoid(matmul(hidden, v)), 1)


def test_products_and_ops_between_them_are_half() -> None:
    assert precisions(trace(two_layers, half=float16)) == "matmul:16 biasadd:16 relu:16 matmul:16 sigmoid:32 reducesum:32"
    assert precisions(trace(two_layers)) == "matmul:32 biasadd:32 relu:32 matmul:32 sigmoid:32 reducesum:32"


def test_variables_arguments_and_results_stay_float32() -> None:
    graph = trace(two_layers, half=bfloat16, train=True)
    assert {v.dtype for v in graph.values() if v.node.op.external and v.dtype.is_float} == {float32}
    assert [v.dtype for v in graph.outputs] == [float32]
    assert {graph.updates[name].dtype for name in ("w", "b", "v")} == {float32}
    used = [node for node in graph.nodes if any(value is graph.reads["w"] for value in node.inputs)]
    assert sorted(node.op.word() for node in used) == ["cast", "sgdupdate"], "cast once for the forward and the backward pass"
    (update,) = [node for node in used if node.op.word() == "sgdupdate"]
    assert isinstance(update.inputs[1].node.op, ew.Cast) and update.inputs[1].node.inputs[0].dtype is bfloat16


def test_the_backward_pass_of_an_op_has_the_precision_of_the_op() -> None:
    graph = trace(two_layers, half=float16, train=True)
    backward = [n for n in graph.nodes if n.phase == "backward" and not isinstance(n.op, ew.Cast)]
    dtypes = {n.op.word(): SHORT[n.outputs[0].dtype] for n in backward}
    assert dtypes["matmul"] == dtypes["relugrad"] == "16" and dtypes["sigmoidgrad"] == "32"


def test_readers_of_an_intermediate_result_use_the_value_before_its_cast() -> None:
    def body(tracer: Tracer) -> Any:
        x, w, v = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3), variable(tracer, "v", 3, 5)
        hidden = relu(matmul(x, w))
        return hidden, matmul(hidden, v)

    graph = trace(body, half=float16)
    shown, last = graph.outputs
    assert shown.dtype is last.dtype is float32 and isinstance(shown.node.op, ew.Cast)
    product = last.node.inputs[0].node
    assert product.inputs[0] is shown.node.inputs[0], "not cast there and back"


def test_watched_gradients_are_cast_to_float32() -> None:
    watched: list[Value] = []

    def body(tracer: Tracer) -> Any:
        x, w, v = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3), variable(tracer, "v", 3, 5)
        hidden = relu(matmul(x, w))
        tracer.watches.append(Watch(hidden, watched.append, True, tracer.where))
        return reduce_sum(matmul(hidden, v), 1)

    graph = trace(body, half=float16, train=True)
    assert len(graph.outputs) == 2 and graph.outputs[1].dtype is float32


def test_explicit_element_types_do_not_change() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(6, 4, dtype=float64)), variable(tracer, "w", 4, 3, dtype=float64)
        return matmul(x, w)

    assert precisions(trace(body, half=float16)) == "matmul:64"


def test_ops_that_move_elements_keep_the_precision_of_their_inputs() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 6)
        y = matmul(x, w)
        return ew.maximum(transpose(y, (1, 0)), matmul(x, w)), ew.maximum(y, tracer.input("z", type_(6, 6)))

    graph = trace(body, half=float16)
    assert precisions(graph) == "matmul:16 transpose:16 maximum:16 maximum:32"


def test_an_explicit_cast_begins_half_precision() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3)
        return matmul(ew.scale(apply(InHalf(), ew.scale(x, 2.0)), 3.0), w)

    assert precisions(trace(body, half=float16)) == "scale:32 inhalf:16 scale:16 matmul:16"


def test_losses_are_float32_even_of_products() -> None:
    graph = trace(lambda t: matmul(t.input("x", type_(6, 4)), variable(t, "w", 4, 1)), half=float16, train=True)
    seeds = [n for n in graph.nodes if n.op.word() == "filllike"]
    assert [n.outputs[0].dtype for n in seeds] == [float32]


def test_integers_keep_their_types() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3)
        return sparse_softmax_cross_entropy(matmul(x, w), tracer.input("y", type_(6, dtype=int32)))

    assert precisions(trace(body, half=float16)).startswith("matmul:16 ")


@pytest.mark.parametrize("half", [float16, bfloat16], ids=str)
def test_half_precision_does_not_change_layouts(half: DType) -> None:
    from traced import layout_text

    from jobflow.compiler.compile import distribute

    plain, mixed = (distribute(trace(two_layers, first(2), train=True, half=h)) for h in (None, half))
    for name in ("w", "b", "v"):
        assert layout_text(plain.layouts, plain.graph.updates[name]) == layout_text(mixed.layouts, mixed.graph.updates[name]) == "B"
    sums = [n for n in mixed.graph.nodes if n.op.__class__.__name__ == "Reroute"]
    assert sums and all(v.dtype is float32 for n in sums for v in n.inputs), "gradients are summed over ranks in float32"


def test_half_precision_results_are_near_float32() -> None:
    import numpy as np

    random = np.random.default_rng(0)
    arguments = {"x": random.normal(size=(6, 4)).astype(np.float32)}
    variables = {name: random.normal(size=shape).astype(np.float32) for name, shape in (("w", (4, 3)), ("b", (3,)), ("v", (3, 5)))}
    (plain,), _ = evaluate(trace(two_layers), arguments, variables)
    (mixed,), _ = evaluate(trace(two_layers, half=float16), arguments, variables)
    assert 0 < np.abs(plain - mixed).max() < 5e-3
