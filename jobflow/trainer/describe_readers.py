"""Descriptions of the readers of a configuration, for `jobflow data`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobflow.core.errors import DataError
from jobflow.data.describe import Description, describe, describe_file
from jobflow.trainer.config import load
from jobflow.trainer.jobs import open_place

#: readers of a configuration in the order in which they are opened
PLACES = ("train", "validation", "test")
#: readers whose files are described without their arguments
TABLES = ("csv", "parquet", "arrow")


def describe_readers(file: str, settings: Sequence[str], most: int | None = None) -> Iterator[Description]:
    """Yield the description of each reader, opened as in training; the readers after the first receive the facts of the training samples.

    If a reader cannot be opened, its description contains the error, and the description of its table follows.
    Raises: ConfigErrors for an invalid configuration.
    """
    config = load(file, settings).config
    facts: Mapping[str, Any] = {}
    for key in PLACES:
        reader = getattr(config.data, key)
        if reader is None:
            continue
        name = f"{file}: data.{key}"
        try:
            samples = open_place(config, key, facts)
        except DataError as error:
            yield Description(name, reader.reader, None, 0, [], [], [str(error)], 1)
            if reader.reader in TABLES:  # list all rows that cannot be read, not only the first
                yield describe_file(reader.arguments["path"], most)
            return
        facts = samples.facts if key == "train" else facts
        yield describe(name, reader.reader, samples, most)
