"""The programs of docs/training.md run, and its exit codes are those of the trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jobflow.cli import CODES
from jobflow.trainer import outcome

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def test_its_programs_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(programs) == 2
    (tmp_path / "run.yaml").write_text(
        "model: {builder: 'jobflow.models:mlp', arguments: {hidden: [8]}}\n"
        "data: {train: {reader: digits, split: test, edge: 8}, validation: {reader: digits, split: validation, edge: 8}, batch_size: 99}\n"
        "optimizer: {name: sgd, lr: 0.1}\ntraining: {steps: 500}\n"
    )
    names: dict[str, Any] = {"FILE": tmp_path / "run.yaml", "OUTPUT": tmp_path / "out"}
    for program in programs:
        exec(compile(program, "training.md", "exec"), names)
    assert names["scores"].shape[1] == 10 and "'validation/loss': " in capsys.readouterr().out


def test_its_exit_codes() -> None:
    table = PAGE.partition("| | exit code |")[2].partition("\n\n")[0]
    found = {int(code) for code in re.findall(r"\| (\d+) \|$", table, re.MULTILINE)}
    own = {outcome.DONE, outcome.ERROR, outcome.USAGE, outcome.NOT_FINITE, outcome.AGAIN, outcome.INTERRUPTED}
    assert found == own == set(CODES) - {141}
