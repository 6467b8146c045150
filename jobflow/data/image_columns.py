"""Columns of tables with image files: binary columns, and the feature `Image` of Hugging Face, a struct of `bytes` and `path`."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.data.image_decoder import Decoder
from jobflow.storage.untrusted import RECORD, Fault

#: the entries of a struct with an image
BYTES, PATH = "bytes", "path"
#: the type of such a column in descriptions
IMAGE = "image"


def is_image(kinds: Any, kind: Any) -> bool:
    """Return True for the pyarrow type of a column with image files; `kinds` is `pyarrow.types`."""
    return _is_binary(kinds, kind) or bool(kinds.is_struct(kind) and kind.get_field_index(BYTES) >= 0 and _is_binary(kinds, kind.field(BYTES).type))


def _is_binary(kinds: Any, kind: Any) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def describe_cell(value: Any) -> str:
    """Describe a pyarrow value of a column of images."""
    content = value[BYTES] if hasattr(value, "keys") and value.is_valid else value
    return f"an image of {len(content.as_py()):,} bytes" if content.is_valid and not hasattr(content, "keys") else "None"


def decode_cells(decoder: Decoder, cells: Iterable[tuple[int, Any, str]], count: int, random_words: Array | None, fault: Fault) -> Array:
    """Return the images of cells as float32[count, channels, size, size]; a cell has its row in the result, a pyarrow value and a name.

    Raises: the error of `fault` for a cell without an image, a damaged image, or one above the limits.
    """
    images = np.empty((count, decoder.channels, decoder.size, decoder.size), np.float32)
    for row, value, name in cells:
        content, name = _content(value.as_py(), name, fault)
        RECORD.check(len(content), name, fault)
        images[row] = decoder.square(io.BytesIO(content), name, fault, None if random_words is None else random_words[:, row])
    return images


def _content(value: Any, name: str, fault: Fault) -> tuple[bytes, str]:
    """Return the bytes of an image, and its name with its path in the dataset."""
    if isinstance(value, dict):
        path, value = value.get(PATH), value.get(BYTES)
        if value is None and path is not None:
            raise fault(f"{name} has only the path {path!r:.200}, and other files are not read; save the dataset with its images")
        name = f"{name} ({path:.200})" if isinstance(path, str) else name
    if not isinstance(value, bytes):
        raise fault(f"{name} is null; remove the row")
    return value, name
