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
import document_programs
import numpy as np
import on_device
import pytest
import tensor_cases
from curves_of import DOUBLE, NOTICE, PROGRAMS, TOLERANCE, TOLERANCE_DOUBLE, curves_of, distance_from_cpu

import jobflow as flow
from jobflow import scope
from jobflow.core.errors import JobError, PlacementError, RankError
from jobflow.distributed import mpiexec
from jobflow.engine.options import EnvSettings
from jobflow.engine.session import Session
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.comm.staged_communicator import StagedCommunicator
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


def ops() -> list[Any]:
    """Return the names of all operations; those of matrices need cuSOLVER, which machines of the stub may lack."""
    lacks = not on_device.COMPUTES and not on_device.has_solver()
    mark = pytest.mark.skipif(lacks, reason="needs cuSOLVER: pip install nvidia-cusolver nvidia-cusparse nvidia-nvjitlink")
    return [pytest.param(name, marks=mark if name.partition(".")[0] in ("determinants", "matrices") else ()) for name in on_device.OPS]


@pytest.mark.parametrize("name", ops())
def test_the_kernel_gives_what_it_gives_on_numpy(name: str, device: cuda.CudaDevice) -> None:
    on_device.check_op(device.xp, on_device.OPS[name])


@pytest.mark.parametrize("name", ops())
def test_the_kernel_that_is_written_for_gpus_gives_it_too(name: str, device: cuda.CudaDevice) -> None:
    on_device.check_op(device.xp, on_device.OPS[name], "auto")


def test_whole_numbers_are_added_at_their_places(device: cuda.CudaDevice) -> None:
    on_device.check_whole_numbers(device.xp)


@pytest.mark.parametrize("name", sorted(tensor_cases.CASES))
def test_tensors_have_the_values_of_the_host(name: str) -> None:
    """On the stub, where kernels do not write, the case only has to run; its values and the shapes that depend on them are undefined."""
    if not on_device.COMPUTES and name in ("host_values", "differences"):
        pytest.skip("it compares values, which the stub does not compute")
    session = Session()
    with scope.using(root=scope.Root(session, EnvSettings()), interpreter=None, placement=None):
        results = tensor_cases.CASES[name]("cuda")
        assert [x.device.type for x in results] == ["cuda"] * len(results)
        if on_device.COMPUTES:
            for k, (x, y) in enumerate(zip(results, tensor_cases.CASES[name]("cpu"), strict=True)):
                tolerance = 1e-4 if x.itemsize > 2 else 2e-2
                np.testing.assert_allclose(x.double().numpy(), y.double().numpy(), rtol=tolerance, atol=tolerance / 10, err_msg=f"{name} {k}")
        session.close()


@pytest.mark.parametrize("program", document_programs.PROGRAMS)
def test_tensors_of_programs_are_those_of_the_host(program: str) -> None:
    ours, theirs = (document_programs.results(program, type) for type in ("cuda", "cpu"))
    document_programs.compare(program, ours, theirs, values=on_device.COMPUTES)


class TestTensorsElsewhere:
    """Memory of a GPU is exchanged with CuPy without copies; statistics, streams and events are those of the GPU."""

    def test_arrays_of_cupy_share_memory(self, device: cuda.CudaDevice) -> None:
        x = flow.arange(6.0, device="cuda").reshape(2, 3)
        array = device.xp.asarray(x) if on_device.COMPUTES else device.xp.from_dlpack(x)  # the stub has no attributes of pointers
        assert x.__cuda_array_interface__["data"][0] == x.data_ptr()
        assert array.data.ptr == x.data_ptr() and array.shape == (2, 3) and array.dtype == np.float32
        for y in (flow.from_dlpack(array), flow.as_tensor(array), flow.from_dlpack(x), flow.from_dlpack(flow.to_dlpack(x))):
            assert y.data_ptr() == x.data_ptr() and str(y.device) == "cuda:0" and y.dtype is flow.float32
        assert device.xp.from_dlpack(x.T).strides == array.T.strides and x.__dlpack_device__() == (2, 0)
        assert flow.tensor(array).data_ptr() != x.data_ptr() and flow.from_dlpack(x.__dlpack__(copy=True)).data_ptr() != x.data_ptr()

    def test_tensors_that_cannot_be_exported(self, device: cuda.CudaDevice) -> None:
        x = flow.ones(2, device="cuda", requires_grad=True)
        assert not hasattr(x, "__cuda_array_interface__") and not hasattr(flow.ones(2), "__cuda_array_interface__")
        with pytest.raises(JobError, match="requires gradients"):
            device.xp.from_dlpack(x)

    def test_statistics_count_tensors(self) -> None:
        before = flow.cuda.memory_allocated()
        x = flow.zeros(1 << 20, device="cuda")
        assert flow.cuda.memory_allocated() >= before + (4 << 20) and flow.cuda.max_memory_allocated() >= flow.cuda.memory_allocated()
        assert flow.cuda.memory_reserved() >= flow.cuda.memory_allocated() and flow.cuda.mem_get_info()[1] > 0 and x.is_cuda
        del x
        flow.cuda.empty_cache()
        properties = flow.cuda.get_device_properties()
        assert properties.major >= 7 and properties.total_memory > 0 and flow.cuda.get_device_capability() == properties[3:]

    def test_events_time_the_operations_between_them(self) -> None:
        first, last = flow.cuda.Event(enable_timing=True), flow.cuda.Event(enable_timing=True)
        first.record()
        with flow.cuda.stream(flow.cuda.Stream()):
            x = flow.ones(100, device="cuda") * 2
        last.record()
        last.synchronize()
        assert first.elapsed_time(last) >= 0 and last.query() and flow.cuda.current_stream().cuda_stream and x.is_cuda

    def test_pinned_tensors_are_page_locked(self) -> None:
        x = flow.ones(100).pin_memory()
        assert x.is_pinned() and x.pin_memory() is x and not flow.ones(3).is_pinned() and x.to("cuda", non_blocking=True).is_cuda


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


def between(ranks: int, processes: int) -> str:
    """Return the class of the communicator; without NCCL, processes read each other's memory if the variable requests it."""
    if not missing(ranks, nccl=True):
        return "NcclCommunicator"
    return "PeerCommunicator" if processes > 1 and os.environ.get("JOBFLOW_GPU_IPC") == "1" else "StagedCommunicator"


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
        losses(name, 2, 1, between(2, 1))

    @pytest.mark.mpi
    @pytest.mark.skipif(mpiexec.find() is None, reason="there is no mpiexec: pip install '.[mpi]'")
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_processes(self, name: str, losses: Any) -> None:
        losses(name, 2, 2, between(2, 2))
