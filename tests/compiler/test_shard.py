"""Tests that layouts follow the policy, as text and compared with published choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from traced import first, layout_text, on, plain, run, trace, type_, variable

from jobflow import scope
from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.layouts.choose import Case, Operand, choose
from jobflow.compiler.layouts.shard import shard
from jobflow.core.errors import SbpError
from jobflow.core.layout import B, Layout, P, S, Sbp
from jobflow.core.types import TensorType, float64
from jobflow.graph.graph_text import sharded_text
from jobflow.graph.ir import Graph
from jobflow.ops import activation, arithmetic, reduce
from jobflow.ops import matmul as linalg
from jobflow.ops.layout_ops import to_layout


def chosen(graph: Graph) -> dict[str, str]:
    """Return the S/B/P of each value."""
    sharded = shard(graph)
    return {value.name: layout_text(sharded.layouts, value) for value in graph.values()}


def test_data_parallel_gradients_are_partial() -> None:
    """Expect that batches stay split, parameters are whole, and gradients are partial."""

    def body(tracer: Tracer) -> Any:
        x, w, b = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3), variable(tracer, "b", 3)
        return activation.relu(linalg.bias_add(linalg.matmul(x, w), b))

    assert plain(sharded_text(shard(trace(body, first(2), train=True)))) == (
        "job job on cpu[0-1]\n"
        "  %x: float32[6,4] cpu[0-1]:S(0) = Input(key=x)()\n"
        "  %w: float32[4,3] cpu[0-1]:B = ReadVariable(key=w)()\n"
        "  %b: float32[3] cpu[0-1]:B = ReadVariable(key=b)()\n"
        "  %matmul_0: float32[6,3] cpu[0-1]:S(0) = MatMul()(%x, %w)\n"
        "  %biasadd_0: float32[6,3] cpu[0-1]:S(0) = BiasAdd(axis=1)(%matmul_0, %b)\n"
        "  %relu_0: float32[6,3] cpu[0-1]:S(0) = Relu()(%biasadd_0)\n"
        "  %relu_0.filllike_0: float32[6,3] cpu[0-1]:S(0) = FillLike(value=0.05555555555555555)(%relu_0)\n"
        "  %relu_0.relugrad_0: float32[6,3] cpu[0-1]:S(0) = ReluGrad()(%relu_0, %relu_0.filllike_0)\n"
        "  %biasadd_0.axissum_0: float32[3] cpu[0-1]:P = AxisSum(axis=1)(%relu_0.relugrad_0)\n"
        "  %matmul_0.matmul_1: float32[4,3] cpu[0-1]:P = MatMul(transpose_a=True)(%x, %relu_0.relugrad_0)\n"
        "  %System-Train-TrainStep-job: int64[1] cpu[0-1]:B = ReadVariable(key=System-Train-TrainStep-job)()\n"
        "  %constant_0: float32[1] cpu[0-1]:B = Constant(value=1.0)()\n"
        "  %sgdupdate_0: float32[4,3] cpu[0-1]:B = SgdUpdate()(%w, %matmul_0.matmul_1, %constant_0)\n"
        "  %sgdupdate_1: float32[3] cpu[0-1]:B = SgdUpdate()(%b, %biasadd_0.axissum_0, %constant_0)\n"
        "  %increment_0: int64[1] cpu[0-1]:B = Increment()(%System-Train-TrainStep-job)\n"
        "  return %relu_0\n"
        "  w <- %sgdupdate_0\n"
        "  b <- %sgdupdate_1\n"
        "  System-Train-TrainStep-job <- %increment_0\n"
    )


def test_a_split_variable_gives_model_parallel_layouts() -> None:
    """Use a variable stored split, which is a constraint: the product reads all of x and computes pieces of its columns."""

    def body(tracer: Tracer) -> Any:
        x, w, b = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 2, sbp=S(1)), variable(tracer, "b", 2, sbp=S(0))
        return linalg.matmul(activation.relu(linalg.bias_add(linalg.matmul(x, w), b)), variable(tracer, "v", 2, 3, sbp=S(0)))

    graph = trace(body, first(2), train=True)
    layouts = chosen(graph)
    assert {name: layouts[name] for name in ("x", "w", "matmul_0", "biasadd_0", "relu_0", "v", "matmul_1")} == {
        "x": "S(0)", "w": "S(1)", "matmul_0": "S(1)", "biasadd_0": "S(1)", "relu_0": "S(1)", "v": "S(0)", "matmul_1": "P",
    }  # fmt: skip
    updated = {node.inputs[0].name: layouts[node.outputs[0].name] for node in graph.nodes if node.phase == "update" and node.op.alias}
    assert updated == {"w": "S(1)", "b": "S(0)", "v": "S(0)", "System-Train-TrainStep-job": "B"}, "a variable keeps the layout it is stored in"


# -------------------------------------------------------------------- ties


def decide(op: Callable[..., Any], types: list[TensorType], now: list[Sbp], n: int = 2, requests: tuple[int, ...] = ()) -> str:
    """Return the layouts read and written by one op whose inputs have the layouts `now`; the user requests the inputs in `requests`."""
    tracer = Tracer("job", first(n))
    with scope.using(interpreter=tracer, placement=first(n)):
        inputs = [tracer.input(f"x{i}", type) for i, type in enumerate(types)]
        outputs = op(*inputs)
    (node,) = (node for node in tracer.nodes if node.inputs)
    assert outputs is node.outputs[0] or outputs in node.outputs
    operands = tuple(
        Operand(x.tensor_type, (sbp,), requested=(sbp,) if i in requests else ()) for i, (x, sbp) in enumerate(zip(inputs, now, strict=True))
    )
    choice = choose(Case(node.op, operands, (n,)))
    return f"{' '.join(str(choice.input(i)[0]) for i in range(len(inputs)))} -> {choice.output(0)[0]}"


SQUARE = [type_(4, 4), type_(4, 4)]


def test_the_signature_with_most_present_layouts_wins() -> None:
    assert decide(linalg.matmul, SQUARE, [S(0), B]) == "S(0) B -> S(0)"
    assert decide(linalg.matmul, SQUARE, [S(1), S(0)]) == "S(1) S(0) -> P"
    assert decide(arithmetic.add, SQUARE, [P, P]) == "P P -> P"


def test_ties_go_to_fewer_moved_bytes() -> None:
    """Combine a row vector S(0) with a matrix S(0), which do not match: the smaller one moves."""
    assert decide(arithmetic.add, [type_(4, 6), type_(6)], [S(0), S(0)]) == "S(0) B -> S(0)"
    assert decide(arithmetic.add, [type_(2, 6), type_(50, 2, 6)], [S(0), S(0)]) == "B S(0) -> S(0)"


def test_slicing_a_whole_tensor_has_low_priority() -> None:
    """Expect that S(0) + B gathers the first, as in the legacy system, although slicing the second would move no data."""
    assert decide(arithmetic.add, SQUARE, [S(0), B]) == "B B -> B"


def test_making_a_tensor_partial_has_the_lowest_priority() -> None:
    assert decide(arithmetic.multiply, [type_(4), type_(4)], [S(0), B]) == "B B -> B"
    assert decide(linalg.matmul, SQUARE, [B, B]) == "B B -> B"


def test_remaining_ties_go_to_the_order_of_the_rule() -> None:
    """Split a square product, of which both rows and columns may be split; rows come first."""
    assert decide(linalg.matmul, SQUARE, [S(0), S(1)]) == "S(0) B -> S(0)"


def test_axes_shorter_than_the_ranks_stay_whole() -> None:
    assert decide(activation.relu, [type_(3, 8)], [S(0)], n=4) == "S(1) -> S(1)"
    assert decide(activation.relu, [type_(3, 2)], [S(0)], n=4) == "B -> B"
    assert decide(activation.relu, [type_(3, 8)], [S(0)], n=3) == "S(0) -> S(0)"
    assert decide(activation.relu, [type_(3, 8)], [S(0)], n=4, requests=(0,)) == "S(0) -> S(0)", "unless the user asks for it"


def test_constraints_precede_present_layouts() -> None:
    assert decide(arithmetic.add, SQUARE, [S(0), S(1)], requests=(1,)) == "S(1) S(1) -> S(1)"
    assert decide(arithmetic.add, SQUARE, [S(0), S(1)], requests=(0, 1)) == "S(0) S(0) -> S(0)", "requests that exclude each other are ignored"


# -------------------------------------------------------------------- constraints and views


def test_a_constraint_holds_for_the_next_reader() -> None:
    def body(tracer: Tracer) -> Any:
        x = to_layout(tracer.input("x", type_(6, 4)), S(1))
        return activation.relu(x)

    assert chosen(trace(body, first(2))) == {"x": "S(0)", "tolayout_0": "S(1)", "relu_0": "S(1)"}


def test_a_constraint_on_the_gradient_holds() -> None:
    def body(tracer: Tracer) -> Any:
        w = to_layout(variable(tracer, "w", 4, 4), B, grad=(S(0),))
        return linalg.matmul(tracer.input("x", type_(6, 4)), w)

    assert chosen(trace(body, first(2), train=True))["tolayout_0.tolayout_0"] == "S(0)"


def test_one_rank_needs_no_layouts() -> None:
    def body(tracer: Tracer) -> Any:
        return to_layout(linalg.matmul(tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 2, sbp=S(1))), S(0))

    assert set(chosen(trace(body, first(1))).values()) == {"B"}


def test_mirrored_values_are_local() -> None:
    graph = trace(lambda t: arithmetic.add(t.input("x", type_(2), local=True), variable(t, "w", 2)), first(2), view="mirrored")
    assert chosen(graph) == {"x": "local", "w": "B", "tolocal_0": "local", "add_0": "local"}


def test_arguments_shorter_than_the_ranks_are_whole() -> None:
    graph = trace(lambda t: (activation.relu(t.input("x", type_(3))), activation.relu(t.input("y", type_()))), first(4))
    assert chosen(graph) == {"x": "B", "relu_0": "B", "y": "B", "relu_1": "B"}


def test_a_value_on_as_many_other_ranks_counts_as_present() -> None:
    def body(tracer: Tracer) -> Any:
        x = activation.relu(tracer.input("x", type_(6, 4)))
        with scope.using(placement=on(2, 3)):
            return activation.tanh(x)

    assert chosen(trace(body, on(0, 1)))["tanh_0"] == "S(0)"


def test_updates_keep_the_stored_layout_of_their_variable() -> None:
    """Request a split gradient, which does not split its variable."""

    def body(tracer: Tracer) -> Any:
        w = to_layout(variable(tracer, "w", 4, 4, dtype=float64), B, grad=(S(1),))
        return reduce.reduce_sum(linalg.matmul(tracer.input("x", TensorType((6, 4), float64)), w))

    layouts = chosen(trace(body, first(2), train=True))
    assert (layouts["tolayout_0.tolayout_0"], layouts["sgdupdate_0"]) == ("S(1)", "B")
    x = np.arange(24.0).reshape(6, 4)
    _, new = run(2, body, train=True, variables={"w": np.zeros((4, 4))}, x=x)
    np.testing.assert_allclose(new["w"], -x.sum(axis=0)[:, None] * np.ones(4))


def test_a_layout_needs_one_sbp_per_mesh_dimension() -> None:
    with pytest.raises(SbpError, match=r"2 S/B/P for a mesh of 1 dimensions"):
        Layout(first(2), (B, B))
