"""Tests on real GPUs, and on the stub of `scripts/gpu_check dry`, where they compare shapes and types only."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import carrying
import on_device
import pytest
from curves_of import DOUBLE, NOTICE, PROGRAMS, TOLERANCE, TOLERANCE_DOUBLE, curves_of, distance_from_cpu

from jobflow.core.errors import JobError, PlacementError, RankError
from jobflow.distributed import mpiexec
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator, StagedCommunicator
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.world.threads import ThreadsWorld


def missing(gpus: int, nccl: bool = False) -> str:
    """Return the reason to skip tests on this number of GPUs, or ""."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    count = cuda.available()
    if not count:
        return "CuPy is installed, but cupy.cuda.is_available() is false: there is no GPU, or no driver for CUDA"
    if count < gpus:
        return f"there is only {count} GPU, {gpus} are needed"
    if nccl and not cuda.nccl().available:
        return "NCCL is not installed"
    return ""


def needs(gpus: int, nccl: bool = False) -> Any:
    reason = missing(gpus, nccl)
    return pytest.mark.skipif(bool(reason), reason=reason or "nothing is missing")


pytestmark = [pytest.mark.gpu, needs(1), pytest.mark.filterwarnings("default")]  # CuPy may warn of its own affairs


@pytest.fixture
def device() -> cuda.CudaDevice:
    device = cuda.CudaDevice(0)
    device.activate()
    if os.environ.get("JOBFLOW_GPU_POOL") == "none":  # compute-sanitizer cannot see accesses beyond an array inside a pool
        device.xp.cuda.set_allocator(None)
    return device


class TestDevice:
    def test_memory_is_zeroed_and_aligned(self, device: cuda.CudaDevice) -> None:
        on_device.check_memory(device)

    def test_a_gpu_that_does_not_exist(self) -> None:
        count = cuda.available()
        with pytest.raises(PlacementError, match=f"gpu {count} does not exist: this machine has {count} usable GPU"):
            cuda.CudaDevice(count)

    @pytest.mark.parametrize("strides", on_device.STRIDES)
    def test_slots_are_windows_on_device_memory(self, device: cuda.CudaDevice, strides: tuple[int, int]) -> None:
        on_device.check_windows(device, strides)

    def test_copies_are_ordered_with_kernels(self, device: cuda.CudaDevice) -> None:
        on_device.check_uploads(device)
        on_device.check_pinned_copies(device)

    def test_empty_values(self, device: cuda.CudaDevice) -> None:
        on_device.check_empty(device)

    def test_arrays_without_axes(self, device: cuda.CudaDevice) -> None:
        on_device.check_numbers(device)


@pytest.mark.parametrize("name", on_device.OPS)
def test_the_kernel_gives_what_it_gives_on_numpy(name: str, device: cuda.CudaDevice) -> None:
    on_device.check_op(device.xp, on_device.OPS[name])


@pytest.mark.parametrize("name", on_device.OPS)
def test_the_kernel_that_is_written_for_gpus_gives_it_too(name: str, device: cuda.CudaDevice) -> None:
    on_device.check_op(device.xp, on_device.OPS[name], "auto")


def test_whole_numbers_are_added_at_their_places(device: cuda.CudaDevice) -> None:
    on_device.check_whole_numbers(device.xp)


def world_of(*indices: int) -> Iterator[ThreadsWorld]:
    world = ThreadsWorld([cuda.CudaDevice(i) for i in indices])
    yield world
    world.close()


@pytest.fixture
def together() -> Iterator[ThreadsWorld]:
    """One GPU for all ranks."""
    yield from world_of(0, 0, 0)


@pytest.fixture
def one_gpu_each() -> Iterator[ThreadsWorld]:
    """A GPU for each rank."""
    yield from world_of(0, 1)


class TestThroughTheHost:
    @pytest.mark.parametrize("shape", carrying.SHAPES)
    @pytest.mark.parametrize("dtype", carrying.DTYPES)
    def test_operations(self, together: ThreadsWorld, dtype: str, shape: str) -> None:
        assert {type(rank.comm) for rank in together.ranks} == {StagedCommunicator}
        assert min(together.call(carrying.carry, [(dtype, shape)] * 3)) > 10

    def test_transfers(self, together: ThreadsWorld) -> None:
        assert together.call(carrying.relay) == [3, 3, 3]

    def test_a_world_outlives_a_failure(self, together: ThreadsWorld) -> None:
        with pytest.raises(RankError, match="it fails"):
            together.call(carrying.one_stays_away)
        assert together.call(carrying.relay) == [3, 3, 3]


@needs(2, nccl=True)
class TestNccl:
    @pytest.mark.parametrize("shape", carrying.SHAPES)
    @pytest.mark.parametrize("dtype", carrying.DTYPES)
    def test_operations(self, one_gpu_each: ThreadsWorld, dtype: str, shape: str) -> None:
        assert {type(rank.comm) for rank in one_gpu_each.ranks} == {NcclCommunicator}
        assert min(one_gpu_each.call(carrying.carry, [(dtype, shape)] * 2)) > 10

    def test_transfers(self, one_gpu_each: ThreadsWorld) -> None:
        assert one_gpu_each.call(carrying.relay) == [2, 2]

    def test_a_failed_rank_releases_the_others(self, one_gpu_each: ThreadsWorld) -> None:
        with pytest.raises(RankError, match="it fails"):
            one_gpu_each.call(carrying.one_stays_away)
        with pytest.raises(JobError, match="start again with clear_default_session"):
            one_gpu_each.call(carrying.relay)


def between(ranks: int) -> str:
    return "NcclCommunicator" if not missing(ranks, nccl=True) else "StagedCommunicator"


@pytest.fixture
def losses(capfd: pytest.CaptureFixture[str]) -> Any:
    """Check a program's losses and print their distance from the CPU's."""

    def check(name: str, devices: int, processes: int, comm: str) -> None:
        curves, printed = curves_of(None, devices, processes, (name,))
        assert set(curves["world"]["tags"]) == {"gpu"} and set(curves["world"]["comms"]) == {comm}
        assert NOTICE not in printed
        if not on_device.COMPUTES:
            assert len(curves[name]) == len(curves_of(0, 1, programs=(name,))[0][name])
            return
        distance = distance_from_cpu(name, curves, (name,))
        with capfd.disabled():
            figures = {"program": name, "devices": devices, "processes": processes, "distance": distance}
            print("\nRESULT " + json.dumps(figures), file=sys.stderr, flush=True)
        limit = TOLERANCE_DOUBLE if name in DOUBLE else TOLERANCE
        assert math.isfinite(distance) and distance <= limit, f"{distance:.2e} from the CPU's losses, more than {limit:g}"

    return check


class TestPrograms:
    """The losses are those of the CPU."""

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_one_gpu(self, name: str, losses: Any) -> None:
        losses(name, 1, 1, "SoloCommunicator")

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_threads(self, name: str, losses: Any) -> None:
        losses(name, 2, 1, between(2))

    @pytest.mark.mpi
    @pytest.mark.skipif(mpiexec.find() is None, reason="there is no mpiexec: pip install '.[mpi]'")
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_processes(self, name: str, losses: Any) -> None:
        losses(name, 2, 2, between(2))
