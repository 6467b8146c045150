"""The reader "parquet", for Parquet tables, based on pyarrow."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError, counted
from jobflow.core.extras import optional
from jobflow.core.types import Array
from jobflow.data.column_rules import Dates, Missing, Scale, moments_of
from jobflow.data.column_summary import Summary
from jobflow.data.conversion import fitted, misfit
from jobflow.data.files import fault_of, files_at
from jobflow.data.image_columns import IMAGE, decode_cells, describe_cell, is_image
from jobflow.data.image_decoder import decoder_of, pillow
from jobflow.data.samples import Split
from jobflow.data.table import Outsides, Rules, Table, Values
from jobflow.data.waiting import one_by_one
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.untrusted import MEMORY, mapped

WHAT = 'reader "parquet"'
fault = fault_of(WHAT)
ENDING = ".parquet"
#: largest element size in bytes; rows per read, and per read in the search for the first non-empty list
LARGEST, PIECE, FEW = 8, 1 << 16, 64
#: a cached column: group, name, type (None for image files) and replacement
Key = tuple[int, str, np.dtype[Any] | None, str]


@dataclass(frozen=True, eq=False)
class Group:
    """A row group of a Parquet file, which can be read independently of other row groups."""

    path: AnyPath
    file: Any
    index: int
    #: first row of the group, in its file and over all files
    row: int
    start: int
    rows: int
    #: the reader in messages
    what: str = WHAT


class Parquet(Table):
    """The rows of a Parquet file, or of all Parquet files in a folder, sorted by name.

    `fields` names the columns of each field: one (`labels: species`), whose lists of equal length become arrays, or several side by side
    (`features: [length, width]`). Numbers keep their type unless `dtypes` sets another one. Columns named in `categories` become int32: the index
    of the text among the sorted texts of the column, or in a list (`{species: [setosa, virginica]}`).

    `missing`, a rule or a rule by column (`{length: 0, width: mean}`), treats null and NaN. A rule is a number, "mean", "median", "drop" (the row is
    no sample) or "error". `scale`, `dates`, `date_format` and `ids` are those of the reader "csv".

    With `empty` "index" an empty category has the first index after the categories. With `unknown` "index" all other texts have the next index. By
    default an empty or unknown category is an error. Both are for all columns or by column. Requested rows are read by row group and column; the
    last groups are cached, up to `memory` MiB. Every `validation_every`-th row is for validation.

    A column of image files, as bytes or as the feature `Image` of Hugging Face, becomes float32[`channels`, `size`, `size`] in 0..1. `resize`,
    `crop`, `flip`, `rotation`, `colour`, `rand_augment`, `magnitude` and `seed` are those of the reader "images".
    """

    suffixes: ClassVar[tuple[str, ...]] = (ENDING,)
    #: the name of the reader in messages
    reader = WHAT

    def __init__(
        self,
        path: str,
        fields: dict[str, str | list[str]],
        categories: list[str] | dict[str, list[str]] | None = None,
        dtypes: dict[str, str] | None = None,
        missing: Missing | None = None,
        memory: int = 1024,
        split: Split = "all",
        validation_every: int = 10,
        empty: Outsides = "error",
        unknown: Outsides = "error",
        scale: Scale | None = None,
        dates: Dates | None = None,
        date_format: str | None = None,
        ids: str | list[str] | None = None,
        size: int = 224,
        channels: Literal[1, 3] = 3,
        resize: int | None = None,
        crop: Literal["center", "random"] = "center",
        flip: bool = False,
        rotation: float = 0.0,
        colour: float = 0.0,
        rand_augment: int = 0,
        magnitude: int = 9,
        seed: int = 0,
    ) -> None:
        self._arrow, self.what, self._memory = optional("pyarrow", self.reader), f"{self.reader}: {path}", memory << 20
        if memory < 0:
            raise ArgumentError(f"{self.reader}: memory must be a number of MiB from 0 on, not {memory}")
        self._groups = self.row_groups(path_of(path), list(categories or ()))
        if not self._groups:
            raise DataError(f"{self}: there are no rows")
        self._decoder = decoder_of(
            self.reader,
            size=size,
            channels=channels,
            resize=resize,
            crop=crop,
            flip=flip,
            rotation=rotation,
            colour=colour,
            rand_augment=rand_augment,
            magnitude=magnitude,
            seed=seed,
        )
        self._starts = np.array([group.start for group in self._groups])
        self._schema, last = self._groups[0].file.schema_arrow, self._groups[-1]
        #: shapes of list columns by name
        self._shapes: dict[str, tuple[int, ...]] = {}
        #: results of the last reads, from the oldest on
        self._cache: dict[Key, tuple[Any, Array | None]] = {}
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self.images = [name for name in self._schema.names if is_image(self._arrow.types, self._schema.field(name).type)]
        keep = split, validation_every
        rules = Rules(missing, scale, empty, unknown, dates, date_format, ids)
        super().__init__(self._schema.names, last.start + last.rows, fields, categories, dtypes, rules, keep)

    def row_groups(self, path: AnyPath, texts: list[str]) -> list[Group]:
        """Return the row groups of the files at a path; columns in `texts` are read as dictionary indices."""
        return list(groups_of(path, texts))

    def where(self, number: int) -> str:
        return f"{self.position(self.number_in_file(number))}: sample {number}"

    def position(self, row: int) -> str:
        group = self._groups[int(np.searchsorted(self._starts, row, "right")) - 1]
        return _place(group, row - group.start)

    # ---------------------------------------------------------------- columns

    def rows(self, indices: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        images = [name for name in names if self._sources[name][0] in self.images]
        arrays = super().rows(indices, epoch, [name for name in names if name not in images])
        for name in images:
            arrays[name] = self._decoded(self.rows_in_file(indices), self._sources[name][0], epoch)
        return arrays

    def _decoded(self, rows: Array, column: str, epoch: int) -> Array:
        """Return the images of a column in these rows of the file."""
        which: Array = np.searchsorted(self._starts, rows, "right") - 1
        names = [f'{self.position(row)}, column "{column}"'.removeprefix(f"{self.reader}: ") for row in rows.tolist()]

        def cells() -> Iterator[tuple[int, Any, str]]:
            for _, index in one_by_one(np.argsort(which, kind="stable").tolist(), names.__getitem__):
                group = int(which[index])
                files = self._image_column(group, column)
                yield index, files[int(rows[index]) - self._groups[group].start], names[index]

        return decode_cells(self._decoder, cells(), len(rows), self._decoder.random_words(rows, epoch), fault_of(self.reader))

    def column(self, name: str) -> tuple[tuple[int, ...], Any]:
        kinds, kind = self._arrow.types, self._schema.field(name).type
        if name in self.images:
            pillow()  # a missing package is reported when the reader is opened
            return (self._decoder.channels, self._decoder.size, self._decoder.size), np.float32
        inner = _element(kinds, kind)
        if _is_text(kinds, inner):
            way = "add it to categories" if inner == kind else "texts in lists cannot be categories; convert the column to lists of numbers"
            raise ArgumentError(f'{self}: column "{name}" contains {kind}; {way}')
        if not (kinds.is_integer(inner) or kinds.is_floating(inner) or kinds.is_boolean(inner)):
            advice = "name its parts in dates" if kinds.is_temporal(kind) else "convert it to numbers"
            raise DataError(f'{self}: column "{name}" contains {kind}, which tensors do not support; {advice}')
        if inner != kind:
            self._shapes[name] = self._list_shape(name)
        return self._shapes.get(name, ()), inner.to_pandas_dtype()

    def check_category(self, name: str) -> None:
        kind = self._schema.field(name).type
        if self._arrow.types.is_nested(kind):
            raise ArgumentError(f'{self}: categories: column "{name}" contains {kind}; a category must be one text per row')

    def _list_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the first list in a column that is regular and not empty, else of the first list.

        Raises: DataError if the column is null in all rows.
        """
        shape: tuple[int, ...] = ()
        for group in self._groups:
            for piece in self._pieces(group, name, FEW):
                for value in (each.as_py() for each in piece if each.is_valid):
                    candidate = _shape_of(value)
                    if 0 not in candidate:
                        return candidate
                    shape = shape or candidate
        if not shape:
            raise DataError(f'{_place(self._groups[0], 0)}: column "{name}" is null in all rows (field {self.fields_with(name)})')
        return shape

    def texts(self, columns: Sequence[str]) -> Iterator[tuple[str, Iterable[str]]]:
        for group in self._groups:
            for name in columns:
                texts, codes = self._coded(group, name)
                yield name, [texts[code] for code in np.unique(codes)]

    def absent(self, columns: Sequence[str]) -> Array:
        return np.concatenate([np.any([self._absent(group, name) for name in columns], 0) for group in self._groups])

    def _absent(self, group: Group, name: str) -> Array:
        if name in self.categories:
            texts, codes = self._coded(group, name)
            empty: Array = np.array([not text for text in texts])[codes]
            return empty
        column = self._chunk(group, name)
        floats = self._arrow.types.is_floating(column.type)
        mask: Array = column.is_null(nan_is_null=floats).to_numpy(zero_copy_only=False)
        return mask

    def cells_of(self, rows: Array, columns: Sequence[str]) -> dict[str, list[Any]]:
        which, cells = np.searchsorted(self._starts, rows, "right") - 1, {name: [None] * len(rows) for name in columns}
        for index in np.unique(which):
            group, indices = self._groups[int(index)], np.flatnonzero(which == index)
            for name in columns:
                values = self._chunk(group, name).take(rows[indices] - group.start).to_pylist()
                for row, value in zip(indices.tolist(), values, strict=True):
                    cells[name][row] = value
        return cells

    def moments(self, rows: Array, column: str) -> Array:
        cells = self.cells_of(rows, [column])[column]
        moments, wrong = moments_of(cells, self.date_format)
        if wrong is not None:
            raise DataError(f"{self.position(int(rows[wrong]))}: {self.date_problem(column, str(cells[wrong]))}")
        return moments

    def values(self, numbers: Array, columns: Collection[str]) -> Values:
        which = np.searchsorted(self._starts, numbers, "right") - 1
        parts = [(int(group), places := np.flatnonzero(which == group), numbers[places] - self._starts[group]) for group in np.unique(which)]

        def one(column: str, dtype: np.dtype[Any]) -> Array:
            result = np.empty((len(numbers), *self._shapes.get(column, ())), dtype)
            for group, places, rows in parts:
                read, wrong = self._column(group, column, dtype)
                if wrong is not None and wrong[rows].any():
                    raise self._fault(self._groups[group], int(rows[wrong[rows]][0]), column, dtype)
                result[places] = read[rows]
            return result

        def values(columns: Sequence[str], dtype: np.dtype[Any]) -> Array:
            parts = [one(column, dtype) for column in columns]
            return parts[0] if len(parts) == 1 else np.stack(parts, 1)

        return values

    # ---------------------------------------------------------------- reading

    def _column(self, number: int, name: str, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
        """Return the values of a column in a row group, cached or read, and a mask of rows without a valid value.

        The mask is None if all rows are valid.
        """
        return self._cached((number, name, dtype, str(self.missing.get(name))), lambda: self._read(self._groups[number], name, dtype))

    def _image_column(self, number: int, name: str) -> Any:
        """Return a column of image files in a row group as a pyarrow array, cached or read."""
        return self._cached((number, name, None, ""), lambda: (self._chunk(self._groups[number], name), None))[0]

    def _cached(self, key: Key, read: Callable[[], tuple[Any, Array | None]]) -> tuple[Any, Array | None]:
        """Return the cached entry, or the result of `read`; remove the oldest entries if the cache is too large."""
        with self._lock:  # a second thread that requests the column waits and then uses the cache
            entry = self._cache.pop(key, None)
            if entry is None:
                entry = read()
                self._cached_bytes += entry[0].nbytes
            self._cache[key] = entry
            while self._cached_bytes > self._memory:
                self._cached_bytes -= self._cache.pop(next(iter(self._cache)))[0].nbytes
        return entry

    def _read(self, group: Group, name: str, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
        values, wrong = (self._categories_of if name in self.categories else self._numbers_of)(group, name, dtype)
        return values, wrong if wrong.any() else None

    def _categories_of(self, group: Group, name: str, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        texts, codes = self._coded(group, name)
        indices = [self.code(name, text) for text in texts]
        numbers, misfits = fitted(np.array([0 if each is None else each for each in indices], np.int64), dtype)
        wrong = np.array([each is None for each in indices])
        return numbers[codes], (wrong if misfits is None else wrong | misfits)[codes]

    def _coded(self, group: Group, name: str) -> tuple[list[str], Array]:
        """Return the distinct texts of a column and each row's index in them; null has the last index, an empty text."""
        column = self._chunk(group, name)
        coded = column if self._arrow.types.is_dictionary(column.type) else column.dictionary_encode()
        texts = ["" if value is None else str(value).strip() for value in coded.dictionary.to_pylist()]
        codes: Array = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        return [*texts, ""], codes

    def _numbers_of(self, group: Group, name: str, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        flat, rows = _flat(self._chunk(group, name), self._shapes.get(name, ()))
        empty = flat.is_null().to_numpy(zero_copy_only=False)
        values = flat.fill_null(False if self._arrow.types.is_boolean(flat.type) else 0).to_numpy(zero_copy_only=False)
        numbers, misfits = fitted(values, dtype)
        wrong = np.zeros(len(values), bool) if misfits is None else misfits
        filling = self.filling(name, dtype)
        if filling is None:
            wrong = wrong | empty
        else:
            if values.dtype.kind == "f":
                empty = empty | np.isnan(values)
            numbers = np.where(empty, filling, numbers) if empty.any() else numbers
            wrong = wrong & ~empty
        shape = self._shapes.get(name, ())
        result, unread = np.zeros((group.rows, *shape), dtype), np.ones(group.rows, bool)
        result[rows], unread[rows] = numbers.reshape(len(rows), *shape), wrong.reshape(len(rows), math.prod(shape)).any(1)
        return result, unread

    def _fault(self, group: Group, row: int, name: str, dtype: np.dtype[Any]) -> DataError:
        """Return the error for a row without a valid value in a column."""
        value = self._chunk(group, name)[row].as_py()
        fields = f"(field {self.fields_with(name)})"
        if name in self._shapes:
            text = f'column "{name}" is {self._list_problem(value, self._shapes[name], name, dtype)} {fields}'
        elif value is None or name in self.categories:
            text = self._text_problem(name, "" if value is None else str(value).strip(), dtype)
        elif isinstance(value, float) and np.isnan(value) and name in self.missing:
            text = self.problem(name, "nan", dtype)
        else:
            text = f'column "{name}" is {value}, {misfit(value, dtype)}; set another element type with dtypes {fields}'
        return DataError(f"{_place(group, row)}: {text}")

    def _text_problem(self, name: str, text: str, dtype: np.dtype[Any]) -> str:
        index = self.code(name, text) if name in self.categories else None
        if index is None:
            return self.problem(name, text, dtype)
        return f'column "{name}" is "{text}", whose index {index} is beyond {dtype}; set another element type with dtypes'

    def _list_problem(self, value: Any, shape: tuple[int, ...], name: str, dtype: np.dtype[Any]) -> str:
        """Return the reason why a row of a list column is invalid."""
        target = f"and not {list(shape)} numbers of the type {dtype}, as in the first row that is not empty"
        if value is None:
            return f"null, {target}; missing replaces numbers in lists, not lists"
        if _shape_of(value) != shape:
            return f"{value!r:.80}, {target}; pad the lists to equal length"
        if name not in self.missing and any(each is None for each in _leaves(value)):
            return f"{value!r:.80}, {target}; set missing to replace null"
        return f"{value!r:.80}, {target}; set another element type with dtypes"

    def _chunk(self, group: Group, name: str) -> Any:
        """Return a column of a row group as a pyarrow array; one of image files as a chunked array, which may be larger than 2 GiB."""
        place, size, pieces = f'{group.path}: row group {group.index}, column "{name}"', 0, []
        MEMORY.check(group.rows * LARGEST, place, fault_of(group.what))
        for piece in self._pieces(group, name, FEW if name in self.images else PIECE):
            size += piece.nbytes
            MEMORY.check(size, place, fault_of(group.what))  # a few compressed bytes may expand to many numbers
            pieces.append(piece)
        if sum(map(len, pieces)) != group.rows:
            raise fault_of(group.what)(f"{place} is damaged: it has {sum(map(len, pieces))} of {counted(group.rows, 'row')}; replace the file")
        column = self._arrow.chunked_array(pieces)
        return column if name in self.images else column.combine_chunks()

    def _pieces(self, group: Group, name: str, rows: int) -> Iterator[Any]:
        """Yield a column of a row group in pieces of `rows` rows."""
        kind, first = (each.field(name).type if name in each.names else "missing" for each in (group.file.schema_arrow, self._schema))
        if kind != first:
            raise fault_of(group.what)(
                f'{group.path}: column "{name}" is {kind}, but {first} in {self._groups[0].path}; write all files with one schema'
            )
        yield from _batches(group, name, rows)


def _batches(group: Group, name: str, rows: int) -> Iterator[Any]:
    """Yield a column of a row group in pieces of `rows` rows; raise DataError if the file is damaged."""
    try:
        for batch in group.file.iter_batches(rows, row_groups=[group.index], columns=[name], use_threads=False):
            column = batch.column(name)
            column.validate(full=True)
            yield column
    except Exception as error:  # a broken file can raise any exception in pyarrow
        raise fault_of(group.what)(f'{group.path}: row group {group.index}, column "{name}" cannot be read: {error}') from error


def columns_of(path: str, groups: Sequence[Group], most: int | None, first: int) -> tuple[list[Summary], int, list[dict[str, str]]]:
    """Return summaries of all columns, the number of rows, and the texts of the `first` rows; at most `most` rows are read."""
    kinds = optional("pyarrow", WHAT).types
    if not groups:
        raise DataError(f"{path}: there are no rows; pass a file with rows")
    schema, count = groups[0].file.schema_arrow, groups[-1].start + groups[-1].rows
    summaries, head = [], [dict[str, str]() for _ in range(min(first, count))]
    for name in schema.names:
        kind, row, limit = schema.field(name).type, 0, count if most is None else min(most, count)
        images = is_image(kinds, kind)
        summary = Summary(name, IMAGE if images else "" if _is_text(kinds, kind) or kinds.is_temporal(kind) else str(kind))
        for piece in (piece for group in groups for piece in _batches(group, name, FEW if images else PIECE)):
            if row >= limit:
                break
            MEMORY.check(piece.nbytes, f'{path}: column "{name}"', fault)
            part = piece.slice(0, limit - row)
            for each, value in zip(head[row:], part[:first], strict=False):
                each[name] = describe_cell(value) if images else str(value.as_py())[:60]
            _summarize(summary, part, kinds, row)
            row += len(part)
        summaries.append(summary)
    return summaries, count, head


def _summarize(summary: Summary, part: Any, kinds: Any, row: int) -> None:
    if not summary.type:
        summary.add(part.to_pylist(), row)
    elif kinds.is_integer(part.type) or kinds.is_floating(part.type) or kinds.is_boolean(part.type):
        summary.add_array(part.drop_null().to_numpy(zero_copy_only=False), part.null_count)
    else:
        summary.cells += len(part)
        summary.missing += part.null_count


def _flat(column: Any, shape: tuple[int, ...]) -> tuple[Any, Array]:
    """Return the elements of a column of nested lists, and the indices of rows whose lists have this shape."""
    rows = np.arange(len(column))
    while True:
        flat, length = column.take(rows), 1
        for size in shape:
            other = np.flatnonzero(flat.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False) != size)
            if other.size:
                rows = np.delete(rows, other // length)
                break
            flat, length = flat.flatten(), length * size
        else:
            return flat, rows


def _element(kinds: Any, kind: Any) -> Any:
    """Return the element type of (nested) lists, or a type other than lists unchanged."""
    while kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _is_text(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_dictionary(kind))


def _shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of regular nested lists; (0,) for lists of irregular lengths, and () for other values."""
    if not isinstance(value, list):
        return ()
    inner = {_shape_of(each) for each in value}
    return (len(value), *next(iter(inner))) if len(inner) == 1 else (0,)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def groups_of(path: AnyPath, texts: list[str]) -> Iterator[Group]:
    """Yield the row groups of a file, or of the files in a folder; columns in `texts` are read as dictionary indices."""
    arrow, parquet, start = optional("pyarrow", WHAT), optional("pyarrow.parquet", WHAT), 0
    for file in files_at(path, f"*{ENDING}", fault):
        content = mapped(file, fault)
        try:
            source = arrow.BufferReader(arrow.py_buffer(content))
            schema = parquet.read_schema(source)
            coded = [name for name in schema.names if name in texts and _is_text(arrow.types, schema.field(name).type)]
            opened = parquet.ParquetFile(source, read_dictionary=coded)
            counts = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
        except Exception as error:  # a broken file can raise any exception in pyarrow
            raise fault(f"{file} is not a complete Parquet file: {error}; replace the file") from error
        if min(counts, default=0) < 0:
            raise fault(f"{file} is damaged: its row groups have {counts} rows; replace the file")
        for index, (row, rows) in enumerate(zip(accumulate(counts, initial=0), counts, strict=False)):
            if rows:
                yield Group(file, opened, index, row, start + row, rows)
        start += sum(counts)


def _place(group: Group, row: int) -> str:
    return f"{group.what}: {group.path}: row {group.row + row}"
