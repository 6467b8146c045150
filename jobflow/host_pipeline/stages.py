"""Stages of the host pipeline: a chain of functions of a sample, evaluated on the host before a job.

    record = ReadRecord(files)
    image = Resized(RandomlyCropped(Decoded(record, "encoded"), ...), (224, 224))        Pillow images, one stage after another
    Pixels(image, bgr=True)                                                              an array of one shape, which a job accepts

The random choices of a stage are a function of (its key, the number of the sample).
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DataError, JobflowError, counted, did_you_mean
from jobflow.core.extras import optional
from jobflow.core.types import Array, DType
from jobflow.data.conversion import converted
from jobflow.data.files import fault_of
from jobflow.data.image_decoder import FORMATS, pillow
from jobflow.data.ofrecord import features_of
from jobflow.data.pixels import BYTE, upright, white_of
from jobflow.expressions import philox
from jobflow.host_pipeline.sample_sources import RecordFiles, Source
from jobflow.storage.untrusted import IMAGE

#: names of Pillow's filters for a smaller and a larger result, by published name of the interpolation
FILTERS = {
    "bilinear": ("", ""),
    "nearest_neighbor": ("NEAREST", "NEAREST"),
    "bicubic": ("BICUBIC", "BICUBIC"),
    "area": ("BOX", "BOX"),
    "auto": ("BOX", ""),
}
Image = Any


@dataclass(frozen=True, eq=False)
class Stage(ABC):
    """A function of samples: `of` computes the value of a sample from the values of other stages for the same sample."""

    @property
    def inputs(self) -> tuple[Stage, ...]:
        """The stages whose values this stage reads."""
        return tuple(value for value in vars(self).values() if isinstance(value, Stage))

    @property
    def origin(self) -> Source:
        """The source of the samples."""
        return self.inputs[0].origin

    @abstractmethod
    def of(self, place: Any, *values: Any) -> Any:
        """Compute the value of the sample at `place` from the values of the input stages."""

    def value(self, place: Any, known: dict[Stage, Any]) -> Any:
        """Return the value of a sample, cached in `known`; the message of an error names the position of the sample."""
        if self not in known:
            before = [stage.value(place, known) for stage in self.inputs]
            try:
                known[self] = self.of(place, *before)
            except JobflowError as error:
                error.args = (f"{self.origin.where(place)}: {error}",)
                raise
            except Exception as error:
                raise DataError(f"{self.origin.where(place)}: {type(error).__name__}: {error}") from error
        return known[self]


@dataclass(frozen=True, eq=False)
class Part(Stage):
    """A stage that returns `take(sample)`, a part of the sample."""

    sample: Stage
    take: Callable[[Any], Any]

    def of(self, place: Any, *values: Any) -> Any:
        return self.take(values[0])


@dataclass(frozen=True, eq=False)
class ReadRecord(Stage):
    """A stage that reads the features of a record by name."""

    source: RecordFiles

    @property
    def origin(self) -> Source:
        return self.source

    def of(self, place: Any, *values: Any) -> Mapping[str, Array]:
        try:
            return features_of(self.source.record(place))
        except (optional("google.protobuf.message", "ofrecord_reader").DecodeError, ValueError):
            raise DataError("the record is damaged: its bytes are not an OFRecord message; write the file again") from None


def feature_of(features: Mapping[str, Any], name: str) -> Any:
    """Return the feature `name` of a record; raise DataError if it is missing."""
    if name not in features:
        raise DataError(f'the record has no feature "{name}"{did_you_mean(name, features) or "."}')
    return features[name]


@dataclass(frozen=True, eq=False)
class Raw(Stage):
    """A stage that returns the values of a numeric feature as an array of `shape` and `dtype`; bytes are read as int8.

    Another number of values is an error; with `filled`, a smaller number is padded with zeros.
    """

    record: Stage
    feature: str
    shape: tuple[int, ...]
    dtype: DType
    filled: bool = False

    def of(self, place: Any, *values: Any) -> Array:
        values_of_feature, size = feature_of(values[0], self.feature), math.prod(self.shape)
        if values_of_feature.size != size and not (self.filled and values_of_feature.size < size):
            raise DataError(
                f'feature "{self.feature}" has {counted(values_of_feature.size, "value")}, but its shape is {list(self.shape)}; pass another shape'
            )
        if values_of_feature.dtype == np.uint8:
            numbers = values_of_feature.view(np.int8).astype(self.dtype.numpy)
        else:
            numbers = converted(values_of_feature, self.dtype.numpy, lambda index: f'feature "{self.feature}", value {index[0]}', "set another dtype")
        return np.append(numbers, np.zeros(size - values_of_feature.size, numbers.dtype)).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Content(Stage):
    """A stage that returns the bytes of a feature, such as an encoded image."""

    record: Stage
    feature: str

    def of(self, place: Any, *values: Any) -> Array:
        return feature_of(values[0], self.feature)


# Images of Pillow, or arrays of pixels ------------------------------------------------------------------------------


def size_of(image: Image) -> tuple[int, int]:
    """Return (width, height) of a Pillow image or an array [height, width, channels]."""
    if not isinstance(image, np.ndarray):
        return image.width, image.height
    if image.ndim != 3:
        raise DataError(f"an image must have shape [height, width, channels]; got {list(image.shape)}")
    return image.shape[1], image.shape[0]


@dataclass(frozen=True, eq=False)
class Decoded(Stage):
    """A stage that decodes an image file, in colour or grey, upright and with 8 bits, as OpenCV does."""

    content: Stage
    grey: bool = False

    def of(self, place: Any, *values: Any) -> Image:
        mode = "L" if self.grey else "RGB"
        with pillow().open(io.BytesIO(values[0].tobytes()), formats=FORMATS) as opened:
            IMAGE.check(opened.width * opened.height, "the image", fault_of("it"))
            white = white_of(opened)
            if white != BYTE:
                high = np.asarray(opened, np.uint32) * (BYTE + 1) // (white + 1)
                image = pillow().fromarray(high.astype(np.uint8)).convert(mode)
            elif opened.mode != mode or "transparency" in opened.info:
                image = opened.convert(mode)
            else:
                opened.load()  # convert would copy the image
                image = opened
            return upright(image, opened, pillow().Transpose)


@dataclass(frozen=True, eq=False)
class RandomlyCropped(Stage):
    """A stage that crops an image to a rectangle of random area and aspect ratio.

    If none of `attempts` rectangles fits into the image, the result is the largest permitted one.
    """

    image: Stage
    key: philox.Key
    attempts: int = 10
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 1.333333)

    def of(self, place: Any, *values: Any) -> Image:
        image = values[0]
        left, top, width, height = self.box(place.number, *size_of(image))
        if isinstance(image, np.ndarray):
            return image[top : top + height, left : left + width]
        return image.crop((left, top, left + width, top + height))

    def box(self, number: int, width: int, height: int) -> tuple[int, int, int, int]:
        """Return (left, top, width, height) of the rectangle for sample `number`, in an image of `width` x `height`."""
        x = y = 0.0
        logs = [math.log(each) for each in self.ratio]
        for attempt in range(self.attempts):
            area, ratio, x, y = (word * 2.0**-32 for word in philox.words_of(self.key, attempt, number))
            target = width * height * (self.area[0] + area * (self.area[1] - self.area[0]))
            aspect = math.exp(logs[0] + ratio * (logs[1] - logs[0]))
            w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < w <= width and 0 < h <= height:
                return int(x * (width - w + 1)), int(y * (height - h + 1)), w, h
        w = min(width, max(round(height * self.ratio[1]), 1))
        h = min(height, max(round(width / self.ratio[0]), 1))
        return int(x * (width - w + 1)), int(y * (height - h + 1)), w, h


@dataclass(frozen=True, eq=False)
class Sides:
    """The target size of a resize: (width, height), or the length of one side, with an unchanged aspect ratio.

    A length applies to the shorter side; then `most` is the maximum length of the longer side.  With `longer`, the length applies to the
    longer side; then `least` is the minimum length of the shorter side.
    """

    target: tuple[int, int] | int
    longer: bool = False
    least: int | None = None
    most: int | None = None

    def of(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height after resizing an image of `width` x `height`."""
        if not isinstance(self.target, int):
            return self.target
        low, high = min(width, height), max(width, height)
        scale = self.target / (high if self.longer else low)
        if self.longer and self.least is not None:
            scale = max(scale, self.least / low)
        if not self.longer and self.most is not None:
            scale = min(scale, self.most / high)
        return max(round(width * scale), 1), max(round(height * scale), 1)


@dataclass(frozen=True, eq=False)
class Resized(Stage):
    """A stage that resizes an image."""

    image: Stage
    sides: Sides
    interpolation: str = "auto"

    def of(self, place: Any, *values: Any) -> Image:
        image, have = values[0], size_of(values[0])
        size = self.sides.of(*have)
        if size == have:
            return image
        IMAGE.check(size[0] * size[1], "the resized image", fault_of("it"))
        if not isinstance(image, np.ndarray):
            return self._resized(image, size)
        if image.dtype not in (np.uint8, np.float32):
            raise DataError(f"an image to resize must have type uint8 or float32; got {image.dtype}")
        planes = [self._resized(pillow().fromarray(np.ascontiguousarray(plane)), size) for plane in np.moveaxis(image, -1, 0)]
        return np.stack(planes, axis=-1)

    def _resized(self, image: Image, size: tuple[int, int]) -> Image:
        grows = size[0] * size[1] >= image.width * image.height
        name = FILTERS[self.interpolation][grows]
        if name:
            return image.resize(size, pillow().Resampling[name])
        step = image.width / size[0], image.height / size[1]  # interpolates four neighbours at any scale
        return image.transform(size, pillow().Transform.AFFINE, (step[0], 0, 0, 0, step[1], 0), pillow().Resampling.BILINEAR)


@dataclass(frozen=True, eq=False)
class Scale(Stage):
    """A stage that returns the scale factors (width, height) of a resize as float32[2]; with `sizes`, the new size in pixels as int32[2]."""

    image: Stage
    sides: Sides
    sizes: bool = False

    def of(self, place: Any, *values: Any) -> Array:
        width, height = size_of(values[0])
        w, h = self.sides.of(width, height)
        return np.array((w, h), np.int32) if self.sizes else np.array((w / width, h / height), np.float32)


# Arrays -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pixels(Stage):
    """A stage that converts an image to uint8[height, width, channels]."""

    image: Stage
    bgr: bool

    def of(self, place: Any, *values: Any) -> Array:
        pixels = np.asarray(values[0])
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        return pixels[:, :, ::-1] if self.bgr else pixels


@dataclass(frozen=True, eq=False)
class Normalized(Stage):
    """A stage that computes (x - mean) / deviation by channel as float32."""

    pixels: Stage
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def of(self, place: Any, *values: Any) -> Array:
        channels = values[0].shape[-1]
        if any(len(each) not in (1, channels) for each in (self.mean, self.deviation)):
            raise DataError(
                f"an image of {counted(channels, 'channel')} requires as many means and deviations, not {len(self.mean)} and "
                f"{len(self.deviation)}; pass one, or one per channel"
            )
        return (values[0] - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)


@dataclass(frozen=True, eq=False)
class Mirrored(Stage):
    """A stage that reverses an array along its width if `flip` is not 0."""

    pixels: Stage
    flip: Stage

    def of(self, place: Any, *values: Any) -> Array:
        pixels: Array = values[0]
        return pixels[:, ::-1] if values[1] else pixels


@dataclass(frozen=True, eq=False)
class Cropped(Stage):
    """A stage that crops an array to `size`; `at` is the fraction of the removed pixels above and left of the crop."""

    pixels: Stage
    size: tuple[int, int]
    at: tuple[float, float]

    def of(self, place: Any, *values: Any) -> Array:
        pixels: Array = values[0]
        free = [have - want for have, want in zip(pixels.shape, self.size, strict=False)]
        if min(free) < 0:
            raise DataError(
                f"an image of {pixels.shape[1]} x {pixels.shape[0]} pixels is smaller than the crop of {self.size[1]} x {self.size[0]}; "
                f"resize the image first, or pass a smaller crop"
            )
        top, left = (int(n * share) for n, share in zip(free, self.at, strict=True))
        return pixels[top : top + self.size[0], left : left + self.size[1]]


@dataclass(frozen=True, eq=False)
class Padded(Stage):
    """A stage that converts an array to `dtype` and pads it with zeros at the end of each axis to `shape`."""

    pixels: Stage
    shape: tuple[int, ...]
    dtype: DType

    @cached_property
    def _zeros(self) -> Array:
        return np.zeros(self.shape, self.dtype.numpy)

    def of(self, place: Any, *values: Any) -> Array:
        array: Array = values[0]
        if array.ndim != len(self.shape) or any(n > most for n, most in zip(array.shape, self.shape, strict=True)):
            raise DataError(
                f"an array {list(array.shape)} does not fit into shape {list(self.shape)}; pass a shape with as many axes, each at least as large"
            )
        whole = self._zeros.copy()
        whole[tuple(map(slice, array.shape))] = array
        return whole


@dataclass(frozen=True, eq=False)
class Inside(Stage):
    """A stage that converts an array to `dtype`; the array must have as many axes as `shape`, each at most as long."""

    array: Stage
    shape: tuple[int, ...]
    dtype: DType

    def of(self, place: Any, *values: Any) -> Array:
        array = np.asarray(values[0])
        if array.ndim != len(self.shape) or any(n > most for n, most in zip(array.shape, self.shape, strict=True)):
            raise DataError(
                f"an array {list(array.shape)} does not fit into shape {list(self.shape)}; pass a shape with as many axes, each at least as large"
            )
        return array.astype(self.dtype.numpy, copy=False)


@dataclass(frozen=True, eq=False)
class Within(Stage):
    """A stage that converts an array to `dtype`; the array must have as many axes as `shape`, and at most as many elements."""

    array: Stage
    shape: tuple[int, ...]
    dtype: DType

    def of(self, place: Any, *values: Any) -> Array:
        array = np.asarray(values[0])
        if array.ndim != len(self.shape) or array.size > math.prod(self.shape):
            raise DataError(f"an array {list(array.shape)} has more elements or other axes than the maximum {list(self.shape)}; pass another shape")
        return np.array(array, self.dtype.numpy)


@dataclass(frozen=True, eq=False)
class Exactly(Stage):
    """A stage that checks that an array has exactly this shape."""

    array: Stage
    shape: tuple[int, ...]

    def of(self, place: Any, *values: Any) -> Array:
        array: Array = values[0]
        if array.shape != self.shape:
            raise DataError(f"an array has shape {list(array.shape)}, but every sample must have shape {list(self.shape)}; make the shapes equal")
        return array
