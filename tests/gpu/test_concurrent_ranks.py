"""Training on imitated GPUs whose collectives run beside the computation, with random delays, gives the losses of one CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fake_nccl
import gpt
import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope
from jobflow.engine.session import current_session
from jobflow.plan.plan import Collective, Completion
from jobflow.program.commands import executors_of

SIZE = gpt.Size(batch=8, length=8, width=32, heads=4, blocks=2, words=64)
BATCHES = np.random.RandomState(0).randint(0, SIZE.words, (3, 2, SIZE.batch, SIZE.length)).astype(np.int32)
#: strategy, number of ranks, microbatches
STRATEGIES = [("dp", 2, 1), ("dp", 3, 2), ("zero2", 2, 1), ("zero3", 2, 1), ("pp", 2, 2), pytest.param("2x2x2", 8, 2, marks=pytest.mark.full)]


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that seems to have eight GPUs and NCCL, whose collectives take random times."""
    monkeypatch.setenv("JOBFLOW_KERNELS", "numpy")
    with fake_nccl.gpus(monkeypatch, tmp_path, 8, delay=1e-3):
        yield


def losses(strategy: str, microbatches: int) -> list[float]:
    job = gpt.make_train_job(SIZE, rate=1e-2, strategy=flow.strategies.named(strategy), microbatches=microbatches)
    return [float(np.mean(job(*batch))) for batch in BATCHES]


@pytest.fixture(scope="module")
def expected() -> list[float]:
    with scope.using(root=scope.Root()):
        flow.config.cpu_device_num(1)
        curve = losses("dp", 1)
        flow.clear_default_session()
    return curve


@pytest.mark.parametrize(("strategy", "ranks", "microbatches"), STRATEGIES)
def test_delayed_collectives_do_not_change_the_losses(strategy: str, ranks: int, microbatches: int, expected: list[float]) -> None:
    with scope.using(root=scope.Root()):
        flow.config.gpu_device_num(ranks)
        np.testing.assert_allclose(losses(strategy, microbatches), expected, rtol=1e-5)
        world = current_session().world
        assert world is not None
        (executor,) = executors_of(world.ranks[0]).values()
        started = [each for each in executor.plan.instructions if isinstance(each, Collective)]
        waits = [each for each in executor.plan.instructions if isinstance(each, Completion)]
        assert bool(started) == (strategy != "pp") and all(each.concurrent for each in started) and len(waits) == len(started)
        flow.clear_default_session()


@pytest.mark.parametrize("strategy", ["dp", "zero2"])
def test_gradients_are_summed_in_the_type_of_the_configuration(strategy: str) -> None:
    """Expect weights that differ from those of float32 sums by at most the rounding of float16."""
    weights = {dtype: weights_after_a_step(dtype, strategy) for dtype in (flow.float32, flow.float16)}
    assert not np.array_equal(*weights.values())
    np.testing.assert_allclose(*weights.values(), rtol=1e-3, atol=1e-3)


def weights_after_a_step(dtype: flow.dtype, strategy: str) -> np.ndarray:
    with scope.using(root=scope.Root()):
        flow.config.gpu_device_num(2)
        config = flow.function_config()
        config.reduce_dtype(dtype)
        config.strategy(replace(flow.strategies.named(strategy), least=1) if strategy == "zero2" else flow.strategies.named(strategy))

        @flow.global_function("train", config)
        def step(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
            ones = flow.ones_initializer()
            y = flow.layers.dense(flow.layers.dense(x, 6, kernel_initializer=ones, name="first"), 3, kernel_initializer=ones, name="second")
            loss = flow.math.reduce_mean(flow.math.square(y))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
            return loss

        step(np.random.RandomState(1).randn(8, 4).astype(np.float32))
        world = current_session().world
        assert world is not None
        (executor,) = executors_of(world.ranks[0]).values()
        kinds = ("all_reduce",) if strategy == "dp" else ("reduce_scatter",)
        sums = {each.input.type.dtype for each in executor.plan.body if isinstance(each, Collective) and each.kind in kinds and each.counts[0] > 1}
        assert sums == {dtype}
        weights = np.array(flow.get_all_variables()["first-weight"].numpy())
        flow.clear_default_session()
    return weights
