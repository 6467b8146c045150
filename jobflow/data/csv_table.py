"""The reader of tables as text: one line of columns for each sample."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.data.samples import Field, Keep, Samples, Split, checked_name, named_dtype
from jobflow.errors import ArgumentError, DataError, did_you_mean
from jobflow.types import Array, DType, float32, int32
from jobflow.untrusted import RECORD, mapped

WHAT = 'reader "csv"'
BLOCK = 1 << 22
NEW_LINE, RETURN, QUOTE = 10, 13, 34


class CsvTable(Samples):
    """A table of columns separated by `delimiter`; sample i is its i-th row.

    `fields` says of which columns each field is made: one (`labels: species`) or several (`features: [length, width]`).  Columns hold
    numbers, float32 unless `dtypes` says otherwise, or are named in `categories`: those become int32, the place of a row's text among
    the texts of the column in the order of the alphabet, or among those given (`{species: [setosa, virginica]}`).  Empty places become
    `missing`, if given.  Without `header` columns are called 0, 1, 2 ...  Only where each row begins is kept in memory.  Every
    `validation_every`-th row is for validation.
    """

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
        self._path, self._missing, self._delimiter = Path(path), missing, delimiter
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ArgumentError(f"{WHAT}: delimiter is {delimiter!r}; it is one character, and no quote")
        if not self._path.exists():
            raise DataError(f"{WHAT}: there is no file {self._path.absolute()}")
        self._content = mapped(self._path, fault)
        self._starts = _row_starts(self._content)
        if len(self._starts) - 1 <= int(header):
            raise DataError(f"{self}: there are no rows")
        first = self._parsed(0)
        self.columns = [name.strip().removeprefix("\ufeff") for name in first] if header else [str(i) for i in range(len(first))]
        if len(set(self.columns)) < len(self.columns):
            raise DataError(f"{self}: two columns have one name: {', '.join(self.columns)}")
        self._first = int(header)
        self._places = {field: self._found(field, named) for field, named in fields.items()}
        self._shapes: dict[str, tuple[int, ...]] = {field: () if isinstance(named, str) else (len(named),) for field, named in fields.items()}
        self.categories = self._categories(categories)
        rows = len(self._starts) - 1 - self._first
        super().__init__({field: self._field(field, dtypes or {}) for field in fields}, rows, Keep(split, rows, validation_every))

    @property
    def facts(self) -> dict[str, Any]:
        return {"categories": self.categories} if self.categories else {}

    def __str__(self) -> str:
        return f"{WHAT}: {self._path}"

    # ---------------------------------------------------------------- what is asked for

    def _found(self, field: str, named: str | Sequence[str]) -> list[int]:
        names = [named] if isinstance(named, str) else named
        if not names:
            raise ArgumentError(f'{self}: field "{field}" is made of no columns')
        return [self.columns.index(checked_name(str(name), self.columns, f'{self}: field "{field}": column')) for name in names]

    def _categories(self, given: list[str] | Mapping[str, list[str]] | None) -> dict[str, list[str]]:
        names = [checked_name(str(name), self.columns, f"{self}: categories: column") for name in given or ()]
        if isinstance(given, Mapping):
            return {name: list(texts) for name, texts in given.items()}
        places = {name: self.columns.index(name) for name in names}
        seen: dict[str, set[str]] = {name: set() for name in names}
        for rows in self._all_rows() if names else ():
            for name, place in places.items():
                seen[name].update(row[place].strip() for row in rows)
        return {name: sorted(texts - {""}) for name, texts in seen.items()}

    def _all_rows(self) -> Iterator[list[list[str]]]:
        step = 4096
        for start in range(self._first, len(self._starts) - 1, step):
            yield self._split(range(start, min(start + step, len(self._starts) - 1)))

    def _field(self, field: str, dtypes: Mapping[str, str]) -> Field:
        kinds = {self.columns[place] in self.categories for place in self._places[field]}
        if len(kinds) > 1:
            raise ArgumentError(f'{self}: field "{field}" has columns of numbers and of categories; make two fields of them')
        for name in dtypes:
            checked_name(name, self._places, f"{self}: dtypes: field")
        default: DType = int32 if kinds == {True} else float32
        return Field(self._shapes[field], named_dtype(dtypes[field], str(self)) if field in dtypes else default)

    # ---------------------------------------------------------------- reading

    def where(self, number: int) -> str:
        return f"{self._where(self.number_in_file(number) + self._first)}: sample {number}"

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        table = self._split((numbers + self._first).tolist())
        found: dict[str, Array] = {}
        for name in names:
            rows = self._numbers(table, name) or self._values(table, name)
            found[name] = self._array(rows, self.fields[name], name, numbers)
        return found

    def _numbers(self, table: list[list[str]], name: str) -> list[list[Any]] | None:
        """The values of a field, if they are all numbers as they should be."""
        places, number = self._places[name], int if self.fields[name].dtype.is_integer else float
        if self.columns[places[0]] in self.categories:
            return None
        try:
            return [[number(row[place]) for place in places] for row in table]
        except ValueError:
            return None

    def _values(self, table: list[list[str]], name: str) -> list[list[Any]]:
        """The values of a field, and `Wrong` where there is none."""
        places = self._places[name]
        read = [self._reading(place, self.fields[name]) for place in places]
        return [[f(row[place]) for f, place in zip(read, places, strict=True)] for row in table]

    def _array(self, rows: list[list[Any]], field: Field, name: str, numbers: Array) -> Array:
        for row, values in enumerate(rows):
            wrong = next((i for i, value in enumerate(values) if isinstance(value, Wrong)), None)
            if wrong is not None:
                column = self.columns[self._places[name][wrong]]
                raise DataError(f'{self._where(int(numbers[row]) + self._first)}: column "{column}" is {values[wrong].text}')
        try:
            return np.array(rows, field.dtype.numpy).reshape(len(rows), *field.shape)
        except (OverflowError, ValueError) as error:
            raise DataError(f'{self}: field "{name}": {error}; give it another element type with dtypes') from None

    def _reading(self, place: int, field: Field) -> Callable[[str], Any]:
        """What makes a value of the text in a column."""
        column, number = self.columns[place], int if field.dtype.is_integer else float
        known = {text: i for i, text in enumerate(self.categories[column])} if column in self.categories else None

        def read(text: str) -> Any:
            text = text.strip()
            if known is not None and text in known:
                return known[text]
            if not text:
                return self._missing if self._missing is not None else Wrong("empty; say with missing what such places stand for")
            if known is not None:
                return Wrong(f'"{text}", which is none of its {len(known)} categories{did_you_mean(text, known)}')
            try:
                return number(text)
            except ValueError:
                return Wrong(f'"{text}", which is no {"whole " * (number is int)}number; if it is a category, name the column in categories')

        return read

    def _split(self, rows: Sequence[int] | range) -> list[list[str]]:
        """The columns of rows; the header is row 0 of a file that has one."""
        found = [self._parsed(row) for row in rows]
        for row, columns in zip(rows, found, strict=True):
            if len(columns) != len(self.columns):
                raise DataError(f"{self._where(row)} has {len(columns)} columns, the first line has {len(self.columns)}")
        return found

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


@dataclass(frozen=True)
class Wrong:
    """What is wrong with a text in a table."""

    text: str


def fault(text: str) -> DataError:
    """What is wrong with a file."""
    return DataError(f"{WHAT}: {text}")


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
