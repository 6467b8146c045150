"""Descriptions of data before training: fields, types, ranges, classes, the first samples, and all rows that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError, JobflowError
from jobflow.core.types import Array
from jobflow.data import arrow_dataset
from jobflow.data.column_summary import LISTED, Summary
from jobflow.data.csv_table import CsvLines, CsvTable
from jobflow.data.files import entries_of, files_below
from jobflow.data.image_columns import IMAGE
from jobflow.data.image_folders import ENDINGS
from jobflow.data.parquet import Parquet, columns_of, groups_of
from jobflow.data.readers import NumpyFiles, open_reader
from jobflow.data.samples import Samples, Stream
from jobflow.data.table import Table
from jobflow.data.vocabulary import vocabulary_of
from jobflow.data.webdataset import suggested_fields
from jobflow.storage.remote import AnyPath, path_of

#: samples of a reader other than a table that are read unless the caller sets a number
SOME = 1000
#: rows per read, and samples at the start of a description
BLOCK, FIRST = 256, 3
#: endings of file names by reader, and whether the reader reads folders or files, unless it reads both
SUFFIXES: dict[str, tuple[str, ...]] = {
    "images": tuple(sorted(ENDINGS)),
    "csv": (*CsvTable.suffixes, ".tab"),
    "parquet": Parquet.suffixes,
    "arrow": (".arrow",),
    "numpy": NumpyFiles.suffixes,
    "idx": ("-ubyte", "-ubyte.gz"),
    "text": (".txt", ".txt.gz", ".md"),
    "webdataset": (".tar",),
}
FOLDERS = {"images": (True,), "csv": (False,), "arrow": (True,), "idx": (True,)}
#: elements of an array that are shown whole
SMALL = 8


@dataclass(frozen=True)
class Description:
    """The description of one file or reader."""

    name: str
    reader: str
    #: None for a stream of unknown length
    samples: int | None
    #: samples that were read, with all their fields
    read: int
    columns: Sequence[Summary]
    first: Sequence[Mapping[str, str]]
    #: messages about rows that cannot be read, and the number of all such rows or cells
    problems: Sequence[str]
    wrong: int
    #: arguments of a reader for this file, if they can be guessed
    arguments: Mapping[str, Any] | None = None
    #: the number of such rows or cells without a message
    unlisted: int = 0

    def json(self) -> dict[str, Any]:
        """Return the description in JSON types."""
        known = {"arguments": dict(self.arguments)} if self.arguments is not None else {}
        result: dict[str, Any] = {"name": self.name, "reader": self.reader, "samples": self.samples, "read": self.read}
        result |= {"columns": [column.json() for column in self.columns], "first": [dict(each) for each in self.first]}
        return result | {"problems": list(self.problems), "wrong": self.wrong, **known}


# -------------------------------------------------------------------- files


def describe_file(file: str, most: int | None = None) -> Description:
    """Describe a file or a folder; a table is read completely, and of other data at most `most` samples.

    Raises: ArgumentError if no reader reads such a file; DataError if the file is damaged as a whole.
    """
    path = path_of(file)
    if not path.exists():
        raise ArgumentError(f"jobflow data: there is no file or folder {file}; pass an existing file, folder or configuration")
    reader = reader_of(path)
    if reader == "csv":
        return _described_lines(file, most)
    if reader in ("parquet", "arrow"):
        groups = list(groups_of(path, [])) if reader == "parquet" else arrow_dataset.groups_of(path)
        columns, count, first = columns_of(file, groups, most, FIRST)
        usable = {"path": file, **suggested(columns)}
        return Description(file, reader, count, count if most is None else min(most, count), columns, first, [], 0, usable)
    arguments: dict[str, Any] = {"path": file}
    if reader == "images" and not any(entry.is_dir() for entry in entries_of(path)):
        arguments["labels"] = False
    if reader == "webdataset":
        arguments["fields"] = suggested_fields(path)
    return describe(file, reader, open_reader(reader, **arguments), most, arguments)


def reader_of(path: AnyPath) -> str:
    """Return the name of the reader for a file, by its suffix, or for a folder, by the first known suffix in it."""
    names = [file.name for file in islice(files_below(path), SOME)] if path.is_dir() else [path.name]
    for name in names:
        for reader, endings in SUFFIXES.items():
            if name.lower().endswith(endings) and path.is_dir() in FOLDERS.get(reader, (True, False)):
                return reader
    known = ", ".join(ending for endings in SUFFIXES.values() for ending in endings)
    raise ArgumentError(f"jobflow data: no reader is known for {path}; pass a file or folder of {known}, or a configuration")


def _lines_of(file: str) -> tuple[CsvLines, dict[str, Any]]:
    """Open a text table with the delimiter and the header that its first line suggests; return it with these arguments."""
    options: dict[str, Any] = {"delimiter": "\t"} if ".tsv" in file else {}
    lines = CsvLines(file, **options)
    if others := lines.other_delimiters():
        options["delimiter"] = others[0]
        lines = CsvLines(file, **options)
    if lines.first_line_is_numbers():
        options["header"] = False
        lines = CsvLines(file, **options)
    return lines, options


def _described_lines(file: str, most: int | None) -> Description:
    lines, options = _lines_of(file)
    columns = [Summary(name) for name in lines.columns]
    problems: list[str] = []
    first: list[dict[str, str]] = []
    count, wrong = lines.height if most is None else min(lines.height, most), 0
    for row in range(count):
        try:
            cells = lines.cells(row)
        except DataError as error:
            wrong += 1
            problems += [str(error)] if len(problems) < LISTED else []
            continue
        for column, cell in zip(columns, cells, strict=True):
            column.add([cell], row)
        if len(first) < FIRST:
            first.append(dict(zip(lines.columns, cells, strict=True)))
    texts_wrong = sorted(each for column in columns for each in column.wrong())
    repeated = [f"{lines.position(row)}: {reason}{f' ({count:,} such cells)' if count > 1 else ''}" for row, reason, count in texts_wrong]
    counts = [*[1] * len(problems), *(count for _, _, count in texts_wrong)]
    problems += repeated
    wrong += sum(column.wrong_cells for column in columns)
    arguments = {"path": file, **options, **suggested(columns)}
    return Description(file, "csv", lines.height, count, columns, first, problems[:LISTED], wrong, arguments, wrong - sum(counts[:LISTED]))


def suggested(columns: Sequence[Summary]) -> dict[str, Any]:
    """Return the arguments of a table for a model that predicts the last column that has classes or numbers, from images or other columns."""
    images = [column.name for column in columns if column.type == IMAGE]
    usable = [column for column in columns if column.kind == "number" or (column.kind == "text" and column.is_class)]
    if len(usable) + len(images) < 2 or not usable:
        return {}
    labels, inputs = usable[-1], [] if images else usable[:-1]
    numeric = [column.name for column in inputs if column.kind == "number"]
    texts = [column.name for column in inputs if column.kind == "text"]
    fields: dict[str, Any] = {
        **({"images": images[0]} if images else {}),
        **({"features": numeric} if numeric else {}),
        **{name: name for name in texts},
        "labels": labels.name,
    }
    categories = [*texts, *([labels.name] if labels.kind == "text" else [])]
    # wrong cells are to be corrected or emptied
    lacking = [column for column in [*inputs, labels] if column.missing or column.wrong_cells]
    missing = {column.name: "drop" if column is labels else "mean" for column in lacking if column is labels or column.kind == "number"}
    empty = {column.name: "index" for column in lacking if column.name not in missing}
    # weights are float32; the numbers of text tables are, too
    dtypes = {"features": "float32"} if any(column.kind == "number" and column.type not in ("", "float") for column in inputs) else {}
    dtypes |= {"labels": "float32"} if labels.type == "double" else {}
    options = {"categories": categories, "missing": missing, "empty": empty, "dtypes": dtypes}
    return {"fields": fields, **{name: option for name, option in options.items() if option}}


# -------------------------------------------------------------------- readers


def describe(name: str, reader: str, samples: Samples | Stream, most: int | None = None, arguments: Mapping[str, Any] | None = None) -> Description:
    """Describe the samples of a reader.

    A table is read completely, and of other samples at most SOME are, unless `most` sets their number.
    """
    count = len(samples) if isinstance(samples, Samples) else None
    limit = most if most is not None else count if isinstance(samples, Table) else SOME
    columns = {field: Summary(field, str(one)) for field, one in samples.fields.items()}
    first: list[dict[str, str]] = []
    problems: list[str] = []
    read = wrong = 0
    names = _names(samples)
    for rows in _blocks(samples, count, limit or 0):
        if isinstance(rows, DataError):
            wrong += 1
            problems += [str(rows)] if len(problems) < LISTED else []
            continue
        size = len(next(iter(rows.values())))
        read += size
        for field, array in rows.items():
            columns[field].add_array(array, distinct=array.ndim == 1)
        first += [{field: shown(array[i], samples.facts) for field, array in rows.items()} for i in range(min(size, FIRST - len(first)))]
    for field, summary in columns.items():
        if not samples.fields[field].shape:
            _rename(summary, names.get(field, ()))
    return Description(name, reader, count, read, list(columns.values()), first, problems, wrong, arguments, wrong - len(problems))


def _blocks(samples: Samples | Stream, count: int | None, limit: int) -> Iterator[dict[str, Array] | DataError]:
    """Yield the arrays of consecutive samples, and an error in place of each sample that cannot be read."""
    if isinstance(samples, Stream):
        try:
            for sample in islice(samples.samples(0), limit):
                yield {name: np.asarray(value)[None] for name, value in sample.items()}
        except DataError as error:  # a stream ends with its first error
            yield error
        return
    assert count is not None
    for start in range(0, min(count, limit), BLOCK):
        indices = np.arange(start, min(start + BLOCK, count, limit))
        try:
            yield samples.read(indices)
        except JobflowError:
            yield from _one_by_one(samples, indices)


def _one_by_one(samples: Samples, indices: Array) -> Iterator[dict[str, Array] | DataError]:
    for index in indices:
        try:
            yield samples.read([index])
        except DataError as error:
            yield error


def _names(samples: Samples | Stream) -> dict[str, Sequence[str]]:
    """Return the names of classes by field: of folders, or of the categories of a column."""
    if isinstance(samples, Table):
        return {field: names for field in samples.fields if (names := samples.names_of(field))}
    return {"labels": samples.facts.get("classes") or []}


def _rename(summary: Summary, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if str(index) in summary.distinct:
            summary.distinct[name] = summary.distinct.pop(str(index))


def shown(value: Array, facts: Mapping[str, Any]) -> str:
    """Format an element of a sample: a number, a small array, the text of tokens, or shape and range of a larger array."""
    if not value.ndim:
        return f"{value.item():.6g}" if value.dtype.kind == "f" else str(value.item())
    if "level" in facts and value.ndim == 1:
        return repr(vocabulary_of(facts).decode(value.tolist()))[:60]
    if value.size <= SMALL:
        return str([float(f"{each:.6g}") if value.dtype.kind == "f" else each for each in value.reshape(-1).tolist()])
    return f"{value.dtype.name}{list(value.shape)}, {value.min():.4g} to {value.max():.4g}, mean {value.mean():.4g}"
