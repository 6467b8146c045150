"""Guarded writes of skipped steps: which writes are guarded, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
from traced import Bound, Sgd, first, text, trace, type_, variable, world_of

from jobflow.compiler.compile import distribute, plan_rank
from jobflow.compiler.front.trace import Tracer
from jobflow.graph.ir import Graph
from jobflow.graph.training import DynamicScale
from jobflow.kernels.target import CPU
from jobflow.ops.activation import relu
from jobflow.ops.arithmetic import add
from jobflow.ops.guarded_update import GuardedUpdate, LossScaleUpdate
from jobflow.ops.matmul import matmul
from jobflow.ops.op import apply
from jobflow.ops.update import Increment, MovingAverage, Updated
from jobflow.plan.plan import Compute
from jobflow.plan.storage import RankMemory, place_variables

DYNAMIC = Sgd(dynamic_loss_scale=DynamicScale(8.0, 3, 2.0))


def body(tracer: Tracer) -> Any:
    return relu(matmul(tracer.input("x", type_(6, 4)), variable(tracer, "w", 4, 3)))


def writers(graph: Graph) -> dict[str, str]:
    return {name: str(value.node.op) for name, value in graph.updates.items()}


def test_guard_keeps_a_graph_without_a_dynamic_scale() -> None:
    graph = trace(body, train=True)
    assert "GuardedUpdate" not in text(graph) and writers(graph)["w"] == "SgdUpdate()"


def test_a_guarded_step_prints_as_expected() -> None:
    graph = trace(lambda tracer: matmul(tracer.input("x", type_(2, 2)), variable(tracer, "w", 2, 1)), train=True, optimizer=DYNAMIC)
    name = "System-Train-DynamicLossScale-job"
    assert text(graph) == (
        "job job on cpu[0]\n"
        "  %x: float32[2,2] = Input(key=x)()\n"
        "  %w: float32[2,1] = ReadVariable(key=w)()\n"
        "  %matmul_0: float32[2,1] = MatMul()(%x, %w)\n"
        f"  %{name}-LossScale: float32[1] = ReadVariable(key={name}-LossScale)()\n"
        f"  %{name}-GoodStepCounter: int64[1] = ReadVariable(key={name}-GoodStepCounter)()\n"
        "  %matmul_0.filllike_0: float32[2,1] = FillLike(value=0.5)(%matmul_0)\n"
        f"  %matmul_0.reshape_0: float32[] = Reshape(shape=())(%{name}-LossScale)\n"
        "  %matmul_0.multiply_0: float32[2,1] = Multiply()(%matmul_0.filllike_0, %matmul_0.reshape_0)\n"
        "  %matmul_0.matmul_1: float32[2,1] = MatMul(transpose_a=True)(%x, %matmul_0.multiply_0)\n"
        "  %tolayout_0: float32[2,1] = ToLayout(B)(%matmul_0.matmul_1)\n"
        "  %countnotfinite_0: int64[1] = CountNotFinite()(%tolayout_0)\n"
        "  %lossscaleupdate_0.0: float32[1], %lossscaleupdate_0.1: int64[1] = "
        f"LossScaleUpdate(period=3)(%{name}-LossScale, %{name}-GoodStepCounter, %countnotfinite_0)\n"
        f"  %reciprocal_0: float32[1] = Reciprocal()(%{name}-LossScale)\n"
        "  %reshape_0: float32[] = Reshape(shape=())(%reciprocal_0)\n"
        "  %multiply_0: float32[2,1] = Multiply()(%tolayout_0, %reshape_0)\n"
        "  %System-Train-TrainStep-job: int64[1] = ReadVariable(key=System-Train-TrainStep-job)()\n"
        "  %constant_0: float32[1] = Constant(value=1.0)()\n"
        "  %sgdupdate_0: float32[2,1] = GuardedUpdate(op=SgdUpdate())(%w, %multiply_0, %constant_0, %countnotfinite_0)\n"
        "  %increment_0: int64[1] = GuardedUpdate(op=Increment())(%System-Train-TrainStep-job, %countnotfinite_0)\n"
        "  return %matmul_0\n"
        f"  {name}-LossScale <- %lossscaleupdate_0.0\n"
        f"  {name}-GoodStepCounter <- %lossscaleupdate_0.1\n"
        "  w <- %sgdupdate_0\n"
        "  System-Train-TrainStep-job <- %increment_0\n"
    )


def test_writes_of_the_body_follow_the_count() -> None:
    def writing(tracer: Tracer) -> Any:
        y = body(tracer)
        moving, computed = variable(tracer, "moving", 6, 3, trainable=False), variable(tracer, "seen", 1, trainable=False)
        tracer.assign("moving", apply(MovingAverage(0.9), moving, y))
        tracer.assign("seen", add(computed, computed))
        return y

    graph = trace(writing, train=True, optimizer=DYNAMIC)
    assert writers(graph)["moving"] == "GuardedUpdate(op=MovingAverage(momentum=0.9))"
    assert writers(graph)["seen"] == "GuardedUpdate(op=Assign())"
    order = [node.op for node in graph.nodes]
    counted = next(i for i, op in enumerate(order) if isinstance(op, LossScaleUpdate))
    assert all(i > counted for i, op in enumerate(order) if isinstance(op, GuardedUpdate))
    assert {op.__class__ for op in order if isinstance(op, Updated)} == {GuardedUpdate, LossScaleUpdate}


def test_two_variables_are_exchanged_by_a_guarded_step() -> None:
    def exchanging(tracer: Tracer) -> Any:
        a, b = variable(tracer, "a", 2, trainable=False), variable(tracer, "b", 2, trainable=False)
        tracer.assign("a", b)
        tracer.assign("b", a)
        return body(tracer)

    graph = trace(exchanging, train=True, optimizer=DYNAMIC)
    for name, other in (("a", "b"), ("b", "a")):
        read, outputs, _ = graph.updates[name].node.inputs
        assert (read, outputs.node.inputs) == (graph.reads[name], (graph.reads[other],)), "a copy from before the run"
    with world_of(1) as world:
        bound = Bound(world, distribute(graph))
        bound.write({"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0]), "w": np.ones((4, 3))})
        for x in (np.ones((6, 4)), np.full((6, 4), np.inf)):
            bound.run(x=x)
            assert bound.read("a").tolist() == [3, 4] and bound.read("b").tolist() == [1, 2]


def test_writes_that_the_count_depends_on_are_not_guarded() -> None:
    """Read the new value of a counter in the loss; its write cannot wait for the gradients of that loss."""

    def counting(tracer: Tracer) -> Any:
        value = apply(Increment(), variable(tracer, "n", 6, 3, trainable=False))
        tracer.assign("n", value)
        return add(body(tracer), value)

    graph = trace(counting, train=True, optimizer=DYNAMIC)
    assert writers(graph)["n"] == "Increment()"
    assert writers(graph)["w"] == "GuardedUpdate(op=SgdUpdate())"


def test_a_variable_can_take_the_new_value_of_another() -> None:
    def following(tracer: Tracer) -> Any:
        one, other = variable(tracer, "one", 1, trainable=False), variable(tracer, "other", 1, trainable=False)
        tracer.assign("one", apply(Increment(), one))
        tracer.assign("other", tracer.updates["one"])
        assert other.tensor_type == one.tensor_type
        return body(tracer)

    graph = trace(following, train=True, optimizer=DYNAMIC)
    with world_of(2) as world:
        bound = Bound(world, distribute(trace(following, first(2), train=True, optimizer=DYNAMIC)))
        bound.write({"one": np.array([5.0]), "other": np.array([1.0]), "w": np.ones((4, 3))})
        bound.run(x=np.full((6, 4), np.inf))
        assert (bound.read("one").tolist(), bound.read("other").tolist()) == ([5], [1])
        bound.run(x=np.ones((6, 4)))
        assert (bound.read("one").tolist(), bound.read("other").tolist()) == ([6], [6])
    assert writers(graph)["other"] == "GuardedUpdate(op=Assign())"


def test_guarded_updates_of_contiguous_variables_stay_joined() -> None:
    def deep(tracer: Tracer) -> Any:
        x = tracer.input("x", type_(6, 4))
        for i in range(3):
            x = relu(matmul(x, variable(tracer, f"w{i}", 4, 4)))
        return x

    for n in (1, 2):
        graph = trace(deep, first(n), train=True, optimizer=DYNAMIC)
        slots, _ = place_variables(graph.variables.values(), 0)
        plan = plan_rank(distribute(graph), RankMemory(0, slots), CPU)
        updates = [i for i in plan.epilogue if isinstance(i, Compute) and str(i.op) == "GuardedUpdate(op=SgdUpdate())"]
        assert [i.outputs[0].type.shape for i in updates] == [(3 * 16,)], "one update of the whole run"
