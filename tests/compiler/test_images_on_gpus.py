"""Plans of convolutional networks for GPUs: batch normalization in four calls, and images of half precision only in half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.compile import distribute, logical
from jobflow.engine.job import job_of, returned_values
from jobflow.engine.session import current_session
from jobflow.kernels.region import Region
from jobflow.kernels.target import CPU, target_of
from jobflow.ops.batch_norm import BatchMoments, CenteredSums, ChannelOp, Moments
from jobflow.ops.matmul import AxisSum
from jobflow.plan.plan import Compute, Plan
from jobflow.program.program import Program, StorageChoice

SHAPE, CLASSES = (4, 3, 8, 8), 8


def network(images: Any) -> Any:
    def filters(name: str, shape: tuple[int, ...]) -> Any:
        return flow.get_variable(name, shape, initializer=flow.random_normal_initializer(stddev=0.1))

    def normalized(x: Any, name: str) -> Any:
        return flow.layers.batch_normalization(x, axis=1, momentum=0.9, name=name)

    x = flow.math.relu(normalized(flow.nn.conv2d(images, filters("w0", (8, 3, 3, 3)), 1, "SAME"), "n0"))
    y = flow.math.relu(normalized(flow.nn.conv2d(x, filters("w1", (8, 8, 3, 3)), 1, "SAME"), "n1"))
    y = normalized(flow.nn.conv2d(y, filters("w2", (8, 8, 1, 1)), 1, "SAME"), "n2")
    return flow.math.reduce_mean(flow.math.relu(x + y), axis=[2, 3])


def plan(half: Any, target: Any, devices: int = 1) -> Plan:
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    if half is not None:
        config.mixed_precision(half)

    @flow.global_function("train", config)
    def step(images: tp.Numpy.Placeholder(SHAPE), labels: tp.Numpy.Placeholder(SHAPE[:1], dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    job, session = job_of(step), current_session()
    program, results = job.trace(session, job.placement(session), job.declared_shapes(session))
    graph = logical(program, returned_values(results), target).graph
    result = Program(distribute(graph), StorageChoice(share=False, io_buffers=False), target).plan(0, devices)
    flow.clear_default_session()
    return result


def operations(plan: Plan) -> list[list[Any]]:
    """Return the operations of each call."""
    calls = [step.op for step in plan.instructions if isinstance(step, Compute)]
    return [[member.op for member in op.members] if isinstance(op, Region) else [op] for op in calls]


def images_in_float32(plan: Plan) -> list[str]:
    """Return the results in float32 that have the size of an image between two convolutions."""
    results = [slot.type for step in plan.instructions if isinstance(step, Compute) for slot in step.outputs]
    return [str(type) for type in results if type.dtype is flow.float32 and type.shape == (SHAPE[0], 8, *SHAPE[2:])]


@pytest.mark.parametrize("half", [flow.bfloat16, flow.float16])
def test_images_have_half_precision_and_normalizations_four_calls(half: Any) -> None:
    gpu = plan(half, target_of("gpu"))
    assert images_in_float32(gpu) == []
    calls = operations(gpu)
    assert sum(any(isinstance(op, BatchMoments | ChannelOp) for op in ops) for ops in calls) == 3 * 4
    assert not any(isinstance(op, AxisSum | CenteredSums | Moments) for ops in calls for op in ops)


def test_float32_programs_have_the_same_calls() -> None:
    calls = operations(plan(None, target_of("gpu")))
    assert sum(any(isinstance(op, BatchMoments | ChannelOp) for op in ops) for ops in calls) == 3 * 4


def test_statistics_stay_a_chain_of_sums_if_ranks_split_the_samples() -> None:
    calls = operations(plan(flow.bfloat16, target_of("gpu"), devices=2))
    assert not any(isinstance(op, BatchMoments) for ops in calls for op in ops)
    assert sum(isinstance(op, CenteredSums) for ops in calls for op in ops) == 3


def test_programs_for_cpus_are_unchanged() -> None:
    cpu = plan(flow.bfloat16, CPU)
    assert images_in_float32(cpu) and not any(isinstance(op, BatchMoments) for ops in operations(cpu) for op in ops)


def test_batch_moments_equal_the_chain_of_sums() -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, 4, 2)) + 10
    mean, variance, corrected = (np.empty(3) for _ in range(3))
    BatchMoments(1, 1.5).kernel(np, x, mean, variance, corrected)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)))
    np.testing.assert_allclose(variance, x.var((0, 2, 3)))
    np.testing.assert_allclose(corrected, 1.5 * variance)
