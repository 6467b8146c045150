"""A checkpoint that another process replaces or removes during a read raises ReplacedError, never an error of damage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow.storage import store
from jobflow.storage.export import open_any
from jobflow.storage.series import Series

SAVER = """
import sys, time
from pathlib import Path
import numpy as np
from jobflow.storage import store
from jobflow.storage.series import Series

series = Series(Path(sys.argv[1]), keep_last=1)
ending, step = time.monotonic() + 1.5, 1
while time.monotonic() < ending:
    step += 1
    store.save(series.path_of(step), {"a": np.full(200_000, step, np.float32), "b": np.full(9, step)}, {"step": step})
    series.prune()
    if step == 2:
        print("ready", flush=True)
"""


def saved(path: Path, value: float) -> Path:
    store.save(path, {"w": np.full(4, value, np.float32)}, {"value": value})
    return path


@pytest.mark.parametrize("check", [True, False])
def test_replaced(tmp_path: Path, check: bool) -> None:
    path = saved(tmp_path / "c", 1)
    result = store.load(path, check=check)
    store.save(path, {"w": np.full(4, 2, np.float32)}, replace=True)
    with pytest.raises(flow.ReplacedError, match="replaced") as output:
        result["w"]
    assert str(path) in str(output.value) and "damaged" not in str(output.value)
    assert store.load(path)["w"].tolist() == [2] * 4


def test_removed(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=1)
    result = store.load(saved(series.path_of(1), 1))
    saved(series.path_of(2), 2)
    assert series.prune() == [1]
    with pytest.raises(flow.ReplacedError, match="removed") as output:
        result["w"]
    assert str(series.path_of(1)) in str(output.value) and "damaged" not in str(output.value)


def test_damage_is_still_damage(tmp_path: Path) -> None:
    path = saved(tmp_path / "c", 1)
    result = store.load(path)
    (file,) = path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(flow.CheckpointError, match="damaged") as output:
        result["w"]
    file.unlink()
    with pytest.raises(flow.CheckpointError) as gone:
        result["w"]
    assert not isinstance(output.value, flow.ReplacedError) and not isinstance(gone.value, flow.ReplacedError)


def test_a_reader_always_finds_a_checkpoint_during_saves_and_removals(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=1)
    store.save(series.path_of(1), {"a": np.full(200_000, 1, np.float32), "b": np.full(9, 1)}, {"step": 1})
    saver = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    looked = read = 0
    try:
        assert saver.stdout is not None and saver.stdout.readline() == "ready\n"
        while saver.poll() is None:
            newest = series.newest_good()
            assert newest.path is not None and newest.skipped == (), newest
            looked += 1
            try:
                result = store.load(newest.path)
                values = {float(result["a"].max()), float(result["a"].min()), float(result["b"][0]), float(result.extra["step"])}
            except flow.ReplacedError:
                continue
            except flow.CheckpointError:
                assert not newest.path.is_dir(), "it had gone before it was opened"
                continue
            read += 1
            assert values == {float(newest.step or 0)}
    finally:
        code = saver.wait()
        assert saver.stdout is not None
        saver.stdout.close()
    assert code == 0 and looked and read, (looked, read)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_archives_that_are_replaced(tmp_path: Path, write: Any) -> None:
    """Conversions read one array of an .npz file after another."""
    write(tmp_path / "a.npz", w=np.zeros(4))
    result = open_any(tmp_path / "a.npz")
    write(tmp_path / "b.npz", w=np.ones(5))
    (tmp_path / "b.npz").rename(tmp_path / "a.npz")
    with pytest.raises(flow.CheckpointError, match="replaced") as output:
        result["w"]
    assert str(tmp_path / "a.npz") in str(output.value) and "damaged" not in str(output.value)


def test_a_checkpoint_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    flow.save({"x": flow.ones(2)}, str(tmp_path / "saved"))
    (tmp_path / "saved" / "notes.txt").write_text("mine")
    with pytest.raises(flow.CheckpointError, match=r"saved is not replaced, because it also contains notes\.txt; move these files"):
        flow.save({"x": flow.zeros(2)}, str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "notes.txt").read_text() == "mine"
    assert flow.load(str(tmp_path / "saved"))["x"].tolist() == [1, 1]
