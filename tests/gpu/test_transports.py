"""Transports between ranks on pretended GPUs: their choice, their order, pieces of staged arrays, failures and the end of communicators."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import carrying
import fake_nccl
import fake_streams
import numpy as np
import pytest
from processes import run_command, under_mpiexec

from jobflow.core import notices
from jobflow.core.errors import JobError, JobflowError, PlanError, RankError
from jobflow.core.layout import SUM
from jobflow.core.types import TensorType, float32
from jobflow.plan.plan import Collective, Instruction, Slot, Transfer, Wait
from jobflow.plan.traffic import Traffic
from jobflow.runtime.comm import nccl_family, peer_communicator, staged_communicator
from jobflow.runtime.comm.blocking_calls import NAME as BLOCKING
from jobflow.runtime.comm.communicator import Binding
from jobflow.runtime.comm.nccl_calls import perform
from jobflow.runtime.comm.transports import RankDevice, choose, facts
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device import cuda_windows
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.posts import in_schedule_order
from jobflow.runtime.replays import Replays
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import Rank


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with fake_nccl.gpus(monkeypatch, tmp_path, 3):
        yield


def world_on(*indices: int | None) -> ThreadsWorld:
    return ThreadsWorld([CpuDevice() if number is None else cuda.CudaDevice(number) for number in indices])


# The choice ----------------------------------------------------------------------------------------------------------

HOST = RankDevice("cpu", "", 0, False)


def gpu(number: int, nccl: int = 22809, shares: bool = False) -> RankDevice:
    return RankDevice("gpu", f"machine {number}", nccl, shares)


@pytest.mark.parametrize(
    ("devices", "kind", "reason"),
    [
        ([gpu(0), gpu(1)], "nccl", "each rank has its own GPU, NCCL 2.28.9"),
        ([gpu(0), gpu(1), gpu(1)], "host", "ranks 1 and 2 share a GPU"),
        ([gpu(0, 23003, True)] * 2, "nccl", "ranks 0 and 1 share a GPU, which NCCL_MULTI_RANK_GPU_ENABLE=1 enables"),
        ([gpu(0, 23003, True), gpu(0, 23003)], "host", "ranks 0 and 1 share a GPU"),
        ([gpu(0, 22809, True)] * 2, "host", "ranks 0 and 1 share a GPU"),
        ([gpu(0), HOST], "host", "rank 1 has no GPU"),
        ([gpu(0), gpu(1, 0)], "host", "NCCL is not installed on rank 1; install it with: pip install"),
        ([gpu(0), gpu(1, 23003)], "host", "the ranks have different versions of NCCL (2.28.9, 2.30.3)"),
        ([gpu(0)._replace(opens=True)] * 2, "windows", "ranks 0 and 1 share a GPU, and JOBFLOW_GPU_IPC=1 enables windows"),
        ([gpu(0)._replace(opens=True), gpu(0)], "host", "ranks 0 and 1 share a GPU"),
        ([HOST, HOST], "none", "no tensors are exchanged between GPUs"),
    ],
)
def test_the_transport_and_its_reason(devices: list[RankDevice], kind: str, reason: str) -> None:
    transport = choose(devices)
    assert transport.kind == kind and transport.reason.startswith(reason)


# The order of starts -------------------------------------------------------------------------------------------------

SLOT = Slot("arena", 0, TensorType((1,), float32), (4,))


def instructions(text: str) -> list[Instruction]:
    """Read "s5" (send 5), "r3" (receive 3), "w5" (wait for 5) and "c4" (collective 4)."""
    make: dict[str, Callable[[int], Instruction]] = {
        "s": lambda order: Transfer(1, True, SLOT, order, "send"),
        "r": lambda order: Transfer(1, False, SLOT, order, "receive"),
        "w": lambda order: Wait(1, True, SLOT, order, "wait"),
        "c": lambda order: Collective("all_reduce", (0, 1), SLOT, SLOT, (1,), (), SUM, order, "sum"),
    }
    return [make[word[0]](int(word[1:])) for word in text.split()]


def test_unknown_value_of_the_setting_of_windows_is_reported(gpus: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    notices.forget()
    monkeypatch.setenv("JOBFLOW_GPU_IPC", "yes")
    assert not facts(cuda.CudaDevice(0)).opens
    assert "JOBFLOW_GPU_IPC=yes has no effect: set it to 0 or 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("s0 s1 r2 w0 w2", "s0 s1 r2 w0 w2"),
        ("r9 s5 w5 w9", "s5 r9 w5 w9"),  # the receive was posted early
        ("s9 r5 w5 c6 w9", "r5 w5 c6 s9 w9"),
        ("r9 s7 s5 w5 c6 w7 w9", "s5 w5 c6 s7 r9 w7 w9"),
        ("r4 r2 w2 s3 w3 w4", "r2 w2 s3 r4 w3 w4"),
    ],
)
def test_starts_move_to_the_order_of_the_schedule(plan: str, expected: str) -> None:
    assert in_schedule_order(instructions(plan)) == instructions(expected)


def test_a_wait_before_an_earlier_start_is_refused() -> None:
    with pytest.raises(PlanError, match=r"communication: sum \(number 4\) ends before an earlier one starts"):
        in_schedule_order(instructions("c4 s2 w2"))


def exchange(rank: Rank, wrong: bool) -> Any:
    """Exchange arrays between two ranks; if `wrong`, both post their receive first, and launch it alone."""
    sent, got = carrying.Bound(rank, 7, 0, "float32"), carrying.Bound(rank, 0, 7, "float32")
    peer = 1 - rank.index
    give, take = (lambda: rank.comm.bind_send(peer, sent.source)), (lambda: rank.comm.bind_receive(peer, got.target))
    ends = [take(), give()] if wrong else [give(), take()]
    rank.comm.seal()
    starts = [call for end in ends for call in end.start]
    rank.device.upload(sent.source, carrying.data(rank.index, 0, 7, "float32"))
    for function, arguments in [*(starts if wrong else rank.comm.together(starts)), *(call for end in ends for call in end.wait)]:
        function(*arguments)
    np.testing.assert_array_equal(rank.device.to_host(got.target), carrying.data(peer, 0, 7, "float32"))
    return rank.comm.sent()["transfer"]


def test_consecutive_starts_run_as_one_group(gpus: None) -> None:
    world = world_on(0, 1)
    assert world.call(exchange, [False] * 2) == [Traffic(2, 28)] * 2
    world.close()


def test_starts_in_different_orders_would_block(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The imitation detects what `in_schedule_order` prevents."""
    monkeypatch.setattr(fake_nccl, "PATIENCE", 0.2)
    world = world_on(0, 1)
    with pytest.raises(JobflowError, match="waits for rank"):
        world.call(exchange, [True] * 2)
    world.close()


def concurrent(rank: Rank, _: Any) -> Any:
    """Capture a concurrent all-reduce and a kernel beside it, and replay both."""
    bound = carrying.Bound(rank, 5, 5, "float32")
    other = rank.device.constant(np.ones(5, np.float32))
    ends = rank.comm.bind_concurrent(Binding("all_reduce", (0, 1), bound.source, bound.target, (5,), (), SUM))
    rank.comm.seal()
    copy = (rank.device.xp.copyto, (other, other))
    replays = Replays(rank.device, "job", [*ends.start, copy, *ends.wait, copy])
    for step in range(4):
        rank.device.upload(bound.source, carrying.data(rank.index, step, 5, "float32"))
        calls = replays.launches()
        for function, arguments in calls:
            function(*arguments)
        expected = carrying.data(0, step, 5, "float32") + carrying.data(1, step, 5, "float32")
        np.testing.assert_array_equal(rank.device.to_host(bound.target), expected)
    return len(calls), rank.comm.sent()["all_reduce"].operations, calls


def test_captured_communication_is_counted_and_released(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_nccl.Communicator, "delay", 2e-3)
    world = world_on(0, 1)
    results = world.call(concurrent)
    assert [result[:2] for result in results] == [(1, 4)] * 2
    world.close()
    with pytest.raises(JobflowError, match="its session has been closed"):
        results[0][2][0][0]()


# Pieces --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("indices", "shape"), [((0, 0, 0), "even"), ((0, 0, 0), "uneven"), ((0, None, 1), "uneven")])
def test_staged_arrays_are_divided_into_pieces(gpus: None, monkeypatch: pytest.MonkeyPatch, indices: tuple[int | None, ...], shape: str) -> None:
    """Ranks without a GPU do not divide arrays, so their peers do not either."""
    monkeypatch.setattr(staged_communicator, "PIECE", 16)
    world = world_on(*indices)
    assert min(world.call(carrying.carry, [("float32", shape)] * 3)) > 20
    before = [rank.comm.sent()["transfer"].operations if "transfer" in rank.comm.sent() else 0 for rank in world.ranks]
    assert world.call(carrying.relay) == [3] * 3
    after = [rank.comm.sent()["transfer"].operations for rank in world.ranks]
    assert np.subtract(after, before).tolist() == [3, 6, 3]
    world.close()


# Windows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", "uneven"), pytest.param("bool", "even", marks=pytest.mark.full), pytest.param("float16", "uneven", marks=pytest.mark.full)],
)
def test_windows_in_gpu_memory(gpus: None, monkeypatch: pytest.MonkeyPatch, shape: str, dtype: str) -> None:
    """Ranks on threads open windows by handles, as processes do; pieces are small."""
    monkeypatch.setenv("JOBFLOW_GPU_IPC", "1")
    monkeypatch.setattr(peer_communicator, "WINDOW", 48)
    monkeypatch.setattr(cuda_windows, "process", iter(range(10**6)).__next__)
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "ipcOpenMemHandle", lambda handle: int(handle.split()[1]))
    world = world_on(0, 0, 0)
    assert {type(rank.comm) for rank in world.ranks} == {peer_communicator.PeerCommunicator}
    assert min(world.call(carrying.carry, [(dtype, shape)] * 3)) >= 12
    assert len(world.ranks[0].comm.windows) == 3  # type: ignore[attr-defined]
    world.call(carrying.in_groups)
    assert world.call(carrying.relay) == [3] * 3
    world.close()


@pytest.mark.parametrize("fault", ["open", "bytes"])
def test_windows_that_cannot_be_read_are_not_used(
    gpus: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    notices.forget()
    other = np.zeros(peer_communicator.WINDOW, np.uint8)
    monkeypatch.setenv("JOBFLOW_GPU_IPC", "1")
    monkeypatch.setattr(cuda_windows, "process", iter(range(10**6)).__next__)
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "ipcOpenMemHandle", fail if fault == "open" else lambda handle: other.ctypes.data)
    world = world_on(0, 0)
    assert world.call(carrying.relay) == [2, 2] and world.ranks[0].comm.windows == {}  # type: ignore[attr-defined]
    assert min(world.call(carrying.carry, [("float32", "uneven")] * 2)) > 20
    world.close()
    assert "because they cannot open each other's memory: rank 0: " in capsys.readouterr().err


def test_a_failed_rank_releases_ranks_that_wait_for_its_window(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_GPU_IPC", "1")
    quickly(world_on(0, 0), carrying.one_stays_away, RankError, "it fails")


# Failures ------------------------------------------------------------------------------------------------------------


def fail(*_: Any) -> Any:
    raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: no socket")


def fail_on_one(original: Any) -> Any:
    def create(ndev: int, identity: bytes, rank: int, config: Any) -> Any:
        return fail() if rank == 1 else original(ndev, identity, rank, config)

    return create


def quickly(world: ThreadsWorld, command: Any, error: type[BaseException], match: str) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=match):
        world.call(command)
    world.close()
    assert time.monotonic() - began < 15


def test_an_id_that_cannot_be_created_is_one_error_of_all_ranks(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cupy.cuda.nccl"], "get_unique_id", fail)
    quickly(world_on(0, 1, 2), carrying.relay, JobError, "start of NCCL: rank 0 cannot create the id of a communicator .*no socket.*NCCL_DEBUG=WARN")


def test_ranks_stop_waiting_in_an_init_that_fails_on_one(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = sys.modules["cupy.cuda.nccl"]
    monkeypatch.setattr(fake_nccl, "PATIENCE", 0.2)
    monkeypatch.setattr(nccl, "NcclCommunicator", fail_on_one(nccl.NcclCommunicator))  # type: ignore[attr-defined]
    quickly(world_on(0, 1, 2), carrying.relay, JobError, "start of NCCL: rank 1 cannot create the communicator of ranks.*no socket")
    for thread in threading.enumerate():  # the init of the other ranks, which NCCL would end after its own limit
        if thread.name == BLOCKING:
            thread.join(10)


def test_errors_that_nccl_detects_outside_of_calls_end_a_wait(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(rank: Rank, _: Any) -> None:
        carrying.relay(rank, None)
        if rank.index == 1:
            monkeypatch.setattr(fake_nccl.Communicator, "error", RuntimeError("NCCL_ERROR_REMOTE_ERROR"))
            rank.device.synchronize()
        rank.comm.barrier()

    quickly(world_on(0, 1), command, JobError, "communication: NCCL failed on rank [01]: RuntimeError: NCCL_ERROR_REMOTE_ERROR")


def behind_a_dead_peer(read: Callable[[Any, Any], object]) -> Any:
    def command(rank: Rank, _: Any) -> None:
        bound = carrying.Bound(rank, 5, 5, "float32")
        bound.calls = rank.comm.bind_all_reduce((0, 1), bound.source, bound.target, SUM)
        rank.comm.seal()
        if rank.index == 1:
            raise ArithmeticError("it fails")
        for function, arguments in bound.calls:
            function(*arguments)
        read(rank.device, bound.target)

    return command


READS: dict[str, Callable[[Any, Any], object]] = {
    "synchronize": lambda device, array: device.synchronize(),
    "to_host": lambda device, array: device.to_host(array),
    "fetch": lambda device, array: device.fetch(array, device.host_array(5, "float32")),
    "put": lambda device, array: device.put(array, device.host_array(5, "float32")),
    "close": lambda device, array: device.synchronize_all(),
}


@pytest.mark.parametrize("read", READS)
def test_waits_behind_a_dead_peer_end_with_the_cause(gpus: None, read: str) -> None:
    quickly(world_on(0, 1), behind_a_dead_peer(READS[read]), RankError, "rank 1: ArithmeticError: it fails")


@pytest.mark.parametrize("read", READS)
def test_every_wait_detects_failed_ranks(gpus: None, monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    device = cuda.CudaDevice(0)
    device.activate()
    array = device.constant(np.ones(5, np.float32))

    def listen() -> None:
        raise JobError("rank 1 has failed")

    device.listen = listen
    monkeypatch.setattr(fake_streams.Event, "done", False)
    device.stream.done = False
    with pytest.raises(JobError, match="rank 1 has failed"):
        READS[read](device, array)


def test_an_error_in_a_group_of_calls_ends_the_group(gpus: None) -> None:
    with pytest.raises(RuntimeError, match="no socket"):
        perform(sys.modules["cupy.cuda.nccl"], [(fail, ()), (fail, ())])
    assert fake_nccl.group.depth == 0


def test_an_abort_that_blocks_is_abandoned(gpus: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(nccl_family, "LIMIT", 0.05)
    monkeypatch.setattr(fake_nccl.Communicator, "abort", lambda self: (time.sleep(0.3), setattr(self, "aborted", True)))
    quickly(world_on(0, 1), carrying.one_stays_away, RankError, "it fails")
    assert "NCCL did not abort its communicators within 0.05 s" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "expected"), [(carrying.relay, {"destroy"}), (carrying.one_stays_away, {"abort"})])
def test_communicators_are_destroyed_only_if_no_rank_has_failed(
    gpus: None, monkeypatch: pytest.MonkeyPatch, command: Any, expected: set[str]
) -> None:
    calls: list[str] = []
    for name in ("destroy", "abort"):
        original = getattr(fake_nccl.Communicator, name)
        monkeypatch.setattr(fake_nccl.Communicator, name, lambda self, name=name, original=original: (calls.append(name), original(self)))
    world = world_on(0, 1, 2)
    if expected == {"abort"}:
        with pytest.raises(RankError, match="it fails"):
            world.call(command)
    else:
        world.call(command)
    world.close()
    assert set(calls) == expected and len(calls) >= 3


ENDS = [
    ("kill", "rank 1 ended without a report"),
    pytest.param("raise", r"at dying_rank.py:\d+: NCCL_ERROR_SYSTEM_ERROR: no socket", marks=pytest.mark.full),
]


@pytest.mark.mpi
@pytest.mark.parametrize(("how", "cause"), ENDS)
def test_a_process_that_ends_in_a_collective_ends_the_job(tmp_path: Path, how: str, cause: str) -> None:
    program = Path(__file__).with_name("programs") / "dying_rank.py"
    ended = run_command([*under_mpiexec(2), sys.executable, str(program), str(tmp_path), how], limit=30, environment={"JOBFLOW_KERNELS": "numpy"})
    assert ended.code != 0 and re.search(cause, ended.err) is not None
