"""Host pipeline stages for OneRec, COCO and Megatron files, and for the objects in images: boxes, polygons and masks.

A box is (left, top, right, bottom) with an inclusive last pixel; a point is (x, y). One array contains the points of all polygons of an
image. A second array contains (point, polygon, object) for each point.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DataError
from jobflow.core.types import Array, DType
from jobflow.data.files import fault_of
from jobflow.host_pipeline.sample_sources import Drawn, Indexed, RecordFiles, Source
from jobflow.host_pipeline.stages import Stage, feature_of
from jobflow.legacy.extras import onerec
from jobflow.legacy.extras.coco import CocoFile, CocoImage
from jobflow.legacy.extras.megatron import TokenFiles, as_tokens
from jobflow.storage.untrusted import IMAGE

#: maximum coordinate of a polygon point, in pixels
FARTHEST = 1 << 20


@dataclass(frozen=True, eq=False)
class ReadExample(Stage):
    """A stage that reads an example of a OneRec file as a dict from feature names to tensors."""

    source: RecordFiles

    @property
    def origin(self) -> Source:
        return self.source

    def of(self, place: Any, *values: Any) -> dict[str, Array]:
        try:
            return onerec.features_of(self.source.record(place))
        except UnicodeDecodeError:
            raise DataError("the example is damaged: the name of a feature is not valid UTF-8") from None


@dataclass(frozen=True, eq=False)
class ExampleTensor(Stage):
    """A stage that returns the tensor `feature` of an example; another element type than `dtype` raises DataError."""

    example: Stage
    feature: str
    dtype: DType

    def of(self, place: Any, *values: Any) -> Array:
        result = feature_of(values[0], self.feature)
        if result is None or result.dtype != self.dtype.numpy:
            raise DataError(f'feature "{self.feature}" contains {"strings or bytes" if result is None else result.dtype}, not {self.dtype.name}')
        return result


@dataclass(frozen=True, eq=False)
class CocoSample(Stage):
    """A stage that returns an image of a COCO file with its objects."""

    file: CocoFile
    source: Indexed

    @property
    def origin(self) -> Source:
        return self.source

    def of(self, place: Drawn, *values: Any) -> CocoImage:
        return self.file.images[place.at]


@dataclass(frozen=True, eq=False)
class Tokens(Stage):
    """A stage that returns a sample of Megatron's token files."""

    file: TokenFiles
    source: Indexed
    dtype: DType

    @property
    def origin(self) -> Source:
        return self.source

    def of(self, place: Drawn, *values: Any) -> Array:
        return as_tokens(self.file.sample(place.at), self.dtype.numpy)


# Objects in images --------------------------------------------------------------------------------------------------


def pairs(array: Any, what: str, columns: int) -> Array:
    """Return `array` as a NumPy array; raise DataError unless the shape is [n, columns]."""
    result = np.asarray(array)
    if result.ndim != 2 or result.shape[1] != columns:
        raise DataError(f"{what} must be an array [n, {columns}], not {list(result.shape)}")
    return result


@dataclass(frozen=True, eq=False)
class FlippedBoxes(Stage):
    """A stage that mirrors boxes if `flip` is not 0: left and right become width - 1 - right and width - 1 - left."""

    boxes: Stage
    size: Stage
    flip: Stage
    #: index of the width in a size
    width: int

    def of(self, place: Any, *values: Any) -> Array:
        boxes, width = pairs(values[0], "boxes", 4), values[1][self.width]
        if not values[2]:
            return boxes
        return np.stack([width - 1 - boxes[:, 2], boxes[:, 1], width - 1 - boxes[:, 0], boxes[:, 3]], axis=1).astype(boxes.dtype)


@dataclass(frozen=True, eq=False)
class FlippedPoints(Stage):
    """A stage that mirrors points if `flip` is not 0: x becomes width - x."""

    points: Stage
    size: Stage
    flip: Stage
    width: int

    def of(self, place: Any, *values: Any) -> Array:
        points = pairs(values[0], "points", 2)
        if not values[2]:
            return points
        return np.stack([values[1][self.width] - points[:, 0], points[:, 1]], axis=1).astype(points.dtype)


@dataclass(frozen=True, eq=False)
class Scaled(Stage):
    """A stage that multiplies boxes or points (`columns` numbers each) by the scale factors of their image."""

    points: Stage
    scale: Stage
    columns: int

    def of(self, place: Any, *values: Any) -> Array:
        points = pairs(values[0], "boxes" if self.columns == 4 else "points", self.columns)
        scaled: Array = points * np.tile(values[1], self.columns // 2)
        return scaled.astype(points.dtype)


@dataclass(frozen=True, eq=False)
class Masks(Stage):
    """A stage that returns masks int8[objects, height, width] with 1 inside the polygons of an object."""

    points: Stage
    index: Stage
    size: Stage
    width: int

    def of(self, place: Any, *values: Any) -> Array:
        points, index = pairs(values[0], "points", 2), pairs(values[1], "indices of points, polygons and objects", 3)
        width, height = int(values[2][self.width]), int(values[2][1 - self.width])
        if len(points) != len(index) or (len(index) and index.min() < 0) or not (np.abs(points) < FARTHEST).all():
            raise DataError(f"{len(points)} points with {len(index)} indices do not define polygons")
        polygons: dict[tuple[int, int], list[Array]] = {}
        for (_, polygon, thing), corner in zip(index.tolist(), list(points.astype(np.float64)), strict=True):
            polygons.setdefault((thing, polygon), []).append(corner)
        count = max((thing for thing, _ in polygons), default=-1) + 1
        IMAGE.check(max(width, 0) * max(height, 0), "a mask", fault_of("it"))
        if count > len(polygons) or min(width, height) < 1:
            raise DataError(f"{count} objects and {len(polygons)} polygons do not define masks of {width} x {height} pixels")
        masks: Array = np.zeros((count, height, width), np.int8)
        for (thing, _), corners in polygons.items():
            masks[thing] |= painted(np.array(corners), height, width)
        return masks


#: boundary points per pixel
FINE = 5


def painted(corners: Array, height: int, width: int) -> Array:
    """Return bool[height, width] with True inside a polygon with the corners (x, y), which may be outside of the image."""
    x, y = (np.concatenate(each) for each in zip(*_boundary(np.trunc(FINE * corners + 0.5).astype(np.int64)), strict=True))
    crosses = np.flatnonzero(x[1:] != x[:-1])
    lower = np.minimum(x[crosses], x[crosses + 1])
    column = (lower + 0.5) / FINE - 0.5
    row = np.ceil(np.clip((np.minimum(y[crosses], y[crosses + 1]) + 0.5) / FINE - 0.5, 0, height))
    inside = (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    turned = np.bincount((column[inside] * height + row[inside]).astype(np.int64), minlength=height * width)[: height * width]
    return (np.cumsum(turned) % 2 == 1).reshape(width, height).T


def _boundary(corners: Array) -> Iterator[tuple[Array, Array]]:
    """Yield arrays (x, y) of the integer points of each polygon edge.

    A steep edge has one point per y, and another edge one point per x.
    """
    for (x, y), (x_end, y_end) in zip(corners.tolist(), np.roll(corners, -1, 0).tolist(), strict=True):
        wide, high = abs(x_end - x), abs(y_end - y)
        back = x > x_end if wide >= high else y > y_end
        (x, y), (x_end, y_end) = ((x_end, y_end), (x, y)) if back else ((x, y), (x_end, y_end))
        steps = np.arange(max(wide, high) + 1)[:: -1 if back else 1]
        if wide >= high:
            yield x + steps, np.trunc(y + (y_end - y) / max(wide, 1) * steps + 0.5).astype(np.int64)
        else:
            yield np.trunc(x + (x_end - x) / high * steps + 0.5).astype(np.int64), y + steps
