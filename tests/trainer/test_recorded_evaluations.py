"""`evaluations.jsonl`: the results of `jobflow eval` in the report, after a resume, and in comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobflow.tools.pages import fragment
from jobflow.trainer.compare_runs import comparison_table, read_runs
from jobflow.trainer.recorded_evaluations import BEGIN, END, NAME, evaluations_of, evaluations_table, forget_evaluations, record_evaluation
from jobflow.trainer.run_file import RunRecord
from jobflow.trainer.training_run import EvaluationReport


def evaluated(step: int, loss: float, of: str = "test") -> EvaluationReport:
    return EvaluationReport(step, 1, {f"{of}/loss": loss, f"{of}/accuracy": 0.5}, 0.1, 297)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run with two evaluations on the test samples, and one on others."""
    run = tmp_path / "run"
    run.mkdir()
    record_evaluation(run, evaluated(4, 1.0), run)
    assert [*run.iterdir()] == [], "the folder of no run stays unchanged"
    (run / "run.json").write_text(RunRecord("run", {}, 8, 8, "end").text())
    (run / "report.html").write_text(f"<p>a</p>{BEGIN}{END}<p>{BEGIN}b</p>")
    for report in (evaluated(8, 2.0), evaluated(4, 1.0), evaluated(8, 0.25), evaluated(8, float("nan"), "validation")):
        record_evaluation(run, report, run / "checkpoints")
    return run


def test_the_report_shows_the_latest_evaluations(folder: Path) -> None:
    assert [(one["step"], one.get("test/loss")) for one in evaluations_of(folder)] == [(4, 1.0), (8, 0.25), (8, None)]
    table, page = evaluations_table(folder), (folder / "report.html").read_text()
    assert table is not None and [[*row] for row in table.rows] == [
        ["test", "4", "297", "1", "50.0 %"],
        ["test", "8", "297", "0.25", "50.0 %"],
        ["validation", "8", "297", "-", "50.0 %"],
    ]
    assert page == f"<p>a</p>{BEGIN}{fragment('evaluations.html', evaluations=table, records=NAME)}{END}<p>{BEGIN}b</p>"


def test_comparisons_show_test_metrics(folder: Path) -> None:
    head, row = str(comparison_table(read_runs([folder]))).splitlines()
    assert "best test/loss" in head and row.split()[:3] == ["run", "0.25", "0.25"]


def test_a_run_that_starts_again_forgets_later_evaluations(folder: Path) -> None:
    forget_evaluations(folder, 4)
    assert [one["step"] for one in evaluations_of(folder)] == [4]
    forget_evaluations(folder, 0)
    assert evaluations_table(folder) is None


def test_a_folder_without_a_report_is_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "report.html").unlink()
    record_evaluation(folder, evaluated(2, 3.0), folder)
    assert evaluations_of(folder)[0]["step"] == 2 and not (folder / "report.html").exists()
    (folder / NAME).unlink()
    (folder / NAME).mkdir()
    record_evaluation(folder, evaluated(2, 3.0), folder)
    assert "evaluations.jsonl could not be written: Is a directory" in capsys.readouterr().err
