"""Traced bodies as printed programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from traced import Bound, distribute, first, on, run, text, trace, type_, variable, world_of

from jobflow import scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import DuplicateNameError, JobError, ShapeError
from jobflow.core.layout import B, P, S
from jobflow.core.types import TensorType, float64, int64
from jobflow.graph.graph_text import graph_text
from jobflow.ops.activation import relu
from jobflow.ops.arithmetic import add, multiply
from jobflow.ops.layout_ops import to_global, to_local
from jobflow.ops.matmul import bias_add, matmul
from jobflow.ops.reduce import reduce_sum


def dense(tracer: Tracer, x: Any) -> Any:
    w, b = variable(tracer, "dense-weight", 3, 4), variable(tracer, "dense-bias", 3)
    return relu(bias_add(matmul(x, w, transpose_b=True, name="dense-matmul"), b, name="dense"))


def test_ops_become_nodes_in_the_order_of_their_calls() -> None:
    assert text(trace(lambda t: dense(t, t.input("x", type_(2, 4))))) == (
        "job job on cpu[0]\n"
        "  %x: float32[2,4] = Input(key=x)()\n"
        "  %dense-weight: float32[3,4] = ReadVariable(key=dense-weight)()\n"
        "  %dense-bias: float32[3] = ReadVariable(key=dense-bias)()\n"
        "  %dense-matmul: float32[2,3] = MatMul(transpose_b=True)(%x, %dense-weight)\n"
        "  %dense: float32[2,3] = BiasAdd(axis=1)(%dense-matmul, %dense-bias)\n"
        "  %relu_0: float32[2,3] = Relu()(%dense)\n"
        "  return %relu_0\n"
    )


def test_every_node_has_the_users_line() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))  # an argument has the line of its job's declaration, which there is none of here
        y = relu(x)
        return add(
            y,
            y,
        )

    here = body.__code__.co_firstlineno
    lines = [line.partition("  # ")[2] for line in graph_text(trace(body)).splitlines() if " = " in line]
    assert lines == ["<jobflow>:0", f"test_trace.py:{here + 2}", f"test_trace.py:{here + 3}"]


def test_namespaces_are_part_of_names() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        with scope.namespace("outer"):
            y = relu(x, name="y")
            with scope.namespace("inner"):
                z = add(y, x)
            return add(z, x)

    assert [node.name for node in trace(body).nodes] == ["x", "outer-y", "outer-inner-add_0", "outer-add_0"]


def test_automatic_names_avoid_explicit_names() -> None:
    def body(tracer: Tracer) -> Any:
        x = relu(tracer.input("x", type_(2)), name="relu_0")
        return relu(relu(x))

    assert [node.name for node in trace(body).nodes] == ["x", "relu_0", "relu_1", "relu_2"]


def test_two_ops_of_one_name_raise() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        return add(relu(x, name="twice"), relu(x, name="twice"))

    with pytest.raises(DuplicateNameError, match=r'two ops are named "twice", at test_trace\.py:\d+ and at test_trace\.py:\d+; give one'):
        trace(body)


def test_an_ops_message_names_line_and_layer() -> None:
    def body(tracer: Tracer) -> Any:
        return matmul(tracer.input("x", type_(2, 3)), tracer.input("y", type_(4, 5)), name="product")

    with pytest.raises(ShapeError, match=r'matmul at test_trace\.py:\d+ \(layer "product"\): .*float32\[2,3\].*float32\[4,5\]'):
        trace(body)


def test_an_object_that_is_no_tensor_of_the_job_raises() -> None:
    with pytest.raises(JobError, match=r"float32\[2\] array is not a tensor of this job; arrays become tensors as arguments of the job"):
        trace(lambda t: add(t.input("x", type_(2)), np.ones(2, np.float32)))


def test_ops_outside_of_jobs_raise() -> None:
    graph = trace(lambda t: t.input("x", type_(2)))
    with pytest.raises(JobError, match=r"add at test_trace\.py:\d+: called outside a job"):
        add(graph.outputs[0], graph.outputs[0])


def test_a_variable_is_read_once() -> None:
    def body(tracer: Tracer) -> Any:
        return add(variable(tracer, "w", 2), variable(tracer, "w", 2))

    assert [str(node) for node in trace(body).nodes] == ["%w:float32[2] = ReadVariable(key=w)()", "%add_0:float32[2] = Add()(%w, %w)"]


def test_a_variable_with_two_shapes_raises() -> None:
    def body(tracer: Tracer) -> Any:
        variable(tracer, "w", 2)
        return variable(tracer, "w", 3)

    with pytest.raises(JobError, match=r'variable "w" is declared as float32\[2\] elsewhere and as float32\[3\] here; give it another name'):
        trace(body)


def test_a_variable_can_have_the_name_of_an_op() -> None:
    def body(tracer: Tracer) -> Any:
        x = relu(tracer.input("x", type_(2)), name="w")
        return add(x, variable(tracer, "w", 2))

    assert [node.name for node in trace(body).nodes] == ["x", "w", "w_0", "add_0"]


# -------------------------------------------------------------------- views


def test_a_variable_in_the_mirrored_view_is_each_ranks_copy() -> None:
    def body(tracer: Tracer) -> Any:
        return add(tracer.input("x", type_(2), local=True), variable(tracer, "w", 2))

    assert text(trace(body, first(2), view="mirrored")) == (
        "job job on cpu[0-1]\n"
        "  %x: float32[2] = Input(key=x)()\n"
        "  %w: float32[2] = ReadVariable(key=w)()\n"
        "  %tolocal_0: float32[2] = ToLocal(B)(%w)\n"
        "  %add_0: float32[2] = Add()(%x, %tolocal_0)\n"
        "  return %add_0\n"
    )


def test_values_are_converted_to_the_view_of_the_scope() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(3, 2), local=True)
        with scope.consistent_view():
            total = reduce_sum(x)
        return multiply(x, total)

    assert text(trace(body, first(2), view="mirrored")) == (
        "job job on cpu[0-1]\n"
        "  %x: float32[3,2] = Input(key=x)()\n"
        "  %toglobal_0: float32[6,2] = ToGlobal(S(0))(%x)\n"
        "  %reducesum_0: float32[] = ReduceSum(axes=(0, 1))(%toglobal_0)\n"
        "  %tolocal_0: float32[] = ToLocal(B)(%reducesum_0)\n"
        "  %multiply_0: float32[3,2] = Multiply()(%x, %tolocal_0)\n"
        "  return %multiply_0\n"
    )
    ones = np.ones((3, 2), np.float32)
    (parts,) = run(2, body, view="mirrored", x=[ones, 2 * ones])
    np.testing.assert_array_equal(parts[0], 18 * ones)
    np.testing.assert_array_equal(parts[1], 36 * ones)


@pytest.mark.parametrize("sbp", [B, P, S(0), S(1)], ids=str)
def test_to_local_and_to_global_are_inverse(sbp: Any) -> None:
    x = np.arange(24.0).reshape(6, 4)
    result = run(2, lambda t: to_global(to_local(t.input("x", TensorType((6, 4), float64)), sbp), sbp), x=x)[0]
    np.testing.assert_array_equal(result, x)


def test_view_conversions_have_gradients() -> None:
    """Expect v as the gradient of sum(v * to_global(to_local(w))), for every conversion of w."""
    v = np.arange(8.0).reshape(4, 2)
    for sbp in (B, P, S(0), S(1)):

        def body(tracer: Tracer, sbp: Any = sbp) -> Any:
            w = variable(tracer, "w", 4, 2, dtype=float64)
            return reduce_sum(multiply(tracer.input("v", TensorType((4, 2), float64)), to_global(to_local(w, sbp), sbp)))

        _, new = run(2, body, train=True, variables={"w": np.ones((4, 2))}, v=v)
        np.testing.assert_allclose(new["w"], 1 - v)


def test_mirrored_tensors_of_several_shapes_raise() -> None:
    with pytest.raises(ShapeError, match=r"tolocal at .*: x float32\[3,2\] must have an axis 0 whose size is a multiple of 2"):
        trace(lambda t: to_local(t.input("x", type_(3, 2)), S(0)), first(2))
    with pytest.raises(ShapeError, match=r"toglobal at .*: x float32\[\] has no axis 0"):
        trace(lambda t: to_global(reduce_sum(t.input("x", type_(2), local=True)), S(0)), first(2), view="mirrored")


def test_assigning_in_the_mirrored_view_writes_each_ranks_copy() -> None:
    def body(tracer: Tracer) -> Any:
        variable(tracer, "w", 2, trainable=False)
        x = tracer.input("x", type_(2), local=True)
        tracer.assign("w", relu(x))
        return x

    graph = trace(body, first(2), view="mirrored")
    assert text(graph).splitlines()[4:] == ["  %toglobal_0: float32[2] = ToGlobal(B)(%relu_0)", "  return %x", "  w <- %toglobal_0"]
    with world_of(2) as world:
        bound = Bound(world, distribute(graph))
        bound.run(x=[np.ones(2), np.full(2, 2.0)])
        assert [rank.memory["state"].read("w").tolist() for rank in world.ranks] == [[1, 1], [2, 2]]


def test_to_global_raises_for_ranks_of_different_lengths() -> None:
    def body(tracer: Tracer) -> Any:
        return to_global(tracer.input("x", type_(3), local=True), S(0))

    with pytest.raises(JobError, match=r"the ranks' arguments differ in length \(\[3, 2\]\).*stay in the mirrored view"):
        trace(body, first(2), view="mirrored", rows=(3, 2))


# -------------------------------------------------------------------- jobs


def test_ops_run_on_the_placement_of_the_scope() -> None:
    def body(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(2))
        with scope.using(placement=on(1)):
            y = relu(x)
        return add(x, y)

    assert [str(node.placement) for node in trace(body, first(2)).nodes] == ["cpu[0-1]", "cpu[1]", "cpu[0-1]"]


def test_the_run_counter_is_one_argument() -> None:
    def body(tracer: Tracer) -> Any:
        assert tracer.run_counter() is tracer.run_counter()
        return tracer.run_counter()

    (node,) = trace(body).nodes
    assert (node.op.split, node.outputs[0].tensor_type) == (False, TensorType((1,), int64))


def test_minimize_makes_a_train_job() -> None:
    tracer = Tracer("job", first(1))
    loss = tracer.input("x", type_(2))
    with pytest.raises(JobError, match=r'at test_trace\.py:\d+, but the type of the job is "predict"; decorate the job with'):
        tracer.add_loss(loss)
    tracer.minimize(None, (loss,))
    tracer.add_loss(loss)
    assert tracer.trainable and tracer.losses == [loss]


def test_a_second_minimize_raises() -> None:
    tracer = Tracer("job", first(1), trainable=True)
    loss = tracer.input("x", type_(2))
    tracer.minimize(None, (loss,))
    with pytest.raises(JobError, match=r"minimize is called at test_trace\.py:\d+ and at test_trace\.py:\d+; call it once, with all losses"):
        tracer.minimize(None, (loss,))
