"""Mistakes in a user's builder, reader or callback: the message names the user's lines; jobflow's lines appear only on request."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
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
    """Return the line of failing.py with this mark."""
    return next(i for i, text in enumerate(LINES, 1) if text.endswith(f"# line of {name}"))


Trained = Callable[..., str]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Trained:
    """Return a function that runs a failing `jobflow train` and returns its output.

    It runs the console script on ranks, or if `separate`; else the function of the command.
    """
    monkeypatch.syspath_prepend(HERE)

    def training_output(*settings: str, ranks: tuple[object, ...] = (), more: tuple[str, ...] = (), separate: bool = False) -> str:
        (tmp_path / "run.yaml").write_text(CONFIG)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        words = [str(tmp_path / "run.yaml"), "--output", str(tmp_path / "out"), *(word for setting in settings for word in ("--set", setting)), *more]
        if ranks or separate:
            return from_outside(["train", *words], ranks)
        assert main(["train", *words]) in (1, 2)
        return capfd.readouterr().err

    return training_output


def from_outside(words: list[str], ranks: tuple[object, ...]) -> str:
    script = [sys.executable, "-m", "jobflow"] if "launch" in ranks else [str(Path(sys.executable).with_name("jobflow"))]
    start = [*script, *map(str, ranks), "-m", "jobflow"] if "launch" in ranks else [*map(str, ranks), *script]
    done = run_command([*start, *words], environment={"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])})
    assert done.code in (1, 2), done.out + done.err
    assert "jobflow:8" not in done.err and "<jobflow>" not in done.err
    return done.err


def own(output: str) -> bool:
    """Return True if the output has lines of jobflow."""
    return f"{ROOT}/jobflow/" in output


@pytest.mark.parametrize(("file", "shown"), [("scripts/train.py", "train.py:3"), ("bin/jobflow", None)], ids=["script", "installed"])
def test_only_the_installed_command_is_not_the_users(file: str, shown: str | None) -> None:
    names = {"__name__": "__main__", "user_line": user_line}
    exec(compile("from jobflow.cli import main\n\nline = user_line()\n", file, "exec"), names)
    line = str(names["line"])
    assert line.startswith(Path(__file__).name) if shown is None else line == shown


def test_lines_of_builders_come_first(trained: Trained) -> None:
    output = trained("model.builder=failing:deep", separate=True)
    assert f'failing.py", line {line("deep")}, in wrong' in output and "in deep" in output and "KeyError: 'lss'" in output and not own(output)
    output = trained("model.builder=failing:deep", more=("--traceback",))
    assert f'failing.py", line {line("deep")}, in wrong' in output and own(output)


def test_frames_of_packages_that_jobflow_calls_are_not_the_users(trained: Trained, tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"photos/{i}").mkdir(parents=True)
        Image.fromarray(np.arange(3 * 40 * 40).reshape(40, 40, 3).astype(np.uint8)).save(tmp_path / f"photos/{i}/a.png")
    (tmp_path / "photos/1/a.png").write_bytes((tmp_path / "photos/0/a.png").read_bytes()[:-60])
    photos = f"data.train={{reader: images, path: {tmp_path}/photos, size: 8}}"
    output = trained("data.train=null", photos, "data.batch_size=2")
    assert output.startswith('DataError: reader "images"') and "a.png cannot be read as an image" in output
    assert f"`jobflow data {tmp_path}/run.yaml` lists all samples that cannot be read" in output


def test_lines_of_callbacks_come_first(trained: Trained) -> None:
    output = trained("model.builder=failing:watches")
    assert f'failing.py", line {line("watches")}, in on_images' in output and "LookupError: nobody there" in output and not own(output)


@pytest.mark.parametrize(
    ("builder", "facts"),
    [
        ("forgetful", ("failing:forgetful", "returned nothing", '{"loss": ')),
        ("numpys", ("np.exp", "flow.math.exp")),
        ("floats", ("float32[50,1,8,8]", "has no values")),
        ("asks", ("truth", "where(")),
    ],
)
def test_invalid_builders_raise_with_their_line(trained: Trained, builder: str, facts: tuple[str, ...]) -> None:
    output = trained(f"model.builder=failing:{builder}")
    where = "failing.py:" if builder == "forgetful" else f"failing.py:{line(builder)}"
    assert where in output and not own(output) and not [fact for fact in facts if fact not in output], output


def test_a_fixed_batch_size_in_a_builder_raises_before_the_first_step(trained: Trained, tmp_path: Path) -> None:
    for more in ((), ("--dry-run",)):
        output = trained("model.builder=failing:counts", "data.train.split=test", more=more)  # 297 samples: the last batch has 47
        assert "batches of 50 samples" in output and "batch of 47" in output and "x.shape[0]" in output and f"failing.py:{line('counts')}" in output
    validation = "data.validation={reader: digits, split: validation, edge: 8}"
    output = trained("model.builder=failing:counts", validation, "data.evaluation_batch_size=40")
    assert "batch of 40" in output and "evaluation" in output
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
def test_the_sample_is_named_for_every_launcher(trained: Trained, tmp_path: Path, how: str) -> None:
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
        output = trained(*without_arguments(reader), ranks=LAUNCHERS[how])
        assert not [fact for fact in facts if fact not in output], output
        assert how == "alone" or re.search(r"rank [01]", output), output
        assert not own(output), output


def test_streams_name_epoch_and_sample(trained: Trained) -> None:
    output = trained(*without_arguments(READER.format("stream", "{}")))
    assert "failing:stream: epoch 0, sample 60" in output and f"line {line('stream')}, in stream" in output and not own(output)
