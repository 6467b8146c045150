"""Metrics over a set: values, ranks, resuming, files, reports and errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metric_samples import SAMPLES, samples, write
from short_runs import Recorder, loaded, run, write_config

from jobflow.core.errors import CheckpointError, ConfigError, JobflowError
from jobflow.storage import store
from jobflow.trainer.config import load
from jobflow.trainer.evaluate import evaluate
from jobflow.trainer.training_run import EvaluationReport, TrainingRun

SCORED = """
model: {builder: 'nets_to_train:scored'}
data: {train: {reader: numpy, path: FILE}, validation: {reader: numpy, path: FILE}, batch_size: 8}
optimizer: {name: sgd, lr: 1.0e-30}
training: {epochs: 1}
metrics: METRICS
logging: {progress: none, report: false}
"""
#: task -> metrics, and their values by scikit-learn 1.9 (functions in the docstrings of the metrics)
TASKS: dict[str, tuple[str, dict[str, float], list[list[int]]]] = {
    "classes": (
        "[accuracy, {top_k: {k: 2}}, f1, {f1: {average: micro, name: micro}}, {f1: {average: weighted, name: weighted}}, auc, perplexity, "
        "{auc: {bins: 100000, name: fine}}, confusion_matrix, 'own_metrics:Hits', "
        "{own: {builder: 'own_metrics:Hits', arguments: {factor: 2.0}, name: twice}}]",
        {
            "accuracy": 0.5135135135135135, "top_2": 0.6486486486486487, "f1": 0.4427637721755368, "micro": 0.5135135135135135,
            "weighted": 0.5091225679460973, "auc": 0.6193796752417442, "fine": 0.6193796752417442, "perplexity": 4.463237419750178,
            "hits": 0.5135135135135135, "twice": 1.027027027027027,
        },
        [[6, 1, 1, 0, 0], [0, 5, 2, 1, 1], [0, 1, 6, 0, 1], [3, 1, 1, 2, 3], [0, 1, 0, 1, 0]],
    ),
    "binary": (
        "[accuracy, {f1: {average: binary}}, {f1: {average: binary, positive: 0, name: negative}}, auc, {auc: {bins: 4, name: binned}}, perplexity, "
        "confusion_matrix]",
        {
            "accuracy": 0.7027027027027027, "f1": 0.6666666666666666, "negative": 0.7317073170731707, "auc": 0.8567251461988304,
            "binned": 0.834795321637427, "perplexity": 1.6731213566090435,
        },
        [[15, 3], [8, 11]],
    ),
    "numbers": ("[mae, rmse, r2]", {"mae": 3.059522636889203, "rmse": 3.229433164614486, "r2": -6.837780211573586}, []),
}  # fmt: skip


class Epochs(Recorder):
    """A recorder of the means and metrics of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, EvaluationReport] = {}

    def on_epoch(self, run: TrainingRun, report: EvaluationReport) -> None:
        self.epochs[report.epoch] = report


def scored(folder: Path, task: str, *settings: str, metrics: str = "") -> Any:
    file = folder / f"{task}.yaml"
    file.write_text(SCORED.replace("FILE", str(write(folder, task))).replace("METRICS", metrics or TASKS[task][0]))
    return load(file, (f"output={folder / 'out'}", *settings))


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("classes", ("strategy.devices=2", "data.evaluation_batch_size=37")),
        ("binary", ()),
        ("numbers", ()),
        pytest.param("classes", ("data.batch_size=10",), marks=pytest.mark.full),
        pytest.param(
            "classes", ("strategy.devices=3", "strategy.view=mirrored", "data.batch_size=12", "strategy.accumulation=2"), marks=pytest.mark.full
        ),
        pytest.param("numbers", ("strategy.devices=2", "data.batch_size=5"), marks=pytest.mark.full),
        pytest.param("binary", ("strategy.devices=2", "strategy.view=mirrored"), marks=pytest.mark.full),
        pytest.param("classes", ("strategy.devices=4", "strategy.data=2", "strategy.tensor=2"), marks=pytest.mark.full),
    ],
)
def test_metrics_equal_scikit_learn_on_any_ranks_and_batches(task: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    epochs = Epochs()
    outcome, recorder = run(scored(tmp_path, task, *settings), epochs)
    (validation,) = recorder.evaluations.values()
    assert validation.samples == epochs.epochs[0].samples == SAMPLES
    for prefix, report in {"validation": validation, "train_epoch": epochs.epochs[0]}.items():
        for name, value in TASKS[task][1].items():
            np.testing.assert_allclose(report.metrics[f"{prefix}/{name}"], value, rtol=2e-6, err_msg=name)
            assert outcome.metrics[f"{prefix}/{name}"] == report.metrics[f"{prefix}/{name}"]
        if TASKS[task][2]:
            assert report.tables[f"{prefix}/confusion_matrix"].tolist() == TASKS[task][2]
        assert f"{prefix}/scores" not in report.metrics  # scores are not averaged if a metric uses them


def evaluated(folder: Path, arrays: dict[str, Any], metrics: str, *settings: str) -> EvaluationReport:
    """Return the evaluation of a model whose scores are `x`."""
    folder.mkdir()
    np.savez(folder / "set.npz", **arrays)
    (folder / "run.yaml").write_text(SCORED.replace("FILE", str(folder / "set.npz")).replace("METRICS", metrics))
    _, recorder = run(load(folder / "run.yaml", (f"output={folder / 'out'}", "training={steps: 1, epochs: null}", *settings)))
    return next(iter(recorder.evaluations.values()))


def test_ignored_labels_are_not_counted(tmp_path: Path) -> None:
    """The values are those of the set without the samples of this label."""
    plain = ("accuracy", "f1", "perplexity", "confusion_matrix")
    others = ("top_k: {k: 2, ignore: -100}", "auc: {bins: 1000, ignore: -100}", "auc: {ignore: -100, name: exact}")
    kinds = [*(f"{name}: {{ignore: -100}}" for name in plain), *others]
    metrics = f"[{', '.join(f'{{{kind}}}' for kind in kinds)}]"
    arrays = samples("classes")
    ignored = (np.arange(SAMPLES) % 3 == 1) | (np.arange(SAMPLES) >= SAMPLES - 8)  # the last batch has no other label
    settings = ("strategy.devices=2", "data.evaluation_batch_size=8")
    marked = evaluated(tmp_path / "all", arrays | {"labels": np.where(ignored, -100, arrays["labels"]).astype(np.int32)}, metrics, *settings)
    rest = evaluated(tmp_path / "rest", {name: array[~ignored] for name, array in arrays.items()}, metrics)
    assert marked.tables["validation/confusion_matrix"].tolist() == rest.tables["validation/confusion_matrix"].tolist()
    for name in ("accuracy", "top_2", "f1", "auc", "exact", "perplexity"):
        assert marked.metrics[f"validation/{name}"] == pytest.approx(rest.metrics[f"validation/{name}"], rel=1e-6), name


@pytest.mark.parametrize("scores", [1, 2])
def test_a_threshold_replaces_the_larger_score_of_two_classes(scores: int, tmp_path: Path) -> None:
    arrays = samples("binary")
    predicted = 1 / (1 + np.exp(-arrays["x"][:, 0])) > 0.7
    x = arrays["x"] if scores == 1 else np.concatenate([np.ones_like(arrays["x"]), arrays["x"] + 1], 1)
    metrics = (
        "[{accuracy: {threshold: 0.7}}, {f1: {average: binary, threshold: 0.7}}, {confusion_matrix: {threshold: 0.7}}, {accuracy: {name: half}}]"
    )
    report = evaluated(tmp_path / "set", {"x": x, "labels": arrays["labels"]}, metrics)
    right = arrays["labels"] == predicted
    hits = int((right & predicted).sum())
    assert report.metrics["validation/accuracy"] == pytest.approx(right.mean()) != report.metrics["validation/half"]
    assert report.metrics["validation/f1"] == pytest.approx(2 * hits / (predicted.sum() + arrays["labels"].sum()))
    assert report.tables["validation/confusion_matrix"][1].tolist() == [arrays["labels"].sum() - hits, hits]


METRICS = "metrics=[f1, auc, {auc: {bins: 50, name: binned}}, confusion_matrix, perplexity, 'own_metrics:Hits', 'own_metrics:Mean']"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    write_config(directory)
    return directory


@pytest.fixture(scope="module")
def whole(folder: Path) -> Epochs:
    epochs = Epochs()
    _, recorder = run(loaded(folder / "run.yaml", folder / "whole", METRICS, "training.steps=8"), epochs)
    epochs.evaluations |= recorder.evaluations
    return epochs


def test_resuming_in_an_epoch_repeats_the_metrics_of_an_uninterrupted_run(folder: Path, whole: Epochs, tmp_path: Path) -> None:
    epochs = Epochs()
    run(loaded(folder / "run.yaml", tmp_path, METRICS, "training.steps=8"), epochs, resume=str(folder / "whole" / "checkpoints" / "step-00000006"))
    assert epochs.epochs.keys() == {1}
    assert epochs.epochs[1].metrics == whole.epochs[1].metrics and epochs.epochs[1].samples == 26
    assert epochs.epochs[1].tables["train_epoch/confusion_matrix"].tolist() == whole.epochs[1].tables["train_epoch/confusion_matrix"].tolist()


@pytest.mark.full
def test_resuming_with_another_metric_omits_it_in_the_interrupted_epoch(folder: Path, whole: Epochs, tmp_path: Path) -> None:
    run(loaded(folder / "run.yaml", tmp_path, "metrics=[f1]", "training.steps=6"))
    epochs = Epochs()
    run(loaded(folder / "run.yaml", tmp_path, "metrics=[f1, accuracy, perplexity]", "training.steps=8"), epochs)
    names = epochs.epochs[1].metrics.keys()
    assert "train_epoch/f1" in names and "train_epoch/perplexity" not in names


@pytest.mark.full
def test_a_damaged_state_in_a_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    config = loaded(folder / "run.yaml", tmp_path, METRICS, "training.steps=2")
    run(config)
    checkpoint = store.load(tmp_path / "checkpoints" / "step-00000002")
    for number, dtype in enumerate(("|O", "<M8[s]", "<f4,<f4")):
        extra = json.loads(json.dumps(dict(checkpoint.extra)))
        extra["trainer"]["totals"]["metrics"]["auc"][1]["scores"]["dtype"] = dtype
        damaged = tmp_path / f"damaged{number}"
        store.save(damaged, {name: checkpoint[name] for name in checkpoint}, extra)
        with pytest.raises(CheckpointError, match="metrics of the epoch are damaged"):
            run(loaded(folder / "run.yaml", tmp_path / "again", METRICS), resume=str(damaged))


@pytest.mark.full
def test_early_stopping_and_best_checkpoint_use_a_metric_over_the_set(folder: Path, tmp_path: Path) -> None:
    settings = [f"evaluation.early_stopping={{metric: validation/f1, mode: max, patience: {1}}}", "checkpoint.best_metric=validation/f1"]
    outcome, _ = run(loaded(folder / "run.yaml", tmp_path, METRICS, *settings, "checkpoint.keep_best=1"))
    assert outcome.stopped == "early" and "validation/f1 did not improve" in outcome.message


def test_files_and_an_evaluation_contain_the_metrics(folder: Path, whole: Epochs) -> None:
    output, last = folder / "whole", whole.evaluations[8]
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    epoch, validation = lines[-2:]
    assert epoch["train_epoch/f1"] == whole.epochs[1].metrics["train_epoch/f1"] and np.sum(epoch["train_epoch/confusion_matrix"]) == 26
    assert validation["validation/hits"] == last.metrics["validation/hits"]
    rows = list(csv.DictReader((output / "metrics.csv").read_text().splitlines()))
    assert float(rows[-1]["validation/auc"]) == last.metrics["validation/auc"] and "validation/confusion_matrix" not in rows[-1]
    report = evaluate(loaded(folder / "run.yaml", output, METRICS, "training.steps=8"), place="validation")
    assert report.metrics == last.metrics
    assert report.tables["validation/confusion_matrix"].tolist() == last.tables["validation/confusion_matrix"].tolist()


@pytest.mark.full
def test_the_report_shows_confusion_matrices(folder: Path, tmp_path: Path) -> None:
    run(loaded(folder / "run.yaml", tmp_path, METRICS, "training.steps=4", "logging.report=true"))
    page = (tmp_path / "report.html").read_text()
    assert page.count('<table class="matrix">') == 2 and "validation confusion_matrix" in page


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ("[acuracy]", 'unknown key "acuracy" in metrics.0; did you mean "accuracy"'),
        ("[f1_score]", 'did you mean "f1"'),
        ("[{top_k: {}}]", 'metrics.0.top_k needs the key "k"'),
        ("[{top_k: {k: 9}}]", "metric top_9: k is 9, and there are 4 classes"),
        ("[{accuracy: {threshold: 0.6}}]", "threshold 0.6 needs 2 classes, and there are 4; omit it"),
        ("[{f1: {average: binary}}]", "average binary needs 2 classes, and there are 4"),
        ("[f1, f1]", 'metrics.0 and metrics.1 have the same name "f1"'),
        ("[{f1: {}, auc: {}}]", "one metric, such as f1: {average: macro}; got f1 and auc"),
        ("['own_metrics:Hit']", 'did you mean "Hits"'),
        ("['own_metrics:Unfinished']", "own_metrics:Unfinished has no compute()"),
        ("[{'own_metrics:Hits': {factor: 2.0}}]", 'write own: {builder: "own_metrics:Hits"'),
        ("[{own: {builder: 'own_metrics:Hits', arguments: {factr: 1.0}}}]", 'takes no argument "factr"'),
        ("['own_metrics:Failing']", "own_metrics:Failing.update at own_metrics.py:5"),
        ("['own_metrics:Text']", "compute() returned 'good' of type str; return one number"),
        ("['own_metrics:Named']", "state name is 'x' of type str"),
        ("[{accuracy: {labels: label}}]", 'neither the model nor the samples have "label"; did you mean "labels"'),
        ("[{accuracy: {scores: score}}]", 'needs the output "score", and the list of layers returned loss, accuracy, scores'),
        ("[mae]", '"scores" is float32[8,4] and "labels" is int32[8]'),
        ("[{auc: {limit: 10}}]", "more than 10; count them in intervals"),
    ],
)
def test_wrong_metrics_are_refused(metrics: str, problem: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(JobflowError) as caught:
        run(loaded(folder / "run.yaml", tmp_path, f"metrics={metrics}", "training.steps=1"))
    assert problem in str(caught.value) and "metrics" in str(caught.value)


def test_a_label_that_is_not_a_class_names_the_sample(tmp_path: Path) -> None:
    config = scored(tmp_path, "classes", metrics="[accuracy]")
    arrays = dict(np.load(tmp_path / "classes.npz"))
    arrays["labels"][20] = 7
    np.savez(tmp_path / "classes.npz", **arrays)
    with pytest.raises(JobflowError, match=r"metric accuracy: label 7 is not one of the 5 classes.*This is reader .* sample 20"):
        run(config)


def test_early_stopping_refuses_a_metric_that_is_not_configured(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='no metric "validation/f2"; did you mean "validation/f1"'):
        run(loaded(folder / "run.yaml", tmp_path, "metrics=[f1]", "evaluation.early_stopping={metric: validation/f2, patience: 1}"))


@pytest.mark.full
def test_metrics_do_not_change_the_losses(folder: Path, whole: Epochs, tmp_path: Path) -> None:
    _, plain = run(loaded(folder / "run.yaml", tmp_path, "training.steps=8"))
    _, measured = run(loaded(folder / "run.yaml", tmp_path / "measured", METRICS, "training.steps=8"))
    assert plain.losses == measured.losses
