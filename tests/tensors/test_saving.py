"""flow.save and flow.load: structures are restored, whole tensors from any layout into any, and errors are raised on all ranks."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core.errors import ArgumentError, CheckpointError, JobError
from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.core.types import float32, type_of
from jobflow.engine.placements import placement
from jobflow.functional import devices, foreign_files, saving, values
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.parameter import Parameter
from jobflow.tensors.tensor import Size

WHOLE = np.arange(15.0).reshape(5, 3)


def local(values: Any) -> Tensor:
    array = np.array(values)
    return Tensor(type_of(array), None, array)


def spread(rank: int, sbp: Any, ranks: tuple[int, ...] = (0, 1)) -> Tensor:
    layout = Layout(Placement("cpu", ranks), (sbp,))
    piece = layout.shards(WHOLE)[ranks.index(rank)] if rank in ranks else np.empty((0, 0))
    return Tensor(type_of(WHOLE), layout, np.array(piece))


@with_ranks(1)
def test_load_restores_a_saved_structure(tmp_path: Path) -> None:
    trained = local([1.0, 2.0])
    trained.requires_grad = True
    arguments = {
        "model": OrderedDict([("w", local(WHOLE)), ("b", trained)]),
        3: [None, True, 7, 0.1, float("inf"), "text", (1, (2,)), Size((2, 3)), float32, {1, "a"}, frozenset({(2,)}), b"\0\xff", slice(1, None)],
        "numpy": (np.arange(3, dtype=np.int32), np.float64(2.5)),
        "parameters": [Parameter(local([1.0, 2.0])), Parameter(local([1.0]), requires_grad=False)],
    }
    saving.save(arguments, tmp_path / "a")
    results = saving.load(tmp_path / "a")
    assert [(type(p), p.requires_grad) for p in results.pop("parameters")] == [(Parameter, True), (Parameter, False)]
    assert list(results) == ["model", 3, "numpy"] and type(results["model"]) is OrderedDict
    np.testing.assert_array_equal(results["model"]["w"].array, WHOLE)
    assert results["model"]["b"].requires_grad and not results["model"]["w"].requires_grad
    assert results[3] == arguments[3] and isinstance(results[3][7], Size) and results[3][8] is float32
    assert results["numpy"][0].dtype == np.int32 and results["numpy"][1] == 2.5 and isinstance(results["numpy"][1], np.float64)
    saving.save({"later": 1}, tmp_path / "a")
    assert saving.load(tmp_path / "a") == {"later": 1} and [p.name for p in tmp_path.iterdir()] == ["a"]
    with pytest.raises(ArgumentError, match=r"a complex at model\.x cannot be saved"):
        saving.save({"model": {"x": 1j}}, tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine").write_text("precious")
    with pytest.raises(CheckpointError, match="this path already exists"):
        saving.save({}, tmp_path / "c")


class Point(NamedTuple):
    x: int
    y: Any


@with_ranks(1)
@pytest.mark.parametrize("kind", ["file", "bytes"])
def test_tensors_share_memory_after_load(kind: str, tmp_path: Path) -> None:
    weight = Parameter(local([1.0, 2.0]))
    structure = Point(3, {"a": weight, "b": weight, "tied": weight.detach(), "copy": weight.detach().clone(), "device": devices.device("cpu")})
    (tmp_path / "x.pt").write_bytes(b"a file of another program")
    target: Any = tmp_path / "x.pt" if kind == "file" else io.BytesIO()
    saving.save(structure, target)
    if kind == "bytes":
        target.seek(0)
    loaded = saving.load(target)
    assert type(loaded).__name__ == "Point" and loaded.x == 3 and loaded.y["device"] == devices.device("cpu")
    assert loaded.y["a"] is loaded.y["b"] and isinstance(loaded.y["a"], Parameter) and type(loaded.y["tied"]) is not Parameter
    loaded.y["tied"][0] = 5.0
    assert loaded.y["a"].array.tolist() == [5.0, 2.0] and loaded.y["copy"].array.tolist() == [1.0, 2.0]
    assert not [p.name for p in tmp_path.iterdir() if p.name != "x.pt"]


@with_ranks(1)
def test_save_and_load_reject_other_files(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match='open the file with mode "wb"'):
        saving.save({}, io.StringIO())
    damaged = io.BytesIO()
    foreign_files.write_file(damaged, {}, {"named": [1], "name": "import os", "fields": ["x"]})
    damaged.seek(0)
    with pytest.raises(CheckpointError, match="invalid entry"):
        saving.load(damaged)


@with_ranks(2)
def test_global_tensors_are_written_whole_by_one_rank(rank: int, tmp_path: Path) -> None:
    arguments = {"s": spread(rank, S(0)), "p": spread(rank, P), "one": spread(rank, B, (1,))}
    with pytest.raises(JobError, match="global_dst_rank=0"):
        saving.save(arguments, tmp_path / "x")
    saving.save(arguments, tmp_path / "x", global_dst_rank=1)
    results = saving.load(tmp_path / "x", global_src_rank=0)
    for x in results.values():
        assert x.placement == placement("cpu", [0]) and x.sbp == (B,)
        np.testing.assert_array_equal(values.numpy(x), WHOLE)
    moved = saving.load(tmp_path / "x", global_src_rank=1, map_location=placement("cpu", [[0, 1]]))
    assert moved["s"].sbp == (B, B)
    np.testing.assert_array_equal(moved["s"].array, WHOLE)
    np.testing.assert_array_equal(saving.load(tmp_path / "x")["p"].array, WHOLE)
    with pytest.raises(ArgumentError, match="rank 2 does not exist"):
        saving.save(arguments, tmp_path / "x", global_dst_rank=2)


def test_failures_raise_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("precious")

    def program(rank: int) -> None:
        with pytest.raises(CheckpointError, match="this path already exists"):
            saving.save({"x": spread(rank, S(0))}, tmp_path / "folder", global_dst_rank=0)
        with pytest.raises(CheckpointError, match="no such directory"):
            saving.load(tmp_path / "nowhere", global_src_rank=1)

    on_ranks(2, program)
