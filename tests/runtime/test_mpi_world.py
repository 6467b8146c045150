"""Worlds of processes: the laws under mpiexec, and every way in which a job can end."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PROMPT, ROOT, STRICT, Exited, run

from jobflow.runtime.world.launched import Launch, launched

PROGRAMS = Path(__file__).with_name("programs")

FULL = [pytest.param(4, how, 213, marks=pytest.mark.full) for how in ("shared", "messages", "nodes")]
#: four ranks on two cores take long; the ends of jobs are tried with four, and the rest with --full
RANKS = [2, pytest.param(4, marks=pytest.mark.full)]
HOW = [(2, "shared", 143), (2, "messages", 143), (3, "nodes", 143), *FULL]


def case(name: str, ranks: int = 2, limit: float = 30.0) -> Exited:
    return run(PROGRAMS / "world_cases.py", name, ranks=ranks, limit=limit, environment=STRICT)


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "how", "laws"), HOW)
def test_processes_satisfy_the_laws_of_communicators(ranks: int, how: str, laws: int) -> None:
    """Run all cases on two threads and with --full, otherwise fewer pairs of sizes and places."""
    ended = run(PROGRAMS / "comm_laws.py", how, *(["pairs"] if laws < 213 else []), ranks=ranks, limit=300, environment=STRICT)
    assert ended.code == 0, ended.err
    assert ended.out.strip() == f"{laws} laws hold on {ranks} ranks"
    assert ended.err == ""


class TestCalls:
    pytestmark = pytest.mark.mpi

    @pytest.mark.parametrize("ranks", RANKS)
    @pytest.mark.parametrize(
        ("name", "out"),
        [
            ("call", "called\n"),
            ("call_twice_opened", "opened three times\n"),
            ("mute", "before\nfrom below\nafter\n"),
            ("unpicklable", "refused: AttributeError\nstill usable\n"),
            ("memory_returns", "bounded\n"),
            ("exit_all", ""),
            ("machines", "avx2\n"),
        ],
    )
    def test_a_program_works_and_prints_once(self, name: str, out: str, ranks: int) -> None:
        ended = case(name, ranks)
        assert (ended.code, ended.err) == (0, ""), ended
        assert ended.out == out

    @pytest.mark.parametrize("ranks", RANKS)
    def test_every_process_can_be_a_client(self, ranks: int) -> None:
        ended = case("multi", ranks)
        assert (ended.code, ended.err) == (0, "")
        assert sorted(ended.out.splitlines()) == ["muted until the session starts"] + [f"rank {r} done" for r in range(ranks)]

    def test_the_exit_code_of_the_program_is_the_exit_code_of_the_job(self) -> None:
        ended = case("exit_code")
        assert ended.code == 3
        assert "Traceback" not in ended.err

    def test_too_little_shared_memory_prints_one_notice_and_works(self) -> None:
        ended = case("little_memory")
        assert (ended.code, ended.out) == (0, "without shared memory\n"), ended.err
        assert 1 <= ended.err.count("too little shared memory") <= 20

    @pytest.mark.parametrize("name", ["abort", "abort_in_messages"])
    @pytest.mark.parametrize("ranks", RANKS)
    def test_an_abort_ends_all_waits(self, name: str, ranks: int) -> None:
        ended = case(name, ranks)
        assert ended.code == 1, ended.err
        assert sorted(ended.out.splitlines()) == ["gave up"] + ["woken"] * (ranks - 1)

    @pytest.mark.parametrize("name", ["stall", "stall_in_messages"])
    def test_the_notice_of_a_long_wait_lists_the_ranks(self, name: str) -> None:
        ended = case(name)
        assert (ended.code, ended.out) == (0, "came through\n"), ended.err
        lines = [line for line in ended.err.splitlines() if "rank 0 has waited 0.4 s in" in line and line.endswith("for ranks [1]")]
        assert any('all_reduce "fc2.grad" of ranks [0, 1]' in line for line in lines), ended.err
        assert any("a barrier of all ranks" in line for line in lines)
        assert any("an exchange among all ranks" in line for line in lines)


class TestEnds:
    pytestmark = pytest.mark.mpi

    @pytest.mark.parametrize("ranks", RANKS)
    @pytest.mark.parametrize(
        ("name", "rank"),
        [
            ("error", "1"),
            ("error_everywhere", "[0-9]"),
            ("error_on_client", "0"),
            ("error_before_session", "1"),
            ("error_before_session_awaited", "1"),
            ("error_before_session_everywhere", "[0-9]"),
            ("error_in_program", "0"),
            ("raise_in_the_middle", "1"),
        ],
    )
    def test_an_error_is_printed_once_with_its_rank_and_ends_the_job(self, name: str, rank: str, ranks: int) -> None:
        ended = case(name, ranks)
        assert ended.code == 1, ended
        assert 0 < ended.late < PROMPT, ended
        assert ended.err.count("Traceback") == 1, ended.err
        assert ended.err.count("ValueError: no luck with 4") == 1, ended.err
        pattern = re.compile(rf"^rank {rank}: Traceback", re.MULTILINE)
        assert pattern.search(ended.err), ended.err

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("exit_early", "rank 1: ended its script while rank 0 waited for it in the start of a session"),
            ("end_early", "rank 1: ended its script while rank 0 waited for it in the start of a session"),
            ("exit_in_the_middle", "rank 1: ended its script while rank 0 waited for it in collective 4 of ranks [1, 0]: numpy() of float32[4,6]"),
            ("end_in_the_middle", "rank 1: ended its script while rank 0 waited for it in collective 4 of ranks [1, 0]: numpy() of float32[4,6]"),
            ("multi_exit", "rank 1: ended its script while rank 0 waited for it in collective 2 of ranks [0, 1]: exchange"),
            ("multi_exit_in_messages", "rank 1: ended its script while rank 0 waited for it in a barrier of all ranks"),
            ("disagree", "JobError: start of a session: rank"),
        ],
    )
    def test_a_rank_that_leaves_early_ends_the_job(self, name: str, text: str) -> None:
        ended = case(name)
        assert ended.code == 1, ended
        assert 0 < ended.late < PROMPT, ended
        assert ended.err.count(text) == 1, ended.err

    @pytest.mark.parametrize("ranks", [2, 4])
    @pytest.mark.parametrize("name", ["kill", "kill_client", "kill_idle", "kill_in_the_middle"])
    def test_a_killed_rank_ends_the_job(self, name: str, ranks: int) -> None:
        ended = case(name, ranks)
        named = pathlib.Path(ended.err.partition("segments ")[2].partition("\n")[0].strip() or "/proc/none")
        assert not named.exists(), "shared memory outlived the job"
        assert ended.code != 0
        assert "computing" in ended.err
        assert 0 < ended.late < PROMPT, ended

    @pytest.mark.parametrize("ranks", [2, 4])
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("part_in_the_middle", "ranks 0 and 1 run different operations at collective 4 of ranks [1, 0]:"),
            ("part_by_order", "run different operations, and wait for each other without end:"),
        ],
    )
    def test_diverged_ranks_end_the_job(self, name: str, text: str, ranks: int) -> None:
        ended = case(name, ranks)
        assert ended.code == 1, ended
        assert 0 < ended.late < PROMPT, ended
        assert ended.err.count("Traceback") == ended.err.count(text) == 1, ended.err
        assert all(ended.err.count(f": {what}\n") == 1 for what in ("numpy() of float32[4,6] at train.py:10", "x.sum() at train.py:15")), ended.err


class TestLaunched:
    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({}, None),
            ({"PMI_RANK": "1", "PMI_SIZE": "4"}, Launch(1, 4, "MPICH")),
            ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
            ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "2"}, Launch(2, 3, "Open MPI")),
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
            ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, Launch(5, 8, "srun")),
            ({"PMI_RANK": "x", "PMI_SIZE": "2"}, None),
        ],
    )
    def test_launched_reads_the_environment(self, environment: dict[str, str], expected: Launch | None) -> None:
        assert launched(environment) == expected

    def test_launched_does_not_import_mpi(self) -> None:
        code = "import sys; from jobflow.runtime.world import mpi; mpi.guard(); sys.exit('mpi4py' in sys.modules or 'cupy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
