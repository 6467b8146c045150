"""`flow.image`: image processing in the body of a job.

Images of different sizes, from a reader, are decoded, cropped and resized on the host before the job runs. Operations of the job crop,
mirror and normalize tensors of images of equal size on its devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.notices import notice
from jobflow.core.types import DType, Tensor, float32, int8, int32, uint8
from jobflow.host_pipeline import stages as st
from jobflow.host_pipeline.outputs import OnHost, as_padded, as_tensor, on_host, rows_of, same_samples
from jobflow.legacy import arrays, math
from jobflow.legacy.job_dispatch import all_of, is_tensor, of_kinds
from jobflow.legacy.operands import counts, positive_shape
from jobflow.legacy.optimizer.option_ranges import is_number
from jobflow.legacy.record_data import decoded, randomly_cropped
from jobflow.tensors.parameters import described

__all__ = [
    "CropMirrorNormalize",
    "Resize",
    "batch_align",
    "crop_mirror_normalize",
    "decode",
    "flip",
    "normalize",
    "random_crop",
    "resize",
    "target_resize",
]

_ZERO, _ONE = [0.0], [1.0]
#: deprecated names of interpolations
_OLD = {"Linear": "bilinear", "NN": "nearest_neighbor", "Cubic": "bicubic"}


def decode(images_bytes_buffer: OnHost, dtype: DType = uint8, color_space: str = "BGR", name: str | None = None) -> OnHost:
    """Decode encoded image files to images in `color_space`, "BGR", "RGB" or "GRAY", with pixels of type `dtype`."""
    content = on_host("image.decode", images_bytes_buffer, "bytes", "arrays")
    if content.element not in (uint8, int8):
        raise ArgumentError(f"image.decode at {user_line()}: images_bytes_buffer must be int8 or uint8, not {content.element.name}")
    images = decoded("image.decode", content.stage, content.rows, color_space)
    if dtype is uint8:
        return images
    _check_pixels("image.decode", uint8, dtype)
    return images.then(st.Part(images.pixels(), methodcaller("astype", dtype.numpy)), kind="arrays", element=dtype)


def _check_pixels(what: str, element: DType, dtype: DType) -> None:
    """Raise ArgumentError if `element` is uint8 and `dtype` cannot represent all pixel values from 0 to 255."""
    if element is uint8 and not np.can_cast(np.uint8, dtype.numpy):
        raise ArgumentError(f"{what} at {user_line()}: dtype {dtype.name} cannot represent pixels from 0 to 255")


def random_crop(
    input_blob: OnHost,
    num_attempts: int = 10,
    seed: int | None = None,
    random_area: Sequence[float] | None = None,
    random_aspect_ratio: Sequence[float] | None = None,
    name: str = "ImageRandomCrop",
) -> OnHost:
    """Crop each image to a rectangle of random area and aspect ratio, within the ranges `random_area` and `random_aspect_ratio`.

    Areas are fractions of the image, by default from 0.08 to 1. Aspect ratios are width / height, by default from 3/4 to 4/3.
    If none of `num_attempts` rectangles fits into the image, the crop is the largest rectangle with a permitted aspect ratio.
    """
    images = on_host("image.random_crop", input_blob, "images", "arrays")
    return randomly_cropped("image.random_crop", images, num_attempts, seed, random_area, random_aspect_ratio, name)


def _sides(what: str, target: Any, least: int | None, most: int | None, side: str) -> st.Sides:
    limits = {word: limit for word, limit in (("min_size", least), ("max_size", most)) if limit}
    counts(what, **limits)
    if isinstance(target, int | np.integer) and target > 0 and side in ("shorter", "longer"):
        counts(what, target_size=target)
        return st.Sides(int(target), side == "longer", limits.get("min_size"), limits.get("max_size"))
    raise ArgumentError(
        f'{what} at {user_line()}: keep_aspect_ratio requires an int target_size and resize_side "shorter" or "longer", not {target!r}, {side!r}'
    )


def _interpolation(what: str, name: str) -> str:
    if name not in st.FILTERS:
        raise ArgumentError(f"{what} at {user_line()}: interpolation_type must be one of {', '.join(st.FILTERS)}, not {name!r}")
    return name


def Resize(
    image: OnHost,
    target_size: int | Sequence[int] | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    keep_aspect_ratio: bool = False,
    resize_side: str = "shorter",
    channels: int = 3,
    dtype: DType | None = None,
    interpolation_type: str = "auto",
    name: str | None = None,
    color_space: str | None = None,
    interp_type: str | None = None,
    resize_shorter: int = 0,
    resize_x: int = 0,
    resize_y: int = 0,
) -> Any:
    """Return (images, scale, new_size), with images resized to target_size = (width, height) as [batch, height, width, channels].

    `scale` [batch, 2] contains the factors of width and height; new_size is None. `dtype` defaults to the type of the images.
    With `keep_aspect_ratio`, target_size is the length of the shorter or longer side, image sizes differ, and `new_size` is [batch, 2]. The
    parameters from `color_space` on belong to an older form, which returns only the images.
    """
    what, images = "image.Resize", on_host("image.Resize", image, "images", "arrays")
    old = bool(color_space or interp_type or resize_shorter or resize_x or resize_y)
    if old:
        notice("image.Resize: color_space, interp_type, resize_shorter, resize_x and resize_y are deprecated; use target_size and interpolation_type")
        interpolation_type = _OLD.get(interp_type, interp_type) if interp_type else "auto"
        keep_aspect_ratio = bool(resize_shorter)
        target_size = resize_shorter or (resize_x, resize_y)
    interpolation = _interpolation(what, interpolation_type)
    if keep_aspect_ratio:
        sides = _sides(what, target_size, min_size, max_size, resize_side)
        result: Any = images.then(st.Resized(images.stage, sides, interpolation))
        size = None if old else as_tensor(what, st.Scale(images.stage, sides, sizes=True), images.rows, (2,), int32, None)
    else:
        if not isinstance(target_size, list | tuple) or len(target_size) != 2:
            raise ArgumentError(f"{what} at {user_line()}: target_size must be (width, height), not {target_size!r}")
        counts(what, width=target_size[0], height=target_size[1])
        if images.kind == "images" and channels != images.channels:
            raise ArgumentError(f"{what} at {user_line()}: channels must be {images.channels}, as in the images, not {channels}")
        sides, size = st.Sides((int(target_size[0]), int(target_size[1]))), None
        shape = int(target_size[1]), int(target_size[0]), channels
        resized = st.Exactly(images.then(st.Resized(images.stage, sides, interpolation)).pixels(), shape)
        result = as_tensor(what, resized, images.rows, shape, images.element, name)
        if dtype is not None:
            _check_pixels(what, images.element, dtype)
            result = arrays.cast(result, dtype)
    return result if old else (result, as_tensor(what, st.Scale(images.stage, sides), images.rows, (2,), float32, None), size)


def target_resize(
    images: OnHost,
    target_size: int,
    min_size: int | None = None,
    max_size: int | None = None,
    resize_side: str = "shorter",
    interpolation_type: str = "auto",
    name: str | None = None,
) -> tuple[OnHost, Any, Any]:
    """Resize images so that the side `resize_side`, "shorter" or "longer", has the length `target_size`; return (images, new_size, scale).

    `new_size` int32 [batch, 2] is (width, height), and `scale` float32 [batch, 2] contains the factors of width and height.
    `min_size` and `max_size` bound the other side.
    """
    result, scale, size = Resize(images, target_size, min_size, max_size, True, resize_side, interpolation_type=interpolation_type, name=name)
    return result, size, scale


def CropMirrorNormalize(
    input_blob: Any,
    mirror_blob: Tensor | None = None,
    color_space: str = "BGR",
    output_layout: str = "NCHW",
    crop_h: int = 0,
    crop_w: int = 0,
    crop_pos_y: float = 0.5,
    crop_pos_x: float = 0.5,
    mean: Sequence[float] = _ZERO,
    std: Sequence[float] = _ONE,
    output_dtype: DType = float32,
    name: str | None = None,
) -> Any:
    """Crop images to crop_h x crop_w, mirror each image where `mirror_blob` is not 0, and return (pixel - mean) / std by channel.

    A crop of 0 means the whole image; images of different sizes need a crop. `crop_pos_y` and `crop_pos_x` are the fractions of
    the removed pixels that precede the crop. The result is [batch, channels, height, width], or for `output_layout` "NHWC"
    [batch, height, width, channels].
    """
    what = "image.CropMirrorNormalize"
    if output_layout not in ("NCHW", "NHWC"):
        raise ArgumentError(f'{what} at {user_line()}: output_layout must be "NCHW" or "NHWC", not {output_layout!r}')
    if color_space not in ("BGR", "RGB", "GRAY") or not output_dtype.is_float:
        raise ArgumentError(
            f'{what} at {user_line()}: color_space must be "BGR", "RGB" or "GRAY", and output_dtype a float type, not {color_space!r}, {output_dtype}'
        )
    for word, share in (("crop_pos_y", crop_pos_y), ("crop_pos_x", crop_pos_x)):
        if not 0 <= share <= 1:
            raise ArgumentError(f"{what} at {user_line()}: {word} must be in [0, 1], not {share}")
    x = input_blob
    if isinstance(x, OnHost):
        images = on_host(what, x, "images", "arrays")
        if min(crop_h, crop_w) < 1:
            raise ArgumentError(
                f"{what} at {user_line()}: images of different sizes require crop_h and crop_w of at least 1, not {crop_h} and {crop_w}"
            )
        counts(what, crop_h=crop_h, crop_w=crop_w)
        stage = st.Cropped(images.pixels(), (crop_h, crop_w), (crop_pos_y, crop_pos_x))
        x = as_tensor(what, stage, images.rows, (crop_h, crop_w, images.channels), images.element, None)
    elif not is_tensor(x) or x.tensor_type.ndim != 4:
        raise ShapeError(
            f"{what} at {user_line()}: images must be [batch, height, width, channels], not {x.tensor_type if is_tensor(x) else described(x)}"
        )
    else:
        x = _cropped(what, x, (crop_h, crop_w), (crop_pos_y, crop_pos_x))
    channels, width = (1, 3) if output_layout == "NCHW" else (3, 2)
    if channels == 1:  # here, because pixels are still bytes, and mirrored elements become adjacent
        x = arrays.transpose(x, [0, 3, 1, 2])
    if mirror_blob is not None:
        x = _flipped(x, mirror_blob, width)
    return arrays.identity(_normalized(what, arrays.cast(x, output_dtype), mean, std, channels), name=name)


def _cropped(what: str, x: Tensor, size: Sequence[int], at: Sequence[float]) -> Tensor:
    """Return the images x cropped to height and width `size`, where 0 means the whole axis.

    `at` contains the fractions of the removed rows and columns that precede the crop. Raises: ShapeError if the images are smaller than `size`.
    """
    target = [want or have for want, have in zip(size, x.tensor_type.shape[1:3], strict=True)]
    if target == list(x.tensor_type.shape[1:3]):
        return x
    if any(want > have for want, have in zip(target, x.tensor_type.shape[1:3], strict=True)):
        raise ShapeError(f"{what} at {user_line()}: images {x.tensor_type} are smaller than the crop of {target[0]} x {target[1]}")
    begin = [int((have - want) * share) for want, have, share in zip(target, x.tensor_type.shape[1:3], at, strict=True)]
    return arrays.slice(x, [0, *begin, 0], [-1, *target, -1])


def _normalized(what: str, x: Tensor, mean: Sequence[float], std: Sequence[float], axis: int = -1) -> Tensor:
    """Return (x - mean) / std, where `axis` of x contains the channels; mean and std contain one number, or one number per channel."""
    mean, std = _by_each(what, mean, std, x.tensor_type.shape[axis])
    behind = (1,) * (x.tensor_type.ndim - 1 - axis) if axis >= 0 else ()
    shifted = math.subtract(x, _by_channel(mean, x.tensor_type.dtype, behind)) if any(mean) else x
    return math.multiply(shifted, _by_channel([1.0 / each for each in std], x.tensor_type.dtype, behind)) if set(std) != {1} else shifted


def _by_each(what: str, mean: Sequence[float], std: Sequence[float], channels: int | None) -> list[list[float]]:
    """Return mean and standard deviation as lists of one number, or of one number per channel.

    Raises: ArgumentError for other values, and for a deviation of 0.
    """
    for word, arguments in (("mean", mean), ("std", std)):
        numbers = isinstance(arguments, list | tuple | np.ndarray) and len(arguments) > 0 and all(map(is_number, arguments))
        if not numbers or (channels is not None and len(arguments) not in (1, channels)) or (word == "std" and 0 in arguments):
            each = "each channel" if channels is None else f"each of {channels} channels"
            raise ArgumentError(
                f"{what} at {user_line()}: {word} {arguments!r} must be a list of one number, or of one for {each}, and std must not be 0"
            )
    return [list(map(float, mean)), list(map(float, std))]


def _by_channel(numbers: Sequence[float], dtype: DType, behind: tuple[int, ...]) -> Any:
    """Return the first number if all `numbers` are equal, and otherwise a tensor [channels, *behind]."""
    return arrays.concat([arrays.constant(number, dtype, (1, *behind)) for number in numbers]) if len(set(numbers)) > 1 else numbers[0]


def flip(image: Any, flip_code: Any, name: str | None = None) -> Any:
    """Mirror images horizontally where `flip_code`, an int or a tensor with one int per image, is not 0."""
    if isinstance(image, OnHost):
        images = on_host("image.flip", image, "images", "arrays")
        flips = rows_of("image.flip", flip_code, images, (), "flip_code")
        same_samples("image.flip", images, flips)
        return images.then(st.Mirrored(images.pixels(), flips), kind="arrays")
    return _flipped(image, flip_code, 2, name)


def _flipped(image: Any, codes: Any, axis: int, name: str | None = None) -> Any:
    """Reverse each image along `axis` if its code is not 0; `codes` is an int for all images, or a tensor with one int per image."""
    if isinstance(codes, int | np.integer):
        return arrays.reverse(image, axis, name=name) if codes else image
    return arrays.where(arrays.reshape(codes, (-1, 1, 1, 1)), arrays.reverse(image, axis), image, name=name)


def normalize(image: Any, std: Sequence[float], mean: Sequence[float], name: str | None = None) -> Any:
    """Return (image - mean) / std as float32; `std` and `mean` contain one number, or one number per channel."""
    if not isinstance(image, OnHost):
        return _normalized("image.normalize", arrays.cast(image, float32), mean, std)
    images = on_host("image.normalize", image, "images", "arrays")
    mean, std = _by_each("image.normalize", mean, std, images.channels if images.kind == "images" else None)
    stage = st.Normalized(images.pixels(), tuple(mean), tuple(std))
    return images.then(stage, kind="arrays", element=float32)


def batch_align(images: OnHost, shape: Sequence[int], dtype: DType, alignment: int, name: str | None = None) -> Any:
    """Copy images of different sizes into a tensor [batch, height, width, channels], padded with zeros at the bottom and right.

    Height and width are the largest height and width in the batch, rounded up to multiples of `alignment`. `shape` is the
    maximum (height, width, channels).
    """
    what = "image.batch_align"
    arguments, most = on_host(what, images, "images", "arrays"), positive_shape(what, "shape", shape)
    counts(what, alignment=alignment)
    if len(most) != 3:
        raise ArgumentError(f"{what} at {user_line()}: shape must be (height, width, channels), not {shape!r}")
    _check_pixels(what, arguments.element, dtype)
    return as_padded(what, arguments.pixels(), arguments.rows, most, (alignment, alignment, 1), dtype, name)


globals().update(all_of(__name__, globals(), __name__, of_kinds))
resize = Resize
crop_mirror_normalize = CropMirrorNormalize
