"""Writers of small files for each reader, and cases that the suite runs by turns."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from jobflow.data import Samples, open_reader
from jobflow.data.ofrecord import record_classes

#: element codes of IDX files
IDX_CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def by_turns(*dimensions: Sequence[Any], ids: Callable[[Any], str] = str) -> list[Any]:
    """All combinations; those that are not needed to have each value once are marked full."""
    needed = {tuple(k % len(values) for values in dimensions) for k in range(max(map(len, dimensions)))}
    places = product(*(range(len(values)) for values in dimensions))
    return [
        pytest.param(*values, id="-".join(map(ids, values)), marks=[] if index in needed else [pytest.mark.full])
        for index, values in zip(places, product(*dimensions), strict=True)
    ]


def opened(name: str, **arguments: Any) -> Samples:
    samples = open_reader(name, **arguments)
    assert isinstance(samples, Samples)
    return samples


def column(reader: str, folder: Path, values: Iterable[Any], dtype: str, name: str = "x") -> Samples:
    """Samples with one field of these values, in the type that NumPy gives them in a file, read as `dtype`."""
    listed, path = list(values), folder / f"odd.{reader}"
    options: dict[str, Any] = {"path": str(path), "dtypes": {name: dtype}}
    if reader == "numpy":
        path = folder / "odd.npz"
        np.savez(path, **{name: np.array(listed)})
        return opened("numpy", **(options | {"path": str(path)}))
    if reader == "parquet":
        parquet.write_table(arrow.table({"c": arrow.array(np.array(listed))}), path)
        return opened("parquet", fields={name: "c"}, **options)
    if reader == "csv":
        path.write_text("c\n" + "".join(f"{value}\n" for value in listed))
        return opened("csv", fields={name: "c"}, **options)
    path.write_bytes(records(name, listed))
    return opened("ofrecord", **options)


def records(name: str, values: Sequence[Any]) -> bytes:
    """An OFRecord file with one number in each record."""
    framed, kind = b"", "int64_list" if all(isinstance(number, int) for number in values) else "double_list"
    for number in values:
        message = record_classes()["OFRecord"]()
        getattr(message.feature[name], kind).value.append(number)
        content = message.SerializeToString()
        framed += struct.pack("<q", len(content)) + content
    return framed


def idx(array: Any) -> bytes:
    code = IDX_CODES[array.dtype.str[1:]]
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(array.dtype.newbyteorder(">")).tobytes()


def packed(content: bytes, is_packed: bool) -> bytes:
    return gzip.compress(content) if is_packed else content
