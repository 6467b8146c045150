"""Worlds in one process: calls, failures, Ctrl-C, and ends."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ranks import new_world

from jobflow.core.errors import AbortedError, ArgumentError, JobError, RankError, ShapeError
from jobflow.core.layout import SUM
from jobflow.kernels import blas_threads as blas
from jobflow.runtime.comm import thread_communicator as comm_threads
from jobflow.runtime.world.world import Rank, World

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(params=[0, 1, 2, 4], ids=["solo", "1 thread", "2 threads", "4 threads"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = new_world(request.param)
    yield world
    world.close()


def works(world: World) -> bool:
    def reduce(rank: Rank, argument: Any) -> float:
        source, target = np.full(3, float(argument)), np.zeros(3)
        calls = rank.comm.bind_all_reduce(range(rank.size), source, target, SUM)
        rank.comm.seal()
        for function, arguments in calls:
            function(*arguments)
        return float(target[0])

    return world.call(reduce, list(range(world.size))) == [float(sum(range(world.size)))] * world.size


def test_results_are_in_rank_order_and_rank_memory_persists(world: World) -> None:
    def command(rank: Rank, argument: Any) -> Any:
        rank.memory["count"] = rank.memory.get("count", 0) + 1
        return rank.index, rank.size, argument, rank.memory["count"]

    for count in (1, 2):
        assert world.call(command, [10 * i for i in range(world.size)]) == [(i, world.size, 10 * i, count) for i in range(world.size)]
    assert [result[2] for result in world.call(command)] == [None] * world.size


def test_a_wrong_number_of_arguments_raises(world: World) -> None:
    with pytest.raises(ArgumentError, match=f"for {world.size} ranks needs one argument per rank; got 9"):
        world.call(lambda rank, argument: None, [0] * 9)
    assert works(world)


def test_a_failure_names_the_rank_and_the_world_remains_usable(world: World) -> None:
    last = world.size - 1

    def command(rank: Rank, argument: Any) -> None:
        if rank.index == last:
            raise ValueError("no luck")
        rank.comm.barrier()

    for _ in range(3):
        with pytest.raises(RankError, match=f"rank {last}: ValueError: no luck") as caught:
            world.call(command)
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.rank == last
        assert works(world)


def test_errors_of_jobflow_are_raised_unchanged(world: World) -> None:
    def command(rank: Rank, argument: Any) -> None:
        if rank.index == 0:
            raise ShapeError("a and b")
        rank.comm.exchange(1)

    with pytest.raises(ShapeError, match="a and b") as caught:
        world.call(command)
    notes = getattr(caught.value, "__notes__", [])
    assert notes == ([f"raised on rank 0 of {world.size}"] if world.size > 1 else [])
    assert works(world)


def test_the_first_failure_is_raised_instead_of_its_consequences() -> None:
    world = new_world(4)

    def command(rank: Rank, argument: Any) -> None:
        if rank.index == 2:
            time.sleep(0.05)
            raise KeyError("the cause")
        try:
            rank.comm.barrier()
        except AbortedError as error:
            assert "rank 2 failed: KeyError" in str(error)
            raise

    try:
        with pytest.raises(RankError, match="rank 2: KeyError"):
            world.call(command)
    finally:
        world.close()


def test_a_rank_cannot_call_its_own_world() -> None:
    world = new_world(2)
    try:
        with pytest.raises(JobError, match="cannot call its own world"):
            world.call(lambda rank, argument: world.call(lambda r, a: None))
    finally:
        world.close()


def test_a_closed_world_cannot_be_called(world: World) -> None:
    world.close()
    world.close()
    with pytest.raises(JobError, match="has been closed"):
        world.call(lambda rank, argument: None)


def test_a_world_that_is_dropped_ends_its_threads() -> None:
    before = threading.active_count()
    world = new_world(3)
    assert threading.active_count() == before + 3
    del world
    gc.collect()
    assert threading.active_count() == before


def test_arguments_and_results_are_released() -> None:
    class Big:
        alive = 0

        def __init__(self) -> None:
            Big.alive += 1

        def __del__(self) -> None:
            Big.alive -= 1

    world = new_world(2)
    try:
        world.call(lambda rank, argument: Big(), [Big(), Big()])
        world.call(lambda rank, argument: None)
        gc.collect()
        assert Big.alive == 0
    finally:
        world.close()


def test_shared_memory_remains_while_it_is_used() -> None:
    world = new_world(2)

    def bind(rank: Rank, argument: Any) -> int:
        big = rank.comm.allocate(1 << 16).view("float32")
        rank.comm.bind_all_reduce(range(2), big, np.zeros_like(big), SUM)
        rank.comm.seal()
        return len(rank.comm._group_state.regions[rank.index])  # type: ignore[attr-defined]

    try:
        assert max(max(world.call(bind)) for _ in range(20)) <= 3
    finally:
        world.close()


def test_the_notice_of_a_long_wait_lists_the_wait_graph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(comm_threads, "PATIENCE", 0.05)
    world = new_world(3)

    def command(rank: Rank, argument: Any) -> None:
        calls = rank.comm.bind_all_reduce(range(3), np.ones(3), np.zeros(3), SUM, name="fc2.grad")
        rank.comm.seal()
        if rank.index == 1:
            time.sleep(0.3)
        for function, arguments in calls:
            function(*arguments)

    try:
        world.call(command)
    finally:
        world.close()
    assert 'jobflow: rank 0 has waited 0.05 s in all_reduce "fc2.grad" of ranks [0, 1, 2] for ranks [1]' in capsys.readouterr().err


INTERRUPTED = """
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the tests in the background has it ignored
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.threads import ThreadsWorld

world = ThreadsWorld([CpuDevice(), CpuDevice()])
def wait(rank, argument):
    if rank.index == 0:
        rank.comm.barrier()
    else:
        for _ in range(20):
            time.sleep(0.05)
        rank.comm.barrier()
        rank.comm.barrier()  # nobody comes
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    world.call(wait)
except KeyboardInterrupt:
    print("interrupted")
print(world.call(lambda rank, argument: rank.index))
{end}
"""


@pytest.mark.parametrize("end", ["world.close()", "pass", "raise SystemExit(0)"])
def test_ctrl_c_stops_the_ranks_and_the_process_ends(end: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", INTERRUPTED.format(end=end)]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n[0, 1]\n"), ended.stderr


class TestBlas:
    def test_a_world_limits_and_restores(self) -> None:
        before = blas.limit(3)
        assert before is not None, "NumPy's wheels bring OpenBLAS"
        try:
            world = new_world(2)
            during = blas.limit(1)
            world.close()
            assert during == 1
            assert blas.limit(before) == 3
        finally:
            blas.limit(before)

    def test_openblas_is_detected_without_threadpoolctl(self) -> None:
        knob = blas._from_openblas()
        if knob is None:
            pytest.skip("this NumPy does not bring OpenBLAS")
        assert blas._has_effect(knob)

    def test_a_library_that_ignores_the_limit_is_reported(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        stuck = blas.Knob(lambda: 8, lambda threads: None)
        assert not blas._has_effect(stuck)
        monkeypatch.setattr(blas, "_knob", lambda: None)
        assert blas.limit(1) is None
        assert blas.limit(1) is None
        assert capsys.readouterr().err.count("cannot set the number of threads") <= 1
