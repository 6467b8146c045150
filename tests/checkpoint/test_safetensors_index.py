"""Tensors in several safetensors files: valid and invalid indices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.core.errors import CheckpointError
from jobflow.storage.export import open_any
from jobflow.storage.safetensors import encoded, storable

TENSORS = {"a.weight": np.arange(6.0).reshape(2, 3), "a.bias": np.arange(3, dtype=np.float32), "b.weight": np.ones((2, 2), np.int64)}
FILES = {"model-00001-of-00002.safetensors": ["a.weight"], "model-00002-of-00002.safetensors": ["a.bias", "b.weight"]}


def write(folder: Path, files: Any = FILES, index: Any = None) -> Path:
    """Write the files, and an index, which is a tree or a text."""
    for name, tensors in files.items():
        (folder / name).write_bytes(b"".join(encoded({each: storable(each, TENSORS[each]) for each in tensors})))
    if index is None:
        index = {"metadata": {"total_size": 92}, "weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors}}
    path = folder / "model.safetensors.index.json"
    path.write_text(index if isinstance(index, str) else json.dumps(index))
    return path


def test_tensors_of_all_files_are_one_model(tmp_path: Path) -> None:
    checkpoint = open_any(write(tmp_path))
    assert set(checkpoint) == set(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(checkpoint[name], array)
        assert checkpoint[name].dtype == array.dtype


def mapped(**changes: Any) -> dict[str, Any]:
    one, two = FILES
    return {"weight_map": {"a.weight": one, "a.bias": two, "b.weight": two, **changes}}


OUTSIDE = "is not the name of a file in this folder"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (mapped(c="../other.safetensors"), OUTSIDE),
        (mapped(c="/etc/passwd"), OUTSIDE),
        (mapped(c="deep/m.safetensors"), OUTSIDE),
        (mapped(c=".."), OUTSIDE),
        (mapped(c=7), OUTSIDE),
        (mapped(c="code.bin"), "'code.bin' is not a .safetensors file"),
        (mapped(c="model-3.safetensors"), r"1 of 3 files is missing, such as model-3\.safetensors; copy the complete folder"),
        (mapped(**{"a.wieght": next(iter(FILES))}), 'model-00001-of-00002.safetensors has no tensor "a.wieght"; did you mean "a.weight"'),
        (
            {"weight_map": {name: file for name, file in mapped()["weight_map"].items() if name != "a.bias"}},
            'tensor "a.bias" of .* is not in the index',
        ),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', 'the name "a" occurs twice'),
        ('{"weight_map": []}', "weight_map must be a map of file names by tensor"),
        ('{"weight_map": {}}', "weight_map must be a map of file names by tensor"),
        ("{}", "is not an index of safetensors files: it must be a map with weight_map, a map of file names by tensor; copy it again"),
        ("[1]", "is not an index of safetensors files: it must be a map with weight_map"),
        ("", "is not an index of safetensors files"),
        ("[" * 5000 + "]" * 5000, "nested levels, more than the limit"),
        ("\x80", "is not an index of safetensors files"),
    ],
)
def test_an_invalid_index_raises(index: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, index=index)
    with pytest.raises(CheckpointError, match=message) as raised:
        open_any(path)
    assert str(raised.value).startswith(str(path))


def test_files_that_differ_from_the_index_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"1.safetensors": ["a.weight", "a.bias"], "2.safetensors": ["a.bias", "b.weight"]})
    with pytest.raises(CheckpointError, match=r'tensor "a\.bias" is in 1\.safetensors and in 2\.safetensors; keep one of them'):
        open_any(path)
    (tmp_path / "2.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(CheckpointError, match=r"2\.safetensors"):
        open_any(path)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="JOBFLOW_MAX_HEADER"):
        patch.setenv("JOBFLOW_MAX_HEADER", "20")
        open_any(path)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="JOBFLOW_MAX_HEADER_ITEMS"):
        patch.setenv("JOBFLOW_MAX_HEADER_ITEMS", "1")
        open_any(path)
