"""Diverging ranks raise, on threads and on processes; ranks that run the same operations do not."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import partings
import pytest
from processes import STRICT, run
from ranks import new_world, world_of

from jobflow.core.errors import AbortedError, RankError
from jobflow.runtime.comm import thread_communicator as comm_threads
from jobflow.runtime.comm.waits import Arrival, StuckRank, deadlock, divergence, stuck
from jobflow.runtime.world.world import Rank, World

PROGRAMS = Path(__file__).with_name("programs")

MORE = [(2, "messages"), (4, "shared")]
NAMES = [case.__name__ for case in partings.CASES]


def check(case: partings.Case, texts: list[str]) -> None:
    """Check that all ranks concerned raise the same error."""
    expected = partings.CASES[case](len(texts))
    assert {rank for rank, text in enumerate(texts) if text} == expected
    assert len({text for text in texts if text}) == bool(expected), texts


@pytest.fixture(params=[2, 3, pytest.param(4, marks=pytest.mark.full)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_of(request.param) as world:
        yield world


def test_all_diverged_threads_raise_and_the_world_is_usable_after_a_reset(world: World) -> None:
    """Run the cases one after another in one world; the last one has no error."""
    for case in partings.CASES:
        began = time.monotonic()
        texts = world.call(lambda rank, argument: case(rank))  # noqa: B023 - called at once
        assert case is partings.slow_but_right or time.monotonic() - began < 1.5, case
        check(case, texts)
        for rank in world.ranks:
            rank.comm.reset()


class TestOnProcesses:
    pytestmark = pytest.mark.mpi

    @pytest.mark.parametrize(
        ("name", "ranks", "how"),
        [
            *((name, 2, "shared") for name in NAMES),
            *(pytest.param(name, 4, "nodes", marks=[] if name in ("other_op_in_a_group", "ring") else [pytest.mark.full]) for name in NAMES),
            *(pytest.param(name, ranks, how, marks=pytest.mark.full) for name in NAMES for ranks, how in MORE),
        ],
    )
    def test_all_diverged_processes_raise(self, name: str, ranks: int, how: str) -> None:
        case = getattr(partings, name)
        ended = run(PROGRAMS / "diverging.py", name, how, ranks=ranks, environment=STRICT)
        output = {rank: (took, text) for rank, took, text in map(ast.literal_eval, ended.out.splitlines())}
        assert sorted(output) == list(range(ranks)), ended
        check(case, [output[rank][1] for rank in range(ranks)])
        assert name == "slow_but_right" or max(took for took, _ in output.values()) < 1.5, output
        assert ended.code == bool(partings.CASES[case](ranks))


class TestThreads:
    def test_waiting_for_an_ended_rank_raises(self) -> None:
        world = new_world(3)

        def command(rank: Rank, argument: None) -> None:
            if rank.index == 0:
                rank.comm.group((0, 1)).compare_digests(1, lambda: "numpy() of float32[4,6] at train.py:12")
            if rank.index == 2:
                rank.comm.compare_digests(1, lambda: "relu at train.py:15")

        try:
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(RankError, match=r"rank 1: ended its script while rank [02] waited for it in collective") as caught:
                    world.call(command)
                assert time.monotonic() - began < 1.5
                text = str(caught.value)
                assert "numpy() of float32[4,6] at train.py:12" in text and "relu at train.py:15" in text
                assert world.call(lambda rank, argument: rank.comm.exchange(rank.index))[0] == [0, 1, 2]
        finally:
            world.close()

    def test_an_error_ends_waits_in_groups(self) -> None:
        world = new_world(3)

        def command(rank: Rank, argument: None) -> None:
            if rank.index == 2:
                raise ValueError("no luck")
            with pytest.raises(AbortedError, match="rank 2 failed: ValueError: no luck"):
                rank.comm.group((0, 2) if rank.index == 0 else (2, 1)).compare_digests(1, lambda: "an op")
            rank.comm.group((rank.index,)).barrier()

        try:
            with pytest.raises(RankError, match="rank 2: ValueError: no luck"):
                world.call(command)
        finally:
            world.close()

    def test_the_notice_of_a_long_wait_lists_the_waits_of_other_ranks(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(comm_threads, "PATIENCE", 0.2)
        world = new_world(3)

        def command(rank: Rank, argument: None) -> None:
            if rank.index == 2:
                time.sleep(0.5)
            if rank.index > 0:
                rank.comm.group((1, 2)).compare_digests(1, lambda: "relu at train.py:15")
            rank.comm.compare_digests(1, lambda: "numpy() at train.py:12")

        try:
            world.call(command)
        finally:
            world.close()
        output = "rank 0 has waited 0.2 s in collective 1 of ranks [0, 1, 2]: numpy() at train.py:12 for ranks [1, 2]"
        assert f"{output}; rank 1 waits for rank 2 in collective 1 of ranks [1, 2]: relu at train.py:15" in capsys.readouterr().err


class TestTexts:
    def test_stuck_ranks_are_cycles_and_the_ranks_that_wait_for_them(self) -> None:
        assert stuck({}) == []
        assert stuck({0: [1], 1: [2]}) == []
        assert stuck({0: [1], 1: [0]}) == [0, 1]
        assert stuck({0: [1, 5], 1: [2], 2: [0], 3: [2, 9], 4: [8], 6: [4]}) == [0, 1, 2, 3]
        assert stuck({0: [], 1: [0]}) == []

    def test_a_divergence_lists_the_operation_of_each_rank(self) -> None:
        output = [
            Arrival(7, "numpy() of float32[4,6] cpu[0-1]:S(0) at train.py:12"),
            Arrival(8, "to_global of float32[4,6] S(0) -> B at train.py:15"),
        ]
        assert divergence(17, (0, 1), output).text == (
            "ranks 0 and 1 run different operations at collective 17 of ranks [0, 1]:\n"
            "  rank 0: numpy() of float32[4,6] cpu[0-1]:S(0) at train.py:12\n"
            "  rank 1: to_global of float32[4,6] S(0) -> B at train.py:15"
        )
        assert divergence(2, (3, 0, 2, 1), [Arrival(1, "a"), Arrival(2, "b"), Arrival(1, "a"), Arrival(2, "b")]).text == (
            "ranks 0 and 2 run different operations at collective 2 of ranks [3, 0, 2, 1]:\n  ranks 0, 1: b\n  ranks 2, 3: a"
        )

    def test_a_divergence_of_equal_descriptions_lists_digests(self) -> None:
        assert divergence(1, (0, 1), [Arrival(1, "sum"), Arrival(255, "sum")]).text.endswith(
            "\n  rank 0: sum (digest 0x0000000000000001)\n  rank 1: sum (digest 0x00000000000000ff)"
        )

    def test_a_deadlock_lists_all_waits(self) -> None:
        result = deadlock({1: StuckRank("a barrier", [0, 2]), 0: StuckRank("an exchange", [1])})
        assert result.first is None and result.text == (
            "ranks 0 and 1 run different operations, and wait for each other without end:\n"
            "  rank 0 waits for rank 1 in an exchange\n  rank 1 waits for ranks 0 and 2 in a barrier"
        )

    def test_a_divergence_starts_with_the_error_of_the_first_rank(self) -> None:
        error = "ValueError: no luck (at train.py:3)"
        for result in (
            deadlock({0: StuckRank("an exchange", [1]), 1: StuckRank("a barrier", [0], error)}),
            divergence(3, (0, 1), [Arrival(1, "a step"), Arrival(2, "a save", error)]),
        ):
            assert result.first == 1 and result.text.startswith(f"rank 1 failed with {error}; ranks 0 and 1 "), result
            assert result.text.count(error) == 1
