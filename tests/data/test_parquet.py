"""Parquet files: every kind of column, only the row groups that are needed, and which row of which file is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as files
import pytest

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import Batches, Order, Samples, open_reader, parquet

ROWS = 20


def columns() -> dict[str, Any]:
    words = ["red", "green", " red", "blue"] * (ROWS // 4)
    return {
        "a": np.arange(ROWS),
        "b": np.arange(ROWS) / 2,
        "colour": words,
        "coded": arrow.array(words).dictionary_encode(),
        "pair": [[i, i + 0.5] for i in range(ROWS)],
        "square": [[[i, 1], [2, 3]] for i in range(ROWS)],
        "fixed": arrow.array([[i] * 3 for i in range(ROWS)], arrow.list_(arrow.int32(), 3)),
        "flag": np.arange(ROWS) % 3 == 0,
        "holes": arrow.array([None if i % 5 == 4 else i for i in range(ROWS)]),
        "small": np.arange(ROWS).astype(np.uint16),
        "ragged": [[1] * (2 - (i == 3)) for i in range(ROWS)],
        "text": ["x" if i < 9 else None for i in range(ROWS)],
        "moment": arrow.array([0] * ROWS, arrow.timestamp("s")),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in two files, of row groups of 6, 6 and 2, and of 6."""
    directory = tmp_path_factory.mktemp("parquet")
    table = arrow.table(columns())
    for name, part in (("part-0", table.slice(0, 14)), ("sub/part-1", table.slice(14))):
        (directory / name).parent.mkdir(exist_ok=True)
        files.write_table(part, directory / f"{name}.parquet", row_group_size=6)
    return directory


def opened(path: Path, **arguments: Any) -> Samples:
    samples = open_reader("parquet", path=str(path), **arguments)
    assert isinstance(samples, Samples)
    return samples


def test_columns_of_all_kinds(folder: Path) -> None:
    fields: dict[str, Any] = {name: name for name in ("colour", "coded", "pair", "square", "fixed", "flag", "holes", "small")}
    options = {"categories": ["colour", "coded"], "missing": -1, "dtypes": {"small": "int32", "half": "bfloat16"}}
    samples = opened(folder, fields={**fields, "x": ["a", "b"], "half": "b"}, **options)
    kinds = "int32[] int32[] float64[2] int64[2,2] int32[3] bool[] int64[] int32[] float64[2] bfloat16[]"
    assert [str(field) for field in samples.fields.values()] == kinds.split() and len(samples) == ROWS
    rows = np.array([19, 3, 3, 13, 14, 9])
    columns = samples.read(rows)
    assert columns["x"].tolist() == [[i, i / 2] for i in rows] and columns["half"].astype(float).tolist() == (rows / 2).tolist()
    assert columns["pair"].tolist() == [[i, i + 0.5] for i in rows] and columns["square"].tolist() == [[[i, 1], [2, 3]] for i in rows]
    assert columns["fixed"].tolist() == [[i] * 3 for i in rows] and columns["flag"].tolist() == (rows % 3 == 0).tolist()
    assert columns["holes"].tolist() == [-1 if i % 5 == 4 else i for i in rows] and columns["small"].tolist() == rows.tolist()
    places = [[2, 1, 2, 0][i % 4] for i in rows]
    assert columns["colour"].tolist() == columns["coded"].tolist() == places
    facts = json.loads(json.dumps(samples.facts))
    assert facts == {"categories": {name: ["blue", "green", "red"] for name in ("colour", "coded")}}
    other = open_reader("parquet", facts, path=str(folder / "part-0.parquet"), fields={"y": "colour"}, split="validation")
    assert isinstance(other, Samples) and other.read([0, 1])["y"].tolist() == [2, 2] and samples.read([])["pair"].shape == (0, 2)


def test_only_the_row_groups_that_are_needed_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, int, str]] = []
    pieces = parquet.Parquet._pieces

    def noted(self: parquet.Parquet, group: parquet.Group, name: str, rows: int) -> Any:
        read.append((group.path.stem, group.index, name))
        return pieces(self, group, name, rows)

    monkeypatch.setattr(parquet.Parquet, "_pieces", noted)
    samples = opened(folder, fields={"x": "a", "y": "b"})
    assert read == []
    assert samples.read([13, 2, 15], fields=["x"])["x"].tolist() == [13, 2, 15] and samples.read([1])["y"].tolist() == [0.5]
    assert read == [("part-0", 0, "a"), ("part-0", 2, "a"), ("part-1", 0, "a"), ("part-0", 0, "b")], "each once"
    with Batches(samples, Order(0, ROWS, shuffle=False), 10, prefetch=0, sharded=True).start((0, 10)) as reading:
        read.clear()
        assert next(reading).arguments["y"][:2].tolist() == [5, 5.5] and read == [("part-0", 1, "b")], "a rank's part of a batch"
    forgetful = opened(folder, fields={"x": "a"}, memory=0)
    read.clear()
    assert [forgetful.read([1])["x"].tolist() for _ in range(2)] == [[1], [1]] and len(read) == 2


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"fields": {"x": "aa"}}, ArgumentError, r'field "x": column "aa" does not exist; did you mean "a"\?'),
        ({"fields": {"x": "a"}, "categories": ["hue"]}, ArgumentError, 'categories: column "hue" does not exist'),
        ({"fields": {"x": "colour"}}, ArgumentError, 'column "colour" contains string; add it to categories'),
        ({"fields": {"x": "moment"}}, DataError, 'column "moment" contains timestamp.*, which tensors do not support'),
        ({"fields": {"x": "small"}}, DataError, "tensors do not support uint16; convert it with dtypes"),
        ({"fields": {"x": ["pair", "a"]}}, ArgumentError, "must be a separate field"),
        ({"fields": {"x": "a"}, "memory": -1}, ArgumentError, "memory must be .*, not -1"),
        ({"fields": {"x": "holes"}}, DataError, r'part-0.parquet: row 4: column "holes" is empty; set missing.*; it is sample 4'),
        ({"fields": {"x": "holes"}, "missing": 0.5}, DataError, "cannot represent the replacement 0.5 in missing"),
        (
            {"fields": {"x": "b"}, "dtypes": {"x": "int32"}},
            DataError,
            'row 1: column "b" is 0.5, which is not a whole number, as int32 requires; set another',
        ),
        ({"fields": {"x": "ragged"}}, DataError, r'row 3: column "ragged" is \[1\], and not \[2\] numbers of the type int64, as in the first row'),
        (
            {"fields": {"x": "colour"}, "categories": {"colour": ["red", "blues"]}},
            DataError,
            'row 1: column "colour" is "green", which is not one',
        ),
        ({"fields": {"x": "text"}, "categories": ["text"], "split": "validation", "validation_every": 9}, DataError, 'row 9: column "text" is empty'),
    ],
)
def test_wrong_tables_raise(folder: Path, arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        samples = opened(folder, **arguments)
        samples.read(np.arange(len(samples)))


def test_a_wrong_row_does_not_affect_other_rows(folder: Path) -> None:
    assert opened(folder, fields={"x": "holes", "y": "ragged"}).read([5, 2])["x"].tolist() == [5, 2]


def test_files_that_are_none(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (folder / "part-0.parquet").read_bytes()
    path = tmp_path / "t.parquet"
    for content in (whole[:-9], whole[: len(whole) // 2], b"PAR1", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"t\.parquet is not a complete Parquet file"):
            opened(path, fields={"x": "a"})
    path.write_bytes(whole[:60] + bytes(60) + whole[120:])
    with pytest.raises(DataError, match=r't.parquet: row group 0, column "a" cannot be read'):
        opened(path, fields={"x": "a"}).read([0])
    files.write_table(arrow.table({"a": ["x"]}), path)
    (tmp_path / "a.parquet").write_bytes(whole)
    with pytest.raises(DataError, match=r't.parquet: column "a" is string, but int64 in .*a.parquet'):
        opened(tmp_path, fields={"x": "a"}).read([ROWS - 6])
    monkeypatch.setenv("JOBFLOW_MAX_UNPACKED", "1M")
    files.write_table(arrow.table({"a": np.zeros(200_000)}), path)
    with pytest.raises(DataError, match=r'row group 0, column "a" has 1,600,000 bytes.*JOBFLOW_MAX_UNPACKED'):
        opened(path, fields={"x": "a"}).read([0])
    files.write_table(arrow.table({"a": np.zeros(0)}), path)
    (tmp_path / "empty").mkdir()
    for wrong, message in ((path, "are no rows"), (tmp_path / "none", "is no file or folder"), (tmp_path / "empty", r"matches '\*\.parquet'")):
        with pytest.raises(DataError, match=message):
            opened(wrong, fields={"x": "a"})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r'reader "parquet" needs pyarrow: pip install "jobflow-sbp\[parquet\]"'):
        opened(path, fields={"x": "a"})
