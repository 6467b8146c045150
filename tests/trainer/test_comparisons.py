"""`jobflow compare`: the table, the JSON, and the page of several runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jobflow.cli import main
from jobflow.core.errors import FileError
from jobflow.trainer.compare_runs import RUNS, changed, comparison_page, comparison_table, read_runs
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


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    write_run(tmp_path / "sweep" / "lr=0.1", 0.1, [3.0, 1.0, 2.0])
    write_run(tmp_path / "sweep" / "lr=0.2", 0.2, [4.0, 0.0, -1.0], "nan")
    return tmp_path / "sweep"


def page_data(page: str) -> Any:
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


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
    name = "</script><img src=x>&"
    runs = read_runs([sweep, write_run(sweep.parent / "other" / name.replace("/", "_"), 0.3, [1.0])])
    page = comparison_page(runs)
    data = page_data(page)
    assert data["metrics"][:2] == ["validation/loss", "validation/accuracy"] and {"loss", "learning rate"} <= set(data["metrics"])
    assert data["runs"][0]["curves"]["validation/loss"] == [[1, 2, 3], [3, 1, 2]]
    assert data["runs"][2]["name"].endswith("<_script><img src=x>&")
    assert "<img" not in page and "&lt;img" in page
    assert set(re.findall(r"https?://[^\s\"'<]*", page)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r'\b(?:src|href)="([^"]*)"', page)) == {"#curves", "#runs"}


def test_long_curves_are_averaged(tmp_path: Path) -> None:
    (curve,) = page_data(comparison_page(read_runs([write_run(tmp_path / "long", 0.1, [1.0] * 5000)])))["runs"]
    steps, values = curve["curves"]["validation/loss"]
    assert len(steps) == len(values) == 1000 and steps[:2] == [3, 8] and set(values) == {1}


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
