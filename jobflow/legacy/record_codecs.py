"""The function `flow.data.decode_ofrecord`, an older form that reads records in one call with a description of each feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import DType, Tensor
from jobflow.host_pipeline.outputs import OnHost
from jobflow.legacy import arrays, image
from jobflow.legacy.operands import counts
from jobflow.legacy.random import CoinFlip
from jobflow.legacy.record_data import OFRecordImageDecoder, OFRecordRawDecoder, ofrecord_reader


@dataclass(frozen=True)
class RawCodec:
    """A codec for the values of a numeric feature; with `auto_zero_padding` a short feature is padded with zeros."""

    auto_zero_padding: bool = False


@dataclass(frozen=True)
class ImagePreprocessor:
    """A preprocessor of images: "bgr2rgb", or "mirror", which mirrors each image with probability 0.5."""

    preprocessor: str

    def __post_init__(self) -> None:
        if self.preprocessor not in ("bgr2rgb", "mirror"):
            raise ArgumentError(f'ImagePreprocessor at {user_line()}: preprocessor must be "bgr2rgb" or "mirror", not {self.preprocessor!r}')


@dataclass(frozen=True)
class ImageResizePreprocessor:
    """A preprocessor that resizes images to `width` x `height` pixels."""

    width: int
    height: int

    def __post_init__(self) -> None:
        counts("ImageResizePreprocessor", width=self.width, height=self.height)


@dataclass(frozen=True)
class ImageCodec:
    """A codec for a JPEG or PNG file in a feature; `image_preprocessors` are applied to the decoded image."""

    image_preprocessors: Sequence[ImagePreprocessor | ImageResizePreprocessor] | None = None

    def __post_init__(self) -> None:
        _check_each("ImageCodec", "image_preprocessors", self.image_preprocessors or (), ImagePreprocessor, ImageResizePreprocessor)


@dataclass(frozen=True)
class NormByChannelPreprocessor:
    """A preprocessor that computes (pixel - mean) / std by channel; a `data_format` other than "channels_last" moves the channels first."""

    mean_values: Sequence[float]
    std_values: Sequence[float] = (1.0, 1.0, 1.0)
    data_format: str = "channels_last"


Codec: TypeAlias = RawCodec | ImageCodec


@dataclass(frozen=True)
class BlobConf:
    """The description of a feature: its name, the shape and type of its array, its codec, and its preprocessors."""

    name: str
    shape: Sequence[int]
    dtype: DType
    codec: Codec
    preprocessors: Sequence[NormByChannelPreprocessor] | None = field(default=None)

    def __post_init__(self) -> None:
        _check_each("BlobConf", "codec", [self.codec], RawCodec, ImageCodec)
        _check_each("BlobConf", "preprocessors", self.preprocessors or (), NormByChannelPreprocessor)


def _check_each(what: str, name: str, arguments: Any, *kinds: type) -> None:
    """Raise ArgumentError unless all entries of `arguments`, or the single value, have one of the types `kinds`."""
    for each in arguments if isinstance(arguments, list | tuple) else [arguments]:
        if not isinstance(each, kinds):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise ArgumentError(f"{what} at {user_line()}: {name} must be {words}, not {each!r}")


def decode_ofrecord(
    ofrecord_dir: str,
    blobs: Sequence[BlobConf],
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    shuffle: bool = False,
    buffer_size: int = 1024,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """Return one tensor for each feature description in `blobs`, from a batch of records in `ofrecord_dir`.

    The other arguments are passed to `ofrecord_reader`: `shuffle` as random_shuffle, and `buffer_size` as shuffle_buffer_size.
    """
    _check_each("decode_ofrecord", "blobs", blobs, BlobConf)
    if not isinstance(blobs, list | tuple):
        raise ArgumentError(f"decode_ofrecord at {user_line()}: blobs must be a list of BlobConf, not {blobs!r}")
    record = ofrecord_reader(ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, shuffle, buffer_size)
    return tuple(_decoded(record, each, batch_size) for each in blobs)


def _decoded(record: OnHost, target: BlobConf, batch_size: int) -> Any:
    if isinstance(target.codec, RawCodec):
        return OFRecordRawDecoder(record, target.name, target.shape, target.dtype, auto_zero_padding=target.codec.auto_zero_padding)
    if len(target.shape) != 3:
        raise ArgumentError(f"decode_ofrecord at {user_line()}: the shape of an image must be (height, width, channels), not {target.shape}")
    steps = target.codec.image_preprocessors or ()
    named = {step.preprocessor for step in steps if isinstance(step, ImagePreprocessor)}
    sizes = [(step.width, step.height) for step in steps if isinstance(step, ImageResizePreprocessor)] or [(target.shape[1], target.shape[0])]
    images = OFRecordImageDecoder(record, target.name, "RGB" if "bgr2rgb" in named else "BGR")
    x, _, _ = image.Resize(images, target_size=sizes[-1])
    if "mirror" in named:
        x = image.flip(x, CoinFlip(batch_size, name=f"{target.name}-mirror"))
    for step in target.preprocessors or ():
        layout = "NHWC" if step.data_format == "channels_last" else "NCHW"
        x = image.CropMirrorNormalize(x, output_layout=layout, mean=step.mean_values, std=step.std_values)
    return arrays.cast(x, target.dtype)
