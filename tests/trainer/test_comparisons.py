"""`jobflow compare`: the table, the JSON, and the page of several runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.cli import main
from jobflow.core.errors import FileError
from jobflow.trainer.compare_runs import RUNS, FinishedRun, changed, comparison_page, comparison_table, read_runs
from jobflow.trainer.history import Line
from jobflow.trainer.run_file import RunRecord


def write_run(folder: Path, rate: float, losses: list[float], stopped: str = "end") -> Path:
    """Write the files of a run with an evaluation after each step."""
    folder.mkdir(parents=True)
    config = {"name": folder.name, "output": str(folder), "seed": 1, "optimizer": {"name": "sgd", "lr": rate}, "logging": {"every_steps": rate}}
    evaluations = [{"step": i, "validation/loss": loss, "validation/accuracy": 1 - loss / 10} for i, loss in enumerate(losses, 1)]
    record = RunRecord(folder.name, config, len(losses), len(losses), stopped, "", 61.0, {}, evaluations)
    (folder / "run.json").write_text(record.text())
    records = [{"step": i, "epoch": 0, "train/loss": loss + 1, "rate": rate} for i, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in [*records, *evaluations]))
    return folder


def line_of(values: np.ndarray[Any, Any]) -> Line:
    line = Line()
    for step, value in enumerate(values.tolist(), 1):
        line.add(step, value)
    return line


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    write_run(tmp_path / "sweep" / "lr=0.1", 0.1, [3.0, 1.0, 2.0])
    write_run(tmp_path / "sweep" / "lr=0.2", 0.2, [4.0, 0.0, -1.0], "nan")
    return tmp_path / "sweep"


def charts_of(page: str) -> dict[str, dict[str, Any]]:
    """Return the curves in a page by chart and run."""
    tree = json.loads(page.partition('<script type="application/json">')[2].partition("</script>")[0])
    return {chart["title"]: {one["name"]: one for one in chart["series"]} for chart in tree["charts"]}


def test_the_table_has_changed_keys_and_best_and_last_metrics(sweep: Path) -> None:
    runs = read_runs([sweep, sweep / "lr=0.1"])  # the same run once
    assert changed(runs) == ["optimizer.lr"]
    assert [line.split() for line in str(comparison_table(runs)).splitlines()[1:]] == [
        ["lr=0.1", "0.1", "1", "2", "90.0", "%", "80.0", "%", "3", "1:01", "min", "done"],
        ["lr=0.2", "0.2", "-1", "-1", "1.1", "1.1", "3", "1:01", "min", "not", "finite"],
    ]


def test_runs_without_one_of_their_files_are_compared(sweep: Path) -> None:
    (sweep / "lr=0.1" / "run.json").unlink()
    (sweep / "lr=0.2" / "metrics.jsonl").unlink()
    one, two = read_runs([sweep / "lr=0.1", sweep / "lr=0.2"])
    assert one.record is None and one.lines["validation/loss"].values.tolist() == [3.0, 1.0, 2.0]
    assert two.lines["validation/loss"].values.tolist() == [4.0, 0.0, -1.0] and "loss" not in two.lines
    assert changed([one, two]) == []
    assert str(comparison_table([one, two])).splitlines()[1].split()[-2:] == ["-", "-"]


def test_the_page_has_all_curves_and_needs_no_other_file(sweep: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>&"
    runs = read_runs([sweep, write_run(sweep.parent / "other" / name.replace("/", "_"), 0.3, [1.0])])
    page = comparison_page(runs)
    charts = charts_of(page)
    assert [*charts] == ["validation loss", "validation accuracy", "loss", "learning rate"]
    assert charts["validation loss"]["sweep/lr=0.1"]["x"] == [1, 2, 3] and charts["validation loss"]["sweep/lr=0.1"]["y"] == [3, 1, 2]
    assert [*charts["loss"]][2].endswith("<_script><img src=x onerror=alert(1)>&") and len({one["colour"] for one in charts["loss"].values()}) == 3
    assert "<img" not in page and "&lt;img" in page and page.count("<svg") == 4 and page.count("</script>") == 3
    assert {link for link in re.findall(r'\b(?:src|href)="([^"]*)"', page) if not re.fullmatch(r"#m\w+", link)} == {"#curves", "#runs"}


def test_epoch_means_are_charts_and_no_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0.1, [1.0])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 1, "train_epoch/loss": 1.5}\n')
    runs = read_runs([run])
    assert "train_epoch" not in str(comparison_table(runs)) and "epoch mean loss" in charts_of(comparison_page(runs))


def test_many_runs_have_small_curves_and_no_static_copies(tmp_path: Path) -> None:
    runs = [FinishedRun(str(i), tmp_path, None, {"loss": line_of(np.arange(1000.0))}) for i in range(RUNS)]
    page = comparison_page(runs)
    assert "<svg" not in page and len(page) < 8_000_000
    assert {len(one["x"]) for one in charts_of(page)["loss"].values()} <= {*range(300, 401)}


def test_folders_without_runs_raise(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "bad", 0.1, [1.0])
    (tmp_path / "bad" / "run.json").write_text("[" * 300)
    for folder, words in (("missing", "is not a folder"), ("empty", "contains no run"), ("bad", "is not the record of a run")):
        with pytest.raises(FileError, match=words):
            read_runs([tmp_path / folder])
    many = tmp_path / "many"
    for i in range(RUNS + 1):
        (many / str(i)).mkdir(parents=True)
        (many / str(i) / "run.json").touch()
    with pytest.raises(FileError, match="501 runs, more than 500; pass fewer"):
        read_runs([many])


def test_the_command(sweep: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = sweep.parent / "pages" / "rates.html"
    assert main(["compare", str(sweep), "--html", str(page)]) == 0 and page.is_file()
    assert "lr=0.1" in capfd.readouterr().out
    assert main(["compare", str(sweep), "--json"]) == 0
    first, _ = json.loads(capfd.readouterr().out)
    assert first["changed"] == {"optimizer.lr": 0.1} and first["metrics"]["validation/loss"] == {"best": 1.0, "last": 2.0}
    assert main(["compare", str(sweep / "lr=0.3")]) == 1
    assert main(["compare", str(sweep), "--html", str(sweep)]) == 1
    assert "cannot be written" in capfd.readouterr().err
