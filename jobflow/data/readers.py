"""The registry of readers by name, for `data: {train: {reader: digits, split: train}}`.

The signature of a reader's class is the schema of its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from jobflow.core.errors import NOWHERE, ArgumentError, DataError, did_you_mean, user_line
from jobflow.core.types import Array
from jobflow.data.arrow_dataset import ArrowDataset
from jobflow.data.column_rules import with_learned
from jobflow.data.csv_table import CsvTable
from jobflow.data.digits import Digits
from jobflow.data.files import entries_of, fault_of
from jobflow.data.idx import Idx
from jobflow.data.image_folders import ImageFolders
from jobflow.data.ofrecord import OfRecord
from jobflow.data.parquet import Parquet
from jobflow.data.python_source import python_source
from jobflow.data.samples import Columns, Samples, Split, Stream, checked_name
from jobflow.data.table import Table
from jobflow.data.text import Text
from jobflow.data.waiting import notice_if_long
from jobflow.data.webdataset import WebDataset
from jobflow.storage.npy import in_archive, in_file
from jobflow.storage.remote import AnyPath, path_of

#: the name of the reader of NumPy files in messages
_NUMPY = 'reader "numpy"'
_fault = fault_of(_NUMPY)


class NumpyFiles(Columns):
    """The arrays of an .npz file, a folder of .npy files, or one .npy file; row i of each array is sample i.

    `fields` maps fields to arrays (`{images: x_train, labels: y_train}`); by default each array is a field of the same name. `scale` multiplies
    and `dtypes` converts the elements of a field. Files are memory-mapped, so only the requested rows are read. Arrays compressed by
    `np.savez_compressed` are decompressed into memory. Every `validation_every`-th row is for validation.
    """

    suffixes = (".npz", ".npy")

    def __init__(
        self,
        path: str,
        fields: dict[str, str] | None = None,
        dtypes: dict[str, str] | None = None,
        scale: dict[str, float] | None = None,
        split: Split = "all",
        validation_every: int = 10,
    ) -> None:
        file = path_of(path)
        arrays = _arrays(file)
        sources = {name: f"{_NUMPY}: {file / f'{name}.npy' if file.is_dir() else file}" for name in arrays}
        if fields is not None:
            arrays = {field: arrays[checked_name(name, arrays, f'{_NUMPY}: {file}: field "{field}": array')] for field, name in fields.items()}
            sources = {field: sources[name] for field, name in fields.items()}
        super().__init__(arrays, dtypes, scale, (split, validation_every), f"{_NUMPY}: {file}", sources)


def _arrays(path: AnyPath) -> dict[str, Array]:
    if path.is_dir():
        files = [file for file in entries_of(path) if file.suffix == ".npy"]
        if not files:
            raise _fault(f"there is no .npy file in {path.absolute()}; set path to a folder with .npy files")
        return {file.stem: in_file(file, _fault).mapped() for file in files}
    if not path.exists():
        raise _fault(f"there is no file or folder {path.absolute()}; set path to an existing one")
    arrays = in_archive(path, _fault) if path.suffix == ".npz" else [in_file(path, _fault)]
    return {array.name: array.mapped() for array in arrays}


READERS: dict[str, Any] = {
    "digits": Digits,
    "numpy": NumpyFiles,
    "idx": Idx,
    "csv": CsvTable,
    "parquet": Parquet,
    "arrow": ArrowDataset,
    "images": ImageFolders,
    "text": Text,
    "ofrecord": OfRecord,
    "webdataset": WebDataset,
    "python": python_source,
}


#: facts by column, which have another meaning as arguments of other readers
OF_TABLES = ("missing", "scale")


def is_table(name: str) -> bool:
    """Return True if the reader `name` reads tables of named columns."""
    return inspect.isclass(READERS[name]) and issubclass(READERS[name], Table)


def open_reader(name: str, facts: Mapping[str, Any] | None = None, **arguments: Any) -> Samples | Stream:
    """Open a reader by name with its arguments.

    `facts` are properties of other samples (`Samples.facts`), for example from a checkpoint. They replace arguments that are not passed.
    Training and prediction therefore read data in the same way.

    Raises: ArgumentError for a wrong argument; DataError for a missing or damaged file.
    """
    line = user_line()
    here = "open_reader" if line == NOWHERE else f"open_reader at {line}"
    if name not in READERS:
        raise ArgumentError(f'{here}: unknown reader "{name}"{did_you_mean(name, READERS) or "."} There are {", ".join(READERS)}.')
    legal = inspect.signature(READERS[name]).parameters
    for argument in arguments:
        if argument not in legal:
            near = did_you_mean(argument, legal) or "."
            raise ArgumentError(f'{here}: reader "{name}" has no argument "{argument}"{near} It has {", ".join(legal)}.')
    usable = {key: fact for key, fact in (facts or {}).items() if key in legal and (key not in OF_TABLES or is_table(name))}
    learned = {key: _learned(fact, arguments.get(key)) for key, fact in usable.items()}
    learned = {key: value for key, value in learned.items() if value is not None}
    options = {**arguments, **learned}
    missing = [key for key, parameter in legal.items() if parameter.default is parameter.empty and key not in options]
    if missing:
        raise ArgumentError(f'{here}: reader "{name}" requires {" and ".join(missing)}')
    with notice_if_long(lambda: f'reader "{name}" to open {", ".join(f"{key}={value}" for key, value in options.items()):.200}'):
        try:
            samples: Samples | Stream = READERS[name](**options)
        except (ArgumentError, DataError) as error:
            error.args = (f"{error} ({here})",)
            raise
    return samples


def _learned(fact: Any, argument: Any) -> Any:
    """Return the value that replaces `argument` of a reader, or None if the argument stays as passed.

    The whole `fact` replaces None. For a list of names in a mapping `fact`, the mapping of only these names replaces the list.
    Rules such as "mean" are replaced by their numbers.
    """
    if argument is None:
        return fact
    if isinstance(fact, Mapping) and isinstance(argument, str | Mapping):
        return with_learned(argument, fact)
    if isinstance(fact, Mapping) and isinstance(argument, list) and all(name in fact for name in argument):
        return {name: fact[name] for name in argument}
    return None
