"""Datasets of Hugging Face on disk: Arrow files that state.json names, and folders that must not be believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from jobflow.core.errors import DataError
from jobflow.data import Samples, open_reader
from jobflow.data.describe import describe_file
from jobflow.trainer.facts import sizes_of

NAMES = ["cat", "dog", "owl"]


def saved(folder: Path, **changes: Any) -> Path:
    """Write the files that `Dataset.save_to_disk` writes: two shards with batches of two rows."""
    folder.mkdir(exist_ok=True)
    files = []
    for shard in range(2):
        rows = range(5 * shard, 5 * shard + 5)
        table = arrow.table({"x": [[i, i + 0.5] for i in rows], "label": [i % 3 for i in rows], "city": ["Ulm" if i % 2 else "Rom" for i in rows]})
        files.append({"filename": f"data-{shard:05d}-of-00002.arrow"})
        with arrow.OSFile(str(folder / files[-1]["filename"]), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_indices_data_files": None, **changes}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": {"names": NAMES, "_type": "ClassLabel"}}}))
    return folder


def test_rows_of_all_shards_are_samples_with_classes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"fields": {"x": "x", "city": "city", "labels": "label"}, "categories": ["city"], "scale": {"x": "minmax"}}
    samples = open_reader("arrow", path=str(saved(tmp_path)), dtypes={"labels": "int32"}, **options)
    assert isinstance(samples, Samples) and len(samples) == 10
    rows = samples.read([9, 0, 5])
    np.testing.assert_allclose(rows["x"], np.array([[9, 9.5], [0, 0.5], [5, 5.5]]) / 9.5)
    assert rows["labels"].tolist() == [0, 0, 2] and rows["city"].tolist() == [1, 0, 1]
    assert samples.facts["classes"] == NAMES and samples.facts["scale"]["x"] == {"shift": 0, "factor": 1 / 9.5}
    assert sizes_of(samples)["classes.count"] == 3 and samples.identities(np.array([7])) == {"row": [7]}
    described = describe_file(str(tmp_path))
    assert described.reader == "arrow" and described.samples == 10 and [column.name for column in described.columns] == ["x", "label", "city"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_data_files": [{"filename": "../data.arrow"}]}, "_data_files must be a list of file names in this folder"),
        ({"_data_files": "data"}, "_data_files must be a list of file names in this folder"),
        ({"_data_files": None}, "_data_files must be a list of file names in this folder"),
        ({"_data_files": [{"filename": "data.arrow"}]}, "there is no file data.arrow, which state.json names"),
        ({"_data_files": []}, "there are no rows"),
        ({"_indices_data_files": [{"filename": "i.arrow"}]}, r"call flatten_indices\(\) before save_to_disk"),
    ],
)
def test_wrong_states_raise(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_reader("arrow", path=str(saved(tmp_path, **changes)), fields={"x": "x"})


def test_other_folders_and_damaged_files_raise(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no state\.json; set path to a folder that Dataset\.save_to_disk has written"):
        open_reader("arrow", path=str(tmp_path), fields={"x": "x"})
    first = saved(tmp_path) / "data-00000-of-00002.arrow"
    first.write_bytes(first.read_bytes().replace(b"label", b"l\x91bel"))
    with pytest.raises(DataError, match=r"data-00000-of-00002\.arrow is not a complete Arrow file"):
        open_reader("arrow", path=str(tmp_path), fields={"x": "x"})
    saved(tmp_path)
    (shard := tmp_path / "data-00001-of-00002.arrow").write_bytes(shard.read_bytes()[:700])
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow is not a complete Arrow file"):
        open_reader("arrow", path=str(tmp_path), fields={"x": "x"}).read([0])  # type: ignore[union-attr]
    (tmp_path / "state.json").write_text("[" * 1000)
    with pytest.raises(DataError, match=r"state\.json is not JSON"):
        open_reader("arrow", path=str(tmp_path), fields={"x": "x"})
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match="several datasets; set path to one of the folders train, test"):
        open_reader("arrow", path=str(tmp_path), fields={"x": "x"})
