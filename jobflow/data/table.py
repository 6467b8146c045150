"""Tables: samples whose fields are made of named columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError, DataError, did_you_mean
from jobflow.core.types import Array
from jobflow.data.samples import Field, Keep, Samples, Split, checked_name, named_dtype, own_dtype

#: a column, or several side by side
Made: TypeAlias = str | list[str]
#: what gives the values of a column, which is to have this type
Values: TypeAlias = Callable[[str, np.dtype[Any]], Array]


class Table(Samples):
    """Rows of named columns.  Subclasses set what they need to read them, and then call `__init__`."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: int,
        fields: Mapping[str, Made],
        categories: list[str] | Mapping[str, list[str]] | None,
        dtypes: Mapping[str, str] | None,
        missing: float | None,
        keep: tuple[Split, int],
    ) -> None:
        self.columns, self.missing = columns, missing
        if len(set(columns)) < len(columns):
            raise DataError(f"{self}: two columns have one name: {', '.join(columns)}")
        self._made_of = {field: self._found(field, made) for field, made in fields.items()}
        self.categories = self._categories(categories)
        for name in dtypes or ():
            checked_name(name, fields, f"{self}: dtypes: field")
        found = {field: self._field(field, isinstance(made, str), (dtypes or {}).get(field)) for field, made in fields.items()}
        super().__init__(found, rows, Keep(keep[0], rows, keep[1]))

    @abstractmethod
    def column(self, name: str) -> tuple[tuple[int, ...], Any]:
        """Shape and NumPy's type of what a row has in a column of numbers."""

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
            field, columns = self.fields[name], self._made_of[name]
            parts = [values(column, field.dtype.numpy) for column in columns]
            found[name] = parts[0] if len(parts) == 1 else np.stack(parts, 1)
            found[name] = found[name].reshape(len(numbers), *field.shape)
        return found

    def _found(self, field: str, made: Made) -> list[str]:
        names = [made] if isinstance(made, str) else made
        if not names:
            raise ArgumentError(f'{self}: field "{field}" has no columns')
        return [checked_name(str(name), self.columns, f'{self}: field "{field}": column') for name in names]

    def _categories(self, given: list[str] | Mapping[str, list[str]] | None) -> dict[str, list[str]]:
        names = [checked_name(str(name), self.columns, f"{self}: categories: column") for name in given or ()]
        if isinstance(given, Mapping):
            return {name: list(texts) for name, texts in given.items()}
        seen: dict[str, set[str]] = {name: set() for name in names}
        for name, texts in self.texts(names) if names else ():
            seen[name].update(text.strip() for text in texts)
        return {name: sorted(texts - {""}) for name, texts in seen.items()}

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

    def filling(self, dtype: np.dtype[Any]) -> float | None:
        """The value of empty places, if there is one and it has this type."""
        if self.missing is None or dtype.kind not in "iu":
            return self.missing
        limits = np.iinfo(dtype)
        return self.missing if float(self.missing).is_integer() and limits.min <= self.missing <= limits.max else None

    def problem(self, column: str, text: str, is_whole: bool = False) -> str:
        """What is wrong with a text that stands for nothing in a column; `is_whole`: for no whole number."""
        known = self.categories.get(column)
        if not text:
            given = f", and what missing gives, {self.missing:g}, is not a number of its type" if self.missing is not None else ""
            found = f"empty{given}; say with missing what such places stand for"
        elif known is not None:
            found = f'"{text}", which is not one of its {len(known)} categories{did_you_mean(text, known)}'
        else:
            found = f'"{text}", which is not a {"whole " * is_whole}number; if it is a category, name the column in categories'
        return f'column "{column}" is {found}'
