"""Rules by column of tables: missing values, scaling, unknown categories and dates, from the training rows only."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import Samples, open_reader

COLUMNS: dict[str, list[Any]] = {
    "a": [1.0, None, 3.0, 8.0, None, 100.0],
    "b": [10, 20, 30, 40, 50, 60],
    "k": ["x", "y", None, "x", "y", "z"],
    "t": ["2024-02-29", "2023-12-31T23:59:58", "1969-12-31", None, "2000-01-01", "2024-03-01"],
    "labels": [0, 1, 0, 1, 0, 1],
}


def opened(folder: Path, reader: str, columns: dict[str, list[Any]] = COLUMNS, facts: Any = None, **arguments: Any) -> Samples:
    path = folder / f"t.{reader}"
    if reader == "csv":
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]) + "\n")
    else:
        parquet.write_table(arrow.table(columns), path)
    samples = open_reader(reader, facts, path=str(path), **arguments)
    assert isinstance(samples, Samples)
    return samples


@pytest.fixture(params=["csv", "parquet"])
def reader(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ({"a": "mean"}, [1, 28, 3, 8, 28, 100]),
        ({"a": "median"}, [1, 5.5, 3, 8, 5.5, 100]),
        ("median", [1, 5.5, 3, 8, 5.5, 100]),
        ({"a": -1}, [1, -1, 3, 8, -1, 100]),
        ({"a": "drop"}, [1, 3, 8, 100]),
        ("drop", [1, 3, 8, 100]),
        ({"k": "drop", "a": 0}, [1, 0, 8, 0, 100]),
        ({"t": "drop", "a": 0}, [1, 0, 3, 0, 100]),
    ],
)
def test_missing_values_follow_the_rule_of_their_column(tmp_path: Path, reader: str, missing: Any, expected: list[float]) -> None:
    samples = opened(tmp_path, reader, fields={"x": "a", "labels": "labels"}, categories=None if missing == "drop" else ["k"], missing=missing)
    rows = samples.read(np.arange(len(samples)))
    assert rows["x"].tolist() == expected
    if len(expected) == 4:
        assert [samples.number_in_file(i) for i in range(4)] == [0, 2, 3, 5] and rows["labels"].tolist() == [0, 0, 1, 1]


def test_a_scaled_field_is_float32_also_for_doubles_and_integers(tmp_path: Path, reader: str) -> None:
    fields: dict[str, Any] = {"x": ["a", "b"], "y": "b", "labels": "labels"}
    samples = opened(tmp_path, reader, fields=fields, missing={"a": 0}, scale={"a": "standard", "b": "minmax"})
    assert [samples.fields[name].dtype.name for name in "xy"] == ["float32", "float32"]
    samples = opened(tmp_path, reader, fields=fields, missing={"a": 0}, scale={"a": "standard"}, dtypes={"x": "float64"})
    assert samples.fields["x"].dtype.name == "float64"


def test_statistics_are_of_the_training_rows_and_other_readers_use_them(tmp_path: Path, reader: str) -> None:
    options: dict[str, Any] = {"fields": {"x": ["a", "b"], "labels": "labels"}, "missing": "mean", "scale": {"a": "standard", "b": "minmax"}}
    train = opened(tmp_path, reader, split="train", validation_every=3, **options)  # rows 1, 2, 4, 5
    facts = json.loads(json.dumps(train.facts))
    assert facts["missing"] == {"a": 51.5, "b": 40.0} and facts["scale"]["b"] == {"shift": 20.0, "factor": 1 / 40}
    assert facts["scale"]["a"] == {"shift": 51.5, "factor": 1 / 48.5}
    np.testing.assert_allclose(train.read([0, 1, 2, 3])["x"], [[0, 0], [-1, 0.25], [0, 0.75], [1, 1]])
    for arguments in (options, {**options, "missing": None, "scale": None}, {**options, "scale": "standard"}):
        held = opened(tmp_path, reader, facts=facts, split="validation", validation_every=3, **arguments)
        np.testing.assert_allclose(held.read([0, 1])["x"], [[-50.5 / 48.5, -0.25], [-43.5 / 48.5, 0.5]], rtol=1e-6)
        assert held.facts["scale"] == facts["scale"] and str(held.fields["x"]) == str(train.fields["x"])
    assert train.read([0])["labels"].tolist() == [1], "rules for the whole table leave the labels"
    # without facts the validation rows use the statistics of the training rows of the file
    assert opened(tmp_path, reader, split="validation", validation_every=3, **options).facts == facts


def test_parts_of_dates_are_columns_of_numbers(tmp_path: Path, reader: str) -> None:
    parts = ["year", "month", "day", "weekday", "day_of_year", "days", "hour", "minute", "second", "seconds"]
    options: dict[str, Any] = {"fields": {"x": [f"t.{part}" for part in parts], "labels": "labels"}, "dates": {"t": parts}}
    samples = opened(tmp_path, reader, missing={"t": -1}, **options)
    x = samples.read([0, 1, 2, 3])["x"]
    assert x[0].tolist() == [2024, 2, 29, 3, 60, 19782, 0, 0, 0, 0] and x[1].tolist() == [2023, 12, 31, 6, 365, 19722, 23, 59, 58, 86398]
    assert x[2].tolist() == [1969, 12, 31, 2, 365, -1, 0, 0, 0, 0] and x[3].tolist() == [-1] * 10
    scaled = opened(tmp_path, reader, missing={"t": "drop"}, scale={"t.year": "minmax"}, **options)
    np.testing.assert_allclose(scaled.read([0, 2])["x"][:, 0], [1, 0], atol=1e-6)
    with pytest.raises(DataError, match='column "t" is empty; set missing'):
        opened(tmp_path, reader, **options).read([3])


def test_dates_with_a_format_and_of_date_types_are_read(tmp_path: Path) -> None:
    options: dict[str, Any] = {"fields": {"x": ["d.day", "d.month"]}, "dates": {"d": ["day", "month"]}}
    assert opened(tmp_path, "csv", {"d": ["24.12.2023"]}, date_format="%d.%m.%Y", **options).read([0])["x"].tolist() == [[24, 12]]
    for value in (datetime.date(2023, 12, 24), datetime.datetime(2023, 12, 24, 5), datetime.datetime(2023, 12, 24, 5, tzinfo=datetime.UTC)):
        assert opened(tmp_path, "parquet", {"d": [value]}, **options).read([0])["x"].tolist() == [[24, 12]]
    with pytest.raises(DataError, match=r'line 2 .*: column "d" is "24.12.2023", which is not a date; write dates as YYYY-MM-DD, or set date_format'):
        opened(tmp_path, "csv", {"d": ["24.12.2023"]}, **options).read([0])


def test_rows_are_identified_by_their_number_or_by_columns(tmp_path: Path, reader: str) -> None:
    samples = opened(tmp_path, reader, fields={"x": "b"}, missing={"a": "drop"}, split="validation", validation_every=2)
    assert samples.identities(np.array([1, 0])) == {"row": [3, 0]}
    samples = opened(tmp_path, reader, fields={"x": "b"}, ids="b")
    assert [*map(str, samples.identities(np.array([2, 0]))["b"])] == ["30", "10"]
    with pytest.raises(ArgumentError, match='ids: column "bb" does not exist'):
        opened(tmp_path, reader, fields={"x": "b"}, ids=["bb"])


def test_unknown_and_empty_categories_have_rules_by_column(tmp_path: Path, reader: str) -> None:
    columns = {"k": ["x", None, "q"], "m": ["x", "x", "x"]}
    options: dict[str, Any] = {"fields": {"k": "k", "m": "m"}, "categories": {"k": ["x"], "m": ["x"]}}
    samples = opened(tmp_path, reader, columns, empty={"k": "index"}, unknown={"k": "index"}, **options)
    assert samples.read([0, 1, 2])["k"].tolist() == [0, 1, 2] and samples.sizes == {"k": 3, "m": 1}  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match='unknown of column "k" must be "error" or "index", not "drop"'.replace('"drop"', "'drop'")):
        opened(tmp_path, reader, columns, unknown={"k": "drop"}, **options)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"missing": {"a": "meen"}},
            ArgumentError,
            'missing of column "a" must be a number, drop, mean, median or error, not \'meen\'; did you mean "mean"',
        ),
        ({"missing": {"aa": "mean"}}, ArgumentError, 'missing: column "aa" does not exist'),
        ({"scale": {"a": "norm"}}, ArgumentError, 'scale of column "a" must be one of standard, minmax, none'),
        ({"scale": {"k": "minmax"}, "categories": ["k"]}, ArgumentError, 'scale: column "k" contains categories'),
        ({"scale": {"a": "minmax"}, "dtypes": {"x": "int32"}}, ArgumentError, 'field "x" is int32, and scale makes fractions'),
        ({"dates": {"t": ["yaer"]}}, ArgumentError, 'dates of column "t": part "yaer" does not exist; did you mean "year"'),
        ({"dates": {"t": "year"}}, ArgumentError, "must be a list of parts"),
        ({"missing": {"a": "error"}}, DataError, 'column "a" is (empty|missing)'),
        ({"fields": {"x": "n"}, "missing": "mean"}, DataError, 'column "n" has no values in the training samples'),
    ],
)
def test_wrong_rules_raise(tmp_path: Path, reader: str, arguments: Any, kind: type[Exception], message: str) -> None:
    columns = {**COLUMNS, "n": [float("nan")] * 6}
    with pytest.raises(kind, match=message):
        opened(tmp_path, reader, columns, **{"fields": {"x": "a"}, **arguments}).read(np.arange(6))
