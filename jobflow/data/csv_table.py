"""The reader "csv", for text tables with one sample per line."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DataError
from jobflow.core.types import Array
from jobflow.data.column_rules import Dates, Missing, Scale, moments_of
from jobflow.data.conversion import converted
from jobflow.data.files import fault_of, text_of
from jobflow.data.number_text import MISSING, number
from jobflow.data.number_text import numbers as numbers_in
from jobflow.data.samples import Split
from jobflow.data.table import Outsides, Rules, Table, Values
from jobflow.storage.remote import path_of
from jobflow.storage.untrusted import RECORD

BLOCK = 1 << 22
NEW_LINE, RETURN, QUOTE = 10, 13, 34


def row_starts(content: Array, begin: int, delimiter: int) -> tuple[Array, int | None]:
    """Return the offsets of the rows from `begin` on with the end of the last row, and the offset of an unclosed quote or None.

    Lines end with LF, CR LF or CR.  A line end within quotes does not end a row, and empty lines are skipped.
    """
    parts, quotes = [np.array([begin], np.int64)], Quotes(content, begin, delimiter)
    for start in range(begin, len(content), BLOCK):
        stop = min(start + BLOCK, len(content))
        was_open, ends = quotes.is_open, line_ends(content, start, stop)
        marks = quotes.counted(np.flatnonzero(content[start:stop] == QUOTE) + start)
        outside = (np.searchsorted(marks, ends) + was_open) % 2 == 0
        parts.append(ends[outside] + 1)
    starts = np.concatenate(parts)
    starts = starts[starts < len(content)]
    filled = starts[~np.isin(content[starts], (NEW_LINE, RETURN))]  # an empty line belongs to the preceding row
    return np.append(filled, len(content)), quotes.last if quotes.is_open else None


def line_ends(content: Array, start: int, stop: int) -> Array:
    """Return the offsets from `start` to `stop` at which lines end; CR LF ends at its LF."""
    block = np.asarray(content[start:stop])
    ends, returns = np.flatnonzero(block == NEW_LINE) + start, np.flatnonzero(block == RETURN) + start
    if not returns.size:
        return ends
    after = content[np.minimum(returns + 1, len(content) - 1)]
    alone = returns[(after != NEW_LINE) | (returns + 1 == len(content))]
    return np.sort(np.concatenate([ends, alone])) if alone.size else ends


class Quotes:
    """A search for the quotes that open or close cells of a CSV file, block by block.

    In a cell that does not start with a quote, quotes are text.
    """

    def __init__(self, content: Array, begin: int, delimiter: int) -> None:
        self._content, self._begin, self._before = content, begin, np.array([delimiter, NEW_LINE, RETURN], np.uint8)
        self.is_open = False
        #: offset of the last quote that opened or closed a cell
        self.last = -1

    def counted(self, marks: Array) -> Array:
        """Return the quotes that open or close cells; `marks` are the offsets of all quotes in the next block."""
        if not marks.size:
            return marks
        begins = np.isin(self._content[marks - 1], self._before) | (marks == self._begin)
        follows = np.diff(marks, prepend=self.last) == 1  # a doubled quote closes the cell and reopens it
        opens = (np.arange(len(marks)) + self.is_open) % 2 == 0
        wrong = np.flatnonzero(opens & ~begins & ~follows)
        if wrong.size:
            marks = self._without_texts(marks, begins, int(wrong[0]))
        if marks.size:
            self.is_open, self.last = bool((len(marks) + self.is_open) % 2), int(marks[-1])
        return marks

    def _without_texts(self, marks: Array, begins: Array, first: int) -> Array:
        """Return the quotes that open or close cells; `first` is the index of the first quote that is text."""
        cells = marks[:first].tolist()
        last, is_open = cells[-1] if cells else self.last, False
        for mark, begin in zip(marks[first:].tolist(), begins[first:].tolist(), strict=True):
            if is_open or begin or last == mark - 1:
                cells.append(mark)
                last, is_open = mark, not is_open
        return np.array(cells, np.int64)


WHAT = 'reader "csv"'
fault = fault_of(WHAT)
#: Delimiters that a message suggests.
OTHER_DELIMITERS = ";\t|,"


class CsvLines:
    """The rows of a text table as lists of cells, and their lines in the file."""

    def __init__(self, path: str, delimiter: str = ",", header: bool = True) -> None:
        self._path, self._delimiter, self._first, self.what = path_of(path), delimiter, int(header is True), f"{WHAT}: {path_of(path)}"
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ArgumentError(f"{WHAT}: delimiter must be one character other than a quote, not {delimiter!r}")
        if not isinstance(header, bool):
            raise ArgumentError(f"{WHAT}: header must be True or False, not {header!r}")
        if not self._path.exists():
            raise fault(f"there is no file {self._path.absolute()}; set path to an existing table")
        self._content, begin = text_of(self._path, fault)
        self._starts, unclosed = row_starts(self._content, begin, delimiter.encode()[-1])
        if unclosed is not None:
            double = 'double a quote that is part of a text ("")'
            raise DataError(f"{self._place(unclosed)}: a quote opens a cell here and is not closed by the end of the file; {double}")
        self.height = len(self._starts) - 1 - self._first
        if self.height + self._first < 1:
            raise DataError(
                f"{self}: the file is empty; set path to a table with rows"
                if len(self._content) <= begin
                else f"{self}: the file has only empty lines; set path to a table with rows"
            )
        self._line = self._parsed(0)
        if self.height < 1:
            raise DataError(f"{self._where(0)} is the only line, and is read as column names; if it is a row, set header to false")
        self.columns: Sequence[str] = [name.strip() for name in self._line] if header else [str(i) for i in range(len(self._line))]

    def __str__(self) -> str:
        return self.what

    def cells(self, row: int) -> list[str]:
        """Return the cells of row `row`, counted from 0 after the header."""
        return self._rows([row + self._first])[0]

    def position(self, row: int) -> str:
        """Describe the position of row `row`, counted from 0 after the header."""
        return self._where(row + self._first)

    def columns_hint(self) -> str:
        others = self.other_delimiters()
        if others:
            return self._delimiter_hint(others[0])
        if self._first and self.first_line_is_numbers():
            return " The first line contains numbers: if the file has no column names, set header to false."
        return ""

    def other_delimiters(self) -> list[str]:
        """Return the characters that seem to separate cells of the first line, if the configured delimiter does not."""
        return [other for other in OTHER_DELIMITERS if other in self._line[0]] if len(self._line) == 1 else []

    def first_line_is_numbers(self) -> bool:
        """Return True if all cells of the first line are numbers, so that the line may be a row."""
        return all(number(cell.strip(), np.dtype(np.float64)) is not None for cell in self._line)

    def _delimiter_hint(self, other: str) -> str:
        return f" The cells of the first line seem to be separated by {other!r} and not by {self._delimiter!r}: set delimiter to {other!r}."

    def _rows(self, rows: Sequence[int]) -> list[list[str]]:
        """Return the cells of rows; row 0 is the header in a file with a header."""
        cells = [self._parsed(row) for row in rows]
        for row, texts in zip(rows, cells, strict=True):
            if len(texts) != len(self.columns):
                raise DataError(f"{self._where(row)} has {len(texts)} columns, but the first line has {len(self.columns)}; correct this line")
        return cells

    def _parsed(self, row: int) -> list[str]:
        start, stop = self._starts[row], self._starts[row + 1]
        RECORD.check(int(stop - start), f"{self._path}: the row at byte {start}", fault)
        text = self._content[start:stop].tobytes().strip(b"\r\n")
        try:
            return next(csv.reader([text.decode()], delimiter=self._delimiter, strict=True))
        except UnicodeDecodeError as error:
            raise DataError(f"{self._where(row)} is not valid UTF-8: {error}; convert the file to UTF-8") from None
        except csv.Error as error:
            raise DataError(f"{self._where(row)} cannot be read: {error}{self._quoting_hint(row, text.decode())}") from None

    def _quoting_hint(self, row: int, text: str) -> str:
        other = re.match(r'"[^"]*"([;\t|])', text)
        if other is not None and row == 0 and other[1] != self._delimiter:
            return f".{self._delimiter_hint(other[1])}"
        return '; a cell that begins with a quote ends at the next one, so a quote within it is doubled ("")' if '"' in text else ""

    def _where(self, row: int) -> str:
        return self._place(int(self._starts[row]))

    def _place(self, byte: int) -> str:
        return f"{self}: line {len(line_ends(self._content, 0, byte)) + 1} (byte {byte})"


class CsvTable(CsvLines, Table):
    """A table of columns separated by `delimiter`; sample i is row i.

    `fields` names the columns of each field: one (`labels: species`) or several (`features: [length, width]`). Columns contain numbers, float32
    unless `dtypes` sets another type, or texts if `categories` names them. A category is an int32, the index of the text among the sorted texts
    of the column or in a list (`{species: [setosa, virginica]}`).

    `missing`, a rule or a rule by column (`{length: 0, width: mean}`), treats empty cells and the texts that pandas reads as missing (`NA`, `null`
    ...). A rule is a number, "mean", "median", "drop" (the row is no sample) or "error". `scale` is "standard", "minmax" or "none", for all columns
    or by column. `dates` makes numbers of dates: `{sold: [year, month]}` adds the columns `sold.year` and `sold.month`. `date_format` is a format of
    `datetime.strptime`; by default dates are in ISO 8601. Means and scales are computed from the training rows.

    With `empty` "index" an empty category has the first index after the categories. With `unknown` "index" all other texts have the next index. By
    default an empty or unknown category is an error. Both are for all columns or by column. Without `header` the columns are named 0, 1, 2 ...

    Predictions repeat the columns `ids`, or have the number of the row. The file may be compressed with gzip. For an uncompressed file only the row
    offsets are kept in memory. Every `validation_every`-th row is for validation.
    """

    suffixes = (".csv", ".tsv", ".csv.gz", ".tsv.gz")

    def __init__(
        self,
        path: str,
        fields: dict[str, str | list[str]],
        categories: list[str] | dict[str, list[str]] | None = None,
        dtypes: dict[str, str] | None = None,
        missing: Missing | None = None,
        delimiter: str = ",",
        header: bool = True,
        split: Split = "all",
        validation_every: int = 10,
        empty: Outsides = "error",
        unknown: Outsides = "error",
        scale: Scale | None = None,
        dates: Dates | None = None,
        date_format: str | None = None,
        ids: str | list[str] | None = None,
    ) -> None:
        CsvLines.__init__(self, path, delimiter, header)
        rules = Rules(missing, scale, empty, unknown, dates, date_format, ids)
        Table.__init__(self, self.columns, self.height, fields, categories, dtypes, rules, (split, validation_every))

    def where(self, number: int) -> str:
        return f"{self._where(self.number_in_file(number) + self._first)}: sample {number}"

    def column(self, name: str) -> tuple[tuple[int, ...], Any]:
        return (), np.float32

    def texts(self, columns: Sequence[str]) -> Iterator[tuple[str, Iterable[str]]]:
        rows, step = range(self._first, len(self._starts) - 1), 4096
        for start in range(0, len(rows), step):
            yield from self._texts(rows[start : start + step], columns).items()

    def absent(self, columns: Sequence[str]) -> Array:
        parts = [np.zeros(0, bool)]
        for start in range(self._first, len(self._starts) - 1, 4096):
            texts = self._texts(range(start, min(start + 4096, len(self._starts) - 1)), columns)
            masks = [[text.strip() in (("",) if name in self.categories else MISSING) for text in each] for name, each in texts.items()]
            parts.append(np.any(masks, 0))
        return np.concatenate(parts)

    def cells_of(self, rows: Array, columns: Sequence[str]) -> dict[str, list[Any]]:
        return dict(self._texts((rows + self._first).tolist(), columns))

    def moments(self, rows: Array, column: str) -> Array:
        texts = self._texts((rows + self._first).tolist(), [column])[column]
        moments, wrong = moments_of(texts, self.date_format)
        if wrong is not None:
            raise DataError(f"{self.position(int(rows[wrong]))}: {self.date_problem(column, texts[wrong])}")
        return moments

    def values(self, numbers: Array, columns: Collection[str]) -> Values:
        rows = (numbers + self._first).tolist()
        cells = self._rows(rows)
        places = {column: self.columns.index(column) for column in columns}

        def values(columns: Sequence[str], dtype: np.dtype[Any]) -> Array:
            own = [places[column] for column in columns]
            return self._array(columns, [texts[place] for texts in cells for place in own], dtype, rows)

        return values

    def _array(self, columns: Sequence[str], texts: list[str], dtype: np.dtype[Any], rows: Sequence[int]) -> Array:
        """Convert the texts of cells, in row-major order, to an array of `dtype`; a category becomes its index.

        Raises: DataError that names the first cell without a valid value.
        """
        if columns[0] in self.categories:
            return self._categories_of(columns, texts, dtype, rows)
        result, odd = numbers_in(texts, dtype)
        for i in odd:
            result[i] = self._number(columns[i % len(columns)], texts[i].strip(), dtype, rows[i // len(columns)])
        return result

    def _number(self, column: str, text: str, dtype: np.dtype[Any], row: int) -> Any:
        value = self.filling(column, dtype) if text in MISSING else None
        if value is None:
            value = number(text, dtype)
        if value is None:
            raise DataError(f"{self._where(row)}: {self.problem(column, text, dtype)}")
        return value

    def _categories_of(self, columns: Sequence[str], texts: list[str], dtype: np.dtype[Any], rows: Sequence[int]) -> Array:
        def where(i: int) -> tuple[str, str]:
            return self._where(rows[i // len(columns)]), columns[i % len(columns)]

        codes = [self.code(columns[i % len(columns)], text.strip()) for i, text in enumerate(texts)]
        if None in codes:
            place, column = where(codes.index(None))
            raise DataError(f"{place}: {self.problem(column, texts[codes.index(None)].strip(), dtype)}")
        return converted(np.array(codes, np.int64), dtype, lambda index: '{}: the index of the category in column "{}"'.format(*where(index[0])))

    def _texts(self, rows: Sequence[int], columns: Collection[str]) -> dict[str, list[str]]:
        """Return the texts of columns in `rows`."""
        cells = self._rows(rows)
        places = {column: self.columns.index(column) for column in columns}
        return {column: [texts[place] for texts in cells] for column, place in places.items()}
