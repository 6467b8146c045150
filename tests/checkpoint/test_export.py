"""Conversion of checkpoints to and from .npz files and legacy directories: the same values, atomically."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.core.errors import CheckpointError
from jobflow.core.types import TensorType, dtype_named, float32
from jobflow.storage import export
from jobflow.storage.export import open_any, to_checkpoint, to_legacy, to_npz
from jobflow.storage.store import Checkpoint, Files, load, save

LEGACY = ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"]


def some(dtypes: list[str]) -> dict[str, Any]:
    random = np.random.default_rng(5)
    created = {f"layer-{dtype}": random.integers(0, 2, (3, 2)).astype(dtype_named(dtype).numpy) for dtype in dtypes}
    return {**created, "scalar": np.float32(0.1), "empty": np.zeros((0, 3), np.float32), "train_step": np.array([7])}


def saved(root: Path, tensors: dict[str, Any]) -> Checkpoint:
    save(root / "c", tensors, {"step": 3})
    return load(root / "c")


def same(result: Any, tensors: dict[str, Any]) -> None:
    assert sorted(result) == sorted(tensors)
    for name, array in tensors.items():
        assert (result[name].dtype, result[name].shape) == (np.asarray(array).dtype, np.shape(array)), name
        assert result[name].tobytes() == np.asarray(array).tobytes(), name


def test_numpy_reads_exported_npz_files(tmp_path: Path) -> None:
    tensors = some(["bool", *LEGACY])
    assert to_npz(saved(tmp_path, tensors), tmp_path / "x.npz") == []
    with np.load(tmp_path / "x.npz") as result:
        same(result, tensors)
    same(open_any(tmp_path / "x.npz"), tensors)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c", "x.npz"]


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0]).astype(dtype_named("bfloat16").numpy)
    assert to_npz(saved(tmp_path, {"half": values, "n": np.arange(2)}), tmp_path / "x.npz") == ["half"]
    with np.load(tmp_path / "x.npz") as result:
        same(result, {"half": np.array([1.5, -2.0], np.float32), "n": np.arange(2)})


def test_export_by_names(tmp_path: Path) -> None:
    source = saved(tmp_path, some(["float32", "int32"]))
    to_npz(source, tmp_path / "x.npz", ["layer*"])
    to_legacy(source, tmp_path / "x", ["scalar"])
    assert set(open_any(tmp_path / "x.npz")) == {"layer-float32", "layer-int32"} and set(open_any(tmp_path / "x")) == {"scalar"}
    with pytest.raises(CheckpointError, match='no tensor matches "layers"'):
        to_npz(source, tmp_path / "y.npz", ["layers"])


@pytest.mark.parametrize("save_arrays", [np.savez, np.savez_compressed])
def test_files_of_numpy_become_checkpoints(tmp_path: Path, save_arrays: Any) -> None:
    tensors = some(["bool", *LEGACY])
    save_arrays(tmp_path / "x.npz", **tensors, fortran=np.asfortranarray(np.arange(6.0).reshape(2, 3)), big=np.arange(3, dtype=">i4"))
    to_checkpoint(open_any(tmp_path / "x.npz"), tmp_path / "c")
    same(load(tmp_path / "c"), {**tensors, "fortran": np.arange(6.0).reshape(2, 3), "big": np.arange(3, dtype=np.int32)})


def test_legacy_directories_out_and_in(tmp_path: Path) -> None:
    tensors = some(LEGACY)
    to_legacy(saved(tmp_path, tensors), tmp_path / "old")
    assert (tmp_path / "old" / "layer-float32" / "meta").read_text() == "shape {\n  dim: 3\n  dim: 2\n}\ndata_type: kFloat\n"
    assert (tmp_path / "old" / "layer-float32" / "out").read_bytes() == tensors["layer-float32"].tobytes()
    assert (tmp_path / "old" / "snapshot_done").read_bytes() == b""
    same(load(tmp_path / "old"), tensors)
    to_checkpoint(load(tmp_path / "old"), tmp_path / "back")
    same(load(tmp_path / "back"), tensors)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["back", "c", "old"]


def test_legacy_variables_without_meta_have_the_declared_types(tmp_path: Path) -> None:
    to_legacy(saved(tmp_path, {"w": np.ones((2, 3), np.float32)}), tmp_path / "old")
    (tmp_path / "old" / "w" / "meta").unlink()
    with pytest.raises(CheckpointError, match=r'the type of tensor "w" is unknown'):
        to_checkpoint(open_any(tmp_path / "old"), tmp_path / "new")
    to_checkpoint(open_any(tmp_path / "old", {"w": TensorType((2, 3), float32)}), tmp_path / "new")
    same(load(tmp_path / "new"), {"w": np.ones((2, 3), np.float32)})


def test_conversion_between_checkpoints_preserves_the_json_tree(tmp_path: Path) -> None:
    to_checkpoint(saved(tmp_path, {"w": np.ones(2)}), tmp_path / "copy")
    assert load(tmp_path / "copy").extra == {"step": 3}


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"a/b": np.zeros(1)}, '"a/b": a legacy checkpoint needs a directory of this name, and the name is not valid'),
        ({"..": np.zeros(1)}, "a legacy checkpoint needs a directory of this name, and the name is not valid"),
        ({"snapshot_done": np.zeros(1)}, "a legacy checkpoint needs a directory of this name, and the name is not valid"),
        ({"flag": np.zeros(1, bool)}, r'"flag" is bool\[1\]; a legacy checkpoint supports only float32, float64'),
    ],
)
def test_names_and_types_unsupported_by_legacy_directories_raise(tmp_path: Path, tensors: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        to_legacy(saved(tmp_path, tensors), tmp_path / "old")
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_existing_files_are_not_replaced(tmp_path: Path) -> None:
    source = saved(tmp_path, {"w": np.zeros(2)})
    (tmp_path / "x.npz").write_text("mine")
    with pytest.raises(CheckpointError, match="this path already exists"):
        to_npz(source, tmp_path / "x.npz")
    with pytest.raises(CheckpointError, match="this path already exists"):
        to_legacy(source, tmp_path / "c")
    assert (tmp_path / "x.npz").read_text() == "mine"
    to_npz(source, tmp_path / "x.npz", replace=True)
    same(open_any(tmp_path / "x.npz"), {"w": np.zeros(2)})


def test_damage_in_the_source_leaves_no_file(tmp_path: Path) -> None:
    source = saved(tmp_path, {"v": np.zeros(2), "w": np.zeros(2)})
    file = source.stored["w"].file
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    for write, target in ((to_npz, "x.npz"), (to_legacy, "old"), (to_checkpoint, "new")):
        with pytest.raises(CheckpointError, match="is damaged"):
            write(source, tmp_path / target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(tmp_path, {"w": np.zeros(2)})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Files, "write", full)
    monkeypatch.setattr(export, "_write_npz", full)
    for write, target in ((to_npz, "x.npz"), (to_legacy, "old")):
        with pytest.raises(CheckpointError, match=f"{target} could not be written: .*No space left"):
            write(source, tmp_path / target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_damaged_npz_files(tmp_path: Path) -> None:
    to_npz(saved(tmp_path, {"w": np.arange(10000.0)}), tmp_path / "x.npz")
    whole = (tmp_path / "x.npz").read_bytes()
    at = whole.index(np.float64(9000).tobytes())
    (tmp_path / "x.npz").write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    with pytest.raises(CheckpointError, match=r'x\.npz: array "w" is damaged: Bad CRC-32'):
        to_checkpoint(open_any(tmp_path / "x.npz"), tmp_path / "new")
    (tmp_path / "x.npz").write_bytes(whole[:20000])
    with pytest.raises(CheckpointError, match=r"not a complete \.npz file"):
        open_any(tmp_path / "x.npz")


def test_objects_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([{}], object))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        assert archive.namelist() == ["x.npy"]
    with pytest.raises(CheckpointError, match='array "x" contains Python objects; save arrays of numbers'):
        open_any(tmp_path / "x.npz")


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """Convert ten tensors of 1 MB each through every format."""
    source = saved(tmp_path, {f"w{i}": np.full(2**17, i, np.float64) for i in range(10)})
    peaks = {}
    for name, work in {
        "npz": lambda: to_npz(source, tmp_path / "x.npz"),
        "legacy": lambda: to_legacy(source, tmp_path / "old"),
        "from npz": lambda: to_checkpoint(open_any(tmp_path / "x.npz"), tmp_path / "a"),
        "from legacy": lambda: to_checkpoint(open_any(tmp_path / "old"), tmp_path / "b"),
    }.items():
        tracemalloc.start()
        try:
            work()
            peaks[name] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert {name: peak for name, peak in peaks.items() if peak > 4 * 2**20} == {}
