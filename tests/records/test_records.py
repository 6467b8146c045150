"""Programs do what is recorded of them, and what they did otherwise would be found."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import comparing
import pytest
import recorded_programs
from comparing import differences
from recorded_programs import ROOT
from recording import Record

PROGRAMS = recorded_programs.programs()
#: programs some ways of which take seconds
SLOW = [name for name, program in PROGRAMS.items() if any(way.slow for way in program.ways)]


def recorded(folder: Path, *arguments: str) -> dict[str, dict[str, Record]]:
    """Return the records of programs in the format of the files, from one separate process."""
    out = folder / "records.json"
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "scripts" / "record"), "--out", str(out), *arguments]
    done = subprocess.run(command, env=os.environ | quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text(encoding="utf-8"))
    return {
        name: {way.name: comparing.shortened(name, runs[way.name], way) for way in PROGRAMS[name].ways if way.name in runs}
        for name, runs in results.items()
    }


def check(results: dict[str, dict[str, Record]]) -> None:
    unlike = []
    for name, runs in results.items():
        unlike += comparing.against_file(PROGRAMS[name], runs)[0]
    shown = "\n".join(map(str, unlike[:20]))
    assert not unlike, f"{len(unlike)} differences; scripts/record shows all, and scripts/record --write writes what was meant to change\n{shown}"


def test_every_program_has_a_record() -> None:
    there = {path.relative_to(comparing.DATA).with_suffix("").as_posix() for path in sorted(comparing.DATA.rglob("*.json"))}
    assert there == set(PROGRAMS)
    assert all({way.name for way in PROGRAMS[name].ways} == set(comparing.read(name)[1]) for name in PROGRAMS)


def test_programs_equal_their_records(tmp_path: Path) -> None:
    results = recorded(tmp_path, "--fast")
    assert set(PROGRAMS) - set(results) <= set(SLOW)
    check(results)


@pytest.mark.full
def test_slow_programs_equal_their_records(tmp_path: Path) -> None:
    results = recorded(tmp_path, *SLOW)
    assert set(results) == set(SLOW)
    check(results)


# -------------------------------------------------------------------- other tiers of kernels

#: of curves in float32 over 20 steps
SINGLE = 1e-5
#: programs that are always run in other tiers; all are with --full
FEW = ("docs/job_functions-2", "examples/global_mlp")


def check_numbers(results: dict[str, dict[str, Record]]) -> None:
    unlike = []
    for name, runs in results.items():
        was, known = comparing.read(name)[1], {way.name: way for way in PROGRAMS[name].ways}
        for way, record in runs.items():
            far = max(SINGLE, known[way].tolerance[1])
            assert len(record["numbers"]) == len(was[way]["numbers"])
            if not comparing.alike(was[way]["numbers"], record["numbers"], (far, far)):
                unlike += comparing.differences(PROGRAMS[name], {way: {"numbers": was[way]["numbers"]}}, {way: {"numbers": record["numbers"]}}, True)
    assert not unlike, "\n".join(map(str, unlike[:20]))


@pytest.mark.parametrize("tier", ["llvm", "reference"])
def test_values_in_other_tiers(tier: str, tmp_path: Path) -> None:
    results = recorded(tmp_path, *FEW, "--fast", "--kernels", tier)
    assert set(results) == set(FEW)
    check_numbers(results)


@pytest.mark.full
@pytest.mark.parametrize("tier", ["llvm", "reference"])
def test_all_values_in_other_tiers(tier: str, tmp_path: Path) -> None:
    results = recorded(tmp_path, "--fast", "--kernels", tier)
    assert set(PROGRAMS) - set(results) <= set(SLOW)
    check_numbers(results)


# -------------------------------------------------------------------- the comparison itself

NAME, WAY = "cases/optimizers", "2 zero1 LAMB"


@pytest.fixture(scope="module")
def was() -> dict[str, Record]:
    return comparing.read(NAME)[1]


def planted(was: dict[str, Record], change: Any) -> list[comparing.Difference]:
    """Return the differences after a change, on a machine of the same class and on another."""
    now = copy.deepcopy({WAY: was[WAY]})
    change(now[WAY])
    same, other = (differences(PROGRAMS[NAME], was, now, exact) for exact in (True, False))
    assert [d.field for d in other] == [d.field for d in same if d.field != "final"]
    return same


def renamed(program: Record, old: str, new: str) -> None:
    program["variables"] = {name.replace(old, new): text for name, text in program["variables"].items()}


@pytest.mark.parametrize(
    ("change", "field", "shown"),
    [
        (lambda p: renamed(p, "up-bias-m", "up-bias-momentum"), "variables.up-bias-m", "-float32[8]"),
        (lambda p: p["layouts"].__setitem__(0, "x: float32[8,6] P"), "layouts", "+x: float32[8,6] P"),
        (lambda p: p["boxing"].pop(), "boxing", "-"),
        (lambda p: p["ranks"]["1"]["instructions"].update(tanh=7), "ranks.1.instructions.tanh", "+7"),
        (lambda p: p["ranks"]["0"]["memory"].update(allocated=1), "ranks.0.memory.allocated", "+1"),
        (lambda p: p.update(schedule="3 lines abc"), "schedule", "+3 lines abc"),
        (lambda p: p["ranks"]["0"].update(plan="abc"), "ranks.0.plan", "+abc"),
    ],
)
def test_other_compilation_results_are_reported(was: dict[str, Record], change: Any, field: str, shown: str) -> None:
    listed = planted(was, lambda record: change(record["programs"][0]))
    assert f"programs[0].{field}" in [difference.field for difference in listed]
    assert shown in str(listed[0]) and f"{NAME}, {WAY}: programs[0]" in str(listed[0])


def test_plans_of_ten_programs_are_recorded() -> None:
    """Other programs have their variables, random streams and losses recorded."""
    records = {name: [program for way in comparing.read(name)[1].values() for program in way["programs"]] for name in PROGRAMS}
    assert {name for name, programs in records.items() if any("ranks" in program for program in programs)} == recorded_programs.PLANNED
    assert all(program["variables"] is not None for programs in records.values() for program in programs)


def test_another_stream_or_hash_of_variables_is_reported(was: dict[str, Record]) -> None:
    assert [d.field for d in planted(was, lambda record: record["streams"].append("0/more"))] == ["streams"]
    assert [d.field for d in planted(was, lambda record: record.update(final=["abc"]))] == ["final"]


@pytest.mark.parametrize(("step", "factor", "elsewhere"), [(0, 1 + 1e-7, True), (0, 1 + 1e-5, False), (19, 1 + 5e-6, True), (19, 1 + 1e-4, False)])
def test_values_are_equal_or_within_the_tolerance_of_another_machine(was: dict[str, Record], step: int, factor: float, elsewhere: bool) -> None:
    now = copy.deepcopy({WAY: was[WAY]})
    what, value, *_ = now[WAY]["numbers"][step].split()
    now[WAY]["numbers"][step] = f"{what} {(float.fromhex(value) * factor).hex()} abc"
    (difference,) = differences(PROGRAMS[NAME], was, now, exact=True)
    assert difference.field == "numbers" and value in str(difference)
    assert (differences(PROGRAMS[NAME], was, now, exact=False) == []) == elsewhere


def test_added_and_removed_runs_are_reported(was: dict[str, Record]) -> None:
    more = {**was, "3 SGD": was[WAY]}
    assert [(d.way, d.now) for d in differences(PROGRAMS[NAME], was, more, exact=True)] == [("3 SGD", "is not recorded")]
    assert [(d.way, d.now) for d in comparing.gone(PROGRAMS[NAME], more)] == [("3 SGD", "is not there any more")]


def test_files_give_back_what_was_written(was: dict[str, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "DATA", tmp_path)
    comparing.write(NAME, copy.deepcopy(was))
    assert comparing.read(NAME) == (comparing.machine(), was)
    assert "as in" in comparing.path_of(NAME).read_text(encoding="utf-8")
    assert [d.program for d in comparing.forgotten({}, remove=False)] == [NAME]
