"""Tables: samples whose fields are made of named columns."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError, DataError, did_you_mean
from jobflow.core.types import Array
from jobflow.data.conversion import fitted, misfit
from jobflow.data.number_text import MISSING, parsed
from jobflow.data.samples import Field, Keep, Samples, Split, checked_name, named_dtype, own_dtype

#: a column, or several side by side
Made: TypeAlias = str | list[str]
#: the number for missing values: of all columns of numbers, or by column
Missing: TypeAlias = float | dict[str, float]
#: an error, or an index behind those of the categories
Outside: TypeAlias = Literal["error", "index"]
#: Return the values of columns with this type: [rows] of one column and its shape, or [rows, columns].
Values: TypeAlias = Callable[[Sequence[str], np.dtype[Any]], Array]


class Table(Samples):
    """Rows of named columns.  Subclasses set what they need to read them, and then call `__init__`.

    A text outside of a column's categories is an error, or has the first free index: first the empty text, then unknown ones.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: int,
        fields: Mapping[str, Made],
        categories: list[str] | Mapping[str, list[str]] | None,
        dtypes: Mapping[str, str] | None,
        missing: Missing | None,
        outside: tuple[Outside, Outside],
        keep: tuple[Split, int],
    ) -> None:
        self._check_kinds(fields, categories)
        self.columns, self.missing = columns, missing
        if len(set(columns)) < len(columns):
            raise DataError(f"{self}: two columns have one name: {', '.join(columns)}.{self.columns_hint()}")
        self._made_of = {field: self._found(field, made) for field, made in fields.items()}
        self.categories = self._categories(categories)
        self._check_missing()
        self._codes, self._unknown = self._coding(*outside)
        for name in dtypes or ():
            checked_name(name, fields, f"{self}: dtypes: field")
        found = {field: self._field(field, isinstance(made, str), (dtypes or {}).get(field)) for field, made in fields.items()}
        super().__init__(found, rows, Keep(keep[0], rows, keep[1]))

    def _check_kinds(self, fields: Any, categories: Any) -> None:
        """Raise ArgumentError for arguments of another kind."""
        if not isinstance(fields, Mapping) or not fields:
            raise ArgumentError(f'{self}: fields is {fields!r}; it is a dict of columns by field, such as {{"x": "price"}}')
        if not isinstance(categories, Mapping | list | tuple | None):
            raise ArgumentError(f"{self}: categories is {categories!r}; it is a list of columns, or a dict of texts by column")
        for name, texts in categories.items() if isinstance(categories, Mapping) else ():
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise ArgumentError(f'{self}: categories: those of column "{name}" are {texts!r}; give a list of texts, as in the file: ["0", "1"]')

    @abstractmethod
    def column(self, name: str) -> tuple[tuple[int, ...], Any]:
        """Shape and NumPy's type of what a row has in a column of numbers."""

    def check_category(self, name: str) -> None:
        """ArgumentError if a column cannot hold categories."""

    @abstractmethod
    def texts(self, columns: Sequence[str]) -> Iterator[tuple[str, Iterable[str]]]:
        """(column, some of its texts) of all rows."""

    @abstractmethod
    def values(self, numbers: Array, columns: Collection[str]) -> Values:
        """The values of columns in the rows of these numbers, whose categories are numbers already."""

    @property
    def facts(self) -> dict[str, Any]:
        return {"categories": self.categories} if self.categories else {}

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        values = self.values(numbers, {column for name in names for column in self._made_of[name]})
        found: dict[str, Array] = {}
        for name in names:
            field = self.fields[name]
            found[name] = values(self._made_of[name], field.dtype.numpy).reshape(len(numbers), *field.shape)
        return found

    def _found(self, field: str, made: Made) -> list[str]:
        names = [made] if isinstance(made, str) else made
        if not names:
            raise ArgumentError(f'{self}: field "{field}" has no columns')
        try:
            return [checked_name(str(name), self.columns, f'{self}: field "{field}": column') for name in names]
        except ArgumentError as error:
            raise ArgumentError(f"{error}{self.columns_hint()}") from None

    def columns_hint(self) -> str:
        """Return a possible reason for unexpected columns, for messages."""
        return ""

    def _categories(self, given: list[str] | Mapping[str, list[str]] | None) -> dict[str, list[str]]:
        names = [checked_name(str(name), self.columns, f"{self}: categories: column") for name in given or ()]
        for name in names:
            self.check_category(name)
        if isinstance(given, Mapping):
            for name, own in given.items():
                if len(set(own)) < len(own):
                    raise ArgumentError(f'{self}: categories: column "{name}" has one category twice: {", ".join(own)}')
            return {name: list(texts) for name, texts in given.items()}
        seen: dict[str, set[str]] = {name: set() for name in names}
        for name, texts in self.texts(names) if names else ():
            seen[name].update(text.strip() for text in texts)
        return {name: sorted(texts - {""}) for name, texts in seen.items()}

    def _check_missing(self) -> None:
        if not isinstance(self.missing, Mapping):
            return
        for name in self.missing:
            checked_name(name, self.columns, f"{self}: missing: column")
            if name in self.categories:
                raise ArgumentError(f'{self}: missing: column "{name}" holds categories; with empty: index empty places have an index of their own')

    def _coding(self, empty: Outside, unknown: Outside) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """By column of categories: the indices of texts, and the index of all others if they have one."""
        for what, choice in (("empty", empty), ("unknown", unknown)):
            if choice not in ("error", "index"):
                raise ArgumentError(f'{self}: {what} is {choice!r}; it is "error" or "index"')
        codes = {name: {text: i for i, text in enumerate(texts)} for name, texts in self.categories.items()}
        if empty == "index":
            for known in codes.values():
                known.setdefault("", len(known))
        return codes, {name: len(known) for name, known in codes.items()} if unknown == "index" else {}

    def code(self, column: str, text: str) -> int | None:
        """The index of a text among the categories of a column; None if that is an error."""
        found = self._codes[column].get(text)
        return self._unknown.get(column) if found is None and text else found

    def _field(self, field: str, alone: bool, dtype: str | None) -> Field:
        columns = self._made_of[field]
        kinds = {column in self.categories for column in columns}
        if len(kinds) > 1:
            raise ArgumentError(f'{self}: field "{field}" has columns of numbers and of categories; make them two fields')
        shapes, types = zip(*(((), np.int32) if column in self.categories else self.column(column) for column in columns), strict=True)
        if not alone and any(shapes):
            raise ArgumentError(f'{self}: field "{field}": a column with several numbers per row must be a field of its own')
        found = own_dtype(np.result_type(*types), f'{self}: field "{field}"') if dtype is None else named_dtype(dtype, str(self))
        return Field(shapes[0] if alone else (len(shapes),), found)

    def filling(self, column: str, dtype: np.dtype[Any]) -> Array | None:
        """The value for missing numbers of a column; None if there is none, or the type cannot hold it."""
        value = self.missing.get(column) if isinstance(self.missing, Mapping) else self.missing
        if value is None:
            return None
        found, misfits = fitted(np.asarray(value), dtype)
        return found if misfits is None else None

    def problem(self, column: str, text: str, dtype: np.dtype[Any]) -> str:
        """The reason why a text has no value of a type in a column."""
        value = None if column in self.categories else parsed(text)
        if column in self.categories:
            found = self._no_category(column, text)
        elif text in MISSING and (not text or dtype.kind in "biu" or text.lower().lstrip("-") != "nan"):
            given = self.missing.get(column) if isinstance(self.missing, Mapping) else self.missing
            wrong = f", and what missing gives, {given:g}, is not a number of its type, {dtype}" if given is not None else ""
            shown = f'"{text}", a missing value' if text else "empty"
            found = f"{shown}{wrong}; say with missing what such places stand for"
        elif value is not None:
            found = f'"{text}", {misfit(value, dtype)}; give it another element type with dtypes'
        else:
            point = "; decimals are written with a point" if re.fullmatch(r"[+-]?[0-9.]*,[0-9]+", text) else ""
            found = f'"{text}", which is not a number{point}; if it is a category, name the column in categories'
        return f'column "{column}" is {found} (field {self.fields_with(column)})'

    def _no_category(self, column: str, text: str) -> str:
        known = self.categories[column]
        if not text:
            return "empty; with empty: index such places have an index of their own, after the categories"
        near = did_you_mean(text, known) or ";"
        return f'"{text}", which is not one of its {len(known)} categories{near} with unknown: index such texts have an index of their own'

    def fields_with(self, column: str) -> str:
        """For messages: the fields that have a column."""
        return " and ".join(f'"{field}"' for field, columns in self._made_of.items() if column in columns)
