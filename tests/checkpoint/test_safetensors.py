"""Files of jobflow and of the safetensors library: each reads the files of the other, and both reject the same files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from jobflow.core.errors import CheckpointError
from jobflow.storage import safetensors as ours
from jobflow.storage.file_system import Files

DTYPES = [np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in ours._NAMES]
TENSORS = {
    f"{dtype.name} of {list(shape)}, ü": np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for dtype in DTYPES
    for shape in ((2, 3), (), (0, 4), (5,))
}


def same(result: dict[str, Any]) -> None:
    assert set(result) == set(TENSORS)
    for name, array in TENSORS.items():
        assert (result[name].dtype, result[name].shape, result[name].tobytes()) == (array.dtype, array.shape, array.tobytes()), name


def test_jobflow_and_safetensors_read_files_of_each_other(tmp_path: Path) -> None:
    Files().write(tmp_path / "ours", ours.encoded({name: ours.storable(name, array) for name, array in TENSORS.items()}))
    same(safetensors.numpy.load_file(tmp_path / "ours"))
    with safetensors.safe_open(tmp_path / "ours", "numpy") as file:
        assert file.get_slice("float32 of [2, 3], ü")[1:].tolist() == [[3, 4, 5]]
    safetensors.numpy.save_file(TENSORS, tmp_path / "theirs", metadata={"format": "np"})
    same({name: ours.read_tensor(tmp_path / "theirs", location) for name, location in ours.read_header(tmp_path / "theirs").items()})


def entry(start: Any, stop: Any, shape: Any = (2, 3), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def file_of(header: Any, values: int = 24, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(values)


GOOD = {"a": entry(0, 24)}
HOSTILE = {
    "empty": b"",
    "seven bytes": bytes(7),
    "longer than the file": file_of(GOOD, length=10**9),
    "a length of 2**63": file_of(GOOD, length=2**63),
    "no JSON": file_of(b'{"a":'),
    "a list": file_of([]),
    "nested": file_of(b"[" * 3000),
    "not UTF-8": file_of(json.dumps(GOOD).encode().replace(b"a", b"\xff", 1)),
    "half a character": file_of(json.dumps(GOOD).encode().replace(b"a", b"\\ud800", 1)),
    "cut": file_of(GOOD, 20),
    "bytes of no tensor": file_of(GOOD, 30),
    "bytes between tensors": file_of({**GOOD, "b": entry(32, 56)}, 56),
    "tensors that overlap": file_of({**GOOD, "b": entry(8, 32)}, 32),
    "the same bytes twice": file_of({**GOOD, "b": entry(0, 24)}),
    "from byte -8": file_of({"a": entry(-8, 16)}),
    "from byte false": file_of({"a": entry(False, 24)}),
    "backwards": file_of({"a": entry(24, 0)}),
    "too few bytes": file_of({"a": entry(0, 20)}),
    "an unknown type": file_of({"a": entry(0, 24, dtype="F33")}),
    "a size of 2.0": file_of({"a": entry(0, 24, (2.0, 3))}),
    "sizes below 0": file_of({"a": entry(0, 24, (-2, -3))}),
    "more elements than there are numbers": file_of({"a": entry(0, 0, (2**62, 2**62))}, 0),
    "no offsets": file_of({"a": {"dtype": "F32", "shape": [2, 3]}}),
    "metadata that is no text": file_of({"__metadata__": {"a": 1}, **GOOD}),
    "metadata that is a list": file_of({"__metadata__": ["a"], **GOOD}),
    "a tensor that is a list": file_of({"a": [1]}),
    "one offset": file_of({"a": {**entry(0, 24), "data_offsets": [0]}}),
    "a type that is a list": file_of({"a": {**entry(0, 24), "dtype": ["F32"]}}),
    "a number of 5,000 digits": file_of(b'{"a": %s}' % (b"7" * 5000)),
}
MESSAGES = {
    "seven bytes": "it has 7 bytes, fewer than the 8 bytes of the length of its header",
    "a list": "its header must be a map of tensors by name",
    "no offsets": 'tensor "a" in its header must have dtype, shape and data_offsets; got',
    "metadata that is a list": "the metadata in its header must be a map of strings",
    "a tensor that is a list": r'tensor "a" in its header must have dtype, shape and data_offsets; got \[1\]',
    "one offset": r'the data_offsets of tensor "a" must be two offsets; got \[0\]',
    "a type that is a list": r"unknown element type \['F32'\]",
    "a number of 5,000 digits": "the JSON text has a number of more than 4,300 digits",
}


def test_jobflow_and_safetensors_reject_the_same_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_of({"__metadata__": {"a": "1"}, **GOOD}))
    assert list(ours.read_header(path)) == list(safetensors.safe_open(path, "numpy").keys()) == ["a"]
    for what, content in HOSTILE.items():
        path.write_bytes(content)
        with pytest.raises(safetensors.SafetensorError):
            safetensors.safe_open(path, "numpy").keys()
        with pytest.raises(CheckpointError, match=f"is damaged.*{MESSAGES.get(what, '')}"):
            print(what, ours.read_header(path))
