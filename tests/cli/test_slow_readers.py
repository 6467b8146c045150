"""`jobflow train` with a slow reader: the notice names the reader and its line."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, ROOT, run_command

HERE = Path(__file__).parent
LINES = (HERE / "slow_reader.py").read_text().splitlines()
STANDS, OPENS = (next(i for i, text in enumerate(LINES, 1) if text.endswith(mark)) for mark in ("# the reader is here", "# it is being opened here"))
CONFIG = """
model: {builder: "slow_reader:plain"}
data:
  train: {reader: python, function: "slow_reader:%s"}
  batch_size: 40
  shuffle: false
  prefetch: %d
optimizer: {name: adam, lr: 0.01}
training: {steps: 1}
logging: {every_steps: 1, progress: plain, report: false}
"""


def trained(folder: Path, function: str = "table", prefetch: int = 2, ranks: tuple[object, ...] = (), slow: bool = True) -> str:
    """Return the standard error of a run that finishes."""
    (folder / "run.yaml").write_text(CONFIG % (function, prefetch))
    script = Path(sys.executable).with_name("jobflow")
    words = [*map(str, ranks), str(script), "train", str(folder / "run.yaml"), "--output", str(folder / "out")]
    done = run_command(words, environment={"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "SLOW": str(int(slow))})
    assert done.code == 0, done.out + done.err
    return done.err


def waits(output: str) -> list[str]:
    return [line for line in output.splitlines() if "has waited" in line and "slow_reader:" in line]


@pytest.mark.parametrize("prefetch", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_waiting_rank_names_reader_sample_and_line(tmp_path: Path, prefetch: int) -> None:
    (notice,) = waits(trained(tmp_path, prefetch=prefetch))
    for fact in ("0.3 s", "samples 0, 1, ", "35 more", 'reader "python"', "slow_reader:table", "epoch 0", "sample 27", f"slow_reader.py:{STANDS}"):
        assert fact in notice


@pytest.mark.parametrize("prefetch", [2, pytest.param(0, marks=pytest.mark.full)])
def test_streams_too(tmp_path: Path, prefetch: int) -> None:
    (notice,) = waits(trained(tmp_path, "stream", prefetch))
    for fact in ("0.3 s", "40 samples", "slow_reader:stream", "epoch 0, sample 27", f"slow_reader.py:{STANDS}"):
        assert fact in notice


def test_a_reader_that_opens_slowly(tmp_path: Path) -> None:
    notice = trained(tmp_path, "unready", slow=False)
    assert 'reader "python"' in notice and "0.3 s" in notice and "slow_reader:unready" in notice and f"slow_reader.py:{OPENS}" in notice


def test_fast_readers_print_nothing(tmp_path: Path) -> None:
    assert waits(trained(tmp_path, slow=False)) == []


@pytest.mark.mpi
def test_both_ranks_report_a_hanging_reader(tmp_path: Path) -> None:
    output = trained(tmp_path, ranks=(MPIEXEC, "-n", 2))
    (notice,) = waits(output)
    for fact in ("rank 1", "samples 20, 21, ", "15 more", "slow_reader:table", "sample 27", f"slow_reader.py:{STANDS}"):
        assert fact in notice
    assert re.search(r"rank 0 has waited 0\.3 s in .+ for ranks \[1\]", output), output
