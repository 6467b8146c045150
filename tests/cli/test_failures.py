"""Mistakes in somebody's builder, reader or callback: their own lines, and what would work; jobflow's lines only where they are asked for."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import MPIEXEC, ROOT, run_command

from jobflow.cli import main
from jobflow.core.errors import user_line

HERE = Path(__file__).parent
LINES = (HERE / "failing.py").read_text().splitlines()
CONFIG = """
model: {builder: "failing:plain"}
data:
  train: {reader: digits, split: validation, edge: 8}
  batch_size: 50
  shuffle: false
optimizer: {name: adam, lr: 0.01}
training: {steps: 6}
logging: {every_steps: 2, progress: plain, report: false}
"""


def line(name: str) -> int:
    """The line of failing.py that is marked so."""
    return next(i for i, text in enumerate(LINES, 1) if text.endswith(f"# line of {name}"))


Trained = Callable[..., str]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Trained:
    """What `jobflow train` says of a run that fails: the console script on ranks, if their launcher is given, or `apart`; else its function."""
    monkeypatch.syspath_prepend(HERE)

    def told(*settings: str, ranks: tuple[object, ...] = (), more: tuple[str, ...] = (), apart: bool = False) -> str:
        (tmp_path / "run.yaml").write_text(CONFIG)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        words = [str(tmp_path / "run.yaml"), "--output", str(tmp_path / "out"), *(word for setting in settings for word in ("--set", setting)), *more]
        if ranks or apart:
            return from_outside(["train", *words], ranks)
        assert main(["train", *words]) in (1, 2)
        return capfd.readouterr().err

    return told


def from_outside(words: list[str], ranks: tuple[object, ...]) -> str:
    script = [sys.executable, "-m", "jobflow"] if "launch" in ranks else [str(Path(sys.executable).with_name("jobflow"))]
    start = [*script, *map(str, ranks), "-m", "jobflow"] if "launch" in ranks else [*map(str, ranks), *script]
    done = run_command([*start, *words], environment={"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])})
    assert done.code in (1, 2), done.out + done.err
    assert "jobflow:8" not in done.err and "<jobflow>" not in done.err
    return done.err


def own(told: str) -> bool:
    """Whether jobflow's own lines are shown."""
    return f"{ROOT}/jobflow/" in told


@pytest.mark.parametrize(("file", "seen"), [("scripts/train.py", "train.py:3"), ("bin/jobflow", None)], ids=["script", "installed"])
def test_only_the_installed_command_is_not_the_users(file: str, seen: str | None) -> None:
    names = {"__name__": "__main__", "user_line": user_line}
    exec(compile("from jobflow.cli import main\n\nline = user_line()\n", file, "exec"), names)
    line = str(names["line"])
    assert line.startswith(Path(__file__).name) if seen is None else line == seen


def test_lines_of_builders_come_first(trained: Trained) -> None:
    told = trained("model.builder=failing:deep", apart=True)
    assert f'failing.py", line {line("deep")}, in wrong' in told and "in deep" in told and "KeyError: 'lss'" in told and not own(told)
    told = trained("model.builder=failing:deep", more=("--traceback",))
    assert f'failing.py", line {line("deep")}, in wrong' in told and own(told)


def test_lines_of_callbacks_come_first(trained: Trained) -> None:
    told = trained("model.builder=failing:watches")
    assert f'failing.py", line {line("watches")}, in seen' in told and "LookupError: nobody there" in told and not own(told)


@pytest.mark.parametrize(
    ("builder", "facts"),
    [
        ("forgetful", ("failing:forgetful", "returned nothing", '{"loss": ')),
        ("numpys", ("np.exp", "flow.math.exp")),
        ("floats", ("float32[50,1,8,8]", "has no values")),
        ("asks", ("truth", "where(")),
    ],
)
def test_builders_that_cannot_be(trained: Trained, builder: str, facts: tuple[str, ...]) -> None:
    told = trained(f"model.builder=failing:{builder}")
    place = "failing.py:" if builder == "forgetful" else f"failing.py:{line(builder)}"
    assert place in told and not own(told) and not [fact for fact in facts if fact not in told], told


def test_a_number_of_samples_that_is_written_in_a_builder_is_told_before_the_first_step(trained: Trained, tmp_path: Path) -> None:
    for more in ((), ("--dry-run",)):
        told = trained("model.builder=failing:counts", "data.train.split=test", more=more)  # 297 samples: the last batch has 47
        assert "batches of 50 samples" in told and "one of 47" in told and "x.shape[0]" in told and f"failing.py:{line('counts')}" in told
    validation = "data.validation={reader: digits, split: validation, edge: 8}"
    told = trained("model.builder=failing:counts", validation, "data.evaluation_batch_size=40")
    assert "one of 40" in told and "evaluation" in told
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


READER = "data.train={{reader: python, function: 'failing:{}', arguments: {}}}"
LAUNCHERS = {
    "alone": (),
    "mpiexec": (MPIEXEC, "-n", "2"),
    "launch": ("launch", "--nproc_per_node", "2"),
}


def without_arguments(reader: str) -> tuple[str, ...]:
    return ("data.train=null", reader)


@pytest.mark.mpi
@pytest.mark.parametrize("how", ["alone", "launch", pytest.param("mpiexec", marks=pytest.mark.full)])
def test_the_sample_is_named_however_ranks_were_started(trained: Trained, tmp_path: Path, how: str) -> None:
    broken = tmp_path / "pictures"
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number in range(100):
        folder = broken / f"class{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / f"{number:03d}.png")
    torn = broken / "class9" / "009.png"  # the last tenth begins with it: number 90, in the half of rank 1
    torn.write_bytes(torn.read_bytes()[:40])
    images = f"data.train={{reader: images, path: {broken}, size: 8, channels: 1}}"
    cases = {
        images: ('reader "images"', str(torn), "sample 90"),
        READER.format("torn", "{at: 88}"): (
            'reader "python"',
            "failing:torn",
            "sample 88",
            "ArithmeticError: the file is torn",
            f"line {line('torn')}",
        ),
        READER.format("torn", "{label: 77}"): ('"labels"', "10 at [27]", "0 to 9", 'reader "python"', "failing:torn", "sample 77", "failing.py:"),
    }
    for reader, facts in list(cases.items())[: 3 if how == "alone" else 1]:
        told = trained(*without_arguments(reader), ranks=LAUNCHERS[how])
        assert not [fact for fact in facts if fact not in told], told
        assert how == "alone" or re.search(r"rank [01]", told), told
        assert not own(told), told


def test_streams_name_epoch_and_sample(trained: Trained) -> None:
    told = trained(*without_arguments(READER.format("stream", "{}")))
    assert "failing:stream: epoch 0, sample 60" in told and f"line {line('stream')}, in stream" in told and not own(told)
