"""`flow.detection`: what is done to the objects in images, as to the images: boxes and polygons turned, scaled and painted.

    images, number, size, boxes, labels, polygons, index = flow.data.coco_reader("instances.json", "images", batch_size=2, name="coco")
    flip = flow.random.CoinFlip(2)
    images, boxes = flow.image.flip(flow.image.decode(images), flip), flow.detection.object_bbox_flip(boxes, size, flip)

It is done on the host: see `OnHost`.  Sizes are (width, height), as those of `image.target_resize`, but for what comes straight from `coco_reader`,
whose sizes are (height, width).  Scales are those of `image.target_resize` and `image.Resize`, by width and by height.
"""

from __future__ import annotations

from typing import Any

from jobflow.core.types import int8
from jobflow.host_pipeline import stages as st
from jobflow.host_pipeline.outputs import OnHost, fed_by, on_host, rows_of, same_samples
from jobflow.legacy.extras import object_stages as ob

__all__ = [
    "object_bbox_flip",
    "object_bbox_scale",
    "object_segmentation_polygon_flip",
    "object_segmentation_polygon_scale",
    "object_segmentation_polygon_to_mask",
]


def _sizes(what: str, sizes: Any, like: OnHost) -> tuple[st.Stage, int]:
    """What gives the size of each image, and which of its numbers is the width."""
    stage = rows_of(what, sizes, like, (2,), "image_size")
    made = fed_by(what, sizes)
    return stage, 1 if isinstance(made, st.Part) and isinstance(made.sample, ob.CocoSample) else 0


def _flipped(what: str, objects: Any, image_size: Any, flip_code: Any, kind: type[ob.FlippedBoxes | ob.FlippedPoints]) -> OnHost:
    given = on_host(what, objects, "arrays")
    size, width = _sizes(what, image_size, given)
    flip = rows_of(what, flip_code, given, (), "flip_code")
    same_samples(what, given, size, flip)
    return given.then(kind(given.stage, size, flip, width))


def _scaled(what: str, objects: Any, scale: Any, columns: int) -> OnHost:
    given = on_host(what, objects, "arrays")
    stage = rows_of(what, scale, given, (2,), "scale")
    same_samples(what, given, stage)
    return given.then(ob.Scaled(given.stage, stage, columns))


def object_bbox_flip(bbox: OnHost, image_size: Any, flip_code: Any, name: str | None = None) -> OnHost:
    """The boxes (left, top, right, bottom) of images turned from right to left where flip_code, an int or a tensor with one for each, is not 0.

    Left and right become width - 1 - right and width - 1 - left.
    """
    return _flipped("object_bbox_flip", bbox, image_size, flip_code, ob.FlippedBoxes)


def object_bbox_scale(bbox: OnHost, scale: Any, name: str | None = None) -> OnHost:
    """The boxes of resized images; `scale` is [batch, 2], by width and by height."""
    return _scaled("object_bbox_scale", bbox, scale, 4)


def object_segmentation_polygon_flip(poly: OnHost, image_size: Any, flip_code: Any, name: str | None = None) -> OnHost:
    """The corners (x, y) of polygons in such images: x becomes width - x."""
    return _flipped("object_segmentation_polygon_flip", poly, image_size, flip_code, ob.FlippedPoints)


def object_segmentation_polygon_scale(poly: OnHost, scale: Any, name: str | None = None) -> OnHost:
    """The corners of polygons in resized images; see `object_bbox_scale`."""
    return _scaled("object_segmentation_polygon_scale", poly, scale, 2)


def object_segmentation_polygon_to_mask(poly: OnHost, poly_index: OnHost, image_size: Any, name: str | None = None) -> OnHost:
    """For each image int8 [objects, height, width]: 1 within the polygons of an object, 0 elsewhere.

    `poly_index` has for each corner which one it is, of which polygon of which object.
    """
    what = "object_segmentation_polygon_to_mask"
    given, index = on_host(what, poly, "arrays"), on_host(what, poly_index, "arrays")
    size, width = _sizes(what, image_size, given)
    same_samples(what, given, index, size)
    return given.then(ob.Masks(given.stage, index.stage, size, width), element=int8)
