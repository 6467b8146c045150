"""Graphs over several imitated GPUs use NCCL, with the plans of jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import fake_nccl
import fake_nvrtc
import host_cuda
import numpy as np
import pytest
from ranks import world_of

import jobflow as flow
from jobflow import nn, scope
from jobflow.core.errors import ArgumentError, JobError, RankError
from jobflow.plan.plan import Collective
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.comm.staged_communicator import StagedCommunicator
from jobflow.runtime.device.cuda_graph import CapturedGraph
from jobflow.runtime.world.world import Rank
from jobflow.tensors.state import EagerState, state

ROWS = np.random.RandomState(0).randn(4, 6, 5).astype(np.float32)
LABELS = np.random.RandomState(1).randint(0, 3, (4, 6)).astype(np.int64)
LABELS_OUTSIDE = np.array([0, 1, 2, 0, 1, 3])
MESSAGE = r"label 3 at \[5\] is outside \[0, 3\)"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that seems to have two GPUs and NCCL, whose collectives take random times."""
    monkeypatch.setenv("JOBFLOW_KERNELS", "numpy")
    with fake_nccl.gpus(monkeypatch, tmp_path, 2, delay=1e-3):
        yield


def on_ranks(n: int, program: Callable[[int], Any]) -> list[Any]:
    """Return the results of `program(rank)` on n ranks of a new world, which is closed afterwards."""

    def command(rank: Rank, _: Any) -> Any:
        with scope.using(root=scope.Root(eager=EagerState(rank))):
            return program(rank.index)

    with world_of(n) as world:
        return list(world.call(command))


class TrainingGraph(nn.Graph):
    """A step of SGD on a model of two layers, whose weights are equal on all ranks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def build(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Training:
    """A model and its graph on a placement."""

    def __init__(self, type: str, ranks: int) -> None:
        self.placement = flow.placement(type, range(ranks))
        self.model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        for k, x in enumerate(self.model.parameters()):
            x.data = flow.tensor(np.random.RandomState(k).randn(*x.shape).astype(np.float32) * 0.3)
        self.model.to_global(placement=self.placement, sbp=flow.sbp.broadcast)
        self.step = TrainingGraph(self.model)

    def __call__(self, rows: np.ndarray, labels: np.ndarray) -> float:
        x, y = (flow.tensor(each, placement=self.placement, sbp=flow.sbp.split(0)) for each in (rows, labels))
        return float(self.step(x, y).numpy())

    def losses(self) -> list[float]:
        return [self(rows, labels) for rows, labels in zip(ROWS, LABELS, strict=True)]

    def weights(self) -> list[np.ndarray]:
        return [x.numpy() for x in self.model.parameters()]


def communicator(training: Training) -> Any:
    return training.step._bound.peers


@pytest.fixture
def expected() -> list[float]:
    """The losses of one rank on the host."""
    return list(on_ranks(1, lambda rank: Training("cpu", 1).losses())[0])


@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_equal_those_of_one_rank(gpus: None, expected: list[float], ranks: int) -> None:
    """Expect NCCL and early reductions if each rank has a GPU of its own, and the memory of the hosts otherwise."""

    def train(rank: int) -> tuple[list[float], type, list[bool]]:
        training = Training("cuda", ranks)
        losses = training.losses()
        body = training.step._bound.executor.plan.body
        return losses, type(communicator(training)), [each.concurrent for each in body if isinstance(each, Collective)]

    kind = NcclCommunicator if ranks == 2 else StagedCommunicator
    for losses, comm, concurrent in on_ranks(ranks, train):
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert comm is kind and concurrent and (kind is StagedCommunicator or all(concurrent))


@pytest.mark.full
@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no g++")
def test_captured_graphs_of_printed_kernels_contain_the_reductions(
    gpus: None, expected: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(rank: int) -> tuple[list[float], bool]:
        training = Training("cuda", 2)
        losses = training.losses()
        launches = [call for part in training.step._bound.executor.replays for call, _ in part.launches()]
        return losses, any(isinstance(call, CapturedGraph) and call.communicates for call in launches)

    monkeypatch.setenv("JOBFLOW_KERNELS", "auto")
    with fake_nvrtc.installed(monkeypatch, fake_cupy.modules(2)):
        fake_nccl.install(tmp_path)
        for losses, communicates in on_ranks(2, train):
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
            assert communicates


def test_a_refused_step_changes_no_rank(gpus: None) -> None:
    def train(rank: int) -> None:
        training = Training("cuda", 2)
        first = training(ROWS[0], LABELS[0])
        before = training.weights()
        with pytest.raises(ArgumentError, match=MESSAGE):
            training(ROWS[0], LABELS_OUTSIDE)
        for ours, theirs in zip(training.weights(), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert training(ROWS[0], LABELS[0]) < first

    on_ranks(2, train)


def test_a_dead_rank_ends_the_step_of_the_others(gpus: None) -> None:
    """Expect an error of the rank that waits, and of its later reads of variables."""
    messages: list[str] = []

    def train(rank: int) -> None:
        training = Training("cuda", 2)
        training(ROWS[0], LABELS[0])
        if rank == 1:
            time.sleep(0.1)
            raise RuntimeError("it fails")
        try:
            training(ROWS[0], LABELS[0])
        finally:
            with pytest.raises(JobError) as caught:
                training.model[0].weight.to_local().numpy()
            messages.append(str(caught.value))

    began = time.monotonic()
    with pytest.raises(RankError, match="it fails"):
        on_ranks(2, train)
    assert time.monotonic() - began < 10
    assert len(messages) == 1 and "start a new session" in messages[0], messages


def test_the_world_closes_the_communicator(gpus: None) -> None:
    """Expect an error of graphs whose world has ended, and no listener at their device."""

    def train(rank: int) -> Training:
        training = Training("cuda", 2)
        training.losses()
        assert isinstance(state().rank.gpu_comm, NcclCommunicator)
        return training

    for training in on_ranks(2, train):
        (family,) = communicator(training)._families()
        assert not family._root and training.step._bound.gpu.device.listen is None
