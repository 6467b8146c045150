"""Configurations of data.md: each block loads, and its readers read a sample from small files with the names of the page."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pyarrow as arrow
import pytest
import yaml
from PIL import Image

from jobflow.data import Samples
from jobflow.trainer.config import load
from jobflow.trainer.jobs import open_place, prepared

BLOCKS = [block for block in pages.blocks() if block.page == "data.md" and block.language == "yaml"]
#: the sections that a block may omit
REST: dict[str, Any] = {
    "model": {"layers": ["flatten", {"dense": {"units": 2}}], "loss": "softmax_cross_entropy"},
    "data": {
        "train": {"reader": "csv", "path": "houses.csv", "categories": ["city", "kind"]}
        | {"fields": {"features": ["age", "price"], "city": "city", "labels": "kind"}, "missing": 0},
        "batch_size": 4,
    },
    "optimizer": {"name": "adam", "lr": 0.001},
    "training": {"steps": 1},
}
NET = """
from jobflow import nn


class Net(nn.Module):
    def __init__(self, cities: int, features: int, classes: int) -> None:
        super().__init__()
        assert (cities, features, classes) == (2, 2, 3)
        self.city, self.head = nn.Embedding(cities, 4), nn.Linear(features + 4, classes)

    def forward(self, features, city):
        return self.head(nn.functional.relu(features))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder with the files of the page."""
    lines = [
        "area,age,sold,city,price,kind",
        *(f"{90 + i},{i},2024-0{i % 9 + 1}-01,{'Ulm' if i % 2 else 'Rom'},{i}5,k{i % 3}" for i in range(40)),
    ]
    for name in ("houses.csv", "houses_2024.csv"):
        (tmp_path / name).write_text("\n".join(lines))
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "examples").symlink_to(pages.ROOT / "examples")
    for name in ("wren", "owl"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            (tmp_path / "photos" / name / f"{i}.jpg").write_bytes(jpeg(i))
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards" / "0.tar", "w") as archive:
        for ending, content in {"jpg": jpeg(0), "cls": b"07", "json": b'{"box": {"width": 3.5}}'}.items():
            entry = tarfile.TarInfo(f"0.{ending}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    for part in ("train", "test"):
        birds = tmp_path / "birds" / part
        birds.mkdir(parents=True)
        table = arrow.table({"image": [{"bytes": jpeg(i), "path": None} for i in range(3)], "label": [0, 1, 0]})
        with arrow.OSFile(str(birds / "data.arrow"), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        (birds / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("net", None)


def jpeg(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((80, 90, 3), 20 * value, np.uint8)).save(file, "JPEG")
    return file.getvalue()


def whole(text: str) -> str:
    """Add the sections and keys that a block omits."""
    block = yaml.safe_load(text)
    data = {**REST["data"], **block.get("data", {})}
    return yaml.safe_dump({**REST, **block, "data": data})


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_configurations_of_the_page_read_their_data(block: pages.Block, folder: Path) -> None:
    (folder / "shown.yaml").write_text(whole(block.text))
    loaded = load("shown.yaml")
    if "tokenizer" in block.text:
        if importlib.util.find_spec("tokenizers") is None:
            return  # the configuration is valid; its reader needs the package
        from jobflow.data.tokenizer_training import train_tokenizer

        train_tokenizer("examples/gpt.py", "tokenizer.json", 300)
    if "facts" in block.text and "tokenizer" not in block.text:
        with prepared(loaded, only=("train",)) as jobs:
            assert jobs.config.model.arguments == {"cities": 2, "features": 2, "classes": 3}
        return
    facts: dict[str, Any] = {}
    for part in ("train", "validation", "test"):
        if getattr(loaded.config.data, part) is not None:
            samples = open_place(loaded.config, part, facts)
            facts = facts or samples.facts
            sample = samples[0] if isinstance(samples, Samples) else next(iter(samples.samples(0)))
            assert set(sample) == set(samples.fields) and all(np.isfinite(array).all() for array in sample.values())


def test_the_page_has_configurations() -> None:
    assert len(BLOCKS) >= 8
