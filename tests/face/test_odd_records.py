"""Records with unusual values and images: a job reads the right value, or raises with the feature and the value."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import DataError
from jobflow.data.ofrecord import record_classes


def read(folder: Path, feature: dict[str, Any], body: Callable[[Any], Any]) -> Any:
    """Return the results of a job that reads two equal records with a feature "x"."""
    kinds = record_classes()
    record = kinds["OFRecord"](feature={"x": kinds["Feature"](**feature)}).SerializeToString()
    (folder / "part-0").write_bytes((len(record).to_bytes(8, "little") + record) * 2)

    @flow.global_function()
    def job() -> tp.Bundle[tp.Numpy]:
        return body(flow.data.ofrecord_reader(str(folder), batch_size=2))

    return job()


@pytest.mark.parametrize(
    ("feature", "dtype", "expected"),
    [
        ({"int64_list": {"value": [2**40]}}, "int32", r'feature "x", value 0 is 1099511627776, which is beyond int32'),
        ({"double_list": {"value": [1.0, 2.5]}}, "int32", r'feature "x", value 1 is 2\.5, which is not a whole number'),
        ({"double_list": {"value": [1e300]}}, "float32", "which is beyond float32"),
        ({"int64_list": {"value": [2**24 + 1]}}, "float32", "which float32 rounds to 16777216"),
        ({"int64_list": {"value": [7]}}, "float32", [7]),
        ({"bytes_list": {"value": [bytes([255])]}}, "uint8", [255]),
    ],
)
def test_values_of_records_are_converted_exactly_or_raise(fresh: None, feature: Any, dtype: str, expected: Any, tmp_path: Path) -> None:
    size = len(next(iter(feature.values()))["value"])

    def body(record: Any) -> Any:
        return flow.data.OFRecordRawDecoder(record, "x", shape=(size,), dtype=getattr(flow, dtype))

    if isinstance(expected, list):
        assert read(tmp_path, feature, body)[0].tolist() == expected
        return
    with pytest.raises(DataError, match=expected):
        read(tmp_path, feature, body)


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def test_images_of_records_are_upright_and_have_the_upper_bits(fresh: None, tmp_path: Path) -> None:
    """Compare with OpenCV, which decodes for OneFlow."""
    deep = np.array([[0, 255, 256], [512, 40000, 65535]], np.uint16)
    turned = Image.Exif()
    turned[0x0112] = 6
    colours = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    for name, content, expected in (
        ("deep", encoded(Image.fromarray(deep), "PNG"), np.repeat((deep >> 8)[:, :, None], 3, 2)),
        ("turned", encoded(Image.fromarray(colours), "PNG", exif=turned), np.rot90(colours, -1)),
    ):
        (tmp_path / name).mkdir()
        height, width = expected.shape[:2]

        def body(record: Any, size: Any = (width, height)) -> Any:
            image = flow.data.OFRecordImageDecoder(record, "x", color_space="RGB")
            return flow.image.Resize(image, target_size=size)[0]

        result = read(tmp_path / name, {"bytes_list": {"value": [content]}}, body)
        np.testing.assert_array_equal(result[0], expected)


def test_images_of_records_of_unknown_range_raise(fresh: None, tmp_path: Path) -> None:
    content = encoded(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF")

    def body(record: Any) -> Any:
        return flow.image.Resize(flow.data.OFRecordImageDecoder(record, "x"), target_size=(2, 2))[0]

    with pytest.raises(DataError, match="its pixels are floats, whose range is unknown"):
        read(tmp_path, {"bytes_list": {"value": [content]}}, body)
