"""Eager communication of ranks on imitated GPUs: collectives of local tensors, and changes of layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_nccl
import numpy as np
import pytest

import jobflow as flow
from jobflow import comm, nn, scope
from jobflow.runtime.comm.device_communicator import DeviceCommunicator
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import Rank
from jobflow.tensors.state import EagerState, state


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that seems to have three GPUs and NCCL, whose collectives take random times."""
    monkeypatch.setenv("JOBFLOW_KERNELS", "numpy")
    with fake_nccl.gpus(monkeypatch, tmp_path, 3, delay=1e-3):
        yield


def on_devices(devices: tuple[int | None, ...], program: Callable[[int], Any]) -> list[Any]:
    """Return the results of `program(rank)` on ranks whose session uses these GPUs, or the host for None."""

    def command(rank: Rank, _: Any) -> Any:
        with scope.using(root=scope.Root(eager=EagerState(rank))):
            return program(rank.index)

    world = ThreadsWorld([CpuDevice() if number is None else cuda.CudaDevice(number) for number in devices])
    try:
        return list(world.call(command))
    finally:
        world.close()


class Doubled(nn.Graph):
    """A graph with communication on the host."""

    def build(self, x: Any) -> Any:
        return (x * 2).to_global(sbp=flow.sbp.broadcast)


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 0, 0), (0, None, 1)])
def test_tensors_of_the_host_are_exchanged_in_a_session_on_gpus(gpus: None, devices: tuple[int | None, ...]) -> None:
    def program(rank: int) -> list[Any]:
        assert isinstance(state().rank.comm, DeviceCommunicator) == (devices[rank] is not None)
        x = flow.tensor(np.full(3, rank + 1.0))
        comm.all_reduce(x)
        whole = flow.tensor([[float(rank)]]).to_global(placement=flow.placement("cpu", range(3)), sbp=flow.sbp.split(0))
        part = whole.to_global(placement=flow.placement("cpu", [0, 2]), sbp=flow.sbp.split(0))
        return [x.numpy().tolist(), whole.numpy().tolist(), Doubled()(part).numpy().tolist()]

    assert on_devices(devices, program) == [[[6.0] * 3, [[0.0], [1.0], [2.0]], [[0.0], [2.0], [4.0]]]] * 3
