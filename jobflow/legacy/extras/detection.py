"""The namespace `flow.detection`: transformations of boxes and polygons that match transformations of images.

    images, number, size, boxes, labels, polygons, index = flow.data.coco_reader("instances.json", "images", batch_size=2, name="coco")
    flip = flow.random.CoinFlip(2)
    images, boxes = flow.image.flip(flow.image.decode(images), flip), flow.detection.object_bbox_flip(boxes, size, flip)

The functions run on the host, see `OnHost`. Sizes are (width, height), as `image.target_resize` returns them, or (height, width) from
`coco_reader`. Scales are (width, height) factors from `image.target_resize` and `image.Resize`.
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
    """Return the host pipeline stage of the image sizes `sizes`, and the index of the width in a size: 0 or 1."""
    stage = rows_of(what, sizes, like, (2,), "image_size")
    result = fed_by(what, sizes)
    return stage, 1 if isinstance(result, st.Part) and isinstance(result.sample, ob.CocoSample) else 0


def _flipped(what: str, objects: Any, image_size: Any, flip_code: Any, kind: type[ob.FlippedBoxes | ob.FlippedPoints]) -> OnHost:
    arguments = on_host(what, objects, "arrays")
    size, width = _sizes(what, image_size, arguments)
    flip = rows_of(what, flip_code, arguments, (), "flip_code")
    same_samples(what, arguments, size, flip)
    return arguments.then(kind(arguments.stage, size, flip, width))


def _scaled(what: str, objects: Any, scale: Any, columns: int) -> OnHost:
    arguments = on_host(what, objects, "arrays")
    stage = rows_of(what, scale, arguments, (2,), "scale")
    same_samples(what, arguments, stage)
    return arguments.then(ob.Scaled(arguments.stage, stage, columns))


def object_bbox_flip(bbox: OnHost, image_size: Any, flip_code: Any, name: str | None = None) -> OnHost:
    """Mirror boxes (left, top, right, bottom) where `flip_code`, an int or a tensor with one int per image, is not 0.

    Left and right become width - 1 - right and width - 1 - left.
    """
    return _flipped("object_bbox_flip", bbox, image_size, flip_code, ob.FlippedBoxes)


def object_bbox_scale(bbox: OnHost, scale: Any, name: str | None = None) -> OnHost:
    """Multiply boxes by the factors (width, height) of their image; `scale` is [batch, 2]."""
    return _scaled("object_bbox_scale", bbox, scale, 4)


def object_segmentation_polygon_flip(poly: OnHost, image_size: Any, flip_code: Any, name: str | None = None) -> OnHost:
    """Mirror the points (x, y) of polygons where `flip_code` is not 0: x becomes width - x.

    `flip_code` is an int or a tensor with one int per image.
    """
    return _flipped("object_segmentation_polygon_flip", poly, image_size, flip_code, ob.FlippedPoints)


def object_segmentation_polygon_scale(poly: OnHost, scale: Any, name: str | None = None) -> OnHost:
    """Multiply the points (x, y) of polygons by the factors (width, height) of their image; `scale` is [batch, 2]."""
    return _scaled("object_segmentation_polygon_scale", poly, scale, 2)


def object_segmentation_polygon_to_mask(poly: OnHost, poly_index: OnHost, image_size: Any, name: str | None = None) -> OnHost:
    """Return masks int8 [objects, height, width] for each image: 1 within the polygons of an object, 0 elsewhere.

    `poly_index` contains (point, polygon, object) for each point.
    """
    what = "object_segmentation_polygon_to_mask"
    arguments, index = on_host(what, poly, "arrays"), on_host(what, poly_index, "arrays")
    size, width = _sizes(what, image_size, arguments)
    same_samples(what, arguments, index, size)
    return arguments.then(ob.Masks(arguments.stage, index.stage, size, width), element=int8)
