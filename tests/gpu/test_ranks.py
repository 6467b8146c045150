"""Ranks on pretended GPUs: the communicators carry device memory, and whole programs give the losses of CPUs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import carrying
import fake_nccl
import numpy as np
import on_device
import pytest
from curves_of import NOTICE, PROGRAMS, curves_of, same_as_on_the_cpu
from labelled_step import BAD, GOOD, MESSAGE, X, declared, variables

import jobflow as flow
from jobflow import scope
from jobflow.core import notices
from jobflow.core.errors import JobError, PlacementError, RankError
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.comm.staged_communicator import StagedCommunicator
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.threads import ThreadsWorld


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that seems to have three GPUs and NCCL."""
    monkeypatch.setenv("JOBFLOW_KERNELS", "numpy")
    with fake_nccl.gpus(monkeypatch, tmp_path, 3):
        yield


@pytest.fixture
def device(gpus: None) -> cuda.CudaDevice:
    cuda_device = cuda.CudaDevice(1)
    cuda_device.activate()
    return cuda_device


class TestDevice:
    def test_memory_is_zeroed_aligned_and_on_its_device(self, device: cuda.CudaDevice) -> None:
        on_device.check_memory(device)

    def test_a_gpu_that_does_not_exist(self, gpus: None) -> None:
        with pytest.raises(PlacementError, match="gpu 3 does not exist: this machine has 3 usable GPUs"):
            cuda.CudaDevice(3)

    def test_without_a_compiler_of_kernels(self, gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails() -> None:
            raise RuntimeError("failed to load libnvrtc.so.13")

        monkeypatch.setattr(sys.modules["cupy_backends.cuda.libs.nvrtc"], "getVersion", fails)
        with pytest.raises(PlacementError, match="gpu 0 cannot be used: CuPy finds no NVRTC"):
            cuda.CudaDevice(0)

    @pytest.mark.parametrize("strides", on_device.STRIDES)
    def test_slots_are_windows_on_device_memory(self, device: cuda.CudaDevice, strides: tuple[int, int]) -> None:
        on_device.check_windows(device, strides)

    def test_copies_are_ordered_with_kernels(self, device: cuda.CudaDevice) -> None:
        """The pretended CuPy raises where they are not."""
        on_device.check_uploads(device)
        on_device.check_pinned_copies(device)

    def test_empty_values(self, device: cuda.CudaDevice) -> None:
        on_device.check_empty(device)

    def test_arrays_without_axes(self, device: cuda.CudaDevice) -> None:
        on_device.check_numbers(device)


def world_of(*devices: Device) -> Iterator[ThreadsWorld]:
    world = ThreadsWorld(devices)
    yield world
    world.close()


@pytest.fixture
def one_gpu_each(gpus: None) -> Iterator[ThreadsWorld]:
    """A GPU for each rank."""
    yield from world_of(*(cuda.CudaDevice(i) for i in range(3)))


@pytest.fixture
def together(gpus: None) -> Iterator[ThreadsWorld]:
    """One GPU for all ranks."""
    yield from world_of(*(cuda.CudaDevice(0) for _ in range(3)))


@pytest.fixture
def mixed(gpus: None) -> Iterator[ThreadsWorld]:
    """A rank without a GPU among others."""
    yield from world_of(cuda.CudaDevice(0), CpuDevice(), cuda.CudaDevice(1))


class TestCommunicators:
    @pytest.mark.parametrize("shape", carrying.SHAPES)
    @pytest.mark.parametrize("dtype", carrying.DTYPES)
    def test_nccl(self, one_gpu_each: ThreadsWorld, dtype: str, shape: str) -> None:
        assert {type(rank.comm) for rank in one_gpu_each.ranks} == {NcclCommunicator}
        assert min(one_gpu_each.call(carrying.carry, [(dtype, shape)] * 3)) > 20

    @pytest.mark.parametrize("shape", carrying.SHAPES)
    def test_through_the_host(self, together: ThreadsWorld, shape: str) -> None:
        assert {type(rank.comm) for rank in together.ranks} == {StagedCommunicator}
        assert min(together.call(carrying.carry, [("float32", shape)] * 3)) > 20

    def test_ranks_with_and_without_a_gpu(self, mixed: ThreadsWorld) -> None:
        assert [type(rank.comm) is StagedCommunicator for rank in mixed.ranks] == [True, False, True]
        assert min(mixed.call(carrying.carry, [("float32", "uneven")] * 3)) > 20

    def test_groups(self, one_gpu_each: ThreadsWorld, together: ThreadsWorld, mixed: ThreadsWorld) -> None:
        for world in (one_gpu_each, together, mixed):
            world.call(carrying.in_groups)
            world.call(carrying.relay)

    def test_transfers(self, one_gpu_each: ThreadsWorld) -> None:
        assert one_gpu_each.call(carrying.relay) == [3, 3, 3]

    def test_transfers_through_the_host(self, together: ThreadsWorld) -> None:
        assert together.call(carrying.relay) == [3, 3, 3]

    def test_without_nccl_ranks_go_through_the_host_and_say_so(self, gpus: None, capsys: pytest.CaptureFixture[str]) -> None:
        notices.forget()
        sys.modules["cupy.cuda.nccl"].available = False  # type: ignore[attr-defined]
        for world in world_of(cuda.CudaDevice(0), cuda.CudaDevice(1)):
            assert {type(rank.comm) for rank in world.ranks} == {StagedCommunicator}
        assert capsys.readouterr().err.count("NCCL is not installed") == 1

    def test_a_failed_rank_releases_the_others(self, one_gpu_each: ThreadsWorld) -> None:
        """They wait on their devices, where only an abort of their own reaches them; after that there is no NCCL."""
        began = time.monotonic()
        with pytest.raises(RankError, match="it fails"):
            one_gpu_each.call(carrying.one_stays_away)
        assert time.monotonic() - began < 2
        with pytest.raises(JobError, match="start a new session with clear_default_session"):
            one_gpu_each.call(carrying.relay)

    def test_through_the_host_a_world_outlives_a_failure(self, together: ThreadsWorld) -> None:
        with pytest.raises(RankError, match="it fails"):
            together.call(carrying.one_stays_away)
        assert together.call(carrying.relay) == [3, 3, 3]


# Whole programs ------------------------------------------------------------------------------------------------------


def check(name: str, curves_and_output: tuple[dict[str, Any], str], world: dict[str, Any]) -> None:
    curves, printed = curves_and_output
    assert curves["world"] == world and NOTICE not in printed
    same_as_on_the_cpu(name, curves)


def nccl_and_host(devices: int) -> list[Any]:
    return [pytest.param(devices, "NcclCommunicator", id="own_gpus"), pytest.param(1, "StagedCommunicator", id="shared_gpu")]


def test_without_a_gpu_programs_run_on_the_cpu_and_say_so() -> None:
    curves, printed = curves_of(0, 1)
    assert curves["world"]["tags"] == ["cpu"] and printed.count(NOTICE) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_gpu(name: str) -> None:
    check(name, curves_of(1, 1), {"tags": ["gpu"], "comms": ["SoloCommunicator"]})


@pytest.mark.parametrize(
    "name", ["gpt", *(pytest.param(name, marks=pytest.mark.full) for name in ("hybrid_mlp_with_optimizer", "consistent_lenet", "batch_norm"))]
)
def test_kernels_that_are_written_for_gpus(name: str) -> None:
    """The text that NVRTC would compile, through g++, and products that ask for what cuBLAS has."""
    curves, _ = curves_of(1, 1, programs=(name,), kernels="auto")
    assert curves["world"]["tags"] == ["gpu"]
    same_as_on_the_cpu(name, curves)


@pytest.mark.parametrize(("gpus", "comm"), nccl_and_host(2))
@pytest.mark.parametrize("name", PROGRAMS)
def test_threads(name: str, gpus: int, comm: str) -> None:
    check(name, curves_of(gpus, 2), {"tags": ["gpu"] * 2, "comms": [comm] * 2})


#: threads run all of them in both ways; processes, where what is new is how they meet, run them by turns
TURNS = {2: PROGRAMS[::2], 1: PROGRAMS[1::2], "first": PROGRAMS[::3]}


@pytest.mark.mpi
@pytest.mark.parametrize(("gpus", "name"), [(gpus, name) for gpus, names in TURNS.items() for name in names])
def test_processes(gpus: int | str, name: str) -> None:
    """Train on processes with a GPU each, with a shared GPU, and with one process without a GPU."""
    comm = "NcclCommunicator" if gpus == 2 else "StagedCommunicator"
    check(name, curves_of(gpus, 2, processes=2, programs=TURNS[gpus]), {"tags": ["gpu"], "comms": [comm]})


@pytest.mark.mpi
def test_processes_say_once_that_there_is_no_gpu() -> None:
    _, printed = curves_of(0, 2, processes=2)
    assert printed.count(NOTICE) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_that_is_refused_on_a_gpu_never_was(gpus: None, count: int) -> None:
    """The check is a kernel's note, read before anything is written."""
    with scope.using(root=scope.Root()):
        flow.config.gpu_device_num(count)
        train = declared()
        first = train(X, GOOD).get().numpy()
        before = variables()
        with pytest.raises(ValueError, match=MESSAGE):
            train(X, BAD)
        for name, value in variables().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        assert not np.array_equal(train(X, GOOD).get().numpy(), first)
        flow.clear_default_session()
