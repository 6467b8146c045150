"""`jobflow train` that waits long for its reader says which it is, and where it stands."""

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
    """What the command says on standard error of a run that comes to its end."""
    (folder / "run.yaml").write_text(CONFIG % (function, prefetch))
    script = Path(sys.executable).with_name("jobflow")
    words = [*map(str, ranks), str(script), "train", str(folder / "run.yaml"), "--output", str(folder / "out")]
    done = run_command(words, environment={"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "SLOW": str(int(slow))})
    assert done.code == 0, done.out + done.err
    return done.err


def waits(told: str) -> list[str]:
    return [line for line in told.splitlines() if "has waited" in line and "slow_reader:" in line]


@pytest.mark.parametrize("prefetch", [0, pytest.param(2, marks=pytest.mark.full)])
def test_who_waits_names_reader_sample_and_line(tmp_path: Path, prefetch: int) -> None:
    (told,) = waits(trained(tmp_path, prefetch=prefetch))
    for fact in ("0.3 s", "samples 0, 1, ", "35 more", 'reader "python"', "slow_reader:table", "epoch 0", "sample 27", f"slow_reader.py:{STANDS}"):
        assert fact in told


@pytest.mark.parametrize("prefetch", [2, pytest.param(0, marks=pytest.mark.full)])
def test_streams_too(tmp_path: Path, prefetch: int) -> None:
    (told,) = waits(trained(tmp_path, "stream", prefetch))
    for fact in ("0.3 s", "40 samples", "slow_reader:stream", "epoch 0, sample 27", f"slow_reader.py:{STANDS}"):
        assert fact in told


def test_a_reader_that_opens_slowly(tmp_path: Path) -> None:
    told = trained(tmp_path, "unready", slow=False)
    assert 'reader "python"' in told and "0.3 s" in told and "slow_reader:unready" in told and f"slow_reader.py:{OPENS}" in told


def test_nothing_is_said_where_nothing_takes_long(tmp_path: Path) -> None:
    assert waits(trained(tmp_path, slow=False)) == []


@pytest.mark.mpi
def test_the_rank_whose_reader_hangs_says_so_and_the_other_names_that_rank(tmp_path: Path) -> None:
    said = trained(tmp_path, ranks=(MPIEXEC, "-n", 2))
    (told,) = waits(said)
    for fact in ("rank 1", "samples 20, 21, ", "15 more", "slow_reader:table", "sample 27", f"slow_reader.py:{STANDS}"):
        assert fact in told
    assert re.search(r"rank 0 has waited 0\.3 s in .+ for ranks \[1\]", said), said
