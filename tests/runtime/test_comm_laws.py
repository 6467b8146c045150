"""The laws of communicators, on threads; under mpiexec see `test_mpi_world.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import contract
import numpy as np
import pytest
from ranks import new_world, world_of

from jobflow.core.errors import AbortedError, PlanError
from jobflow.core.layout import SUM
from jobflow.runtime.comm.solo_communicator import SoloCommunicator
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.world import Rank, World


@pytest.fixture(params=[1, 2, 3, pytest.param(4, marks=pytest.mark.full)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_of(request.param) as world:
        yield world


def test_threads_satisfy_the_laws_of_communicators(world: World) -> None:
    for law, argument in contract.all_cases(pairs=world.size != 2):
        world.call(law, [argument] * world.size)


def test_an_abort_ends_all_waits_and_the_world_is_usable_after_a_reset(world: World) -> None:
    for _ in range(3):
        results = world.call(contract.abort_wakes)
        assert world.size == 1 or results == ["woken"] * (world.size - 1) + ["gave up"]
        for rank in world.ranks:
            rank.comm.reset()
        world.call(contract.no_race, [3] * world.size)
        results = world.call(contract.abort_wakes_transfers)
        assert world.size == 1 or results == ["gave up"] + ["woken"] * (world.size - 1)
        for rank in world.ranks:
            rank.comm.reset()
        world.call(contract.transfers_and_sums, [(50_000, "private")] * world.size)


def test_all_ranks_use_the_same_twin_buffer_after_an_aborted_step(world: World) -> None:
    """A rank that failed before a small all_reduce, and one that failed inside it, resume with the same buffer."""

    def prepare(rank: Any, argument: None) -> None:
        source, target = np.zeros(4), np.zeros(4)
        rank.memory["case"] = source, target, rank.comm.bind_all_reduce(range(rank.size), source, target, SUM)
        rank.comm.seal()

    def step(rank: Any, number: int) -> None:
        source, target, calls = rank.memory["case"]
        if number < 0 and rank.index == 0:
            raise AbortedError("on purpose")
        source[:] = number * (rank.index + 1)
        contract.run(calls)
        assert (target == number * sum(range(1, rank.size + 1))).all()

    world.call(prepare)
    for number in (1, 2, -1, 3, 4):
        if number < 0:
            with pytest.raises(AbortedError):
                world.call(step, [number] * world.size)
        else:
            world.call(step, [number] * world.size)


def test_calls_before_seal_are_an_error(world: World) -> None:
    def command(rank: Any, argument: None) -> None:
        array = np.zeros(3)
        contract.run(rank.comm.bind_all_reduce(range(rank.size), array, array, SUM))

    with pytest.raises(PlanError, match="seal"):
        world.call(command)


@pytest.mark.parametrize(
    ("ranks", "source", "target", "text"),
    [
        ((0, 5), 3, 3, "be unique, and be from 0 to"),
        ((0, 0), 3, 3, "be unique, and be from 0 to"),
        ((1,), 3, 3, "its ranks must include this one"),
        ((0, 1), 3, 4, "its counts need"),
    ],
)
def test_bind_raises_for_invalid_arguments(ranks: tuple[int, ...], source: int, target: int, text: str) -> None:
    world = new_world(2)
    try:
        with pytest.raises(PlanError, match=text):
            world.ranks[0].comm.bind_all_reduce(ranks, np.zeros(source), np.zeros(target), SUM)
        with pytest.raises(PlanError, match="contiguous"):
            world.ranks[0].comm.bind_all_reduce((0, 1), np.zeros((4, 2))[:, 0], np.zeros(4), SUM)
    finally:
        world.close()


def test_solo_copies_or_does_nothing() -> None:
    comm = SoloCommunicator(CpuDevice())
    source, target = np.arange(5.0), np.zeros(5)
    for calls in (
        comm.bind_all_reduce((0,), source, target, SUM),
        comm.bind_all_gather((0,), source, target, [5]),
        comm.bind_reduce_scatter((0,), source, target, [5], SUM),
        comm.bind_all_to_all((0,), source, target, [5], [5]),
    ):
        target[:] = 0
        contract.run(calls)
        np.testing.assert_array_equal(target, source)
    assert comm.bind_all_reduce((0,), source, source, SUM) == []
    assert comm.bind_all_reduce((0,), source[:0], target[:0], SUM) == []
    assert comm.exchange("x") == ["x"]
    assert comm.group([0]) is comm
    contract.agreeing(Rank(0, 1, CpuDevice(), comm), None)
    contract.group_of_a_group(Rank(0, 1, CpuDevice(), comm), None)
    with pytest.raises(PlanError, match="to rank 1: this world has only rank 0"):
        comm.bind_send(1, source)
