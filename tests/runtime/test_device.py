"""Devices: alignment, scratch, and the checks of GPUs on machines without one."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
from typing import Any

import contract
import numpy as np
import pytest

from jobflow.core.errors import PlacementError
from jobflow.core.layout import SUM
from jobflow.core.types import float32, float64, int8
from jobflow.runtime.comm.nccl_calls import calls_of
from jobflow.runtime.comm.record import Record
from jobflow.runtime.comm.solo_communicator import SoloCommunicator
from jobflow.runtime.comm.staged_communicator import StagedCommunicator
from jobflow.runtime.comm.transports import RankDevice, device_communicator
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.threads import ThreadsWorld


class TestCpu:
    @pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 1000, 1 << 20])
    def test_allocations_are_zeroed_and_aligned(self, nbytes: int) -> None:
        array = CpuDevice().allocate(nbytes)
        assert array.dtype == np.uint8 and array.shape == (nbytes,) and not array.any()
        assert nbytes == 0 or array.ctypes.data % 64 == 0

    def test_scratch_of_one_instruction_does_not_overlap(self) -> None:
        device = CpuDevice()
        for _ in range(3):
            device.begin_instruction()
            arrays = [device.scratch((n, 3), dtype) for n in (1, 7, 100, 5000) for dtype in (float32, int8, float64)]
            for i, array in enumerate(arrays):
                assert array.ctypes.data % 64 == 0
                array[...] = i
            assert all((array == i).all() for i, array in enumerate(arrays))

    def test_scratch_is_shared_between_instructions_and_stays_valid(self) -> None:
        device = CpuDevice()
        device.begin_instruction()
        first = device.scratch((100,), float32)
        device.begin_instruction()
        assert device.scratch((100,), float32).ctypes.data == first.ctypes.data
        device.begin_instruction()
        device.scratch((100_000,), float64)  # grows: the first one's memory must not go away
        first[:] = 3
        assert (first == 3).all()

    def test_scratch_may_be_empty(self) -> None:
        device = CpuDevice()
        assert device.scratch((0, 5), float32).shape == (0, 5)
        assert device.scratch((), float32).shape == ()

    def test_to_host_copies(self) -> None:
        array = np.arange(3)
        copy = CpuDevice().to_host(array)
        array[0] = 9
        assert copy[0] == 0


class TestCudaWithoutGpu:
    @pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
    def test_a_cuda_device_without_a_gpu_raises(self) -> None:
        assert cuda.available() == 0
        with pytest.raises(PlacementError, match="gpu 0 does not exist: this machine has 0"):
            cuda.CudaDevice(0)

    def test_importing_the_module_does_not_import_cupy(self) -> None:
        code = "import sys; import jobflow.runtime.device.cuda_device, jobflow.runtime.comm.transports; sys.exit('cupy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=pathlib.Path(__file__).parents[2])


class FakeGpu(CpuDevice):
    """A host device with the interface of a GPU, which counts its copies."""

    tag = "gpu"
    identity = "one for all"
    nccl_version = 22809

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def host_array(self, count: int, dtype: Any) -> Any:
        return np.full(count, 77).astype(dtype)

    def fetch(self, source: Any, host: Any) -> None:
        self.copies += 1
        host[:] = source

    def put(self, target: Any, host: Any) -> None:
        self.copies += 1
        target[:] = host

    def fetch_later(self, source: Any, host: Any, done: Any) -> None:
        self.fetch(source, host)

    def put_later(self, target: Any, host: Any, done: Any) -> None:
        self.put(target, host)

    def new_event(self) -> None:
        """Copies are complete on return."""

    def wait(self, point: Any) -> None:
        """Copies are complete on return."""


class FakeNccl:
    """A replacement of `cupy.cuda.nccl` for tests of arguments."""

    NCCL_UINT8, NCCL_FLOAT32, NCCL_MAX, NCCL_SUM = "u8", "f32", "max", "sum"


class FakeArray:
    """An array at an address."""

    def __init__(self, pointer: int, size: int, dtype: str) -> None:
        self.data = type("Pointer", (), {"ptr": pointer})()
        self.size, self.dtype, self.itemsize = size, np.dtype(dtype), np.dtype(dtype).itemsize
        self.nbytes = size * self.itemsize


def sends(*pieces: tuple[int, int]) -> list[Any]:
    return [("send", pointer, nbytes, "u8", peer, 9) for peer, (pointer, nbytes) in enumerate(pieces)]


def receives(*pieces: tuple[int, int]) -> list[Any]:
    return [("recv", pointer, nbytes, "u8", peer, 9) for peer, (pointer, nbytes) in enumerate(pieces)]


class TestGpuCommunicators:
    def test_ranks_that_share_a_gpu_communicate_through_the_host(self) -> None:
        devices = [FakeGpu() for _ in range(3)]
        world = ThreadsWorld(devices)
        try:
            assert all(isinstance(rank.comm, StagedCommunicator) for rank in world.ranks)
            for law, argument in contract.all_cases(pairs=True):
                if "in place" not in (argument if isinstance(argument, tuple) else ()):
                    world.call(law, [argument] * 3)
            assert all(device.copies > 100 for device in devices)
        finally:
            world.close()

    def test_a_host_rank_keeps_its_communicator(self) -> None:
        inner = SoloCommunicator(CpuDevice())
        assert device_communicator(inner, CpuDevice(), [RankDevice("cpu", "", 0, False)]) is inner

    @pytest.mark.parametrize(
        ("kind", "counts", "receives", "expected"),
        [
            ("all_reduce", (5,), (), [("allReduce", 1000, 2000, 5, "f32", "sum", 9)]),
            ("all_gather", (5, 5), (), [("allGather", 1000, 2000, 20, "u8", 9)]),
            ("reduce_scatter", (5, 5), (), [("reduceScatter", 1000, 2000, 5, "f32", "sum", 9)]),
            ("all_gather", (2, 3), (), [*sends((1000, 12), (1000, 12)), *receives((2000, 8), (2008, 12))]),
            ("reduce_scatter", (0, 5), (), [("reduce", 1000, 2000, 5, "f32", "sum", 1, 9)]),
            ("all_to_all", (4, 1), (2, 1), [*sends((1000, 16), (1016, 4)), *receives((2000, 8), (2008, 4))]),
        ],
    )
    def test_arguments_of_nccl_calls(self, kind: str, counts: tuple[int, ...], receives: tuple[int, ...], expected: list[Any]) -> None:
        """The communicator is that of rank 1 of two, on stream 9."""
        group = type("Group", (), {name: name for name in ("allReduce", "allGather", "reduceScatter", "reduce", "send", "recv")})()
        record = Record(kind, (0, 1), FakeArray(1000, 5, "float32"), FakeArray(2000, 5, "float32"), counts, receives, SUM)
        got = [(function, *arguments) for function, arguments in calls_of(record, 1, group, FakeNccl(), 9)]
        assert got == expected
