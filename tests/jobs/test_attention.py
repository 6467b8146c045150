"""Jobs whose attention is one operation learn as jobs with a chain: on ranks, in microbatches, with strategies and dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gpt
import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.compiler.front import merge_attention as pass_module
from jobflow.engine import job as job_module
from jobflow.engine.common_target import common_target
from jobflow.engine.session import Session
from jobflow.kernels.target import target_of
from jobflow.models import gpt as gpt_model

SIZE = gpt.Size(batch=4, length=8, width=16, heads=4, blocks=2, words=24)
STEPS = 4


def batches(shape: tuple[int, int], words: int) -> Iterator[list[Any]]:
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        tokens = random.integers(0, words, (shape[0], shape[1] + 1)).astype(np.int32)
        yield [np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])]


def losses(make: Callable[[], Any], devices: int, merged: bool) -> list[float]:
    """Return the losses of a job on CPU ranks; if `merged`, the job is compiled as for GPUs, and runs the operation's definition."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    with mock.patch.object(job_module, "common_target", lambda session: target_of("gpu" if merged else "cpu")):
        chains: list[int] = []
        chains_of = pass_module._chains

        def counted(*arguments: Any) -> Any:
            chains.append(len(result := chains_of(*arguments)))
            return result

        with mock.patch.object(pass_module, "_chains", counted):
            job = make()
            results = [float(np.mean(job(*arguments))) for arguments in batches((SIZE.batch, SIZE.length), SIZE.words)]
    flow.clear_default_session()
    assert not merged or sum(chains) >= SIZE.blocks
    return results


def dropout_job(microbatches: int = 1, strategy: Any = None, recompute: bool = False) -> Any:
    config = flow.function_config()
    if microbatches > 1:
        config.train.num_gradient_accumulation_steps(microbatches)
    if strategy is not None:
        config.strategy(strategy)

    @flow.global_function("train", config)
    def step(
        words: tp.Numpy.Placeholder((SIZE.batch, SIZE.length), dtype=flow.int32),
        following: tp.Numpy.Placeholder((SIZE.batch, SIZE.length), dtype=flow.int32),
    ) -> tp.Numpy:
        sizes = {"words": SIZE.words, "length": SIZE.length, "width": SIZE.width, "heads": SIZE.heads, "blocks": SIZE.blocks}
        loss = gpt_model(words, following, **sizes, dropout=0.3, recompute=recompute)["loss"]
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    return step


CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "one device": (lambda: gpt.make_train_job(SIZE), 1),
    "dropout": (dropout_job, 1),
    "dropout in microbatches on ranks": (lambda: dropout_job(2), 2),
    "dropout in a pipeline": (lambda: dropout_job(strategy=flow.strategies.named("pp")), 2),
    "dropout computed again": (lambda: dropout_job(recompute=True), 1),
    "data x tensor": (lambda: dropout_job(strategy=flow.strategies.named("2x2")), 4),
}
#: cases that others contain
REPEATED = ("dropout",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full) if name in REPEATED else name for name in CASES])
def test_losses_equal_those_of_the_chain(name: str) -> None:
    make, devices = CASES[name]
    expected, ours = losses(make, devices, merged=False), losses(make, devices, merged=True)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    assert len(set(expected)) == STEPS


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["dp", "tp", "pp", "2x2x2", "zero1", "zero3"])
def test_strategies_give_the_losses_of_one_device(strategy: str) -> None:
    alone = losses(lambda: gpt.make_train_job(SIZE), 1, merged=False)
    devices = 8 if strategy == "2x2x2" else 2
    ours = losses(lambda: gpt.make_train_job(SIZE, strategy=flow.strategies.named(strategy)), devices, merged=True)
    np.testing.assert_allclose(ours, alone, rtol=1e-4)


def test_ranks_without_a_gpu_keep_the_chain_on_all_ranks() -> None:
    session = Session()
    session.world = mock.Mock(tags=("gpu", "cpu"), ranks=[mock.Mock(device=mock.Mock(tag="gpu"))])
    assert common_target(session).kind == "cpu"
    session.world.tags = ("gpu", "gpu")
    assert common_target(session).kind == "cuda"
