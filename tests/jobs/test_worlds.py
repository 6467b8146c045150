"""Endings of a program on ranks: it prints once, and any failure ends all ranks at once with one message."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from processes import run

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.mpi

#: seconds from the accident to the end of mpiexec: a fraction of one, and more where four ranks share two cores with other tests
PROMPT = 5.0
#: seconds that the system may need to take an ended process from its table
GRACE = 2.0
KILLED = ("kill_server", "kill_client", "multi_kill")
FULL = partial(pytest.param, marks=pytest.mark.full)


@dataclass(frozen=True)
class Ending:
    code: int
    out: list[str]
    err: str
    #: seconds from the accident to the end of the launcher
    late: float


def alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def end(case: str, folder: Path, ranks: int) -> Ending:
    """Run the case; after the launcher has exited, no rank may be left."""
    ended = run(PROGRAMS / "endings.py", case, str(folder), ranks=ranks, limit=60)
    now = time.time()
    event = folder / "event"
    late = now - float(event.read_text()) if event.exists() else 0.0
    pids = [int((folder / f"pid.{rank}").read_text()) for rank in range(ranks)]
    assert len(set(pids)) == ranks and os.getpid() not in pids
    deadline = time.monotonic() + GRACE
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if alive(pid)] == [], "ranks are left running"
    return Ending(ended.code, ended.out.splitlines(), ended.err, late)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_a_program_prints_once_and_servers_do_not_run_on(tmp_path: Path, ranks: int) -> None:
    ending = end("fine", tmp_path, ranks)
    assert (ending.code, ending.out) == (0, ["begin", "five steps", "done"]), ending.err
    assert ending.err == "rank 0 goes on\n"


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_every_client_prints(tmp_path: Path, ranks: int) -> None:
    ending = end("multi_fine", tmp_path, ranks)
    assert ending.code == 0, ending.err
    assert sorted(ending.out) == ["begin"] + ["done"] * ranks + ["five steps"] * ranks
    assert sorted(ending.err.splitlines()) == [f"rank {rank} goes on" for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("case", "rank", "text"),
    [
        ("error_in_script", 0, "ValueError: no luck in the script"),
        ("error_in_body", 0, "ValueError: no luck in the body"),
        ("error_in_callback", 0, "ValueError: no luck in the callback"),
        ("error_early", 1, "ValueError: no luck at the start"),
        ("error_in_plan", 0, "label 10 at [7] is outside [0, 3), the range of the 3 classes (on rank"),
        ("multi_error", 1, "ValueError: no luck on one rank"),
    ],
)
def test_the_first_error_is_shown_once_with_its_rank(tmp_path: Path, case: str, rank: int, text: str, ranks: int) -> None:
    ending = end(case, tmp_path, ranks)
    assert ending.code == 1
    assert ending.late < PROMPT
    assert ending.err.count(text) == 1, ending.err
    first = [line for line in ending.err.splitlines() if re.match(r"rank \d+: ", line)]
    assert first == [f"rank {rank % ranks}: Traceback (most recent call last):"], ending.err
    assert ending.err.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize(("case", "ranks"), [*(FULL(case, 2) for case in KILLED), *((case, 4) for case in KILLED)])
def test_a_killed_rank_ends_the_job(tmp_path: Path, case: str, ranks: int) -> None:
    ending = end(case, tmp_path, ranks)
    assert ending.code != 0
    assert ending.late < PROMPT
    assert ending.out[0] == "begin"


@pytest.mark.parametrize(("case", "ranks"), [("exit_early", 2), ("multi_exit", 4), FULL("exit_early", 4), FULL("multi_exit", 2)])
def test_a_rank_that_exits_early_ends_the_job(tmp_path: Path, case: str, ranks: int) -> None:
    ending = end(case, tmp_path, ranks)
    assert ending.code != 0
    assert ending.late < PROMPT
    assert ending.err.count("rank 1: ended its script while rank") == 1, ending.err


def test_the_exit_code_of_the_program_is_the_exit_code_of_the_job(tmp_path: Path) -> None:
    ending = end("exit", tmp_path, 2)
    assert ending.code == 3
    assert ending.out == ["begin", "five steps"] and "Traceback" not in ending.err
    assert ending.late < PROMPT


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_clients_that_pass_different_arguments_raise(tmp_path: Path, ranks: int) -> None:
    ending = end("multi_other_arguments", tmp_path, ranks)
    assert ending.code == 1
    assert ending.late < PROMPT
    pairs = re.findall(r'train_job\(labels=...\) at endings\.py:\d+: argument "labels" differs between ranks (\d) and (\d)', ending.err)
    assert len(pairs) == 1 and "1" in pairs[0], ending.err
