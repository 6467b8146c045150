"""Plans of GPUs store images with the channels innermost, copy only where the order must change, and compute equal values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from growing import grown
from programs import check
from traced import Body, distribute, evaluate, first, trace, type_, variable, world_of
from traced import Bound as BoundGraph

from jobflow.compiler.front.trace import Tracer
from jobflow.compiler.rank.views import ordered_strides
from jobflow.core.types import TensorType, bfloat16, float32, uint8
from jobflow.kernels.target import FusionLimits, Target, target_of
from jobflow.ops.activation import relu, tanh
from jobflow.ops.arithmetic import add
from jobflow.ops.axes import reshape, transpose
from jobflow.ops.batch_norm import batch_norm_train
from jobflow.ops.conv import Conv, conv
from jobflow.ops.matmul import matmul
from jobflow.ops.op import Op, ViewOp
from jobflow.ops.pool import MaxPool, max_pool
from jobflow.ops.reduce import reduce_mean
from jobflow.ops.scalar import cast, scale
from jobflow.ops.slices import Concat, concat
from jobflow.plan.plan import Compute, Plan, Slot
from jobflow.program.program import ALONE, Program

#: the CPU's kernels in plans of a GPU without cublasLt
IMAGES = replace(target_of("cpu", "reference"), tables="jobflow.kernels.cuda.image_patterns", alignment=256)
FUSED = replace(IMAGES, fusion=FusionLimits())


def net(tracer: Tracer, x: Any) -> Any:
    """Return the loss of two convolutions with pooling, batch normalization, a residual and a concatenation of channels."""
    w1, w2, dense = variable(tracer, "w1", 8, 3, 3, 3), variable(tracer, "w2", 8, 8, 3, 3), variable(tracer, "dense", 16, 5)
    gamma, beta = variable(tracer, "gamma", 8), variable(tracer, "beta", 8)
    x = max_pool(conv(x, w1, padding="same"), 2, 2)
    y, _, _ = batch_norm_train(conv(x, w2, padding="same"), gamma, beta)
    y = concat([relu(add(x, y)), tanh(y)], 1)
    return reduce_mean(matmul(reduce_mean(y, [2, 3]), dense))


def planar(tracer: Tracer) -> Any:
    return net(tracer, scale(tracer.input("x", type_(4, 3, 8, 8)), 0.5))


def interleaved(tracer: Tracer) -> Any:
    """Return the same for images [n,h,w,c] of type uint8."""
    return net(tracer, scale(cast(transpose(tracer.input("x", TensorType((4, 8, 8, 3), uint8)), (0, 3, 1, 2)), float32), 1 / 255))


def plan_of(body: Body, target: Target = IMAGES, **options: Any) -> Plan:
    return Program(distribute(trace(body, first(1), **options)), ALONE, target).plan(0, 1)


def calls(plan: Plan, *classes: type[Op]) -> list[Compute]:
    return [i for i in plan.instructions if isinstance(i, Compute) and isinstance(i.op, classes)]


def copies(plan: Plan) -> list[str]:
    """Return the names of instructions that only move elements."""
    return [i.name for i in plan.instructions if isinstance(i, Compute) and (isinstance(i.op, ViewOp) or type(i.op).__name__ == "Copy")]


def is_channels_last(slot: Slot) -> bool:
    order = (0, *range(2, slot.type.ndim), 1)
    return all(n == 1 or a == b for n, a, b in zip(slot.type.shape, slot.strides, ordered_strides(slot.type, order), strict=True))


@pytest.mark.parametrize("body", [planar, interleaved])
def test_images_have_the_channels_innermost_from_the_first_conversion_on(body: Body) -> None:
    for half in (None, bfloat16):
        plan = plan_of(body, train=True, half=half)
        inputs = [feed.slot for feed in plan.feeds]
        images = [slot for call in calls(plan, Op) for slot in (*call.inputs, *call.outputs) if slot.type.ndim == 4 and slot.type.shape[0] == 4]
        assert all(slot.strides[1] == slot.type.dtype.itemsize for slot in images if slot not in inputs)
        operands = [slot for call in calls(plan, Conv) for slot in (*call.inputs, *call.outputs)]
        assert operands and all(map(is_channels_last, operands))
        assert len(copies(plan)) == (0 if half else 4), "float32 filters before convolutions, and their gradients"


@pytest.mark.parametrize("body", [planar, interleaved])
@pytest.mark.parametrize("target", [IMAGES, FUSED], ids=["single", "fused"])
def test_memory_orders_do_not_change_values(body: Body, target: Target) -> None:
    graph = trace(body, first(1), train=True)
    random = np.random.default_rng(0)
    values = {name: random.normal(size=v.type.shape).astype(np.float32) for name, v in graph.variables.items()}
    x = random.integers(0, 255, (4, 8, 8, 3), np.uint8)
    x = x if body is interleaved else np.ascontiguousarray(x.transpose(0, 3, 1, 2), np.float32)
    outputs, expected = evaluate(graph, {"x": x}, values)
    with world_of(1) as world:
        bound = BoundGraph(world, distribute(graph), target=target)
        bound.write(values)
        np.testing.assert_allclose(bound.run(x=x)[0], outputs[0], rtol=1e-5)
        for name, value in expected.items():
            np.testing.assert_allclose(bound.read(name), value, rtol=1e-4, atol=1e-4, err_msg=name)
        bound.close()


def test_values_that_must_be_in_c_order_are_written_or_copied_once() -> None:
    def body(tracer: Tracer) -> Any:
        x, w = tracer.input("x", type_(2, 3, 4, 4)), tracer.input("w", type_(3, 3, 1, 1), split=False)
        y = conv(x, w)  # one copy of the argument for both readers, none of the filters of one element
        z = tanh(conv(max_pool(x, 1), w))
        return y, z, reshape(relu(y), (2, 48))

    plan = plan_of(body)
    assert copies(plan) == ["x:channels last", "conv_0:returned"], "tanh and relu write C order"
    assert all(is_channels_last(slot) for call in calls(plan, Conv, MaxPool) for slot in (*call.inputs, *call.outputs))


def test_concatenated_channels_are_computed_in_place() -> None:
    assert not calls(plan_of(planar, FUSED, train=True), Concat)


def test_random_programs_equal_their_kernels() -> None:
    with world_of(1) as one, world_of(2) as two:
        for seed in range(3):
            check(one, grown(8300 + seed, ((1,),)), target=IMAGES)
        check(two, grown(8400, ((2,),)), target=FUSED)
