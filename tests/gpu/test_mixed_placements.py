"""Jobs on imitated GPUs with operations on "cpu": these run on the host of their rank, and give the losses of CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_nccl
import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope
from jobflow.engine.session import current_session
from jobflow.ops.host_operation import HostOperation
from jobflow.plan.plan import Compute
from jobflow.program.commands import executors_of

BATCH = np.random.RandomState(0).randn(4, 6).astype(np.float32)
LABELS = np.array([0, 2, 1, 2], np.int32)


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("JOBFLOW_KERNELS", "numpy")
    with fake_nccl.gpus(monkeypatch, tmp_path, 2):
        yield


def losses(device: str, ranks: int, inside: str, where: str) -> tuple[list[float], list[str]]:
    """Train with the middle of the network on `inside`; return the losses, and the operations of rank 0 on the host."""
    with scope.using(root=scope.Root()):
        (flow.config.gpu_device_num if device == "gpu" else flow.config.cpu_device_num)(ranks)

        @flow.global_function(type="train")
        def train(x: tp.Numpy.Placeholder((4, 6)), labels: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
            x = flow.layers.dense(x, 8, kernel_initializer=flow.random_uniform_initializer(-1, 1), name="first")
            with flow.scope.placement(inside, where):
                x = flow.nn.dropout(flow.math.tanh(x), 0.2)
                x = flow.layers.dense(x, 3, kernel_initializer=flow.random_uniform_initializer(-1, 1), name="second")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
            flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
            return loss

        curve = [float(np.mean(train(BATCH, LABELS))) for _ in range(4)]
        world = current_session().world
        assert world is not None
        (executor,) = executors_of(world.ranks[0]).values()
        hosted = [type(i.op.op).__name__ for i in executor.plan.instructions if isinstance(i, Compute) and isinstance(i.op, HostOperation)]
        flow.clear_default_session()
    return curve, hosted


@pytest.mark.parametrize(("ranks", "where"), [(1, "0:0"), (2, "0:0-1"), (2, "0:0")])
def test_operations_on_cpu_run_on_the_host(ranks: int, where: str) -> None:
    expected, none = losses("cpu", ranks, "cpu", where)
    curve, hosted = losses("gpu", ranks, "cpu", where)
    assert none == [] and {"Tanh", "DropoutMask", "MatMul"} <= set(hosted) and "SparseSoftmaxCrossEntropy" not in hosted
    np.testing.assert_allclose(curve, expected, rtol=1e-5)
    assert expected[-1] < 0.9 * expected[0]


def test_operations_on_gpu_do_not_run_on_the_host() -> None:
    assert losses("gpu", 1, "gpu", "0:0")[1] == []


def test_a_job_that_is_wholly_on_cpu_reports_that_it_runs_on_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    with scope.using(root=scope.Root()):
        flow.config.gpu_device_num(1)
        config: Any = flow.function_config()
        config.default_placement_scope(flow.scope.placement("cpu", "0:0"))

        @flow.global_function(function_config=config)
        def double(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
            return x + x

        np.testing.assert_array_equal(double(BATCH), 2 * BATCH)
        flow.clear_default_session()
    assert 'all operations are placed on "cpu", but the session has GPUs, which run them' in capsys.readouterr().err
