"""The reader "arrow", for datasets of Hugging Face on disk: Arrow files and JSON metadata; no script of a dataset runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from jobflow.core.dataclass import dataclass
from jobflow.core.extras import optional
from jobflow.data.files import fault_of
from jobflow.data.parquet import Group, Parquet
from jobflow.storage.remote import AnyPath
from jobflow.storage.untrusted import CONFIGURATION, HEADER, content, json_tree, mapped, plain_name

WHAT = 'reader "arrow"'
fault = fault_of(WHAT)
#: files of a folder that `save_to_disk` has written: of one dataset, its features, and of several datasets
STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
#: the field whose column may have names of classes
LABELS = "labels"


class ArrowDataset(Parquet):
    """The rows of a folder that `Dataset.save_to_disk` of Hugging Face has written; all arguments are those of the reader "parquet".

    These are `fields`, `categories`, `dtypes`, `missing`, `memory`, `validation_every`, `empty`, `unknown`, `scale`, `dates`, `date_format` and
    `ids`. Columns of images have `size`, `channels`, `resize`, `crop`, `flip`, `rotation`, `colour`, `rand_augment`, `magnitude` and `seed`. The
    names of a `ClassLabel` are the classes of the samples. Only the JSON of the folder and the Arrow files that it names are read.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    reader = WHAT

    def row_groups(self, path: AnyPath, texts: list[str]) -> list[Group]:
        return groups_of(path)

    @cached_property
    def classes(self) -> list[str]:
        """The names of the classes in the column of the field "labels"; [] if the dataset has none."""
        columns = self._sources.get(LABELS, [])
        info = self._groups[0].path.parent / INFO
        features = _json(info).get("features") if len(columns) == 1 and info.exists() else None
        feature = features.get(columns[0]) if isinstance(features, Mapping) else None
        names = feature.get("names") if isinstance(feature, Mapping) else None
        return [str(name) for name in names] if isinstance(names, list) else []

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, **({"classes": self.classes} if self.classes else {})}


@dataclass(frozen=True, eq=False)
class Batches:
    """The record batches of an Arrow file, with the methods of a Parquet file that its readers call."""

    schema_arrow: Any
    batches: Sequence[Any]

    def iter_batches(self, rows: int, *, row_groups: Sequence[int], columns: Sequence[str], use_threads: bool) -> Iterator[Any]:
        """Yield columns of record batches in pieces of `rows` rows; batches are in memory maps, so threads are of no use."""
        for index in row_groups:
            batch = self.batches[index].select(list(columns))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def groups_of(path: AnyPath) -> list[Group]:
    """Return the record batches of all Arrow files of a dataset folder; raise DataError if the folder is not a complete dataset."""
    groups: list[Group] = []
    start = 0
    for file in _files(path):
        schema, batches = _opened(file)
        opened, row = Batches(schema, batches), 0
        for index, batch in enumerate(batches):
            if batch.num_rows:
                groups.append(Group(file, opened, index, row, start + row, batch.num_rows, WHAT))
            row += batch.num_rows
        start += row
    return groups


def _opened(file: AnyPath) -> tuple[Any, list[Any]]:
    arrow = optional("pyarrow", WHAT)
    ipc = optional("pyarrow.ipc", WHAT)
    try:
        stream = ipc.open_stream(arrow.BufferReader(arrow.py_buffer(mapped(file, fault))))
        schema, batches = stream.schema, list(stream)
        len(schema.names)  # names that are not UTF-8 raise here
        return schema, batches
    except Exception as error:  # a broken file can raise any exception in pyarrow
        raise fault(f"{file} is not a complete Arrow file: {error}; save the dataset again") from error


def _files(path: AnyPath) -> list[AnyPath]:
    if (path / SPLITS).exists():
        splits = _json(path / SPLITS).get("splits")
        raise fault(f"{path} has several datasets; set path to one of the folders {', '.join(map(str, splits if isinstance(splits, list) else []))}")
    if not (path / STATE).exists():
        raise fault(f"{path} has no {STATE}; set path to a folder that Dataset.save_to_disk has written")
    state = _json(path / STATE)
    if state.get("_indices_data_files"):
        raise fault(f"{path}: the dataset selects rows by indices in other files; call flatten_indices() before save_to_disk")
    entries = state.get("_data_files")
    try:
        names = [plain_name(entry["filename"]) for entry in entries]  # type: ignore[union-attr]
    except (TypeError, KeyError, ValueError) as error:
        raise fault(f"{path / STATE}: _data_files must be a list of file names in this folder: {error}; save the dataset again") from None
    if lost := [name for name in names if not (path / name).exists()]:
        raise fault(f"{path}: there is no file {lost[0]}, which {STATE} names; copy the complete folder")
    return [path / name for name in names]


def _json(path: AnyPath) -> dict[str, Any]:
    try:
        tree = json_tree(content(path, HEADER if path.name == INFO else CONFIGURATION, fault))
    except ValueError as error:
        raise fault(f"{path} is not JSON: {error}; save the dataset again") from None
    if not isinstance(tree, dict):
        raise fault(f"{path} is {tree!r:.60}, and no map; save the dataset again")
    return tree
