"""Readers of what is in a store: the same samples as from files."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from jobflow.core.errors import DataError
from jobflow.data import Samples, Stream, open_reader
from jobflow.storage.remote import StoreError


def numpy_files(folder: Path) -> dict[str, Any]:
    for number, name in enumerate(("x", "y")):
        np.save(folder / f"{name}.npy", np.arange(6).reshape(3, 2) + number)
    return {}


def table(folder: Path) -> dict[str, Any]:
    (folder / "t.csv").write_text("a,b\n1,x\n2,y\n3,x\n")
    return {"path": "t.csv", "fields": {"a": "a", "b": "b"}, "categories": ["b"]}


def columns(folder: Path) -> dict[str, Any]:
    for name in "ab":
        pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, 2.0], "b": [3, 4]}), folder / f"{name}.parquet")
    return {"fields": {"a": "a", "b": "b"}}


def images(folder: Path) -> dict[str, Any]:
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        Image.fromarray(np.full((4, 5, 3), ord(name[0]), np.uint8)).save(folder / name / "1.png")
    return {"size": 3}


def text(folder: Path) -> dict[str, Any]:
    for name in ("b", "a"):
        (folder / f"{name}.txt").write_text(f"this is {name}, and more of it")
    return {"length": 4, "split": "all"}


def letters(folder: Path) -> dict[str, Any]:
    return {**text(folder), "level": "byte"}


def idx(folder: Path) -> dict[str, Any]:
    packed = gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, *range(8)]))
    (folder / "i.gz").write_bytes(packed)
    return {"images": "i.gz", "split": "all"}


def arrow(folder: Path) -> dict[str, Any]:
    table = pyarrow.table({"a": [[1.0, 2.0], [3.0, 4.0]], "b": [3, 4]})
    with pyarrow.OSFile(str(folder / "data.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (folder / "dataset_info.json").write_text('{"features": {"b": {"names": ["x", "y", "z", "u", "v"]}}}')
    return {"fields": {"x": "a", "labels": "b"}}


def image_column(folder: Path) -> dict[str, Any]:
    images(folder)
    files = [(folder / name / "1.png").read_bytes() for name in ("cat", "dog")]
    for name, file in zip("ab", files, strict=True):
        pyarrow.parquet.write_table(pyarrow.table({"image": [file], "label": [len(file)]}), folder / f"{name}.parquet")
    return {"fields": {"images": "image", "labels": "label"}, "size": 3}


def shards(folder: Path) -> dict[str, Any]:
    images(folder)
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for name in ("cat", "dog"):
                archive.add(folder / name / "1.png", f"{name}.png")
                (folder / "label").write_text(f"0{number}")
                archive.add(folder / "label", f"{name}.cls")
    return {"fields": {"images": "png", "labels": "cls"}, "size": 3, "shuffle": 2, "flip": True}


def rules(folder: Path) -> dict[str, Any]:
    (folder / "t.csv").write_text("a,b,c\n1,x,2024-01-05\n,y,2024-02-05\n3,,2024-03-05\n")
    columns: dict[str, Any] = {"fields": {"a": ["a", "c.month"], "b": "b"}, "categories": ["b"], "dates": {"c": ["month"]}}
    return {"path": "t.csv", **columns, "missing": {"a": "mean"}, "scale": {"a": "standard"}, "empty": "index"}


KINDS: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "numpy": ("numpy", numpy_files),
    "csv": ("csv", table),
    "parquet": ("parquet", columns),
    "images": ("images", images),
    "text": ("text", text),
    "bytes": ("text", letters),
    "idx": ("idx", idx),
    "rules": ("csv", rules),
    "arrow": ("arrow", arrow),
    "image column": ("parquet", image_column),
    "webdataset": ("webdataset", shards),
}


def test_stores_and_files_have_equal_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    for kind, (reader, make) in KINDS.items():
        folder = tmp_path / kind
        folder.mkdir()
        arguments = make(folder)
        name = arguments.pop("path", "")
        memory.put(str(folder), f"/{kind}", recursive=True)
        here = open_reader(reader, path=str(folder / name), **arguments)
        there = open_reader(reader, path=f"memory://{kind}/{name}", **arguments)
        assert here.facts == there.facts, kind
        if isinstance(here, Stream) or isinstance(there, Stream):
            assert isinstance(here, Stream) and isinstance(there, Stream)
            pairs = list(zip(here.samples(1), there.samples(1), strict=True))
            assert len(pairs) == 4 and all(one[name].tobytes() == other[name].tobytes() for one, other in pairs for name in one), kind
            continue
        assert isinstance(here, Samples) and isinstance(there, Samples) and len(here) == len(there) > 0, kind
        rows = np.arange(len(here))
        for field, array in here.read(rows).items():
            assert there.read(rows)[field].tobytes() == array.tobytes(), (kind, field)
    memory.pipe_file("/csv/t.csv", b"a,b\n1,x\nword,y\n")
    samples = open_reader("csv", path="memory://csv/t.csv", fields={"a": "a"})
    with pytest.raises(DataError, match=r'reader "csv": memory://csv/t\.csv: line 3 .* is "word"'):
        samples.read(np.array([1]))
    with pytest.raises(DataError, match=r"there is no file memory://csv/u\.csv"):
        open_reader("csv", path="memory://csv/u.csv", fields={"a": "a"})
    monkeypatch.setattr(type(memory), "info", lambda *_, **__: (_ for _ in ()).throw(PermissionError("no")))
    with pytest.raises(StoreError, match=r"memory://csv/t\.csv: the store refuses access \(no\)"):
        open_reader("csv", path="memory://csv/t.csv", fields={"a": "a"})
    memory.store.clear()
