"""Sweeps: the values and names of trials, results, resuming, failures, and several processes."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from short_runs import CONFIG, write_config

from jobflow.cli import main
from jobflow.core.errors import ConfigError, FileError
from jobflow.distributed import mpiexec
from jobflow.trainer import Callback, train
from jobflow.trainer.config import ConfigErrors
from jobflow.trainer.config.sweep_schema import Choice, LogUniform, Uniform, WholeNumber
from jobflow.trainer.run_file import read_run
from jobflow.trainer.sweep import SweepResult, run_sweep
from jobflow.trainer.sweep.parallel_trials import parts
from jobflow.trainer.sweep.trials import Trials, folder_name, random_values, sweep_setting

SHORT = ("training.steps=3", "optimizer.warmup_steps=0", "evaluation={every_epochs: null, every_steps: 1}", "checkpoint.every_steps=3")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("sweeps"))


def swept(file: Path, output: Path, *sweeps: str, **options: Any) -> SweepResult:
    lines: list[str] = []
    settings = [*SHORT, f"output={output}", *map(sweep_setting, sweeps)]
    return run_sweep(file, [*settings, *options.pop("settings", ())], say=lines.append, **options)


@pytest.fixture(scope="module")
def grid(file: Path, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return swept(file, tmp_path_factory.mktemp("grid") / "out", "optimizer.lr=0.001,0.05,1e39")


# -------------------------------------------------------------------- values and names


@pytest.mark.parametrize(
    "values, name",
    [
        ({"optimizer.lr": 1e-3, "model.arguments.units": 64}, "lr=0.001,units=64"),
        ({"a.units": 1, "b.units": 2.5}, "a.units=1,b.units=2.5"),
        ({"optimizer.clip_norm": None, "data.shuffle": False, "seed": -1}, "clip_norm=null,shuffle=false,seed=-1"),
        ({"model.arguments.hidden": [8, 16]}, "hidden=8_16"),
        ({"optimizer.lr": 0.123456789}, "lr=0.123456789"),
    ],
)
def test_folders_are_named_after_the_changed_values(values: dict[str, Any], name: str) -> None:
    assert folder_name(values) == name


@pytest.mark.parametrize("one, other", [("1", 1), ("a/b", "a_b"), ("x" * 40, "x" * 41), ("../a", "a"), ([1, [2]], [[1], 2]), ({"a": 1}, ["a", 1])])
def test_different_values_have_different_folders_inside_the_sweep(one: Any, other: Any) -> None:
    names = {folder_name({"key": one}), folder_name({"key": other})}
    assert len(names) == 2
    assert all(len(Path(name).parts) == 1 and len(name) < 60 for name in names)


def test_random_values_depend_on_seed_and_number_and_stay_inside_their_limits() -> None:
    kinds = {
        "a": Uniform(name="uniform", low=-1.0, high=1.0), "b": LogUniform(name="loguniform", low=1e-4, high=1e-1),
        "c": WholeNumber(name="int", low=2, high=4), "d": Choice(name="choice", values=["x", [1]]), "e": [True, None],
    }  # fmt: skip
    drawn = [random_values(kinds, 5, i) for i in range(60)]
    assert drawn == [random_values(kinds, 5, i) for i in range(60)]
    assert random_values(kinds, 6, 0) != drawn[0]
    assert all(-1 <= one["a"] <= 1 and 1e-4 <= one["b"] <= 1e-1 for one in drawn)
    assert {one["c"] for one in drawn} == {2, 3, 4} and sum(one["b"] < 3e-3 for one in drawn) > 15
    assert {str(one["d"]) for one in drawn} == {"x", "[1]"} and {one["e"] for one in drawn} == {True, None}


def test_more_random_trials_extend_a_sweep(file: Path) -> None:
    sweep = "sweep={method: random, values: {optimizer.lr: {name: loguniform, low: 1e-3, high: 1}, seed: {name: int, low: 0, high: 9}}, trials: %d}"
    few, many = ([trial.name for trial in Trials(str(file), [sweep % n]).planned()] for n in (3, 5))
    assert len(many) == 5 and many[:3] == few


@pytest.mark.parametrize("cores, jobs, result", [([0, 1, 2, 3], 2, [{0, 1}, {2, 3}]), ([4, 7], 2, [{4}, {7}]), ([0], 3, [{0}, {0}, {0}])])
def test_jobs_divide_the_cores(cores: list[int], jobs: int, result: list[set[int]]) -> None:
    assert list(parts(cores, jobs)) == result


# -------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "sweeps, settings, words",
    [
        (["optimizer.lrr=1,2"], [], ["--sweep optimizer.lrr=1,2", 'did you mean "lr"?']),
        (["optimizer.lr=0.1,-1,fast"], [], ["must be more than 0; got -1", 'must be a number; got the text "fast"']),
        (["optimizer.lr={name: uniform, low: -1, high: 1}"], ["sweep.method=random", "sweep.trials=9"], ["must be more than 0; got -0."]),
        (["optimizer.lr=0.1,["], [], ["--sweep optimizer.lr=0.1,["]),
        (["optimizer.lr=0.1,0.2"], ["checkpoint.directory=all"], ["is the same for all trials", "${output}/checkpoints"]),
        (["optimizer.lr=0.1,0.2"], ["sweep.metric=loss"], ['such as "validation/loss" or "train/loss"']),
        (["optimizer.lr=0.1"], ["output=s3://bucket/a"], ["is remote; pass a local directory"]),
    ],
)
def test_invalid_sweeps_are_refused_before_the_first_trial(
    file: Path, tmp_path: Path, sweeps: list[str], settings: list[str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        swept(file, tmp_path / "out", *sweeps, settings=settings)
    assert all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / "out").exists()


def test_an_unknown_metric_is_refused_before_the_first_trial(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='returns no metric "validation/acuracy"'):
        swept(file, tmp_path / "out", "optimizer.lr=0.1,0.2", settings=["sweep.metric=validation/acuracy"])


@pytest.mark.parametrize("text", ["optimizer.lr", "=1,2", "optimizer.lr="])
def test_sweeps_without_values_raise(text: str) -> None:
    with pytest.raises(ConfigError, match="write a key, = and values"):
        sweep_setting(text)


def test_files_without_a_sweep_and_other_runs_of_sweeps_raise(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no section sweep"):
        Trials(str(file))
    with pytest.raises(ConfigError, match="pass auto or never"):
        swept(file, tmp_path, "seed=1,2", resume=str(tmp_path))
    both = Trials(str(file), [sweep_setting("seed=1,2")])
    with pytest.raises(ConfigError, match=r"train\(\) runs one training"):
        train(both.base)
    assert main(["train", str(file), "--jobs", "2"]) == 2 == main(["train", str(file), "--sweep", "seed=1", "--profile"])


def test_problems_name_the_line_of_a_value_in_the_file(tmp_path: Path) -> None:
    file = write_config(tmp_path, CONFIG + "sweep:\n  values:\n    optimizer.lr:\n      - 0.1\n      - -2\n")
    with pytest.raises(ConfigErrors) as error:
        swept(file, tmp_path / "out")
    (problem,) = error.value.problems
    assert problem.line == CONFIG.count("\n") + 5 and "got -2" in problem.message


# -------------------------------------------------------------------- results


def test_results_of_a_grid(grid: SweepResult) -> None:
    names = [one.trial.name for one in grid.ordered()]
    assert sorted(names[:2]) == ["lr=0.001", "lr=0.05"] and names[2] == "lr=1e+39"
    assert grid.best is not None and grid.best.value == min(one.value for one in grid.results if one.value is not None)
    assert grid.exit_code == 1 and [one.trial.name for one in grid.failed] == ["lr=1e+39"]
    assert "step 2: the loss nan" in grid.failed[0].cause
    record = read_run(grid.folder / "lr=0.05")
    assert record.is_complete and record.config["optimizer"]["lr"] == 0.05 and [one["step"] for one in record.evaluations] == [1, 2, 3]
    state = json.loads((grid.folder / "sweep.json").read_text())
    assert [one["name"] for one in state["trials"]] == names
    rows = list(csv.DictReader((grid.folder / "sweep.csv").read_text().splitlines()))
    assert [row["optimizer.lr"] for row in rows] == [one.split("=")[1] for one in names]
    text = "\n".join([str(grid.table()), *grid.lines("run.yaml")])
    assert "failed: lr=1e+39: " in text and "jobflow eval run.yaml" in text


def test_a_repeated_sweep_keeps_complete_trials_and_repeats_others(grid: SweepResult, file: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in grid.folder.glob("*/metrics.jsonl")}
    again = swept(file, grid.folder, "optimizer.lr=0.001,0.05,1e39,0.01")
    changed = {path.parent.name for path, time_before in before.items() if path.stat().st_mtime_ns != time_before}
    assert changed <= {"lr=1e+39"} and len(again.results) == 4
    assert [one.trial.name for one in again.results][-2:] == ["lr=0.01", "lr=1e+39"]  # a failed trial is repeated last


class Goal(Callback):
    """A callback that stops the run after step 2."""

    def on_evaluation(self, run: Any, report: Any) -> None:
        if report.step == 2:
            run.stop("enough")


@pytest.mark.parametrize(
    "end, settings, callbacks",
    [
        ("callback", ["checkpoint.every_steps=1"], [Goal]),
        ("early", ["checkpoint.every_steps=1", "evaluation.early_stopping={patience: 1, min_delta: 100}"], []),
    ],
)
def test_trials_that_a_callback_stops_are_complete(
    file: Path, tmp_path: Path, end: str, settings: list[str], callbacks: list[type[Callback]]
) -> None:
    for last in ("trial lr=0.05 done: validation/loss", "1 complete trial of 1 stay unchanged"):
        lines: list[str] = []
        words = [*SHORT, f"output={tmp_path / 'out'}", sweep_setting("optimizer.lr=0.05"), *settings]
        result = run_sweep(file, words, say=lines.append, callbacks=lambda loaded: [kind() for kind in callbacks])
        assert lines[-1].startswith(last) and (result.exit_code, result.failed) == (0, [])
        assert result.best is not None and (result.best.stopped, result.best.steps) == (end, 2)
    trial = replace(result.results[0], at_step=1)  # a checkpoint of step 1 exists
    command = next(replace(result, results=[trial]).lines("run.yaml"))
    assert "its checkpoint of step 1 with: jobflow eval run.yaml" in command and command.endswith("lr=0.05/checkpoints/step-00000001")


@pytest.mark.parametrize(
    "at_step, words",
    [(3, "lr=0.001; measure it with: jobflow eval"), (2, "lr=0.001; its best value is of step 2, and its newest checkpoint is of step 3;")],
)
def test_the_suggested_command_evaluates_the_ranked_checkpoint_or_names_both_steps(grid: SweepResult, at_step: int, words: str) -> None:
    trial = next(one for one in grid.results if one.trial.name == "lr=0.001")
    assert words in next(replace(grid, results=[replace(trial, at_step=at_step)]).lines("run.yaml"))


def test_an_error_of_one_trial_does_not_end_the_others(file: Path, tmp_path: Path) -> None:
    result = swept(file, tmp_path / "out", "data.batch_size=100,8", settings=["data.drop_last=true"])
    assert [(one.trial.name, one.stopped) for one in result.results] == [("batch_size=100", "failed"), ("batch_size=8", "end")]
    assert "fewer than a batch of 100" in result.failed[0].cause


def test_an_interrupted_sweep_continues_exactly(grid: SweepResult, file: Path, tmp_path: Path) -> None:
    class Interrupt(Callback):
        observes = True

        def on_step(self, run: Any, report: Any) -> None:
            if report.step == 2 and "0.05" in run.name:
                os.kill(os.getpid(), signal.SIGTERM)

    sweep = "optimizer.lr=0.05,0.001"
    stopped = swept(file, tmp_path / "out", sweep, callbacks=lambda loaded: [Interrupt()])
    assert (stopped.exit_code, len(stopped.waiting)) == (75, 1) and stopped.results[0].is_interrupted
    assert "2 trials did not finish" in "\n".join(stopped.lines("run.yaml"))
    result = swept(file, tmp_path / "out", sweep)
    assert result.exit_code == 0
    expected = {one.trial.name: one.value for one in grid.results}
    assert {one.trial.name: one.value for one in result.results} == {name: expected[name] for name in ("lr=0.05", "lr=0.001")}


def test_damaged_states_raise(file: Path, tmp_path: Path) -> None:
    for name, text in (("sweep.json", "{}"), ("seed=1/run.json", "[1]"), ("seed=1/run.json", '{"name": 1, "config": {}}')):
        folder = tmp_path / f"{len(text)}"
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
        with pytest.raises(FileError, match=rf"{name}: this is not .*; remove the file"):
            swept(file, folder, "seed=1,2")


@pytest.mark.full
def test_two_sweeps_in_a_folder_raise(file: Path, tmp_path: Path) -> None:
    class Second(Callback):
        observes = True

        def on_start(self, run: Any) -> None:
            with pytest.raises(ConfigError, match="is in use"):
                swept(file, tmp_path / "out", "seed=1,2")

    assert swept(file, tmp_path / "out", "seed=1", callbacks=lambda loaded: [Second()]).exit_code == 0


def test_the_command_lists_trials_with_a_dry_run(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(file), "--output", str(tmp_path / "out"), "--sweep", "seed=1,2", "--sweep", "optimizer.lr=0.1,0.2"]
    assert main([*words, "--dry-run"]) == 0
    assert capfd.readouterr().out.splitlines()[1:] == [f"seed={seed},lr={lr}" for seed in (1, 2) for lr in (0.1, 0.2)]
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------- processes


@pytest.mark.full
def test_several_processes_have_the_results_of_a_sequence(grid: SweepResult, file: Path, tmp_path: Path) -> None:
    result = swept(file, tmp_path / "out", "optimizer.lr=0.001,0.05,1e39", jobs=2)
    assert {one.trial.name: (one.value, one.stopped) for one in result.results} == {one.trial.name: (one.value, one.stopped) for one in grid.results}


@pytest.mark.full
@pytest.mark.mpi
def test_two_ranks_have_the_results_of_one(grid: SweepResult, file: Path, tmp_path: Path) -> None:
    launcher = mpiexec.find()
    assert launcher is not None
    words = [word for setting in (*SHORT, f"output={tmp_path / 'out'}") for word in ("--set", setting)]
    command = [launcher, "-n", "2", sys.executable, "-m", "jobflow", "train", str(file), "--sweep", "optimizer.lr=0.001,0.05,1e39", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stdout.count("trial 3 of 3") == 1, done.stdout + done.stderr
    trials = {one["name"]: one["value"] for one in json.loads((tmp_path / "out" / "sweep.json").read_text())["trials"]}
    expected = {one.trial.name: one.value for one in grid.results}
    assert trials.pop("lr=1e+39") is None and trials == pytest.approx({name: expected[name] for name in trials})


@pytest.mark.full
def test_ctrl_c_saves_and_ends_all_processes(file: Path, tmp_path: Path) -> None:
    words = [
        f"output={tmp_path / 'out'}",
        "training.steps=1000000",
        "checkpoint.every_steps=1000000",
        "evaluation.every_epochs=100000",
        "logging.progress=plain",
    ]
    options = [word for setting in words for word in ("--set", setting)]
    command = [sys.executable, "-m", "jobflow", "train", str(file), "--sweep", "seed=1,2,3", "--jobs", "2", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        output = ""
        while not all(f"seed={i} | step " in output for i in (1, 2)):
            line = process.stdout.readline()
            assert line, output
            output += line
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130 and "3 trials did not finish" in rest
    deadline = time.monotonic() + 10
    while list(tmp_path.rglob("train.lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(list((tmp_path / "out" / f"seed={i}" / "checkpoints").glob("step-*")) for i in (1, 2)) and not list(tmp_path.rglob("train.lock"))


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna: pip install 'jobflow-sbp[optuna]'")
def test_tpe_suggests_the_same_trials_after_an_interruption(file: Path, tmp_path: Path) -> None:
    def names(output: str, trials: int) -> list[str]:
        values = "{optimizer.lr: {name: loguniform, low: 1e-3, high: 1}, data.shuffle: [true, false]}"
        sweep = f"sweep={{method: tpe, trials: {trials}, values: {values}}}"
        return [one.trial.name for one in sorted(swept(file, tmp_path / output, settings=[sweep]).results, key=lambda one: one.trial.number)]

    names("a", 4)
    assert names("a", 13) == names("b", 13)


@pytest.mark.skipif(importlib.util.find_spec("optuna") is not None, reason="optuna is installed")
def test_tpe_without_optuna_names_the_package(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"jobflow-sbp\[optuna\]"):
        swept(file, tmp_path / "out", "seed=1,2", settings=["sweep.method=tpe", "sweep.trials=2"])
