"""Descriptions of data: types, ranges and classes, and every row that cannot be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from jobflow.cli import main
from jobflow.core.errors import ArgumentError
from jobflow.data import open_reader, samples_of
from jobflow.data.describe import describe, describe_file

FLOWERS = """length;width;seen;species
5.1;3.5;2024-01-02;setosa
4.9;;2024-01-03;virginica
x;2.2;2024-01-05;setosa
6;1,5;2024-02-05;setosa
7;1
8;2;2024-02-06;virginica
9;3;soon;setosa
"""


SPECIES = {"species": ["setosa", "virginica"]}


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    (tmp_path / "flowers.csv").write_text(FLOWERS)
    return tmp_path / "flowers.csv"


def test_a_table_is_described_with_every_row_that_cannot_be_read(flowers: Path) -> None:
    described = describe_file(str(flowers))
    types = {column.name: (column.shown_type, column.missing, column.range) for column in described.columns}
    assert types["length"] == ("numbers", 0, "4.9 to 9") and types["width"][:2] == ("numbers", 1)
    assert types["seen"] == ("dates", 0, "2024-01-02 to 2024-02-06") and types["species"][0] == "texts"
    assert described.columns[3].json()["classes"] == {"setosa": 4, "virginica": 2}
    assert described.wrong == 4 and described.samples == described.read == 7
    texts = re.sub(r" \(byte \d+\)", "", "\n".join(described.problems))
    for fact in (
        "line 6 has 2 columns, but the first line has 4; correct this line",
        'line 4: column "length" is "x", which is not a number; correct the cell',
        'line 5: column "width" is "1,5", which is not a number; write decimals with a point',
        'line 8: column "seen" is "soon", which is not a date; write dates as YYYY-MM-DD',
    ):
        assert fact in texts
    arguments = {"path": str(flowers), "delimiter": ";", "fields": {"features": ["length", "width"], "labels": "species"}}
    assert described.arguments == {**arguments, "categories": ["species"], "missing": {"length": "mean", "width": "mean"}}
    assert described.first[0] == {"length": "5.1", "width": "3.5", "seen": "2024-01-02", "species": "setosa"}


def test_a_problem_is_listed_once_and_the_suggested_reader_reads_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [(f"text {i}", "unknown" if i % 10 == 3 else str(i / 2), ("Rome", "Oslo", "")[i % 3], i % 2) for i in range(30)]
    table = "review,price,city,stars\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in cells)
    (tmp_path / "t.csv").write_text(table)
    assert main(["data", str(tmp_path / "t.csv")]) == 1
    output = capsys.readouterr().out
    assert "30 different values, free text: no categories" in output and output.count("unknown") == 1
    assert "3 problems\n" in output and "or add the column to categories (3 such cells)" in output
    arguments = dict(describe_file(str(tmp_path / "t.csv")).arguments or {})
    assert arguments["categories"] == ["city"] and arguments["empty"] == {"city": "index"} and "review" not in str(arguments["fields"])
    (tmp_path / "t.csv").write_text(table.replace("unknown", ""))
    assert len(open_reader("csv", **arguments).read(np.arange(30))["labels"]) == 30


def test_files_without_column_names_and_parts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2\n3,4\n5,x\n")
    described = describe_file(str(tmp_path / "t.csv"), 2)
    assert [column.name for column in described.columns] == ["0", "1"] and described.read == 2 and described.wrong == 0


def test_parquet_arrays_images_and_texts_are_described(tmp_path: Path) -> None:
    table = arrow.table({"a": [1, 2, None, 4], "k": ["x", "y", "x", "y"], "l": [[1, 2]] * 4})
    parquet.write_table(table, tmp_path / "t.parquet")
    described = describe_file(str(tmp_path / "t.parquet"))
    assert [(c.shown_type, c.missing, c.range) for c in described.columns][:2] == [("int64", 1, "1 to 4"), ("texts", 0, "")]
    assert described.arguments == {
        "path": str(tmp_path / "t.parquet"),
        "fields": {"features": ["a"], "labels": "k"},
        "categories": ["k"],
        "missing": {"a": "mean"},
        "dtypes": {"features": "float32"},
    }
    np.savez(tmp_path / "z.npz", x=np.array([[1.0, np.nan], [3, 4]]), labels=[1, 0])
    described = describe_file(str(tmp_path / "z.npz"))
    assert [(c.missing, c.range) for c in described.columns] == [(1, "1 to 4"), (0, "0 to 1")]
    for name, count in (("cat", 2), ("dog", 3)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (50 * i, 0, 0)).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "dog" / "9.png").write_bytes(b"no image")
    described = describe_file(str(tmp_path / "photos"))
    assert described.columns[1].json()["classes"] == {"cat": 2, "dog": 3} and described.wrong == 1 and "9.png cannot be read" in described.problems[0]
    (tmp_path / "a.txt").write_text("hello world " * 30)
    assert describe_file(str(tmp_path / "a.txt")).first[0]["tokens"].startswith("'hello world hello")


def test_readers_are_described_with_all_samples_that_cannot_be_read(flowers: Path) -> None:
    samples = open_reader("csv", path=str(flowers), delimiter=";", fields={"x": ["length"], "labels": "species"}, categories=SPECIES)
    described = describe("train", "csv", samples)
    assert described.wrong == 2 and described.read == 5 and described.columns[1].json()["classes"] == {"setosa": 3, "virginica": 2}
    stream = samples_of(({"x": np.full(2, i)} for i in range(9)), what="numbers")
    described = describe("train", "python", stream, 4)
    assert described.samples is None and described.read == 4 and described.columns[0].range == "0 to 3"


def test_the_command_prints_text_or_json_and_returns_1_for_wrong_rows(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(flowers)]) == 1
    assert "4 problems\n  ! reader" in (output := capsys.readouterr().out) and '"delimiter": ";"' in output
    assert main(["data", str(flowers), "--json", "--samples", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"][0]["high"] == 5.1


def test_a_configuration_is_described_as_training_opens_it(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = flowers.parent / "run.yaml"
    reader = (
        f"{{reader: csv, path: {flowers}, delimiter: ';', fields: {{x: [length], labels: species}}, categories: {{species: [setosa, virginica]}}}}"
    )
    file.write_text(
        "model: {layers: [{dense: {units: 2}}], loss: softmax_cross_entropy}\n"
        f"data: {{train: {reader}, validation: {reader}, batch_size: 2}}\noptimizer: {{name: sgd, lr: 0.1}}\ntraining: {{steps: 1}}\n"
    )
    assert main(["data", str(file)]) == 1
    output = capsys.readouterr().out
    assert "data.train: reader csv, 7 samples, 5 of them read" in output and "data.validation" in output and "setosa 3, virginica 2" in output
    assert main(["data", str(file), "--set", "data.train.categories=[species]"]) == 1
    output = capsys.readouterr().out
    assert "data.train: reader csv" in output and "flowers.csv: reader csv, 7 samples" in output and "5 problems" not in output
    assert main(["data", str(file), "--set", "data.batch_sizes=2"]) == 2


def test_unknown_files_raise(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no file or folder none"):
        describe_file("none")
    (tmp_path / "a.pkl").write_bytes(b"")
    with pytest.raises(ArgumentError, match=r"no reader is known for .*a\.pkl; pass a file or folder of .*\.csv"):
        describe_file(str(tmp_path / "a.pkl"))
