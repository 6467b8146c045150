"""One program, started by mpiexec, by the launcher, and by hand."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import processes
import pytest
from processes import PROGRAM, PROMPT, Exited, accident, by_hand, by_launcher, by_mpiexec, crowd, free_port, late, variables

pytestmark = pytest.mark.mpi

WAYS = ["mpiexec", "launcher", "by hand"]


def run(way: str, case: str, size: int) -> tuple[list[str], list[Exited]]:
    """Return the printed lines without the prefixes of the launcher, and the outcome of each process."""
    if way == "by hand":
        ended = by_hand(case, size)
        return sorted(line for one in ended for line in one.lines), ended
    one = by_mpiexec(case, size) if way == "mpiexec" else by_launcher(case, size)
    return sorted(line[line.find("] ") + 2 :] if way == "launcher" else line for line in one.lines), [one]


@pytest.mark.parametrize(("way", "size"), [("mpiexec", 2), ("launcher", 4), ("by hand", 3)])
def test_ranks_connect(way: str, size: int) -> None:
    lines, ended = run(way, "exchange", size)
    everybody = [10 * rank for rank in range(size)]
    assert lines == [f"rank {rank} of {size}: {[everybody] * size}" for rank in range(size)], ended
    assert [(one.code, one.err) for one in ended] == [(0, "")] * len(ended)


@pytest.mark.parametrize("way", ["launcher", "by hand"])
def test_worlds_on_one_machine_are_independent(way: str) -> None:
    """Two worlds started at the same time connect their own ranks only."""
    with ThreadPoolExecutor() as pool:
        for lines, ended in pool.map(lambda _: run(way, "exchange", 2), range(2)):
            assert lines == [f"rank {rank} of 2: {[[0, 10]] * 2}" for rank in range(2)], ended


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_calls_a_job(way: str) -> None:
    lines, ended = run(way, "job", 2)
    assert lines == ["rank 0 of 2: 56", "rank 1 of 2: 56"], ended
    assert [(one.code, one.err) for one in ended] == [(0, "")] * len(ended)


@pytest.mark.parametrize("way", ["launcher", "by hand"])
def test_rank_numbers_need_no_mpi(way: str) -> None:
    lines, ended = run(way, "rank_numbers", 2)
    assert lines == ["rank 0 of 2: local 0, 1 nodes", "rank 1 of 2: local 1, 1 nodes"], ended
    assert all(one.code == 0 for one in ended)


ERROR = "ValueError: no luck with 41"


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("together:raise", 1, ERROR),
        ("together:exit", 1, "rank 1: ended its script while rank 0 waited for it in"),
        ("together:osexit", 4, "rank 1 ended with exit code 4"),
        ("asleep:kill", 137, "rank 1 was ended by SIGKILL"),
    ],
)
def test_the_launcher_ends_all_when_one_rank_ends(case: str, code: int, text: str) -> None:
    ended = by_launcher(case, 2)
    assert late([ended]) < PROMPT, ended
    assert ended.code == code
    assert ended.err.count(text) == 1, ended.err
    *_, before, last = ended.err.splitlines()
    assert last.startswith("jobflow launch: rank ") and last.endswith("; all others were ended")
    assert not text.startswith("ValueError") or before == f"[rank 1] {text}"


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("together:kill", "ended without a report: it was killed, or called os._exit"),
        ("asleep:raise", ERROR),
        ("early:exit", "rank 1: ended its script while rank 0 waited for it in the start of a session"),
        ("early:osexit", "ended without a report: it was killed, or called os._exit"),
    ],
)
def test_the_end_of_one_of_several_terminals_ends_all(case: str, text: str) -> None:
    ended = by_hand(case, 2)
    assert late(ended) < PROMPT, ended
    assert ended[0].code == 1 and ended[1].code != 0
    assert ended[0].err.rstrip().endswith(text), ended[0].err


@pytest.mark.parametrize(("way", "length"), [("launcher", 64), ("by hand", 0)])
def test_unauthenticated_peers_do_not_disturb_the_job(way: str, length: int) -> None:
    lines, ended = run(way, "attacked", 2)
    assert lines == [f"rank {rank} of 2: secret of {length} characters" for rank in range(2)], ended
    assert [(one.code, one.err) for one in ended] == [(0, "")] * len(ended)


class TestByHand:
    def test_another_secret_is_rejected_and_the_job_starts(self) -> None:
        port = free_port()
        with crowd() as jobs:
            for secret, rank in (("right", 0), ("wrong", 1), ("right", 1)):
                output = {**variables(rank, 2, port), "JOBFLOW_SECRET": f"{secret} and long enough"}
                jobs.start([sys.executable, str(PROGRAM), "exchange"], output)
                if secret == "wrong":
                    assert jobs.jobs[1][0].wait(processes.LIMIT) == 1
            ended = jobs.wait()
        assert [one.code for one in ended] == [0, 1, 0], ended
        assert "JOBFLOW_SECRET" in ended[1].err and "long enough" not in "".join(one.err for one in ended)

    def test_ranks_may_start_in_any_order_and_late(self) -> None:
        ended = by_hand("exchange", 3, order=[1, 2, 0], pause=0.7)
        everybody = [[0, 10, 20]] * 3
        assert [one.out for one in ended] == [f"rank {rank} of 3: {everybody}\n" for rank in range(3)], ended
        assert [(one.code, one.err) for one in ended] == [(0, "")] * 3

    def test_a_program_can_choose_single_client(self) -> None:
        ended = by_hand("single", 2)
        assert [(one.code, one.out) for one in ended] == [(0, "rank 0 of 2: called\n"), (0, "")], ended

    def test_an_error_in_an_interactive_session_does_not_end_the_job(self) -> None:
        typed = "import jobflow\n1 / 0\nfrom jobflow.runtime.world.start import start_world\n"
        typed += "print(start_world('cpu', None, multi=True).ranks[0].comm.exchange(7))\n"
        port = free_port()
        with crowd() as jobs:
            for rank in range(2):
                jobs.start([sys.executable, "-i", "-q"], variables(rank, 2, port), typed)
            ended = jobs.wait()
        assert [(one.code, one.out) for one in ended] == [(0, "[7, 7]\n")] * 2, ended
        assert all(one.err.count("ZeroDivisionError") == 1 for one in ended)

    def test_one_rank_needs_no_mpi(self) -> None:
        assert by_hand("alone", 1)[0].out == "rank 0 of 1: [[0]]\n"

    def test_child_processes_of_ranks_are_not_ranks(self) -> None:
        ended = by_hand("descendants", 2)
        assert [(one.code, one.err) for one in ended] == [(0, "")] * 2, ended
        assert [one.out for one in ended] == [f"0 1\nrank {rank} of 2: [[0, 10], [0, 10]]\n" for rank in range(2)]

    def test_a_failure_of_all_ranks_is_shown_in_every_terminal(self) -> None:
        ended = by_hand("everywhere", 2)
        assert all(one.code == 1 and one.err.rstrip().endswith("ValueError: no luck with 41") for one in ended), ended
        assert late(ended) < PROMPT

    @pytest.mark.parametrize("first", [0, 1])
    def test_a_missing_rank_is_announced(self, first: int) -> None:
        port = free_port()
        with crowd() as jobs:
            jobs.start([sys.executable, str(PROGRAM), "announce"], variables(first, 2, port))
            jobs.await_text(0, "has waited 0.6 s for ")
            jobs.start([sys.executable, str(PROGRAM), "announce"], variables(1 - first, 2, port))
            ended = jobs.wait()
        assert [one.code for one in ended] == [0, 0], ended
        waited = [line for line in ended[0].err.splitlines() if "has waited" in line]
        assert f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=2 RANK={1 - first}" in waited[0]
        assert ("0.2 s for rank 1; start it" if first == 0 else f"0.2 s for RANK=0 at 127.0.0.1:{port}") in waited[0]
        assert len(waited) <= 5, "it is to be repeated sparsely"

    def test_an_idle_rank_is_announced(self) -> None:
        ended = by_hand("slow", 2)
        assert [one.code for one in ended] == [0, 0], ended
        assert "rank 0 of 2 has waited 0.2 s for rank 1, still running, to start a job or global tensor" in ended[0].err

    @pytest.mark.parametrize(
        ("ranks", "texts"),
        [
            ([(0, 3), (1, 3), (1, 3)], ["two processes have RANK=1: pid ", "set a different RANK for each process, 0 to 2"]),
            ([(0, 3), (0, 3)], ["two processes have RANK=0: pid "]),
            ([(0, 2), (1, 3)], ["has WORLD_SIZE=2, RANK=1 (pid ", "has WORLD_SIZE=3; set the same WORLD_SIZE for every rank"]),
        ],
    )
    def test_contradictory_variables_end_all_ranks(self, ranks: list[tuple[int, int]], texts: list[str]) -> None:
        port = free_port()
        with crowd() as jobs:
            for rank, size in ranks:
                jobs.start([sys.executable, str(PROGRAM), "exchange"], variables(rank, size, port))
                time.sleep(0.3)
            ended = jobs.wait()
        assert all(one.code == 1 for one in ended), ended
        for text in texts:
            assert all(text in one.err for one in ended), ended

    def test_a_late_rank_does_not_disturb_the_job(self) -> None:
        port = free_port()
        with crowd() as jobs:
            for rank in range(2):
                jobs.start([sys.executable, str(PROGRAM), "started"], variables(rank, 2, port))
            jobs.await_text(0, "started", "out")
            intruder = jobs.start([sys.executable, str(PROGRAM), "exchange"], variables(1, 2, port))
            assert intruder.wait(processes.LIMIT) == 1
            assert "two processes have RANK=1" in jobs.printed(2)
            assert [job.poll() for job, _ in jobs.jobs[:2]] == [None, None]
            jobs.jobs[0][0].terminate()
            killed = time.time()
            ended = jobs.wait()
        assert ended[0].code == -15 and ended[1].code != 0
        assert max(one.at for one in ended) - killed < PROMPT

    def test_a_port_of_another_program_ends_the_ranks(self) -> None:
        with processes.socket.create_server(("127.0.0.1", 0)) as other, crowd() as jobs:
            jobs.start([sys.executable, str(PROGRAM), "exchange"], variables(0, 2, other.getsockname()[1]))
            ended = jobs.wait()
        assert ended[0].code == 1
        assert "is in use by another program" in ended[0].err, ended[0].err


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_stop_waiting_for_an_absent_rank_at_the_time_limit(first: int) -> None:
    port = free_port()
    with crowd() as jobs:
        jobs.start([sys.executable, str(PROGRAM), "exchange"], variables(first, 2, port) | {"JOBFLOW_JOIN_SECONDS": "0.8"})
        (ended,) = jobs.wait()
    missing = ("rank 1", "RANK=1") if first == 0 else ("Connection refused", f"127.0.0.1:{port}", "RANK=0")
    assert ended.code == 1 and ended.out == "", ended
    for text in (f"rank {first} of 2", "0.8 s", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}", "JOBFLOW_JOIN_SECONDS", *missing):
        assert text in ended.err, ended


def test_a_wrong_address_of_rank_0_ends_all_ranks() -> None:
    """192.0.2.1 is unassigned: rank 0 ends immediately, and the other rank at its time limit."""
    with crowd() as jobs:
        for rank in range(2):
            address = {"MASTER_ADDR": "127.0.0.1" if rank else "192.0.2.1", "JOBFLOW_SECRET": "0123456789abcdef" * 2}
            jobs.start([sys.executable, str(PROGRAM), "exchange"], variables(rank, 2, free_port()) | address | {"JOBFLOW_JOIN_SECONDS": "0.8"})
        ended = jobs.wait()
    assert [one.code for one in ended] == [1, 1], ended
    assert "not an address of this machine" in ended[0].err and "Connection refused" in ended[1].err, ended


def test_an_invalid_time_limit_raises() -> None:
    values = ["soon", "0", "-3", "nan"]
    with crowd() as jobs:
        for wrong in values:
            jobs.start([sys.executable, str(PROGRAM), "exchange"], variables(1, 2, free_port()) | {"JOBFLOW_JOIN_SECONDS": wrong})
        for wrong, ended in zip(values, jobs.wait(), strict=True):
            assert ended.code == 1 and "JOBFLOW_JOIN_SECONDS" in ended.err and repr(wrong) in ended.err, ended


@pytest.mark.full
def test_a_failed_listener_of_rank_0_ends_all_ranks() -> None:
    """Another program holds the port without answering: rank 0 ends immediately, and rank 1 after the time limit of an answer."""
    with processes.socket.create_server(("127.0.0.1", 0)) as other, crowd() as jobs:
        for rank in range(2):
            jobs.start([sys.executable, str(PROGRAM), "exchange"], variables(rank, 2, other.getsockname()[1]))
        ended = jobs.wait()
    assert [one.code for one in ended] == [1, 1], ended
    assert "is in use by another program" in ended[0].err and "another MASTER_PORT" in ended[1].err, ended


def test_the_accident_is_read_from_prefixed_lines() -> None:
    assert accident([Exited(1, "", "[rank 1] accident 2.5\nno accident\n", 3.0)]) == 2.5
