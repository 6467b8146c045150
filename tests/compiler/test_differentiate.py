"""Gradients and updates are ordinary nodes behind the forward nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from traced import Sgd, first, run, text, trace, type_, variable

from jobflow.compiler.front.differentiate import differentiate
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import JobError
from jobflow.core.types import TensorType, float64, int32
from jobflow.ops.activation import relu
from jobflow.ops.arithmetic import add, multiply
from jobflow.ops.matmul import bias_add, matmul
from jobflow.ops.op import apply
from jobflow.ops.optimizer_updates import SgdUpdate
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.scalar import cast, detach


def added(graph: Any) -> str:
    """Return the printed lines that differentiation adds, without those of the train step and of the rate."""
    lines = [line for line in text(graph).splitlines() if ".".join(line.split(":")[0].split(".")[1:]) or "update" in line]
    return "\n".join(line.strip() for line in lines) + "\n"


def test_a_layer_has_the_expected_gradients() -> None:
    def body(tracer: Tracer) -> Any:
        x, w, b = tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3), variable(tracer, "b", 3)
        return relu(bias_add(matmul(x, w), b))

    assert text(trace(body, train=True)) == (
        "job job on cpu[0]\n"
        "  %x: float32[6,4] = Input(key=x)()\n"
        "  %w: float32[4,3] = ReadVariable(key=w)()\n"
        "  %b: float32[3] = ReadVariable(key=b)()\n"
        "  %matmul_0: float32[6,3] = MatMul()(%x, %w)\n"
        "  %biasadd_0: float32[6,3] = BiasAdd(axis=1)(%matmul_0, %b)\n"
        "  %relu_0: float32[6,3] = Relu()(%biasadd_0)\n"
        "  %relu_0.filllike_0: float32[6,3] = FillLike(value=0.05555555555555555)(%relu_0)\n"
        "  %relu_0.relugrad_0: float32[6,3] = ReluGrad()(%relu_0, %relu_0.filllike_0)\n"
        "  %biasadd_0.axissum_0: float32[3] = AxisSum(axis=1)(%relu_0.relugrad_0)\n"
        "  %matmul_0.matmul_1: float32[4,3] = MatMul(transpose_a=True)(%x, %relu_0.relugrad_0)\n"
        "  %System-Train-TrainStep-job: int64[1] = ReadVariable(key=System-Train-TrainStep-job)()\n"
        "  %constant_0: float32[1] = Constant(value=1.0)()\n"
        "  %sgdupdate_0: float32[4,3] = SgdUpdate()(%w, %matmul_0.matmul_1, %constant_0)\n"
        "  %sgdupdate_1: float32[3] = SgdUpdate()(%b, %biasadd_0.axissum_0, %constant_0)\n"
        "  %increment_0: int64[1] = Increment()(%System-Train-TrainStep-job)\n"
        "  return %relu_0\n"
        "  w <- %sgdupdate_0\n"
        "  b <- %sgdupdate_1\n"
        "  System-Train-TrainStep-job <- %increment_0\n"
    )


def test_gradients_have_the_placement_line_and_name_of_their_op() -> None:
    graph = trace(lambda t: relu(variable(t, "w", 2), name="layer"), first(2), train=True)
    by_name = {node.name: node for node in graph.nodes}
    forward, backward, update = by_name["layer"], by_name["layer.relugrad_0"], by_name["sgdupdate_0"]
    assert (backward.where, backward.placement) == (forward.where, forward.placement)
    assert [node.phase for node in (forward, backward, update)] == ["forward", "backward", "update"]


def test_gradients_sum_contributions() -> None:
    """Expect w + w as the gradient of w w; the two equal products are one node after simplification."""
    graph = trace(lambda t: multiply(variable(t, "w", 2), variable(t, "w", 2)), train=True)
    assert added(graph) == (
        "%multiply_0.filllike_0: float32[2] = FillLike(value=0.5)(%multiply_0)\n"
        "%multiply_0.multiply_0: float32[2] = Multiply()(%multiply_0.filllike_0, %w)\n"
        "%w.add_0: float32[2] = Add()(%multiply_0.multiply_0, %multiply_0.multiply_0)\n"
        "%sgdupdate_0: float32[2] = SgdUpdate()(%w, %w.add_0, %constant_0)\n"
        "w <- %sgdupdate_0\n"
    )


def test_several_losses_are_summed_as_means() -> None:
    def body(tracer: Tracer) -> Any:
        w, v = variable(tracer, "w", 4), variable(tracer, "v", 4)
        return relu(w), relu(v)

    assert added(trace(body, train=True)) == (
        "%relu_0.filllike_0: float32[4] = FillLike(value=0.25)(%relu_0)\n"
        "%relu_1.filllike_0: float32[4] = FillLike(value=0.25)(%relu_1)\n"
        "%relu_1.relugrad_0: float32[4] = ReluGrad()(%relu_1, %relu_1.filllike_0)\n"
        "%relu_0.relugrad_0: float32[4] = ReluGrad()(%relu_0, %relu_0.filllike_0)\n"
        "%sgdupdate_0: float32[4] = SgdUpdate()(%w, %relu_0.relugrad_0, %constant_0)\n"
        "%sgdupdate_1: float32[4] = SgdUpdate()(%v, %relu_1.relugrad_0, %constant_0)\n"
        "w <- %sgdupdate_0\n"
        "v <- %sgdupdate_1\n"
    )


def test_a_loss_added_twice_counts_twice() -> None:
    def body(tracer: Tracer) -> Any:
        loss = reduce_sum(variable(tracer, "w", 3, dtype=float64))
        return loss, loss

    _, new = run(1, body, train=True, variables={"w": np.zeros(3)})
    np.testing.assert_array_equal(new["w"], [-2, -2, -2])


def test_variables_without_a_gradient_are_not_updated() -> None:
    def body(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 2)
        variable(tracer, "unread", 2)
        frozen, watched = variable(tracer, "frozen", 2, trainable=False), variable(tracer, "seen", 2)
        return add(multiply(w, frozen), detach(multiply(watched, watched)))

    graph = trace(body, train=True)
    assert list(graph.updates) == ["w", "System-Train-TrainStep-job"]
    assert set(graph.variables) == {"w", "unread", "frozen", "seen", "System-Train-TrainStep-job"}
    assert not [node for node in graph.nodes if node.phase == "backward" and "seen" in node.name]


def test_loss_scale_is_divided_out() -> None:
    graph = trace(lambda t: relu(variable(t, "w", 2)), train=True, optimizer=Sgd(loss_scale=8.0))
    assert added(graph) == (
        "%relu_0.filllike_0: float32[2] = FillLike(value=4.0)(%relu_0)\n"
        "%relu_0.relugrad_0: float32[2] = ReluGrad()(%relu_0, %relu_0.filllike_0)\n"
        "%sgdupdate_0: float32[2] = SgdUpdate()(%w, %scale_0, %constant_0)\n"
        "w <- %sgdupdate_0\n"
    )
    assert [str(node) for node in graph.nodes if node.name == "scale_0"] == ["%scale_0:float32[2] = Scale(number=0.125)(%relu_0.relugrad_0)"]


def test_regularizers_are_added_to_gradients() -> None:
    """Expect g + l1 sign(w) + l2 w."""

    def body(tracer: Tracer) -> Any:
        w = variable(tracer, "w", 2, dtype=float64, l1=0.5, l2=0.25)
        return reduce_sum(multiply(w, tracer.input("x", TensorType((2,), float64))))

    _, new = run(2, body, train=True, variables={"w": np.array([2.0, -4.0])}, x=np.array([10.0, 20.0]))
    np.testing.assert_array_equal(new["w"], [2 - (10 + 0.5 + 0.5), -4 - (20 - 0.5 - 1)])


def test_mirrored_gradients_are_summed_over_the_ranks() -> None:
    def body(tracer: Tracer) -> Any:
        return multiply(tracer.input("x", type_(2), local=True), variable(tracer, "w", 2))

    assert added(trace(body, first(2), view="mirrored", train=True)) == (
        "%multiply_0.filllike_0: float32[2] = FillLike(value=0.25)(%multiply_0)\n"
        "%multiply_0.multiply_1: float32[2] = Multiply()(%multiply_0.filllike_0, %x)\n"
        "%tolocal_0.toglobal_0: float32[2] = ToGlobal(P)(%multiply_0.multiply_1)\n"
        "%sgdupdate_0: float32[2] = SgdUpdate()(%w, %tolocal_0.toglobal_0, %constant_0)\n"
        "w <- %sgdupdate_0\n"
    )


# -------------------------------------------------------------------- errors


def test_a_train_job_without_a_loss_raises() -> None:
    tracer = Tracer("job", first(1), trainable=True)
    tracer.minimize(Sgd(), ())
    with pytest.raises(JobError, match=r"job job at test_differentiate\.py:\d+: a train job needs at least one loss; pass it to minimize"):
        differentiate(tracer.traced(), ())


def test_losses_of_two_shapes_raise() -> None:
    with pytest.raises(JobError, match=r"losses relu_0 float32\[2\] and relu_1 float32\[3\] differ in shape or dtype"):
        trace(lambda t: (relu(variable(t, "w", 2)), relu(variable(t, "v", 3))), train=True)


def test_a_loss_behind_a_cast_to_integers_raises() -> None:
    with pytest.raises(JobError, match="loss cast_0 does not depend on any trainable variable"):
        trace(lambda t: cast(variable(t, "w", 2), int32), train=True)


def test_a_loss_without_trainable_variables_raises() -> None:
    with pytest.raises(JobError, match=r"loss relu_0 does not depend on any trainable variable"):
        trace(lambda t: relu(t.input("x", type_(2))), train=True)


def test_an_op_without_a_gradient_raises() -> None:
    """Differentiate an update, which has no gradient; the message names the op."""
    with pytest.raises(JobError, match=r"SgdUpdate has no gradient"):
        trace(lambda t: _updated(t), train=True)


def _updated(tracer: Tracer) -> Any:
    w = variable(tracer, "w", 2)
    return apply(SgdUpdate(), w, w, tracer.input("lr", type_(1)))
