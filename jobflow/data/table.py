"""Tables: samples whose fields consist of named columns."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError, did_you_mean
from jobflow.core.types import Array
from jobflow.data.column_rules import (
    LABELS,
    LEARNED,
    Dates,
    Missing,
    Scale,
    Scaling,
    date_parts,
    learned_fill,
    learned_scaling,
    missing_rules,
    part_of,
    scale_rules,
)
from jobflow.data.column_summary import no_number, printable
from jobflow.data.conversion import converted, fitted, misfit
from jobflow.data.number_text import MISSING, parsed
from jobflow.data.samples import Field, Keep, Samples, Split, checked_name, named_dtype, own_dtype
from jobflow.storage.untrusted import MEMORY

#: name of a column, or of several side by side
Source: TypeAlias = str | list[str]
#: treatment of other texts: an error, or an index after the categories
Outside: TypeAlias = Literal["error", "index"]
#: the treatment for all columns of categories, or by column
Outsides: TypeAlias = Outside | dict[str, Outside]
#: rows per read while statistics of columns are computed
ROWS = 4096
#: A function that returns values of columns in a type: [rows, *shape] of one column, or [rows, columns].
Values: TypeAlias = Callable[[Sequence[str], np.dtype[Any]], Array]


@dataclass(frozen=True)
class Rules:
    """The arguments of a table with rules for all columns or by column."""

    missing: Missing | None = None
    scale: Scale | None = None
    empty: Outsides = "error"
    unknown: Outsides = "error"
    dates: Dates | None = None
    date_format: str | None = None
    #: columns that identify rows in predictions
    ids: str | list[str] | None = None


class Table(Samples):
    """A table of named columns. Subclasses set the attributes that reading requires, and then call `__init__`.

    Rules for all columns do not apply to the columns in `images`, which subclasses decode.

    A text outside of a column's categories is an error or has the next free index: first the empty text, then unknown texts. Statistics for missing
    values and scaling are computed from the training rows.
    """

    #: columns with image files
    images: Collection[str] = ()

    def __init__(
        self,
        columns: Sequence[str],
        rows: int,
        fields: Mapping[str, Source],
        categories: list[str] | Mapping[str, list[str]] | None,
        dtypes: Mapping[str, str] | None,
        rules: Rules,
        keep: tuple[Split, int],
    ) -> None:
        self._check_kinds(fields, categories)
        self._dates, self.date_format = date_parts(rules.dates, columns, str(self)), rules.date_format
        self.columns, self._names = columns, [*columns, *self._dates]
        if len(set(columns)) < len(columns):
            raise DataError(f"{self}: two columns have the same name: {', '.join(columns)}.{self.columns_hint()}")
        ids = [rules.ids] if isinstance(rules.ids, str) else rules.ids or []
        self.ids = [checked_name(name, columns, f"{self}: ids: column") for name in ids]
        self._sources = {field: self._columns_of(field, source) for field, source in fields.items()}
        self.categories = self._categories(categories)
        used = {column: field for field in sorted(fields, key=LABELS.__ne__, reverse=True) for column in self._sources[field]}
        used = {column: field for column, field in used.items() if column not in self.images}
        names = [name for name in self._names if name not in self.images]
        self._missing = missing_rules(rules.missing, str(self), names, used, self.categories)
        self._scale = scale_rules(rules.scale, str(self), names, used, self.categories)
        #: numbers that replace missing values by column; NaN until the number is known
        self.missing = {name: math.nan if rule in LEARNED else rule for name, rule in self._missing.items() if rule not in ("drop", "error")}
        self._codes, self._unknown = self._coding(rules.empty, rules.unknown)
        for name in dtypes or ():
            checked_name(name, fields, f"{self}: dtypes: field")
        sample_fields = {field: self._field(field, isinstance(source, str), (dtypes or {}).get(field)) for field, source in fields.items()}
        #: rows of the file without missing values in columns whose rows are dropped; None for all rows
        self._complete = self._complete_rows(rows)
        count = rows if self._complete is None else len(self._complete)
        super().__init__(sample_fields, count, Keep(keep[0], count, keep[1]))
        self._learn(used, Keep("all" if keep[0] == "all" else "train", count, keep[1]))

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

    def position(self, row: int) -> str:
        """Describe the position of a row of the file."""
        return f"{self}: row {row}"

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

    @abstractmethod
    def absent(self, columns: Sequence[str]) -> Array:
        """Return a mask of the rows of the file in which a value of one of these columns is missing."""

    @abstractmethod
    def cells_of(self, rows: Array, columns: Sequence[str]) -> dict[str, list[Any]]:
        """Return the values of columns in these rows of the file as they are stored."""

    @abstractmethod
    def moments(self, rows: Array, column: str) -> Array:
        """Return the dates of a column in these rows of the file as datetime64[s], NaT for a missing date; raise DataError for another value."""

    @property
    def facts(self) -> dict[str, Any]:
        fills = {name: self.missing[name] for name, rule in self._missing.items() if rule in LEARNED}
        scales = {name: {"shift": each.shift, "factor": each.factor} for name, each in self.scaling.items()}
        return {name: fact for name, fact in (("categories", self.categories), ("missing", fills), ("scale", scales)) if fact}

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        rows = self.rows_in_file(numbers)
        values = self._values(rows, {column for name in names for column in self._sources[name]})
        arrays: dict[str, Array] = {}
        for name in names:
            field, columns = self.fields[name], self._sources[name]
            scaled = any(column in self.scaling for column in columns)
            array = values(columns, np.dtype(np.float64) if scaled else field.dtype.numpy).reshape(len(numbers), *field.shape)
            self._check_required(array, columns, rows, name)
            arrays[name] = self._scaled(array, columns, field) if scaled else array
        return arrays

    def rows_in_file(self, indices: Array) -> Array:
        """Return the rows of the file for indices of the rows that are not dropped."""
        return indices if self._complete is None else self._complete[indices]

    def identities(self, indices: Array) -> dict[str, list[Any]]:
        rows = self.rows_in_file(self._keep.numbers(indices))
        return self.cells_of(rows, self.ids) if self.ids else {"row": rows.tolist()}

    def number_in_file(self, number: int) -> int:
        row = super().number_in_file(number)
        return row if self._complete is None else int(self._complete[row])

    def _values(self, rows: Array, columns: Collection[str]) -> Values:
        """Return the function of `values`, which also accepts parts of dates."""
        stored = self.values(rows, {column for column in columns if column not in self._dates})
        if not any(column in self._dates for column in columns):
            return stored
        moments = {source: self.moments(rows, source) for source in {self._dates[column][0] for column in columns if column in self._dates}}

        def one(column: str, dtype: np.dtype[Any]) -> Array:
            if column not in self._dates:
                return stored([column], dtype)
            return self._part(column, moments[self._dates[column][0]], dtype, rows)

        def values(columns: Sequence[str], dtype: np.dtype[Any]) -> Array:
            parts = [one(column, dtype).reshape(len(rows)) for column in columns] if len(columns) > 1 else [one(columns[0], dtype)]
            return parts[0] if len(parts) == 1 else np.stack(parts, 1)

        return values

    def _part(self, column: str, moments: Array, dtype: np.dtype[Any], rows: Array) -> Array:
        """Return a part of dates in a type; a missing date has the replacement of the column."""
        source, part = self._dates[column]
        empty = np.isnat(moments)
        present = np.where(empty, np.datetime64(0, "s"), moments)
        result = converted(part_of(present, part), dtype, lambda index: f'{self.position(rows[index[0]])}: column "{column}"')
        if empty.any():
            filling = self.filling(column, dtype)
            if filling is None:
                raise DataError(f'{self.position(rows[empty][0])}: column "{source}" is empty; set missing to replace such cells')
            result[empty] = filling
        return result

    def _check_required(self, array: Array, columns: Sequence[str], rows: Array, field: str) -> None:
        """Raise DataError for NaN in a column whose missing values are an error."""
        required = [i for i, column in enumerate(columns) if self._missing.get(column) == "error"]
        if required and array.dtype.kind == "f":
            wrong = np.argwhere(np.isnan(array.reshape(len(rows), len(columns), -1)[:, required].any(-1)))
            if len(wrong):
                column = columns[required[wrong[0][1]]]
                raise DataError(f'{self.position(rows[wrong[0][0]])}: column "{column}" is missing, and missing is "error" (field "{field}")')

    def _scaled(self, array: Array, columns: Sequence[str], field: Field) -> Array:
        known = [self.scaling.get(column, Scaling(0.0, 1.0)) for column in columns]
        if len(known) == 1:
            return ((array - known[0].shift) * known[0].factor).astype(field.dtype.numpy)
        shifts, factors = np.array([(each.shift, each.factor) for each in known]).T
        return ((array - shifts) * factors).astype(field.dtype.numpy)

    def _complete_rows(self, rows: int) -> Array | None:
        columns = [column for column, rule in self._missing.items() if rule == "drop"]
        if not columns:
            return None
        sources = dict.fromkeys(self._dates[column][0] if column in self._dates else column for column in columns)
        complete = np.flatnonzero(~self.absent(list(sources)))
        return None if len(complete) == rows else complete

    def _learn(self, used: Collection[str], training: Keep) -> None:
        """Compute the means, medians and scalings of columns from the training rows."""
        #: the scaling of columns by name
        self.scaling: dict[str, Scaling] = {}
        fills = {column: str(rule) for column, rule in self._missing.items() if rule in LEARNED and column in used}
        scales = {column: rule for column, rule in self._scale.items() if column in used}
        columns = list(dict.fromkeys([*fills, *(column for column, rule in scales.items() if isinstance(rule, str))]))
        known = self._training_values(columns, training) if columns else {}
        for column, rule in fills.items():
            self.missing[column] = learned_fill(known[column], rule, f'{self}: column "{column}"')
        for column, scale in scales.items():
            what = f'{self}: column "{column}"'
            self.scaling[column] = scale if isinstance(scale, Scaling) else learned_scaling(known[column], scale, what)

    def _training_values(self, columns: Sequence[str], training: Keep) -> dict[str, Array]:
        """Return the values of columns in the training rows as float64, NaN for missing ones."""
        MEMORY.check(8 * len(columns) * len(training), f"{self}: the values of {', '.join(columns)}", DataError)
        before, self.missing = self.missing, dict.fromkeys(columns, math.nan)
        parts: dict[str, list[Array]] = {column: [] for column in columns}
        try:
            for start in range(0, len(training), ROWS):
                rows = training.numbers(np.arange(start, min(start + ROWS, len(training))))
                values = self._values(rows if self._complete is None else self._complete[rows], set(columns))
                for column in columns:
                    parts[column].append(values([column], np.dtype(np.float64)).reshape(-1))
        finally:
            self.missing = before
        return {column: np.concatenate(arrays) for column, arrays in parts.items()}

    def _columns_of(self, field: str, source: Source) -> list[str]:
        names = [source] if isinstance(source, str) else source
        if not names:
            raise ArgumentError(f'{self}: field "{field}" has no columns; list at least one')
        try:
            return [checked_name(str(name), self._names, f'{self}: field "{field}": column') for name in names]
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

    def _coding(self, empty: Outsides, unknown: Outsides) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Return {category column: {text: index}}, and {category column: index of all unknown texts}.

        The second mapping has only columns whose `unknown` is "index". Raises: ArgumentError for another value than "error" or "index".
        """
        indexed = {what: self._indexed(what, choice) for what, choice in (("empty", empty), ("unknown", unknown))}
        codes = {name: {text: i for i, text in enumerate(texts)} for name, texts in self.categories.items()}
        for name in indexed["empty"]:
            codes[name].setdefault("", len(codes[name]))
        return codes, {name: len(codes[name]) for name in indexed["unknown"]}

    def _indexed(self, what: str, choice: Outsides) -> list[str]:
        """Return the category columns whose rule `what` is "index"."""
        choices = choice if isinstance(choice, Mapping) else dict.fromkeys(self.categories, choice)
        for name, each in choices.items() if isinstance(choice, Mapping) else ((None, choice),):
            of = "" if name is None else f' of column "{checked_name(name, self.categories, f"{self}: {what}: column of categories")}"'
            if each not in ("error", "index"):
                raise ArgumentError(f'{self}: {what}{of} must be "error" or "index", not {each!r}')
        return [name for name, each in choices.items() if each == "index"]

    def names_of(self, field: str) -> list[str]:
        """Return the categories of a field of one column of categories; [] for other fields."""
        columns = self._sources[field]
        return self.categories.get(columns[0], []) if len(columns) == 1 else []

    def size_of(self, field: str) -> int:
        """Return the number of indices of a field of one column of categories; 0 for other fields and names."""
        columns = self._sources.get(field, [])
        return self.sizes.get(columns[0], 0) if len(columns) == 1 else 0

    @property
    def sizes(self) -> dict[str, int]:
        """The number of indices of each column of categories, with those of empty and unknown texts."""
        return {name: len(codes) + (name in self._unknown) for name, codes in self._codes.items()}

    def code(self, column: str, text: str) -> int | None:
        """Return the category index of a text in a column, or None if the text is not a category and has no index."""
        index = self._codes[column].get(text)
        return self._unknown.get(column) if index is None and text else index

    def _field(self, field: str, alone: bool, dtype: str | None) -> Field:
        columns = self._sources[field]
        kinds = {column in self.categories for column in columns}
        if len(kinds) > 1:
            raise ArgumentError(f'{self}: field "{field}" mixes columns of numbers and of categories; define two fields')
        shapes, types = zip(*map(self._element, columns), strict=True)
        if not alone and any(shapes):
            raise ArgumentError(f'{self}: field "{field}": a column with several numbers per row must be a separate field')
        scaled = any(column in self._scale for column in columns)
        usual = np.float32 if scaled else np.result_type(*types)
        element = own_dtype(np.dtype(usual), f'{self}: field "{field}"') if dtype is None else named_dtype(dtype, str(self))
        if scaled and not element.is_float:
            raise ArgumentError(f'{self}: field "{field}" is {element.name}, and scale makes fractions; set dtypes to float32, or scale to none')
        return Field(shapes[0] if alone else (len(shapes),), element)

    def _element(self, column: str) -> tuple[tuple[int, ...], Any]:
        """Return the shape and the NumPy element type of one cell of a column after all rules."""
        if column in self.categories:
            return (), np.int32
        shape, kind = ((), np.float32) if column in self._dates else self.column(column)
        changed = self._missing.get(column) in LEARNED
        return shape, np.float32 if changed and np.dtype(kind).kind != "f" else kind

    def filling(self, column: str, dtype: np.dtype[Any]) -> Array | None:
        """Return the number that replaces missing numbers of a column; None if there is no replacement, or if `dtype` cannot represent it."""
        value = self.missing.get(column)
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
            replacement = self.missing.get(column)
            wrong = f", and {dtype} cannot represent the replacement {replacement} in missing" if replacement is not None else ""
            shown = f'"{text}", a missing value' if text else "empty"
            reason = f"{shown}{wrong}; set missing to replace such cells"
        elif value is not None:
            reason = f'"{text}", {misfit(value, dtype)}; set another element type with dtypes'
        else:
            reason = f'"{text}", {no_number(text)}'
        return f'column "{column}" is {reason} (field {self.fields_with(column)})'

    def date_problem(self, column: str, text: str) -> str:
        """Return the reason why a text of a column of dates cannot be read."""
        way = "write dates as YYYY-MM-DD, or set date_format" if self.date_format is None else f"date_format is {self.date_format}"
        return f'column "{column}" is "{printable(text)}", which is not a date; {way}'

    def _no_category(self, column: str, text: str) -> str:
        known = self.categories[column]
        if not text:
            return "empty; set empty: index and train again to give such cells an index after the categories"
        near = did_you_mean(text, known) or ";"
        return f'"{text}", which is not one of its {len(known)} categories{near} set unknown: index and train again to give such texts an index'

    def fields_with(self, column: str) -> str:
        """Return the names of the fields that use a column, for messages."""
        return " and ".join(f'"{field}"' for field, columns in self._sources.items() if column in columns)
