"""Registry of readers by name, for `data: {train: {reader: digits, split: train}}`.

The signature of a reader's class is the schema of its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from jobflow.core.errors import NOWHERE, ArgumentError, DataError, did_you_mean, user_line
from jobflow.data.csv_table import CsvTable
from jobflow.data.digits import Digits
from jobflow.data.idx import Idx
from jobflow.data.image_folders import ImageFolders
from jobflow.data.numpy_files import NumpyFiles
from jobflow.data.ofrecord import OfRecord
from jobflow.data.parquet import Parquet
from jobflow.data.python_source import python_source
from jobflow.data.samples import Samples, Stream
from jobflow.data.text import Text
from jobflow.data.waiting import notice_if_long

READERS: dict[str, Any] = {
    "digits": Digits,
    "numpy": NumpyFiles,
    "idx": Idx,
    "csv": CsvTable,
    "parquet": Parquet,
    "images": ImageFolders,
    "text": Text,
    "ofrecord": OfRecord,
    "python": python_source,
}


def open_reader(name: str, facts: Mapping[str, Any] | None = None, **arguments: Any) -> Samples | Stream:
    """Open a reader by name with its arguments.

    `facts` come from other samples (`Samples.facts`), such as those of a checkpoint. They replace arguments that are not passed, so training and
    prediction read data alike.

    Raises: ArgumentError; DataError for a missing or damaged file.
    """
    line = user_line()
    here = "open_reader" if line == NOWHERE else f"open_reader at {line}"
    if name not in READERS:
        raise ArgumentError(f'{here}: there is no reader "{name}"{did_you_mean(name, READERS) or "."} There are {", ".join(READERS)}.')
    legal = inspect.signature(READERS[name]).parameters
    for argument in arguments:
        if argument not in legal:
            near = did_you_mean(argument, legal) or "."
            raise ArgumentError(f'{here}: reader "{name}" has no argument "{argument}"{near} It has {", ".join(legal)}.')
    learned = {key: _learned(value, arguments.get(key)) for key, value in (facts or {}).items() if key in legal}
    learned = {key: value for key, value in learned.items() if value is not None}
    options = {**arguments, **learned}
    missing = [key for key, parameter in legal.items() if parameter.default is parameter.empty and key not in options]
    if missing:
        raise ArgumentError(f'{here}: reader "{name}" needs {" and ".join(missing)}')
    with notice_if_long(lambda: f'reader "{name}" to open {", ".join(f"{key}={value}" for key, value in options.items()):.200}'):
        try:
            samples: Samples | Stream = READERS[name](**options)
        except (ArgumentError, DataError) as error:
            error.args = (f"{error} ({here})",)
            raise
    return samples


def _learned(fact: Any, argument: Any) -> Any:
    """Return the fact that replaces an argument: the whole fact if the argument is not passed, its part for a list of names, else None."""
    if argument is None:
        return fact
    if isinstance(fact, Mapping) and isinstance(argument, list) and all(name in fact for name in argument):
        return {name: fact[name] for name in argument}
    return None
