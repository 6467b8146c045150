"""Training on invalid data: the error names the file, the sample and the rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_command, under_mpiexec
from short_runs import CONFIG, SAMPLES, Recorder, loaded, run, samples, write_config
from test_processes_that_train import PATHS

from jobflow.core.errors import ArgumentError, ShapeError
from jobflow.trainer.training_run import NOT_FINITE

MODULE = CONFIG.replace(CONFIG[CONFIG.index("model:") : CONFIG.index("data:")], "model: {builder: 'nets_to_train:Scores'}\n")
STRATEGIES: dict[str, tuple[str, ...]] = {
    "one device": (),
    "two devices": ("strategy.devices=2",),
    "mirrored": ("strategy.devices=2", "strategy.view=mirrored"),
    "microbatches": ("strategy.accumulation=2",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    write_config(directory)
    (directory / "module.yaml").write_text(write_config(directory / "module", MODULE).read_text())
    return directory


def started(folder: Path, output: Path, data: dict[str, Any], *settings: str, model: str = "run") -> Any:
    """Train one epoch on some data."""
    output.mkdir(parents=True, exist_ok=True)
    np.savez(output / "odd.npz", **data)
    paths = [f"data.{split}.path={output / 'odd.npz'}" for split in ("train", "validation")]
    outcome, recorder = run(loaded(folder / f"{model}.yaml", output, *paths, "training.steps=4", *settings))
    assert isinstance(recorder, Recorder)
    return outcome


def changed(change: Callable[[Any], Any]) -> dict[str, Any]:
    data = samples(SAMPLES, 0)
    return {**data, "labels": change(data["labels"])}


def with_value(value: float, dtype: Any) -> Callable[[Any], Any]:
    def change(labels: Any) -> Any:
        changed = labels.astype(dtype)
        changed[5] = value
        return changed

    return change


#: batch norm in mirrored jobs is tested with strategies
PAIRS = [(model, strategy) for model in ("run", "module") for strategy in STRATEGIES if (model, strategy) != ("module", "mirrored")]
WRONG = [(1.5, np.float32), (2**32, np.int64), (np.nan, np.float64), (3e9, np.float32), (-1.0, np.float32)]
CASES = [
    pytest.param(*wrong, *pair, marks=[] if j % len(WRONG) == i else [pytest.mark.full])
    for i, wrong in enumerate(WRONG)
    for j, pair in enumerate(PAIRS)
]


@pytest.mark.parametrize(("value", "dtype", "model", "strategy"), CASES)
def test_labels_that_are_no_classes_name_the_sample(value: float, dtype: Any, model: str, strategy: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r'"labels".* holds .*mean_squared_error.*This is reader "numpy": .*odd\.npz: sample 5') as error:
        started(folder, tmp_path, changed(with_value(value, dtype)), "data.drop_last=true", *STRATEGIES[strategy], model=model)
    assert str(np.dtype(dtype).type(value).item()) in str(error.value)


def test_labels_beyond_the_scores_name_their_number(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"holds 7 at .*accepts whole numbers from 0 to 3\. Classes are whole numbers from 0, and the model has 4 scores"
    ):
        started(folder, tmp_path, changed(lambda labels: np.where(np.arange(SAMPLES) == 5, 7, labels).astype(np.int64)))


def test_a_squared_error_names_labels_and_scores(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"mean_squared_error at .*: labels float32\[8\] must have as many elements as scores float32\[8,4\]"):
        started(folder, tmp_path, changed(lambda labels: labels.astype(np.float32)), "model.loss=mean_squared_error")


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_labels_of_other_types_train_like_int32(dtype: Any, folder: Path, tmp_path: Path) -> None:
    expected = started(folder, tmp_path / "int32", samples(SAMPLES, 0)).metrics
    assert started(folder, tmp_path / "other", changed(lambda labels: labels.astype(dtype))).metrics == expected


def test_mean_squared_error_trains_on_fractions(folder: Path, tmp_path: Path) -> None:
    data = changed(lambda labels: np.repeat(labels[:, None] / 4, 4, 1).astype(np.float32))
    assert started(folder, tmp_path, data, "model.loss=mean_squared_error").stopped == "end"


def with_nan(sample: int) -> dict[str, Any]:
    data = samples(SAMPLES, 0)
    data["x"][sample, 1] = np.nan
    return data


@pytest.mark.parametrize(("strategy", "sample", "rank"), [("one device", 3, 0), ("two devices", 6, 1), ("mirrored", 13, 1), ("microbatches", 24, 0)])
def test_nan_in_data_names_file_sample_and_rank(strategy: str, sample: int, rank: int, folder: Path, tmp_path: Path) -> None:
    outcome = started(folder, tmp_path, with_nan(sample), "data.shuffle=false", *STRATEGIES[strategy])
    assert (outcome.stopped, outcome.exit_code) == ("nan", NOT_FINITE)
    assert 'the argument "x" has non-finite values (1 of ' in outcome.message
    assert outcome.message.endswith(f'rank {rank} read nan in reader "numpy": {tmp_path / "odd.npz"}: sample {sample}')


@pytest.mark.mpi
@pytest.mark.parametrize(("sample", "rank"), [(14, 1), pytest.param(2, 0, marks=pytest.mark.full)])
def test_the_batch_with_nan_is_not_read_twice(sample: int, rank: int, folder: Path, tmp_path: Path) -> None:
    config = (
        (folder / "run.yaml")
        .read_text()
        .replace(f"{{reader: numpy, path: {folder / 'train.npz'}}}", "{reader: python, function: 'nan_once:nan_once'}")
    )
    (tmp_path / "run.yaml").write_text(config)
    settings = [f"output={tmp_path / 'out'}", "data.shuffle=false", f"data.train.arguments.number={sample}"]
    command = [*under_mpiexec(2), sys.executable, "-m", "jobflow", "train", str(tmp_path / "run.yaml")]
    command += [part for setting in settings for part in ("--set", setting)]
    done = run_command(command, environment=PATHS)
    assert done.code == NOT_FINITE, done.out + done.err
    assert f'rank {rank} read nan in reader "python": nan_once:nan_once: sample {sample}' in done.out + done.err
