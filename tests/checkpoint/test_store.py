"""Checkpoints as files: saved tensors are loaded unchanged, and damage is detected."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobflow.core.errors import CheckpointError
from jobflow.core.layout import Box
from jobflow.core.types import TensorType, dtype_named, float32, int64
from jobflow.storage import rank_files as parts
from jobflow.storage import safetensors
from jobflow.storage.store import load, problems, save

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def some() -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {
        "dense-weight": random.normal(size=(3, 5)).astype(np.float32),
        "a/b c é": np.arange(4),
        "System-Train-TrainStep-job": np.array([7]),
        "scalar": np.float64(0.1),
        "empty": np.zeros((0, 3), np.float32),
    }


def same(loaded: Any, tensors: dict[str, Any]) -> None:
    assert list(loaded) == list(tensors)
    for name, array in tensors.items():
        result = loaded[name]
        assert (result.dtype, result.shape) == (np.asarray(array).dtype.newbyteorder("="), np.shape(array)), name
        assert result.tobytes() == np.asarray(array, dtype=result.dtype, order="C").tobytes(), name


def test_saved_tensors_are_loaded_unchanged(tmp_path: Path) -> None:
    save(tmp_path / "snapshot_1", some(), {"seed": 7, "runs": {"job": 3}})
    loaded = load(tmp_path / "snapshot_1")
    same(loaded, some())
    assert loaded.extra == {"seed": 7, "runs": {"job": 3}}
    assert loaded.single is False
    assert sorted(entry.name for entry in (tmp_path / "snapshot_1").iterdir()) == ["manifest.json", "snapshot_done", "tensors-00001.safetensors"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["snapshot_1"]


def test_types_are_available_without_reading_data(tmp_path: Path) -> None:
    save(tmp_path / "c", some())
    loaded = load(tmp_path / "c")
    assert str(loaded.stored["dense-weight"].type) == "float32[3,5]"
    assert loaded.stored["scalar"].type.shape == ()
    assert loaded.stored["a/b c é"].file == tmp_path / "c" / "tensors-00001.safetensors"
    assert "dense-weight" in loaded and "other" not in loaded and len(loaded) == 5


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=6), st.integers(0, 2**32))
def test_random_tensors_are_loaded_unchanged(tmp_path_factory: pytest.TempPathFactory, types: list[tuple[str, list[int]]], seed: int) -> None:
    random = np.random.default_rng(seed)
    tensors = {f"t{i}": random.integers(0, 2, size=shape).astype(dtype_named(dtype).numpy) for i, (dtype, shape) in enumerate(types)}
    path = tmp_path_factory.mktemp("any") / "c"
    save(path, tensors)
    same(load(path), tensors)


def test_arrays_of_any_memory_order_are_saved(tmp_path: Path) -> None:
    square = np.arange(12.0).reshape(3, 4)
    tensors = {"turned": square.T, "strided": square[::2, ::-1], "big": square.astype(">f8"), "fortran": np.asfortranarray(square)}
    save(tmp_path / "c", tensors)
    same(load(tmp_path / "c"), tensors)
    loaded = load(tmp_path / "c")["turned"]
    loaded[...] = 0  # it is the reader's own


def test_large_checkpoints_have_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SHARD", 100)
    tensors = {name: np.full(n, i, np.uint8) for i, (name, n) in enumerate([("a", 60), ("b", 40), ("c", 1), ("d", 500), ("e", 5)])}
    save(tmp_path / "c", tensors)
    same(load(tmp_path / "c"), tensors)
    result = {name: stored.file.name for name, stored in load(tmp_path / "c").stored.items()}
    assert result == {
        "a": "tensors-00001.safetensors",
        "b": "tensors-00001.safetensors",
        "c": "tensors-00002.safetensors",
        "d": "tensors-00003.safetensors",
        "e": "tensors-00004.safetensors",
    }


def test_files_follow_the_safetensors_format(tmp_path: Path) -> None:
    """Parse a file: eight bytes of length, a JSON header, and the aligned data."""
    save(tmp_path / "c", {"x": np.array([1, -2], np.int8), "y": np.array([[0.5, 2.0]], np.float32)})
    content = (tmp_path / "c" / "tensors-00001.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header == {
        "y": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        "x": {"dtype": "I8", "shape": [2], "data_offsets": [8, 10]},
    }
    assert (8 + length) % 8 == 0
    assert content[8 + length :] == struct.pack("<ffbb", 0.5, 2.0, 1, -2)


def test_files_of_other_writers_are_read(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"format": "np"}, "w": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}}).encode()
    (tmp_path / "f").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<qq", 5, -6))
    places = safetensors.read_header(tmp_path / "f")
    assert list(places) == ["w"]
    assert safetensors.read_tensor(tmp_path / "f", places["w"]).tolist() == [5, -6]


# ---- refusals ------------------------------------------------------------------------------------------------------------------------


def test_the_target_must_be_free(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", some())
    with pytest.raises(AssertionError, match="this path already exists; pass a path that does not exist, or an empty directory"):
        save(tmp_path / "empty", {})
    same(load(tmp_path / "empty"), some())
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="this path already exists"):
        save(tmp_path / "file", some())
    assert (tmp_path / "file").read_text() == "x"
    save(tmp_path / "new" / "parents" / "c", {})
    assert dict(load(tmp_path / "new" / "parents" / "c")) == {}


@pytest.mark.parametrize(
    ("tensors", "extra", "text"),
    [
        ({"x": np.array(["a"])}, {}, 'tensor "x": a checkpoint cannot store elements of type <U1'),
        ({"x": np.zeros(2, complex)}, {}, "cannot store elements of type complex128"),
        ({"x": [object()]}, {}, "cannot store elements of type object"),
        ({"": np.zeros(2)}, {}, "tensor '' cannot be saved"),
        ({3: np.zeros(2)}, {}, "tensor 3 cannot be saved"),
        ({"__metadata__": np.zeros(2)}, {}, "cannot be saved in a checkpoint under this name"),
        ({}, {"x": np.zeros(2)}, "extra values of a checkpoint must be strings, numbers, lists and dicts"),
        ({}, {"x": (1, 2)}, "extra values of a checkpoint change in a conversion to JSON and back"),
        ({}, {"x": {1: 2}}, "extra values of a checkpoint change in a conversion to JSON and back"),
    ],
)
def test_unsupported_values_raise(tmp_path: Path, tensors: Any, extra: Any, text: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        save(tmp_path / "c", tensors, extra)
    assert text in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_names_are_suggested(tmp_path: Path) -> None:
    save(tmp_path / "c", some())
    with pytest.raises(KeyError, match=r'has no tensor "dense-wait"; did you mean "dense-weight"\?'):
        _ = load(tmp_path / "c")["dense-wait"]


# ---- damage --------------------------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    """A flipped bit in the manifest or the tensors' file is detected before data is used."""
    save(tmp_path / "c", {"w": np.arange(6, dtype=np.float32), "n": np.array([3])}, {"lr": 1e-05, "note": "Ab"})
    assert list(problems(tmp_path / "c")) == []
    for name in ("manifest.json", "tensors-00001.safetensors"):
        file = tmp_path / "c" / name
        whole = file.read_bytes()
        for bit in range(0, 8 * len(whole), 5):
            file.write_bytes(whole[: bit // 8] + bytes([whole[bit // 8] ^ (1 << bit % 8)]) + whole[bit // 8 + 1 :])
            result = list(problems(tmp_path / "c"))
            assert result and str(tmp_path / "c") in result[0], (name, bit)
        file.write_bytes(whole)


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    save(tmp_path / "c", {"w": np.arange(6, dtype=np.float32)})
    for name in ("manifest.json", "tensors-00001.safetensors"):
        file = tmp_path / "c" / name
        whole = file.read_bytes()
        for length in [*range(len(whole)), len(whole) + 1]:
            file.write_bytes(whole[:length] if length < len(whole) else whole + b" ")
            with pytest.raises(CheckpointError, match="is damaged"):
                load(tmp_path / "c")
        file.write_bytes(whole)


def test_the_first_version_is_read(tmp_path: Path) -> None:
    """Version 1 has one file per tensor and no shards."""
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    save(tmp_path / "c", {"w": w})
    sha = hashlib.sha256(w.tobytes()).hexdigest()
    entry = {"shape": [2, 3], "dtype": "float32", "file": "tensors-00001.safetensors", "sha256": sha}
    body = {"format": "jobflow checkpoint", "version": 1, "tensors": {"w": entry}, "extra": {"seed": 7}}
    whole = {**body, "sha256": hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()}
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(whole, indent=1) + "\n")
    loaded = load(tmp_path / "c")
    same(loaded, {"w": w})
    assert loaded.extra == {"seed": 7}
    assert loaded.stored["w"].read(Box(((1, 2), (0, 2)), (2, 3))).tolist() == [[3.0, 4.0]]
    (tmp_path / "c" / "manifest.json").write_text(json.dumps({**whole, "extra": {"seed": 8}}))
    with pytest.raises(CheckpointError, match="its content does not match its hash"):
        load(tmp_path / "c")


def test_the_error_of_damaged_data_names_tensor_and_file(tmp_path: Path) -> None:
    save(tmp_path / "c", {"w": np.arange(6, dtype=np.float32)})
    file = tmp_path / "c" / "tensors-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    loaded = load(tmp_path / "c")
    with pytest.raises(
        CheckpointError,
        match=r'tensors-00001\.safetensors: tensor "w" is damaged: its content, box \[0:6\] at bytes \d+ to \d+ of the file, does not match',
    ):
        _ = loaded["w"]


def test_files_of_another_checkpoint_raise(tmp_path: Path) -> None:
    save(tmp_path / "a", {"w": np.zeros(3, np.float32)})
    save(tmp_path / "b", {"w": np.zeros(4, np.float32)})
    save(tmp_path / "c", {"v": np.zeros(3, np.float32)})
    file = "tensors-00001.safetensors"
    for other, has in (("b", r"float32\[4\]"), ("c", "no tensor of this name")):
        (tmp_path / "a" / file).write_bytes((tmp_path / other / file).read_bytes())
        with pytest.raises(CheckpointError, match=rf'tensor "w" is float32\[3\] in the manifest, but the file has {has}'):
            load(tmp_path / "a")
    (tmp_path / "a" / file).unlink()
    with pytest.raises(CheckpointError, match=r"tensors-00001\.safetensors is missing"):
        load(tmp_path / "a")


def test_a_missing_checkpoint_raises(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such directory"):
        load(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match=r"neither a manifest\.json nor a directory per variable"):
        load(tmp_path)


@pytest.mark.parametrize("change", [{"version": 3}, {"format": "other"}])
def test_later_formats_raise(tmp_path: Path, change: dict[str, Any]) -> None:
    save(tmp_path / "c", {})
    manifest = tmp_path / "c" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(CheckpointError, match="this release reads 'jobflow checkpoint' of versions 1 and 2"):
        load(tmp_path / "c")


# ---- legacy directories --------------------------------------------------------------------------------------------------------------


def legacy(root: Path, name: str, array: Any, meta: str | None) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "out").write_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())
    if meta is not None:
        (root / name / "meta").write_text(meta)


def test_legacy_directories(tmp_path: Path) -> None:
    w, step = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([41])
    legacy(tmp_path / "old", "dense-weight", w, "shape {\n  dim: 2\n  dim: 3\n}\ndata_type: kFloat\n")
    legacy(tmp_path / "old", "System-Train-TrainStep-job", step, "shape {\n  dim: 1\n}\ndata_type: kInt64\n")
    (tmp_path / "old" / "snapshot_done").touch()
    loaded = load(tmp_path / "old")
    same(loaded, {"System-Train-TrainStep-job": step, "dense-weight": w})
    assert str(loaded.stored["dense-weight"].type) == "float32[2,3]"
    alone = load(tmp_path / "old" / "dense-weight")
    assert alone.single
    same(alone, {"dense-weight": w})


def test_legacy_files_without_meta_need_types(tmp_path: Path) -> None:
    legacy(tmp_path / "old", "w", np.ones((2, 2), np.float32), None)
    with pytest.raises(CheckpointError, match=r'out: the type of tensor "w" is unknown, because .* is missing; pass types=\{name: type\}'):
        _ = load(tmp_path / "old")["w"]
    same(load(tmp_path / "old", {"w": TensorType((2, 2), float32)}), {"w": np.ones((2, 2), np.float32)})
    with pytest.raises(CheckpointError, match=r'tensor "w" is int64\[2,2\], which is 32 bytes, but the file has 16'):
        _ = load(tmp_path / "old", {"w": TensorType((2, 2), int64)})["w"]


def test_unknown_legacy_types_raise(tmp_path: Path) -> None:
    legacy(tmp_path / "old", "w", np.ones(1, np.float32), "shape { dim: 1 } data_type: kOFRecord")
    with pytest.raises(CheckpointError, match="data_type is kOFRecord; it must be one of kChar, kFloat"):
        _ = load(tmp_path / "old")["w"]
