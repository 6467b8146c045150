"""One table of odd files: what each reader makes of them is the right value, or an error that names the real cause.

Tables follow pandas where the value is debatable.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from odd_files import by_turns, column, idx, opened, packed

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import open_reader, samples_of

BEYOND, FRACTION, ROUNDED, TRUTH = "which is beyond", "which is not a whole number", "rounds to", "which is neither 0 nor 1"

#: (value, element type, the value that is read or the reason for the error)
NUMBERS: list[tuple[Any, str, Any]] = [
    (2**40, "int32", BEYOND),
    (2**31, "int32", BEYOND),
    (-1, "uint8", BEYOND),
    (300, "uint8", BEYOND),
    (-129, "int8", BEYOND),
    (2.5, "int32", FRACTION),
    (math.nan, "int32", FRACTION),
    (math.inf, "int64", FRACTION),
    (2.0**63, "int64", BEYOND),
    (2**24 + 1, "float32", ROUNDED),
    (2**53 + 1, "float64", ROUNDED),
    (2**63 - 1, "float64", ROUNDED),
    (2049, "float16", ROUNDED),
    (257, "bfloat16", ROUNDED),
    (1e300, "float32", BEYOND),
    (70000.5, "float16", BEYOND),
    (2, "bool", TRUTH),
    (0.5, "bool", TRUTH),
    (3.0, "int32", 3),
    (-128, "int8", -128),
    (2**24, "float32", 2**24),
    (2**24 + 2, "float32", 2**24 + 2),
    (0.1, "float32", float(np.float32(0.1))),
    (16777217.5, "float32", 16777218.0),
    (math.inf, "float32", math.inf),
    (math.nan, "float32", math.nan),
    (1e-60, "float32", 0.0),
    (1, "bool", True),
    (1.0, "bool", True),
]


@pytest.mark.parametrize(("case", "reader"), by_turns(NUMBERS, ["numpy", "csv", "parquet", "ofrecord"]))
def test_numbers_are_converted_exactly_or_raise(case: tuple[Any, str, Any], reader: str, tmp_path: Path) -> None:
    value, dtype, expected = case
    if reader == "csv" and isinstance(value, float) and math.isnan(value) and dtype == "int32":
        expected = "a missing value"  # as pandas reads nan
    samples = column(reader, tmp_path, [1 if isinstance(value, int) else 1.0, value], dtype)
    assert samples.read([0])["x"][0] == 1
    if not isinstance(expected, str):
        np.testing.assert_equal(samples.read([0, 1])["x"].astype(np.float64)[1], float(expected))
        return
    with pytest.raises(DataError, match=re.escape(expected)) as error:
        samples.read([0, 1])
    text = str(error.value)
    where = {"numpy": "row 1", "csv": "line 3", "parquet": "row 1", "ofrecord": "record at byte"}[reader]
    assert "odd." in text and where in text and '"x"' in text and f"{value}" in text and "sample 1" in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 3], np.uint8), [0, 3]),
        (np.array([-1, 3], np.int8), [-1, 3]),
        (np.array([0, 3], np.float32), [0, 3]),
        (np.array([0, 2.5], np.float64), r"odd\.labels: row 1, field \"labels\" is 2\.5, which is not a whole number"),
        (np.array([0, 2**40], np.float64), r"row 1, field \"labels\" is 1099511627776\.0, which is beyond int32"),
    ],
)
def test_labels_of_idx_files_are_whole(values: Any, expected: Any, tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(idx(np.zeros((2, 2, 2), np.uint8)))
    (tmp_path / "odd.labels").write_bytes(idx(values))
    samples = opened("idx", path=str(tmp_path), images="images", labels="odd.labels", split="all")
    if isinstance(expected, list):
        assert samples.read([0, 1])["labels"].tolist() == expected
        return
    with pytest.raises(DataError, match=expected):
        samples.read([0, 1])


def test_scales_do_not_make_numbers_infinite(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=np.array([1.0, 1e300]), y=np.array([1, 2]))
    with pytest.raises(DataError, match=r'odd.npz: row 1, field "x" is 1e\+300, and its product with scale 2.0 exceeds float32; set another scale'):
        opened("numpy", path=str(tmp_path / "odd.npz"), scale={"x": 2.0}).read([0, 1])
    with pytest.raises(DataError, match=r'row 0, field "y" is 0.5, which is not a whole number'):
        opened("numpy", path=str(tmp_path / "odd.npz"), scale={"y": 0.5}, dtypes={"y": "int32"}).read([0, 1])


@pytest.mark.parametrize(
    "values", [np.array([1 + 2j, 0]), np.array(["1", "2"]), np.array(["2020-01-01"], "datetime64[D]")], ids=lambda v: v.dtype.name
)
def test_arrays_that_are_no_numbers_raise(values: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=values)
    with pytest.raises(DataError, match=r'odd.npz, field "x" contains .*; convert the file to numbers'):
        opened("numpy", path=str(tmp_path / "odd.npz"), dtypes={"x": "int32"})


@pytest.mark.parametrize(("second", "reason"), [(2**24 + 1, "rounds"), (1e300, "beyond float32")])
def test_python_samples_keep_values_or_raise(second: float, reason: str) -> None:
    with pytest.raises(DataError, match=rf'sample 1, field "x" is .*{reason}.*; convert all samples to a type'):
        samples_of([{"x": 1.0}, {"x": second}]).read([0, 1])  # type: ignore[union-attr]


# -------------------------------------------------------------------- numbers in CSV files


#: (text, element type, the value as pandas reads it, or the reason for the error)
TEXTS: list[tuple[str, str, Any]] = [
    ("1_000", "float32", "not a number"),
    ("1_000", "int32", "not a number"),
    ("\u0661\u0662", "float32", "not a number"),
    ("\uff11", "int32", "not a number"),
    ("0x10", "int32", "not a number"),
    ("1,5", "float32", "write decimals with a point"),
    ("1e999", "float64", BEYOND),
    ("1e39", "float32", BEYOND),
    ("99999999999999999999", "int64", BEYOND),
    ("1" * 2000, "int64", "not a number"),
    ("16777217", "float32", ROUNDED),
    ("9007199254740993.5", "int64", FRACTION),
    ("NA", "float32", "a missing value; set missing"),
    ("null", "int32", "a missing value; set missing"),
    ("nan", "int32", "a missing value; set missing"),
    (" 7 ", "float32", 7),
    (" 7 ", "int32", 7),
    ("+7", "int32", 7),
    ("1e3", "int32", 1000),
    ("1.0", "int32", 1),
    ("9007199254740993.0", "int64", 9007199254740993),
    (".5", "float32", 0.5),
    ("5.", "float32", 5),
    ("16777217.0", "float32", 16777216),
    ("3e7", "float32", 3e7),
    ("-inf", "float32", -math.inf),
    ("Infinity", "float32", math.inf),
    ("nan", "float32", math.nan),
    ("True", "bool", 1),
    ("FALSE", "bool", 0),
    ("1", "bool", 1),
]


@pytest.mark.parametrize(("case", "others"), by_turns(TEXTS, ["1", " 0", ""], ids=ascii))
def test_numbers_in_text_are_those_of_pandas(case: tuple[str, str, Any], others: str, tmp_path: Path) -> None:
    """Whatever other rows of a batch hold."""
    text, dtype, expected = case
    (tmp_path / "odd.csv").write_text(f'c\n"{others}"\n"{text}"\n1\n', encoding="utf-8")
    missing = {"missing": {"c": 1}} if not others else {}
    if missing and isinstance(expected, str) and "missing" in expected:
        expected = 1
    if missing and text == "nan":
        expected = 1
    samples = opened("csv", path=str(tmp_path / "odd.csv"), fields={"x": "c"}, dtypes={"x": dtype}, **missing)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=rf'odd.csv: line 3 .*column "c" is "{re.escape(text.strip())}".*{re.escape(expected)}.*field "x"'):
            samples.read([0, 1, 2])
        return
    np.testing.assert_equal(samples.read([0, 1, 2])["x"].tolist()[1], np.dtype(dtype).type(expected).item())


# -------------------------------------------------------------------- the form of CSV files

MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("ends", "mark", "is_packed", "quote", "header", "last"),
    by_turns(["\n", "\r\n", "\r"], [b"", MARK], [False, True], ["", '"'], [True, False], [True, False], ids=ascii),
)
def test_tables_of_all_forms(ends: str, mark: bytes, is_packed: bool, quote: str, header: bool, last: bool, tmp_path: Path) -> None:
    rows = [["a", "t"]] * header + [["1", f"x{ends}y" if quote else "x"], ["2", 'q"' if not quote else "z"], ["-3", "x"]]
    text = ends.join(",".join(f"{quote}{cell}{quote}" for cell in row) for row in rows) + ends * last
    path = tmp_path / ("t.csv.gz" if is_packed else "t.csv")
    path.write_bytes(packed(mark + text.encode(), is_packed))
    columns = ("a", "t") if header else ("0", "1")
    samples = opened("csv", path=str(path), fields={"x": columns[0], "y": columns[1]}, categories=[columns[1]], header=header)
    assert samples.read([0, 1, 2])["x"].tolist() == [1, 2, -3]
    expected = [f"x{ends}y", "z", "x"] if quote else ["x", 'q"', "x"]
    assert [samples.categories[columns[1]][i] for i in samples.read([0, 1, 2])["y"]] == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("block", [1, 3, 1 << 22])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (['1,5" disk', '2,6"'], ['5" disk', '6"']),
        (['1,5"', "2,b"], ['5"', "b"]),
        (['1,5""', "2,b"], ['5""', "b"]),
        (['1,"a""b"', "2,b"], ['a"b', "b"]),
        (['1,"a\n""', '",2', '2,"""x"""'], None),
        (['1,"a\n"""', '2,"""x"""'], ['a\n"', '"x"']),
        (['1, "a"', "2,b"], ['"a"', "b"]),
    ],
)
def test_a_quote_within_a_cell_is_text(
    rows: list[str], expected: list[str] | None, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobflow.data.csv_table.BLOCK", block)
    (tmp_path / "t.csv").write_text("a,t\n" + "\n".join(rows) + "\n")
    if expected is None:
        with pytest.raises(DataError, match="line 2"):
            opened("csv", path=str(tmp_path / "t.csv"), fields={"y": "t"}, categories=["t"])
        return
    samples = opened("csv", path=str(tmp_path / "t.csv"), fields={"y": "t"}, categories=["t"])
    assert [samples.categories["t"][i] for i in samples.read([0, 1])["y"]] == [text.strip() for text in expected]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a;b\n1;2\n", r"column \"a\" does not exist\. There are a;b\. The cells of the first line seem to be separated by ';' and not by ','"),
        (b'"a";"b"\n1;2\n', r"line 1 .*separated by ';' and not by ',': set delimiter to ';'"),
        (b"a\tb\n1\t2\n", r"separated by '\\t'"),
        (b'a,b\n1,"2\n3,4\n', r"line 2 \(byte 6\): a quote opens a cell here and is not closed"),
        (b'a,b\n1,"2\n3,"4"\n', r"line 2 .* a quote within it is doubled"),
        ("a,b\n1,2\n".encode("utf-16"), "is UTF-16 text; convert it to UTF-8"),
        ("a,b\n1,2\n".encode("utf-16-le"), "has 8 zero bytes among the first 16, as UTF-16 text without a byte-order mark; convert it to UTF-8"),
        ("\u4e16\u754c,b\n1,2\n".encode("utf-16-be"), "as UTF-16 text without a byte-order mark"),
        ("a,b\n1,2\n".encode("utf-32-le"), "as UTF-32 text without a byte-order mark"),
        ("a,b\n1,2\n".encode("utf-32"), "is UTF-32 text; convert it to UTF-8"),
        (b"PK\x03\x04....", "is a zip archive or a spreadsheet"),
        (b"PAR1....", 'is a Parquet file; use the reader "parquet"'),
        (b"BZh91AY", "is packed with bzip2; unpack it"),
        (b"\x1f\x8b....", "cannot be unpacked"),
        *[(content, "t.csv: the file is empty") for content in (b"", MARK)],
        *[(content, "t.csv: the file has only empty lines") for content in (b"\n", b"\r\n\n", MARK + b"\n")],
        *[(mark + b"a,t" + end, r"line 1 .*is the only line, and is read as .*set header to false") for mark in (b"", MARK) for end in (b"", b"\n")],
        (b"\n1,2\n", r"line 2 \(byte 1\) is the only line, .*set header to false"),
        (b"1,2\n3,4\n", r"column \"a\" does not exist. There are 1, 2\. The first line contains numbers: .*set header to false"),
        (b"1,1\n3,4\n", r"two columns have the same name: 1, 1\. The first line contains numbers: .*set header to false"),
    ],
)
def test_errors_of_tables_name_the_cause(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises((ArgumentError, DataError), match=message):
        opened("csv", path=str(tmp_path / "t.csv"), fields={"x": "a"}).read([0])


# -------------------------------------------------------------------- missing values and categories


def table(reader: str, folder: Path, columns: dict[str, list[Any]], **arguments: Any) -> Any:
    path = folder / f"t.{reader}"
    if reader == "csv":
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]))
    else:
        parquet.write_table(arrow.table(columns), path)
    return opened(reader, path=str(path), **arguments)


COLUMNS = {"a": [1.5, None, 3.5], "b": [None, 2.5, 3.5], "k": ["red", None, "blue"]}
FIELDS = {"a": "a", "x": ["a", "b"], "k": "k"}


@pytest.mark.parametrize("reader", ["csv", "parquet"])
def test_missing_is_of_columns_of_numbers(reader: str, tmp_path: Path) -> None:
    options = {"categories": ["k"], "empty": "index", "fields": FIELDS}
    samples = table(reader, tmp_path, COLUMNS, missing={"a": 0, "b": -1}, **options)
    rows = samples.read([0, 1, 2])
    assert rows["x"].tolist() == [[1.5, -1], [0, 2.5], [3.5, 3.5]] and rows["k"].tolist() == [1, 2, 0]
    assert samples.facts == {"categories": {"k": ["blue", "red"]}}
    assert table(reader, tmp_path, COLUMNS, missing=7, **options).read([1])["a"].tolist() == [7]
    with pytest.raises(DataError, match='column "b" is empty; set missing'):
        table(reader, tmp_path, COLUMNS, missing={"a": 0}, **options).read([0])
    with pytest.raises(ArgumentError, match='missing: column "c" does not exist'):
        table(reader, tmp_path, COLUMNS, missing={"c": 0}, **options)
    with pytest.raises(ArgumentError, match='missing: column "k" contains categories; set empty: index'):
        table(reader, tmp_path, COLUMNS, missing={"k": 0}, **options)
    with pytest.raises(ArgumentError, match=r"empty must be .* not 'first'"):
        table(reader, tmp_path, COLUMNS, fields=FIELDS, categories=["k"], empty="first")


@pytest.mark.parametrize("reader", ["csv", "parquet"])
@pytest.mark.parametrize(("empty", "unknown"), [("error", "error"), ("index", "error"), ("error", "index"), ("index", "index")])
@pytest.mark.parametrize("missing", [None, 0])
def test_empty_and_unknown_categories(reader: str, empty: str, unknown: str, missing: Any, tmp_path: Path) -> None:
    """`missing` says nothing about categories: it would turn an empty one into the first."""
    columns = {"k": ["red", None, "green", "blue"], "other": [1, 2, 3, 4]}
    options = {"fields": {"k": "k"}, "categories": {"k": ["red", "blue"]}, "missing": missing, "empty": empty, "unknown": unknown}
    samples = table(reader, tmp_path, columns, **options)
    assert samples.read([0, 3])["k"].tolist() == [0, 1]
    for row, choice, message in ((1, empty, 'column "k" is empty; set empty: index'), (2, unknown, '"green", which is not one of its 2 categories')):
        if choice == "error":
            with pytest.raises(DataError, match=message):
                samples.read([row])
    expected = {("index", "index"): (2, 3), ("index", "error"): (2, None), ("error", "index"): (None, 2)}.get((empty, unknown), (None, None))
    for row, index in zip((1, 2), expected, strict=True):
        assert index is None or samples.read([row])["k"].tolist() == [index]


@pytest.mark.parametrize("reader", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": {}}, r"fields must be a dict of columns by field, .* not \{\}"),
        ({"fields": ["k"]}, r"fields must be a dict of columns by field, .* not \['k'\]"),
        ({"categories": "k"}, "categories must be a list of columns, .* not 'k'"),
        ({"missing": "nan"}, "missing must be a number, drop, mean, median or error, not 'nan'; omit quotes, and write .nan for NaN in YAML"),
        ({"missing": [0]}, r"missing must be a number, drop, mean, median or error, not \[0\]"),
        ({"missing": {"k": "0"}}, "missing of column \"k\" must be a number, drop, mean, median or error, not '0'"),
        ({"categories": {"k": "ab"}}, 'column "k" must be a list of texts'),
        ({"categories": {"k": [0, 1]}}, r'column "k" must be a list of texts as in the file, such as \["0", "1"\], not \[0, 1\]'),
        ({"categories": {"k": ["a", "a"]}}, 'column "k" has a category twice'),
    ],
)
def test_arguments_of_tables_of_another_kind(arguments: dict[str, Any], message: str, reader: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        table(reader, tmp_path, {"k": ["a", "b"]}, **{"fields": {"x": "k"}, **arguments})


def test_nan_is_missing_in_parquet(tmp_path: Path) -> None:
    columns = {"a": [1.0, math.nan, None]}
    assert table("parquet", tmp_path, columns, fields={"a": "a"}, missing=0).read([0, 1, 2])["a"].tolist() == [1, 0, 0]
    np.testing.assert_equal(table("parquet", tmp_path, columns, fields={"a": "a"}).read([0, 1])["a"], [1, math.nan])
    with pytest.raises(DataError, match=r'row 1: column "a" is "nan", a missing value, and int32 cannot represent the replacement 0\.5 in missing'):
        table("parquet", tmp_path, columns, fields={"a": "a"}, dtypes={"a": "int32"}, missing=0.5).read([1])


@pytest.mark.parametrize(
    ("column", "arguments", "expected"),
    [
        ([[], [1.0, 2.0]], {}, r"row 0: column \"k\" is \[\], and not \[2\] numbers"),
        (arrow.array([[], []], arrow.list_(arrow.float32())), {}, [[], []]),
        ([[1.0, 2.0], [1.0]], {}, r"row 1: column \"k\" is \[1\.0\], and not \[2\] numbers"),
        ([None, [1.0, 2.0]], {}, 'row 0: column "k" is null, and not'),
        ([[1.0, 2.0], [None, 4.0]], {}, "set missing to replace null"),
        ([[1.0, 2.0], [None, 4.0]], {"missing": {"k": 9}}, [[1, 2], [9, 4]]),
        ([[1.0, 2.0], [1e300, 4.0]], {"dtypes": {"x": "float32"}}, "row 1: .* set another element type"),
        ([["a"], ["b"]], {"categories": ["k"]}, r"column \"k\" contains list<.*: string>; a category must be one text per row"),
        ([["a"], ["b"]], {}, r"column \"k\" contains list<.*: string>; texts in lists cannot be categories"),
        ([{"a": 1}, {"a": 2}], {}, "contains struct.*, which tensors do not support"),
    ],
)
def test_lists_in_parquet(column: list[Any], arguments: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    if isinstance(expected, list):
        assert table("parquet", tmp_path, {"k": column}, fields={"x": "k"}, **arguments).read([0, 1])["x"].tolist() == expected
        return
    with pytest.raises((ArgumentError, DataError), match=expected):
        table("parquet", tmp_path, {"k": column}, fields={"x": "k"}, **arguments).read([0, 1])


# -------------------------------------------------------------------- texts, folders


@pytest.mark.parametrize("level", ["character", "byte"])
@pytest.mark.parametrize(
    ("content", "message"), [(b"", "there is no text in .*t.txt"), (MARK, "there is no text in"), (b"\n", "1 tokens for train do not")]
)
def test_files_without_text(level: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        opened("text", path=str(tmp_path / "t.txt"), length=2, level=level)


@pytest.mark.parametrize(("level", "mark", "where"), by_turns(["character", "byte"], [b"", MARK], ["file", "folder"]))
def test_byte_order_marks_are_no_text(level: str, mark: bytes, where: str, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(mark + b"abcabcabc")
    path = tmp_path / "a.txt" if where == "file" else tmp_path
    samples = opened("text", path=str(path), length=3, level=level, split="all")
    tokens = samples.read(range(len(samples)))["tokens"] - (97 if level == "byte" else 0)
    assert set(map(tuple, tokens.tolist())) == {(0, 1, 2)} and len(samples) == (2 if where == "file" else 5)
    assert level == "byte" or samples.facts["vocabulary"] == "abc"


HIDDEN = ["__MACOSX", ".ipynb_checkpoints", ".git", ".hidden", "System Volume Information", "$RECYCLE.BIN", "@eaDir", "lost+found", "__pycache__"]


def _numpy_folder(folder: Path) -> Any:
    np.save(folder / "x.npy", np.zeros(2))
    return lambda: (list(opened("numpy", path=str(folder)).fields), len(opened("numpy", path=str(folder))))


def _text_folder(folder: Path) -> Any:
    (folder / "sub").mkdir()
    (folder / "sub" / "x.txt").write_text("abcabcabc")
    return lambda: opened("text", path=str(folder), pattern="*", length=2, split="all").facts


def _parquet_folder(folder: Path) -> Any:
    parquet.write_table(arrow.table({"a": [1, 2]}), folder / "x.parquet")
    return lambda: len(opened("parquet", path=str(folder), fields={"x": "a"}))


def _record_folder(folder: Path) -> Any:
    column("ofrecord", folder, [1, 2], "int64")
    return lambda: len(opened("ofrecord", path=str(folder), prefix=""))


def _image_folder(folder: Path) -> Any:
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (folder / name).mkdir()
        image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / name / "x.png")
    return lambda: (opened("images", path=str(folder), size=8).facts, len(opened("images", path=str(folder), size=8)))


FOLDERS = {"numpy": _numpy_folder, "text": _text_folder, "parquet": _parquet_folder, "ofrecord": _record_folder, "images": _image_folder}


@pytest.mark.parametrize(("hidden", "reader"), by_turns(HIDDEN, list(FOLDERS)))
def test_hidden_and_system_files_are_no_samples(hidden: str, reader: str, tmp_path: Path) -> None:
    """Also in folders that lie in a hidden one themselves."""
    folder = tmp_path / ".data"
    folder.mkdir()
    read = FOLDERS[reader](folder)
    expected = read()
    files = [file for file in folder.rglob("*") if file.is_file()]
    for directory in {folder, *(file.parent for file in files)}:
        (directory / hidden / "inside").mkdir(parents=True)
        for file in files:
            (directory / hidden / file.name).write_bytes(file.read_bytes())
            (directory / hidden / "inside" / file.name).write_bytes(file.read_bytes())
            (directory / f"._{file.name}").write_bytes(b"\0\5\x16\7")
        for name in ("Thumbs.db", ".DS_Store", "desktop.ini"):
            (directory / name).write_bytes(b"no sample")
    assert read() == expected


def test_a_table_of_another_reader_is_named(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"a": [1]}), tmp_path / "t.csv")
    with pytest.raises(DataError, match='is a Parquet file; use the reader "parquet"'):
        open_reader("csv", path=str(tmp_path / "t.csv"), fields={"x": "a"})


def test_a_row_group_whose_lists_all_have_another_length(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"k": [[1.0, 2.0], [3.0]]}), tmp_path / "t.parquet", row_group_size=1)
    samples = opened("parquet", path=str(tmp_path / "t.parquet"), fields={"x": "k"})
    assert samples.read([0])["x"].tolist() == [[1, 2]]
    with pytest.raises(DataError, match=r'row 1: column "k" is \[3\.0\], and not \[2\] numbers'):
        samples.read([1])


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1" + "0" * 400])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float64"])
def test_number_texts_beyond_every_type_are_refused(text: str, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text(f"x\n{text}\n")
    samples = open_reader("csv", path=str(tmp_path / "odd.csv"), fields={"x": "x"}, dtypes={"x": dtype})
    with pytest.raises(DataError, match=r'column "x" is ".*", which is (beyond|neither)'):
        samples.read([0])
