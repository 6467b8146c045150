"""Captured graphs: calls that the stub GPU with real CuPy refuses, and replays on the imitation of CuPy."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fake_cupy
import fake_streams
import numpy as np
import pytest
from without_gpu import host_runtime

from jobflow.core.errors import JobflowError
from jobflow.runtime.device import cuda_copies, host_copies
from jobflow.runtime.device.cuda_device import CudaDevice
from jobflow.runtime.replays import Replays

PROGRAM = Path(__file__).with_name("programs") / "stub_captures.py"


@pytest.mark.skipif(bool(host_runtime.missing()), reason=host_runtime.missing() or "nothing is missing")
def test_stub_replays_graphs_and_refuses_what_cuda_refuses(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.rpartition("RESULT ")[2])
    assert results.pop("replayed") and results.pop("stream"), "the current stream is another one after a capture"
    assert results.pop("counts") == {"launches": 0, "graph_launches": 1, "graph_nodes": 3, "allocations": 0}
    assert [name for name, result in results.items() if result == "captured"] == []


@pytest.mark.full
@pytest.mark.skipif(bool(host_runtime.missing()), reason=host_runtime.missing() or "nothing is missing")
@pytest.mark.parametrize(
    ("fraction", "limit"), [("1", r"2.00 GiB are free; use"), ("0.9", r"2.00 GiB are free under the limit of 1.80 GiB by cuda.set_")]
)
def test_program_that_exceeds_the_memory_names_job_bytes_and_largest_values(tmp_path: Path, fraction: str, limit: str) -> None:
    environment = os.environ | {"JOBFLOW_GPU_STUB_MEMORY": str(2 << 30)}
    program = PROGRAM.with_name("stub_memory.py")
    done = subprocess.run([sys.executable, str(program), str(tmp_path), fraction], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, *table = done.stdout.splitlines()
    assert re.match(
        r"OutOfMemory: job train_step: intermediate values: allocation on gpu 0: [\d.]+ [MG]iB are needed, and [\d.]+ MiB of " + limit, first
    )
    assert table[0] == "largest values at the peak, in MiB" and len(table) == 11
    assert all(re.match(r" *[\d.]+ +b?float\d+\[[\d,]+\] +\S+ at jobflow_models\.py:\d+$", line) for line in table[1:]), table


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    for name, module in fake_cupy.modules(1).items():
        monkeypatch.setitem(sys.modules, name, module)
    device = CudaDevice(0)
    device.activate()
    return device


class Launch:
    """A launch that a graph may capture: it appends to a list when it runs."""

    capturable = True

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    def __call__(self) -> None:
        stream = fake_streams.Stream.all[fake_streams.current.stream]
        stream.run(lambda: self._log.append(self._name))


def test_the_second_run_launches_graphs_in_place_of_runs_of_capturable_calls(device: CudaDevice) -> None:
    log: list[str] = []
    calls: list[Any] = [(Launch(log, "a"), ()), (Launch(log, "b"), ()), (log.append, ("host",)), (Launch(log, "c"), ()), (log.append, ("end",))]
    replays = Replays(device, "job", calls)
    assert [launch for launch, _ in replays.launches()[:5]] == [call for call, _ in calls], "the run before did not end"
    for expected in (6, 4, 4):
        launches = replays.launches()
        assert len(launches) == expected
        for function, arguments in launches:
            function(*arguments)
    assert log == ["a", "b", "host", "c", "end"] * 3


def test_error_of_a_capture_names_the_job_and_leaves_the_device_usable(device: CudaDevice) -> None:
    log: list[str] = []

    class Allocation(Launch):
        def __call__(self) -> None:
            device.allocate(1 << 20)

    replays = Replays(device, "job train", [(Launch(log, "a"), ()), (Allocation(log, "b"), ())])
    for function, arguments in replays.launches():
        function(*arguments)
    log.clear()
    with pytest.raises(JobflowError, match=r"job train: a graph of 2 calls cannot be captured: .* while a stream is captured"):
        replays.launches()
    device.capture([(Launch(log, "c"), ())])()
    assert log == ["c"]


def test_feeder_copies_arguments_in_turns(device: CudaDevice) -> None:
    targets = [device.allocate(24).view(np.float32), device.allocate(8).view(np.int64)]
    feeder = device.feeder(targets)
    for step in range(5):
        values = [np.full(6, step, np.float64), np.array([step], np.int32)]
        feeder.feed(values)
        for value in values:
            value[:] = 77
        assert [target.get(stream=device.stream).tolist() for target in targets] == [[step] * 6, [step]]


def test_large_arguments_are_split_and_page_locked_ones_are_read_by_the_gpu(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "PIECE", 1 << 18)
    monkeypatch.setattr(cuda_copies, "SEPARATE", 1 << 18)
    count = 3 * host_copies.PIECE // 4
    targets = [device.allocate(n).view(np.float32) for n in (8, 4 * count, 4 * count, 4 * count, 4, 4 * count)]
    targets[-1] = targets[-1].reshape(4, -1)
    feeder = device.feeder(targets)
    pinned = device.host_array(count, np.float32)
    sources: list[Any] = []
    copyto = np.copyto
    monkeypatch.setattr(np, "copyto", lambda target, source, **options: (sources.append(source), copyto(target, source, **options)))
    for step in range(3):
        pinned[:] = np.arange(count) - step
        large = np.arange(count, dtype=np.float64) + step
        values = [np.full(2, step, np.float32), large, pinned, large.astype(np.float32)[::-1], np.ones(1, np.float32)]
        with pytest.warns(PendingDeprecationWarning):
            values.append(np.matrix(large.reshape(4, -1)))
        expected = [value.copy() for value in values]
        feeder.feed(values)
        for value in values:
            value[:] = 77
        for target, value in zip(targets, expected, strict=True):
            np.testing.assert_array_equal(target.get(stream=device.stream), value.astype(np.float32))
    assert len(sources) > 15 and not any(source is pinned or source.base is pinned for source in sources)


def test_threads_copy_with_the_error_state_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "PIECE", 256)
    source, target = np.full(1000, 1e300), np.empty(1000, np.float32)
    with np.errstate(over="ignore"):
        assert sum(piece.size for piece, _ in host_copies.copied_pieces(target, source)) == 1000 and np.isinf(target).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
        list(host_copies.copied_pieces(target, source))


def test_copies_of_arguments_wait_for_the_readers_of_their_block(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    feeder = device.feeder([device.allocate(24)])
    waits: list[Any] = []
    monkeypatch.setattr(device._copying, "wait_event", waits.append)
    for _ in range(4):
        feeder.feed([np.zeros(24, np.uint8)])
    assert waits == feeder._read, "the third and the fourth copy overwrite the blocks of the first two"


def test_unread_results_keep_their_page_locked_memory_during_the_copy(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    array = device.allocate(24)
    hosts: list[Any] = []
    empty = device.host_array
    monkeypatch.setattr(device._downloads, "_host_array", lambda *arguments: hosts.append(weakref.ref((host := empty(*arguments)).base)) or host)
    monkeypatch.setattr(fake_streams.Event, "done", False)
    device.start_to_host([array])
    device.start_to_host([array])
    assert all(host() is not None for host in hosts)
    monkeypatch.setattr(fake_streams.Event, "done", True)
    device.start_to_host([array])
    gc.collect()
    assert [host() is None for host in hosts] == [True, True, False]


def test_arrivals_reuse_memory_after_the_last_view_and_its_kernels(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = device.arrivals(device.allocate)
    copied_on: list[int] = []
    copy = fake_cupy.ndarray.set
    monkeypatch.setattr(fake_cupy.ndarray, "set", lambda self, array, stream: (copied_on.append(stream.ptr), copy(self, array, stream))[1])
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    first = arrivals.receive(source)
    source[...] = 7
    assert first.get().tolist() == [[0, 1, 2], [3, 4, 5]] and set(copied_on) == {device._copying.ptr}
    view, address = first[1], first.data.ptr
    del first
    assert arrivals.receive(source, direct=True).data.ptr != address and view.get().tolist() == [3, 4, 5]
    waits: list[Any] = []
    monkeypatch.setattr(device._copying, "wait_event", waits.append)
    del view
    arrays = [arrivals.receive(source) for _ in range(2)]
    assert address in [array.data.ptr for array in arrays] and len(waits) == 2, "copies wait for the kernels that read the blocks"
    arrivals.clear()
    assert not arrivals._spare


def test_arrays_that_another_thread_releases_during_a_capture_keep_their_memory(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals, source = device.arrivals(device.allocate), np.zeros(6, np.float32)
    arrays = [arrivals.receive(source)]
    address, waits, alive = arrays[0].data.ptr, [], []

    def release() -> None:
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        thread.join(10)
        alive.append(thread.is_alive())

    device.capture([(release, ())])
    assert alive == [False], "the finalizer waits for the capture"
    monkeypatch.setattr(device._copying, "wait_event", waits.append)
    assert arrivals.receive(source).data.ptr == address
    assert [(event.capture, event._stream) for event in waits] == [(None, device.stream.ptr)]


def test_garbage_is_not_collected_during_a_capture(device: CudaDevice) -> None:
    running: list[bool] = []
    device.capture([(lambda: running.append(gc.isenabled()), ())])
    assert running == [False] and gc.isenabled()


def test_memory_of_small_buffers_is_shared_and_zero(device: CudaDevice) -> None:
    arrays = [device.allocate(n) for n in (0, 1, 300, 0, 4096)]
    addresses = [array.data.ptr for array in arrays if array.size]
    assert all(not array.get().any() for array in arrays) and all(address % 256 == 0 for address in addresses)
    arrays[1][:] = 1
    assert not arrays[2].get().any() and not device.allocate(64).get().any()


def test_current_stream_is_that_of_the_device_after_allocations_and_captures(device: CudaDevice) -> None:
    device.allocate(1 << 20)
    device.capture([])
    with device.on(device.new_stream()):
        device.allocate(1 << 20)
    assert fake_streams.current_stream().ptr == device.stream.ptr


def test_threads_upload_through_the_same_page_locked_memory(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    copyto = np.copyto

    def slow(*arguments: Any, **named: Any) -> None:
        copyto(*arguments, **named)
        time.sleep(1e-3)

    monkeypatch.setattr(cuda_copies, "FIRST", 64)
    monkeypatch.setattr(cuda_copies.np, "copyto", slow)
    targets = [device.allocate(64) for _ in range(24)]

    def upload(first: int) -> None:
        device.activate()
        for k in range(first, 24, 4):
            device.upload(targets[k], np.full(64, k, np.uint8))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upload, range(4)))
    assert [set(target.get().tolist()) for target in targets] == [{k} for k in range(24)]
