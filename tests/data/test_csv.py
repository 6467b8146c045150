"""Tables: quotes, categories, what is missing; and which row of which file is wrong."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import Samples, csv_table, open_reader
from jobflow.data.csv_table import CsvTable

FLOWERS = """length,width, species
5.1,3.5,setosa
4.9,,virginica

6.2,2.2,"versi
color"
5.0,1e-1,setosa
"""


def table(path: Path, text: str, **arguments: Any) -> Samples:
    path.write_bytes(text.encode())
    samples = open_reader("csv", path=str(path), **arguments)
    assert isinstance(samples, Samples)
    return samples


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_columns_are_fields(tmp_path: Path, ends: str, last: bool) -> None:
    text = FLOWERS.replace("\n", ends) if last else FLOWERS.replace("\n", ends).rstrip()
    fields = {"x": ["length", "width"], "y": "species", "first": ["length"]}
    samples = table(tmp_path / "t.csv", "\ufeff" + text, fields=fields, categories=["species"], missing=-1.0)
    assert {name: str(field) for name, field in samples.fields.items()} == {"x": "float32[2]", "y": "int32[]", "first": "float32[1]"}
    rows = samples.read([3, 0, 1, 2])
    np.testing.assert_allclose(rows["x"], [[5.0, 0.1], [5.1, 3.5], [4.9, -1], [6.2, 2.2]])
    assert samples.facts == {"categories": {"species": ["setosa", f"versi{ends}color", "virginica"]}}
    assert rows["y"].tolist() == [0, 0, 2, 1] and rows["first"].shape == (4, 1) and rows["y"].dtype == np.int32


def test_categories_of_one_table_read_another(tmp_path: Path) -> None:
    options = {"fields": {"x": "a"}}
    facts = json.loads(json.dumps(table(tmp_path / "a.csv", "a\nred\ngreen\n", categories=["a"], **options).facts))
    other = open_reader("csv", facts, path=str(tmp_path / "a.csv"), **options)
    assert isinstance(other, Samples) and other.read([0, 1])["x"].tolist() == [1, 0]
    (tmp_path / "a.csv").write_text("a\nred\ngren\n")
    other = open_reader("csv", facts, path=str(tmp_path / "a.csv"), **options)
    assert isinstance(other, Samples)
    with pytest.raises(DataError, match=r'line 3 \(byte 6\): column "a" is "gren", which is not one of its 2 categories; did you mean "green"'):
        other.read([0, 1])


def test_integers_and_other_separators(tmp_path: Path) -> None:
    samples = table(tmp_path / "t", "7;12345678901\n-3;0\n", fields={"id": "1", "y": ["0"]}, dtypes={"id": "int64"}, delimiter=";", header=False)
    assert samples.read([0, 1])["id"].tolist() == [12345678901, 0] and samples.read([1])["y"].tolist() == [[-3]]


@pytest.mark.parametrize(
    ("text", "arguments", "kind", "message"),
    [
        ("a,b\n1,2\n", {"fields": {"x": "c"}}, ArgumentError, r'field "x": column "c" does not exist. There are a, b'),
        ("age,b\n1,2\n", {"fields": {"x": "aeg"}}, ArgumentError, r'column "aeg" does not exist; did you mean "age"\?'),
        ("a,b\n1,2\n", {"fields": {"x": []}}, ArgumentError, 'field "x" has no columns'),
        ("a,b\n1,2\n", {"fields": {"x": ["a", "b"]}, "categories": ["b"]}, ArgumentError, "define two fields"),
        ("a,b\n1,2\n", {"fields": {"x": "a"}, "categories": ["d"]}, ArgumentError, 'categories: column "d" does not exist'),
        ("a,b\n1,2\n", {"fields": {"x": "a"}, "dtypes": {"y": "int32"}}, ArgumentError, 'dtypes: field "y" does not exist'),
        ("a,a\n1,2\n", {"fields": {"x": "a"}}, DataError, "two columns have the same name"),
        ("a,b\n", {"fields": {"x": "a"}}, DataError, "is the only line, and is read as column names"),
        ("", {"fields": {"x": "a"}}, DataError, "the file is empty"),
        ("a,b\n1,2\n3\n", {"fields": {"x": "a"}}, DataError, r"line 3 \(byte 8\) has 1 columns, but the first line has 2"),
        (
            "a,b\n1,2\n3,x\n",
            {"fields": {"x": "b"}},
            DataError,
            r'line 3 \(byte 8\): column "b" is "x", which is not a number; correct the cell, leave it empty and set missing',
        ),
        ("a\n1.5\n", {"fields": {"x": "a"}, "dtypes": {"x": "int32"}}, DataError, 'column "a" is "1.5", which is not a whole number'),
        ("a\n5000000000\n", {"fields": {"x": "a"}, "dtypes": {"x": "int32"}}, DataError, "set another element type with dtypes"),
        ("a,b\n1,\n", {"fields": {"x": "b"}}, DataError, 'column "b" is empty; set missing'),
        ('a\n"1\n', {"fields": {"x": "a"}}, DataError, r"line 2 \(byte 2\): a quote opens a cell here and is not closed"),
    ],
)
def test_wrong_tables_raise(tmp_path: Path, text: str, arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        samples = table(tmp_path / "t.csv", text, **arguments)
        samples.read(np.arange(len(samples)))


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a\n1\n\xff\n")
    samples = CsvTable(str(tmp_path / "t.csv"), {"x": "a"})
    with pytest.raises(DataError, match=r"line 3 \(byte 4\) is not valid UTF-8: 'utf-8' codec"):
        samples.read([1])
    with pytest.raises(DataError, match=r"there is no file .*none.csv"):
        open_reader("csv", path=str(tmp_path / "none.csv"), fields={"x": "a"})


CELLS = st.text(st.sampled_from('ab",\n1 '), max_size=5)


@settings(max_examples=60)
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12), st.integers(1, 7))
def test_rows_are_read_with_any_quoting(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], block: int) -> None:
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("one", "other"), *rows])
    path = tmp_path_factory.getbasetemp() / "quoted.csv"
    path.write_text(written.getvalue())
    before, csv_table.BLOCK = csv_table.BLOCK, block
    try:
        samples = CsvTable(str(path), {"x": "one", "y": "other"}, categories=["one", "other"], empty="index")
    finally:
        csv_table.BLOCK = before
    columns = samples.read(np.arange(len(rows)))
    for name, column, at in (("x", "one", 0), ("y", "other", 1)):
        texts = [*samples.categories[column], ""]
        assert [texts[i] for i in columns[name]] == [row[at].strip() for row in rows]
