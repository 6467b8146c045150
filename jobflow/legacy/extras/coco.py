"""Image annotations in the COCO format: boxes, categories and polygons of objects.

    {"images": [{"id", "file_name", "height", "width"}], "categories": [{"id"}],
     "annotations": [{"id", "image_id", "category_id", "bbox": [left, top, width, height], "segmentation": [[x, y, x, y, ...], ...], "iscrowd"}]}

Boxes become [left, top, right, bottom], clipped to the image, with an inclusive last pixel. Empty boxes and crowds are omitted. Categories are
numbered from 1 in the order of their ids. Images are sorted by id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.data.files import fault_of
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.untrusted import IMAGE, MEMORY, content, json_tree, plain_name, whole

WHAT = "coco_reader"
fault = fault_of(WHAT)


@dataclass(frozen=True)
class Thing:
    """An object in an image, with its box, category and polygons."""

    box: tuple[float, float, float, float]
    label: int
    #: arrays [points, 2]
    polygons: tuple[Array, ...]


@dataclass
class CocoImage:
    """An image with its file, size and objects."""

    id: int
    file: AnyPath
    height: int
    width: int
    objects: list[Thing] = field(default_factory=list)
    #: True if an object has a box of more than one pixel in both directions
    annotated: bool = False

    def content(self) -> Array:
        """Return the bytes of the image file as a uint8 array; raise DataError if the file does not exist."""
        if not self.file.is_file():
            raise fault(f"no such file: {self.file.absolute()}")
        return np.frombuffer(content(self.file, MEMORY, fault), np.uint8)

    def size(self) -> Array:
        """Return the size (height, width) as int32."""
        return np.array((self.height, self.width), np.int32)

    def boxes(self) -> Array:
        """Return the boxes (left, top, right, bottom) as float32[objects, 4]."""
        return np.array([thing.box for thing in self.objects], np.float32).reshape(-1, 4)

    def labels(self) -> Array:
        """Return the category numbers of the objects, from 1 on, as int32[objects]."""
        return np.array([thing.label for thing in self.objects], np.int32)

    def points(self) -> Array:
        """Return the points (x, y) of all polygons as float32[points, 2]."""
        result = [polygon for thing in self.objects for polygon in thing.polygons]
        return np.concatenate(result) if result else np.empty((0, 2), np.float32)

    def points_of(self) -> Array:
        """Return three indices for each point as int32[points, 3]: the point in its polygon, the polygon in its object, and the object."""
        result = [
            (point, number, which)
            for which, thing in enumerate(self.objects)
            for number, polygon in enumerate(thing.polygons)
            for point in range(len(polygon))
        ]
        return np.array(result, np.int32).reshape(-1, 3)


@dataclass(frozen=True, eq=False)
class CocoFile:
    """A COCO annotation file with the folder of its images."""

    file: str
    folder: str
    #: omit images without annotations
    annotated: bool = True

    @cached_property
    def images(self) -> list[CocoImage]:
        """The images with their objects, sorted by id; if `annotated`, only images with a box that is wider and higher than one pixel.

        Raises: DataError for a missing or malformed file, and if no image remains.
        """
        path = path_of(self.file)
        if not path.is_file():
            raise fault(f"no such file: {path.absolute()}")
        try:
            tree = json_tree(content(path, MEMORY, fault))
            result = {image.id: image for image in map(self._image, _listed(tree, "images"))}
            labels = {n: i for i, n in enumerate(sorted(whole(_of(each, "id"), "the id of a category") for each in _listed(tree, "categories")), 1)}
        except ValueError as error:
            raise fault(f"{path}: {error}") from None
        for number, annotation in enumerate(_listed(tree, "annotations")):
            try:
                self._annotate(annotation, result, labels)
            except ValueError as error:
                raise fault(f"{path}: annotation {number}: {error}") from None
        remaining = [result[n] for n in sorted(result) if result[n].annotated or not self.annotated]
        if not remaining:
            raise fault(f"{path} contains no image{' with annotations' if self.annotated else ''}")
        return remaining

    def _image(self, entry: Any) -> CocoImage:
        height, width = (whole(_of(entry, name), f"the {name} of an image") for name in ("height", "width"))
        IMAGE.check(height * width, f"{self.file}: an image", fault)
        return CocoImage(whole(_of(entry, "id"), "the id of an image"), path_of(self.folder) / plain_name(_of(entry, "file_name")), height, width)

    @staticmethod
    def _annotate(entry: Any, images: Mapping[int, CocoImage], labels: Mapping[int, int]) -> None:
        if _of(entry, "iscrowd", 0):
            return
        image, label = images.get(_of(entry, "image_id")), labels.get(_of(entry, "category_id"))
        if image is None or label is None:
            raise ValueError(f"image_id {_of(entry, 'image_id')!r:.40} or category_id {_of(entry, 'category_id')!r:.40} is not defined in the file")
        left, top, width, height = _numbers(_of(entry, "bbox"), "bbox", 4)
        image.annotated |= width > 1 and height > 1
        right, bottom = (min(max(a + max(n - 1, 0), 0), most - 1) for a, n, most in ((left, width, image.width), (top, height, image.height)))
        left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
        if right > left and bottom > top:
            polygons = _of(entry, "segmentation", [])
            if not isinstance(polygons, list):
                raise ValueError(f"segmentation must be a list of polygons, not {polygons!r:.40}")
            corners = tuple(np.array(_numbers(each, "a polygon"), np.float32).reshape(-1, 2) for each in polygons)
            image.objects.append(Thing((left, top, right, bottom), label, corners))


def _of(entry: Any, name: str, otherwise: Any = None) -> Any:
    if not isinstance(entry, dict) or (name not in entry and otherwise is None):
        raise ValueError(f'{entry!r:.80} has no "{name}"')
    result = entry.get(name, otherwise)
    if isinstance(result, dict | list) and name.endswith("id"):
        raise ValueError(f'"{name}" must be a number or string, not {result!r:.40}')
    return result


def _listed(tree: Any, name: str) -> list[Any]:
    result = _of(tree, name)
    if not isinstance(result, list):
        raise ValueError(f'"{name}" must be a list, not {result!r:.40}')
    return result


def _numbers(arguments: Any, what: str, count: int | None = None) -> list[float]:
    """Return the list `arguments` of `count` numbers, or of at least three pairs of numbers if `count` is None.

    Raises: ValueError for another object, and for absolute values of 1e9 or more.
    """
    fits = isinstance(arguments, list) and (len(arguments) == count if count else len(arguments) >= 6 and len(arguments) % 2 == 0)
    if not fits or not all(isinstance(n, int | float) and abs(n) < 1e9 for n in arguments):
        raise ValueError(f"{what} must be {count or 'three or more pairs of'} numbers, not {arguments!r:.80}")
    return list(arguments)


def aspects(images: list[CocoImage]) -> list[int]:
    """Return a list of 1 for each image that is wider than high, and 0 for each other image."""
    return [int(image.width > image.height) for image in images]


#: entries of a sample, in the order of the reader's results
PARTS: tuple[Callable[[CocoImage], Any], ...] = (
    CocoImage.content,
    lambda image: np.int64(image.id),
    CocoImage.size,
    CocoImage.boxes,
    CocoImage.labels,
    CocoImage.points,
    CocoImage.points_of,
)
