"""Columns of Parquet and Arrow tables with image files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet
import pytest
from PIL import Image

from jobflow.core.errors import ArgumentError, DataError
from jobflow.data import Samples, open_reader
from jobflow.data.describe import describe_file

FIELDS = {"images": "image", "labels": "label"}
#: the feature `Image` of Hugging Face
FEATURE = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
RANDOM = np.random.default_rng(0)
PIXELS = [RANDOM.integers(0, 256, (9, 11, 3), np.uint8) for _ in range(7)]


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write(folder: Path, reader: str, images: Any, kind: Any = FEATURE) -> Path:
    """Write a table of images, in groups of three rows, for one of the readers."""
    table = arrow.table({"image": arrow.array(images, kind), "label": list(range(len(images))), "width": [0.5] * len(images)})
    if reader == "parquet":
        arrow.parquet.write_table(table, folder / "a.parquet", row_group_size=3)
        return folder / "a.parquet"
    with arrow.OSFile(str(folder / "data.arrow"), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return folder


def entries() -> list[dict[str, Any]]:
    return [{"bytes": png(pixels), "path": f"{i}.png"} for i, pixels in enumerate(PIXELS)]


def opened(path: Path, reader: str, **arguments: Any) -> Samples:
    samples = open_reader(reader, path=str(path), **{"fields": FIELDS, "size": 6, **arguments})
    assert isinstance(samples, Samples)
    return samples


@pytest.mark.parametrize("reader", ["parquet", "arrow"])
def test_images_are_those_of_an_image_folder(reader: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for i, pixels in enumerate(PIXELS):
        (tmp_path / "files" / f"{i}.png").write_bytes(png(pixels))
    path = write(tmp_path, reader, entries())
    random: dict[str, Any] = {"crop": "random", "flip": True, "rotation": 20, "colour": 0.3, "rand_augment": 1, "resize": 8, "seed": 4}
    for options in ({}, random, {"channels": 1}):
        folder = open_reader("images", path=str(tmp_path / "files"), labels=False, size=6, **options)
        samples = opened(path, reader, scale="standard", missing={"width": "mean"}, **options)
        assert str(samples.fields["images"]) == f"float32[{options.get('channels', 3)},6,6]"
        rows = samples.read([6, 0, 3, 0], epoch=2)
        np.testing.assert_array_equal(rows["images"], folder.read([6, 0, 3, 0], epoch=2)["images"])  # type: ignore[union-attr]
        assert rows["labels"].tolist() == [6, 0, 3, 0]
    described = describe_file(str(path))
    assert described.arguments is not None and described.arguments["fields"]["images"] == "image"
    assert described.first[0]["image"].startswith("an image")


def test_binary_columns_are_images_and_small_caches_suffice(tmp_path: Path) -> None:
    path = write(tmp_path, "parquet", [png(pixels) for pixels in PIXELS], arrow.large_binary())
    samples = opened(path, "parquet", memory=0, split="train", validation_every=3)
    np.testing.assert_array_equal(samples.read(np.arange(4))["images"], opened(path, "parquet").read([1, 2, 4, 5])["images"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, r'row 1, column "image" is null; remove the row'),
        ({"bytes": None, "path": None}, r'row 1, column "image" is null; remove the row'),
        ({"bytes": None, "path": "/etc/passwd"}, r"has only the path '/etc/passwd', and other files are not read; save the dataset with its images"),
        ({"bytes": b"no image", "path": "b.png"}, r'row 1, column "image" \(b\.png\) cannot be read as an image'),
        ({"bytes": b"", "path": None}, r'row 1, column "image" cannot be read as an image'),
    ],
)
@pytest.mark.parametrize("reader", ["parquet", "arrow"])
def test_rows_without_an_image_raise(reader: str, entry: Any, message: str, tmp_path: Path) -> None:
    samples = opened(write(tmp_path, reader, [entries()[0], entry]), reader)
    assert len(samples.read([0])["images"]) == 1
    with pytest.raises(DataError, match=message) as raised:
        samples.read([0, 1])
    assert str(raised.value).startswith(f'reader "{reader}"')


def test_limits_apply_to_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = opened(write(tmp_path, "parquet", entries()), "parquet")
    for variable, unit in (("JOBFLOW_MAX_PIXELS", "pixels"), ("JOBFLOW_MAX_RECORD", "bytes")):
        with monkeypatch.context() as patch, pytest.raises(DataError, match=f"{unit}, more than the limit of 50; set {variable}"):
            patch.setenv(variable, "50")
            samples.read([2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": {"x": ["image", "label"]}}, "a column with several numbers per row must be a separate field"),
        ({"crop": "left"}, 'reader "parquet": crop must be "center" or "random"'),
        ({"rotation": 400}, 'reader "parquet": rotation must be an angle'),
        ({"scale": {"image": "minmax"}}, 'column "image" does not exist'),
        ({"categories": ["image"]}, "a category must be one text per row"),
    ],
)
def test_wrong_arguments_raise(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        opened(write(tmp_path, "parquet", entries()), "parquet", **arguments)
