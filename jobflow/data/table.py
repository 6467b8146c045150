"""Tables: samples whose fields consist of named columns."""

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

#: name of a column, or of several side by side
Source: TypeAlias = str | list[str]
#: replacement of missing values, for all number columns or by column
Missing: TypeAlias = float | dict[str, float]
#: treatment of other texts: an error, or an index after the categories
Outside: TypeAlias = Literal["error", "index"]
#: A function that returns values of columns in a type: [rows, *shape] of one column, or [rows, columns].
Values: TypeAlias = Callable[[Sequence[str], np.dtype[Any]], Array]


class Table(Samples):
    """A table of named columns. Subclasses set the attributes that reading requires, and then call `__init__`.

    A text outside of a column's categories is an error or has the next free index: first the empty text, then unknown texts.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: int,
        fields: Mapping[str, Source],
        categories: list[str] | Mapping[str, list[str]] | None,
        dtypes: Mapping[str, str] | None,
        missing: Missing | None,
        outside: tuple[Outside, Outside],
        keep: tuple[Split, int],
    ) -> None:
        self._check_kinds(fields, categories)
        self.columns, self.missing = columns, missing
        if len(set(columns)) < len(columns):
            raise DataError(f"{self}: two columns have the same name: {', '.join(columns)}.{self.columns_hint()}")
        self._sources = {field: self._columns_of(field, source) for field, source in fields.items()}
        self.categories = self._categories(categories)
        self._check_missing()
        self._codes, self._unknown = self._coding(*outside)
        for name in dtypes or ():
            checked_name(name, fields, f"{self}: dtypes: field")
        sample_fields = {field: self._field(field, isinstance(source, str), (dtypes or {}).get(field)) for field, source in fields.items()}
        super().__init__(sample_fields, rows, Keep(keep[0], rows, keep[1]))

    def _check_kinds(self, fields: Any, categories: Any) -> None:
        """Raise ArgumentError if `fields` or `categories` has a wrong type."""
        if not isinstance(fields, Mapping) or not fields:
            raise ArgumentError(f'{self}: fields must be a dict of columns by field, such as {{"x": "price"}}, not {fields!r}')
        if not isinstance(categories, Mapping | list | tuple | None):
            raise ArgumentError(f"{self}: categories must be a list of columns, or a dict of texts by column, not {categories!r}")
        for name, texts in categories.items() if isinstance(categories, Mapping) else ():
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise ArgumentError(
                    f'{self}: categories of column "{name}" must be a list of texts as in the file, such as ["0", "1"], not {texts!r}'
                )

    @abstractmethod
    def column(self, name: str) -> tuple[tuple[int, ...], Any]:
        """Return the shape and the NumPy element type of one cell in the number column `name`."""

    def check_category(self, name: str) -> None:
        """Raise ArgumentError if a column cannot contain categories."""

    @abstractmethod
    def texts(self, columns: Sequence[str]) -> Iterator[tuple[str, Iterable[str]]]:
        """Yield (column, texts of some rows); the texts of each column in `columns` together cover all rows."""

    @abstractmethod
    def values(self, numbers: Array, columns: Collection[str]) -> Values:
        """Return a function (columns, dtype) -> array of the cells of these columns in the rows `numbers`.

        Cells of category columns become indices. The argument `columns` lists all columns that callers may pass to the function.
        """

    @property
    def facts(self) -> dict[str, Any]:
        return {"categories": self.categories} if self.categories else {}

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        values = self.values(numbers, {column for name in names for column in self._sources[name]})
        arrays: dict[str, Array] = {}
        for name in names:
            field = self.fields[name]
            arrays[name] = values(self._sources[name], field.dtype.numpy).reshape(len(numbers), *field.shape)
        return arrays

    def _columns_of(self, field: str, source: Source) -> list[str]:
        names = [source] if isinstance(source, str) else source
        if not names:
            raise ArgumentError(f'{self}: field "{field}" has no columns; list at least one')
        try:
            return [checked_name(str(name), self.columns, f'{self}: field "{field}": column') for name in names]
        except ArgumentError as error:
            raise ArgumentError(f"{error}{self.columns_hint()}") from None

    def columns_hint(self) -> str:
        """Return a possible reason for unexpected columns, for messages."""
        return ""

    def _categories(self, configured: list[str] | Mapping[str, list[str]] | None) -> dict[str, list[str]]:
        names = [checked_name(str(name), self.columns, f"{self}: categories: column") for name in configured or ()]
        for name in names:
            self.check_category(name)
        if isinstance(configured, Mapping):
            for name, own in configured.items():
                if len(set(own)) < len(own):
                    raise ArgumentError(f'{self}: categories: column "{name}" has a category twice: {", ".join(own)}')
            return {name: list(texts) for name, texts in configured.items()}
        distinct: dict[str, set[str]] = {name: set() for name in names}
        for name, texts in self.texts(names) if names else ():
            distinct[name].update(text.strip() for text in texts)
        return {name: sorted(texts - {""}) for name, texts in distinct.items()}

    def _check_missing(self) -> None:
        replacements = self.missing if isinstance(self.missing, Mapping) else {"": self.missing}
        for name, value in replacements.items():
            if value is not None and not isinstance(value, int | float | np.number):
                of = f' of column "{name}"' if name else ""
                raise ArgumentError(f"{self}: missing{of} must be a number, not {value!r}; omit quotes, and write .nan for NaN in YAML")
        for name in replacements if replacements is self.missing else ():
            checked_name(name, self.columns, f"{self}: missing: column")
            if name in self.categories:
                raise ArgumentError(f'{self}: missing: column "{name}" contains categories; set empty: index to give empty cells an index')

    def _coding(self, empty: Outside, unknown: Outside) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Return {category column: {text: index}}, and {category column: index of all unknown texts}.

        The second mapping is empty unless `unknown` is "index". Raises: ArgumentError for another value than "error" or "index".
        """
        for what, choice in (("empty", empty), ("unknown", unknown)):
            if choice not in ("error", "index"):
                raise ArgumentError(f'{self}: {what} must be "error" or "index", not {choice!r}')
        codes = {name: {text: i for i, text in enumerate(texts)} for name, texts in self.categories.items()}
        if empty == "index":
            for known in codes.values():
                known.setdefault("", len(known))
        return codes, {name: len(known) for name, known in codes.items()} if unknown == "index" else {}

    def code(self, column: str, text: str) -> int | None:
        """Return the category index of a text in a column, or None if the text is not a category and has no index."""
        index = self._codes[column].get(text)
        return self._unknown.get(column) if index is None and text else index

    def _field(self, field: str, alone: bool, dtype: str | None) -> Field:
        columns = self._sources[field]
        kinds = {column in self.categories for column in columns}
        if len(kinds) > 1:
            raise ArgumentError(f'{self}: field "{field}" mixes columns of numbers and of categories; define two fields')
        shapes, types = zip(*(((), np.int32) if column in self.categories else self.column(column) for column in columns), strict=True)
        if not alone and any(shapes):
            raise ArgumentError(f'{self}: field "{field}": a column with several numbers per row must be a separate field')
        element = own_dtype(np.result_type(*types), f'{self}: field "{field}"') if dtype is None else named_dtype(dtype, str(self))
        return Field(shapes[0] if alone else (len(shapes),), element)

    def filling(self, column: str, dtype: np.dtype[Any]) -> Array | None:
        """Return the number that replaces missing numbers of a column; None if there is no replacement, or if `dtype` cannot represent it."""
        value = self.missing.get(column) if isinstance(self.missing, Mapping) else self.missing
        if value is None:
            return None
        number, misfits = fitted(np.asarray(value), dtype)
        return number if misfits is None else None

    def problem(self, column: str, text: str, dtype: np.dtype[Any]) -> str:
        """Return the reason why a text of a column cannot be converted to `dtype`."""
        value = None if column in self.categories else parsed(text)
        if column in self.categories:
            reason = self._no_category(column, text)
        elif text in MISSING and (not text or dtype.kind in "biu" or text.lower().lstrip("-") != "nan"):
            replacement = self.missing.get(column) if isinstance(self.missing, Mapping) else self.missing
            wrong = f", and {dtype} cannot represent the replacement {replacement} in missing" if replacement is not None else ""
            shown = f'"{text}", a missing value' if text else "empty"
            reason = f"{shown}{wrong}; set missing to replace such cells"
        elif value is not None:
            reason = f'"{text}", {misfit(value, dtype)}; set another element type with dtypes'
        else:
            point = "; write decimals with a point" if re.fullmatch(r"[+-]?[0-9.]*,[0-9]+", text) else ""
            reason = f'"{text}", which is not a number{point}; if it is a category, add the column to categories'
        return f'column "{column}" is {reason} (field {self.fields_with(column)})'

    def _no_category(self, column: str, text: str) -> str:
        known = self.categories[column]
        if not text:
            return "empty; set empty: index to give such cells an index after the categories"
        near = did_you_mean(text, known) or ";"
        return f'"{text}", which is not one of its {len(known)} categories{near} set unknown: index to give such texts an index'

    def fields_with(self, column: str) -> str:
        """Return the names of the fields that use a column, for messages."""
        return " and ".join(f'"{field}"' for field, columns in self._sources.items() if column in columns)
