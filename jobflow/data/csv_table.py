"""The reader of tables as text: one line of columns for each sample."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DataError
from jobflow.core.remote import path_of
from jobflow.core.types import Array
from jobflow.core.untrusted import RECORD, mapped
from jobflow.data.files import fault_of
from jobflow.data.samples import Split
from jobflow.data.table import Table, Values

WHAT = 'reader "csv"'
fault = fault_of(WHAT)
BLOCK = 1 << 22
NEW_LINE, RETURN, QUOTE = 10, 13, 34


class CsvTable(Table):
    """A table of columns separated by `delimiter`; sample i is its i-th row.

    `fields` says of which columns each field is made: one (`labels: species`) or several (`features: [length, width]`).  Columns hold
    numbers, float32 unless `dtypes` says otherwise, or are named in `categories`: those become int32, the place of a row's text among
    the texts of the column in the order of the alphabet, or among those given (`{species: [setosa, virginica]}`).  Empty places become
    `missing`, if given.  Without `header` columns are called 0, 1, 2 ...  Only where each row begins is kept in memory.  Every
    `validation_every`-th row is for validation.
    """

    suffixes = (".csv", ".tsv")

    def __init__(
        self,
        path: str,
        fields: dict[str, str | list[str]],
        categories: list[str] | dict[str, list[str]] | None = None,
        dtypes: dict[str, str] | None = None,
        missing: float | None = None,
        delimiter: str = ",",
        header: bool = True,
        split: Split = "all",
        validation_every: int = 10,
    ) -> None:
        self._path, self._delimiter, self._first, self.what = path_of(path), delimiter, int(header), f"{WHAT}: {path_of(path)}"
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ArgumentError(f"{WHAT}: delimiter is {delimiter!r}; it must be one character other than a quote")
        if not self._path.exists():
            raise fault(f"there is no file {self._path.absolute()}")
        self._content = mapped(self._path, fault)
        self._starts = _row_starts(self._content)
        rows = len(self._starts) - 1 - self._first
        if rows < 1:
            raise DataError(f"{self}: there are no rows")
        first = self._parsed(0)
        columns = [name.strip().removeprefix("\ufeff") for name in first] if header else [str(i) for i in range(len(first))]
        super().__init__(columns, rows, fields, categories, dtypes, missing, (split, validation_every))

    def where(self, number: int) -> str:
        return f"{self._where(self.number_in_file(number) + self._first)}: sample {number}"

    def column(self, name: str) -> tuple[tuple[int, ...], Any]:
        return (), np.float32

    def texts(self, columns: Sequence[str]) -> Iterator[tuple[str, Iterable[str]]]:
        rows, step = range(self._first, len(self._starts) - 1), 4096
        for start in range(0, len(rows), step):
            yield from self._texts(rows[start : start + step], columns).items()

    def values(self, numbers: Array, columns: Collection[str]) -> Values:
        rows = (numbers + self._first).tolist()
        texts = self._texts(rows, columns)
        return lambda column, dtype: self._array(column, texts[column], dtype, rows)

    def _array(self, column: str, texts: list[str], dtype: np.dtype[Any], rows: Sequence[int]) -> Array:
        number = int if dtype.kind in "iu" else float
        known = {text: i for i, text in enumerate(self.categories[column])} if column in self.categories else None
        try:
            if known is None:
                with suppress(ValueError):  # which of them is no number is seen below
                    return np.array([number(text) for text in texts], dtype)
            return np.array([self._value(column, text.strip(), dtype, known, row) for text, row in zip(texts, rows, strict=True)], dtype)
        except OverflowError as error:
            raise DataError(f'{self}: column "{column}": {error}; give it another element type with dtypes') from None

    def _value(self, column: str, text: str, dtype: np.dtype[Any], known: Mapping[str, int] | None, row: int) -> float:
        is_whole, filling = dtype.kind in "iu", self.filling(dtype)
        if known is not None and text in known:
            return known[text]
        if not text and filling is not None:
            return filling
        if known is None:
            with suppress(ValueError):
                return int(text) if is_whole else float(text)
        raise DataError(f"{self._where(row)}: {self.problem(column, text, is_whole)}")

    def _texts(self, rows: Sequence[int], columns: Collection[str]) -> dict[str, list[str]]:
        """The texts of columns in rows; the header is row 0 of a file that has one."""
        found = [self._parsed(row) for row in rows]
        for row, texts in zip(rows, found, strict=True):
            if len(texts) != len(self.columns):
                raise DataError(f"{self._where(row)} has {len(texts)} columns, the first line has {len(self.columns)}")
        places = {column: self.columns.index(column) for column in columns}
        return {column: [texts[place] for texts in found] for column, place in places.items()}

    def _parsed(self, row: int) -> list[str]:
        start, stop = self._starts[row], self._starts[row + 1]
        RECORD.check(int(stop - start), f"{self._path}: the row at byte {start}", fault)
        text = self._content[start:stop].tobytes().strip(b"\r\n")
        try:
            return next(csv.reader([text.decode()], delimiter=self._delimiter, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{self._where(row)} cannot be read: {error}") from None

    def _where(self, row: int) -> str:
        start = int(self._starts[row])
        return f"{self}: line {np.count_nonzero(self._content[:start] == NEW_LINE) + 1} (byte {start})"


def _row_starts(content: Array) -> Array:
    """Where each row begins, and where the last one ends; new lines within quotes end none, and empty lines are none."""
    found, quotes = [np.zeros(1, np.int64)], 0
    for start in range(0, len(content), BLOCK):
        block = np.asarray(content[start : start + BLOCK])
        ends = np.flatnonzero(block == NEW_LINE)
        marks = np.flatnonzero(block == QUOTE)
        outside = (np.searchsorted(marks, ends) + quotes) % 2 == 0
        found.append(ends[outside] + start + 1)
        quotes += len(marks)
    starts = np.concatenate(found)
    starts = starts[starts < len(content)]
    filled = starts[~np.isin(content[starts], (NEW_LINE, RETURN))]  # an empty line is the tail of the row before it
    return np.append(filled, len(content))
