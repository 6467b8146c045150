"""`flow.data` in the body of a job: readers of OFRecord files, and decoders of their records.

    record = flow.data.ofrecord_reader(folder, batch_size=64, data_part_num=4)
    label = flow.data.OFRecordRawDecoder(record, "class/label", shape=(), dtype=flow.int32)
    image = flow.data.OFRecordImageDecoder(record, "encoded", color_space="RGB")
    image, scale, size = flow.image.Resize(image, target_size=(224, 224))

Threads read and decode samples ahead of the runs that need them. Data with the same shape for all samples is a tensor of the job: an argument
that the feed supplies. Records, bytes and images of different sizes are `OnHost`. The batch is split among the ranks like any argument. The
samples of a batch do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.layout import Placement
from jobflow.core.types import DType, Tensor, int32, uint8
from jobflow.engine.distribute import current_placement
from jobflow.host_pipeline import stages as st
from jobflow.host_pipeline.outputs import OnHost, as_tensor, body_of, devices_of_view, key_of, on_host
from jobflow.host_pipeline.sample_sources import PartFiles, RecordFiles
from jobflow.legacy.initializers import Initializer, random_uniform_initializer
from jobflow.legacy.job_dispatch import all_of, of_kinds
from jobflow.legacy.operands import counts, positive_shape
from jobflow.ops.op import apply
from jobflow.ops.random_tensors import RandomSource
from jobflow.storage.remote import path_of

#: default ranges of the area, as a fraction of the image, and of the aspect ratio of random crops
AREA, RATIO = [0.08, 1.0], [0.75, 1.333333]
#: maximum length of file names
LONGEST_NAME = 255


# Readers ------------------------------------------------------------------------------------------------------------


def batch_rows(what: str, batch_size: int) -> int:
    """Return the number of samples on all devices: the batch size, or in the mirrored view the batch size times the devices.

    Raises: ArgumentError if the number of devices does not divide the batch size of the consistent view.
    """
    devices: Placement = current_placement(what)
    if scope.current().view == "mirrored":
        return batch_size * devices_of_view()
    if batch_size % devices.size:
        raise ArgumentError(f"{what} at {user_line()}: batch_size {batch_size} must be divisible by the {devices.size} devices of {devices}")
    return batch_size


def ofrecord_reader(
    ofrecord_dir: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    name: str | None = None,
) -> OnHost:
    """Read records of part files repeatedly, `batch_size` per run; in the mirrored view, per device.

    The `data_part_num` files are named `<part_name_prefix><number>`, with numbers from 0 padded with zeros to `part_name_suffix_length` digits.
    Batches continue across the ends of epochs. `random_shuffle` samples from a buffer of `shuffle_buffer_size` records. With `shuffle_after_epoch`
    the order of the files changes from the second epoch on.
    """
    what = "ofrecord_reader"
    seed = body_of(what).seed
    counts(what, batch_size=batch_size, data_part_num=data_part_num, shuffle_buffer_size=shuffle_buffer_size)
    if part_name_suffix_length > LONGEST_NAME:
        raise ArgumentError(f"{what} at {user_line()}: part_name_suffix_length {part_name_suffix_length} must be at most {LONGEST_NAME}")
    parts = PartFiles(path_of(str(ofrecord_dir)), int(data_part_num), part_name_prefix, int(part_name_suffix_length))
    files = RecordFiles(parts, shuffle=random_shuffle, buffer=shuffle_buffer_size, after_epoch=shuffle_after_epoch, seed=seed)
    return OnHost(st.ReadRecord(files), batch_rows(what, batch_size), "records")


def ofrecord_loader(
    ofrecord_dir: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    name: str | None = None,
) -> OnHost:
    """Return `ofrecord_reader(...)` with `shuffle` as random_shuffle. The name `ofrecord_loader` is deprecated."""
    return ofrecord_reader(ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, shuffle, shuffle_buffer_size)


def ofrecord_image_classification_reader(
    ofrecord_dir: str,
    image_feature_name: str,
    label_feature_name: str,
    batch_size: int = 1,
    data_part_num: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    random_shuffle: bool = False,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    color_space: str = "BGR",
    decode_buffer_size_per_thread: int = 32,
    num_decode_threads_per_machine: int | None = None,
    name: str | None = None,
) -> tuple[OnHost, Any]:
    """Return the images in the feature `image_feature_name`, and the int32 labels in `label_feature_name`, of a batch of records.

    The parameters up to `shuffle_after_epoch` are described in `ofrecord_reader`. The parameters about threads have no effect.
    """
    order = random_shuffle, shuffle_buffer_size, shuffle_after_epoch
    record = ofrecord_reader(ofrecord_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, *order)
    label = OFRecordRawDecoder(record, label_feature_name, (), int32, name=None if name is None else f"{name}-label")
    return OFRecordImageDecoder(record, image_feature_name, color_space), label


# Decoders -----------------------------------------------------------------------------------------------------------


def OFRecordRawDecoder(
    input_blob: OnHost,
    blob_name: str,
    shape: Sequence[int],
    dtype: DType,
    dim1_varying_length: bool = False,
    auto_zero_padding: bool = False,
    name: str | None = None,
) -> Any:
    """Return the values of a numeric feature, [batch, *shape], as `dtype`; bytes are read as int8.

    The feature must fill the shape. With `dim1_varying_length` or `auto_zero_padding` a shorter feature is padded with zeros.
    """
    record = on_host("OFRecordRawDecoder", input_blob, "records")
    own = positive_shape("OFRecordRawDecoder", "shape", shape)
    stage = st.Raw(record.stage, blob_name, own, dtype, dim1_varying_length or auto_zero_padding)
    return as_tensor("OFRecordRawDecoder", stage, record.rows, own, dtype, name)


def OFRecordBytesDecoder(input_blob: OnHost, blob_name: str, name: str | None = None) -> OnHost:
    """Return the bytes of the feature `blob_name` of each record."""
    record = on_host("OFRecordBytesDecoder", input_blob, "records")
    return OnHost(st.Content(record.stage, blob_name), record.rows, "bytes")


def decoded(what: str, content: st.Stage, rows: int, color_space: str) -> OnHost:
    """Decode the image files of the stage `content` in `color_space`."""
    if color_space not in ("BGR", "RGB", "GRAY"):
        raise ArgumentError(f'{what} at {user_line()}: color_space must be "BGR", "RGB" or "GRAY", not {color_space!r}')
    return OnHost(st.Decoded(content, color_space == "GRAY"), rows, "images", color_space)


def OFRecordImageDecoder(input_blob: OnHost, blob_name: str, color_space: str = "BGR", name: str | None = None) -> OnHost:
    """Decode the feature `blob_name` of each record, a JPEG or PNG file, to an image in `color_space`: "BGR", "RGB" or "GRAY"."""
    record = on_host("OFRecordImageDecoder", input_blob, "records")
    return decoded("OFRecordImageDecoder", st.Content(record.stage, blob_name), record.rows, color_space)


def OFRecordImageDecoderRandomCrop(
    input_blob: OnHost,
    blob_name: str,
    color_space: str = "BGR",
    num_attempts: int = 10,
    seed: int | None = None,
    random_area: Sequence[float] = AREA,
    random_aspect_ratio: Sequence[float] = RATIO,
    name: str = "OFRecordImageDecoderRandomCrop",
) -> OnHost:
    """Decode the image in the feature `blob_name` of each record, and crop it at random as `image.random_crop` does."""
    images = OFRecordImageDecoder(input_blob, blob_name, color_space)
    return randomly_cropped("OFRecordImageDecoderRandomCrop", images, num_attempts, seed, random_area, random_aspect_ratio, name)


def randomly_cropped(
    what: str, images: OnHost, attempts: int, seed: int | None, area: Sequence[float] | None, ratio: Sequence[float] | None, name: str
) -> OnHost:
    """Crop each image to a rectangle with area and aspect ratio sampled from the ranges `area` and `ratio`; see `image.random_crop`.

    Raises: ArgumentError unless each range is (smallest, largest) with positive numbers, and an area is at most 1.
    """
    area, ratio = AREA if area is None else area, RATIO if ratio is None else ratio
    for word, arguments in (("random_area", area), ("random_aspect_ratio", ratio)):
        if len(arguments) != 2:
            raise ArgumentError(f"{what} at {user_line()}: {word} must be (smallest, largest), not {arguments!r}")
        low, high = arguments
        if not 0 < low <= high or (word == "random_area" and high > 1):
            raise ArgumentError(
                f"{what} at {user_line()}: {word} {[low, high]} must be ascending and positive{', at most 1' if word == 'random_area' else ''}"
            )
    counts(what, num_attempts=attempts)
    key = key_of(what, seed, name)
    return images.then(st.RandomlyCropped(images.stage, key, attempts, (area[0], area[1]), (ratio[0], ratio[1])))


def image_decoder_random_crop_resize(
    input_blob: OnHost,
    target_width: int,
    target_height: int,
    num_attempts: int | None = None,
    seed: int | None = None,
    random_area: Sequence[float] | None = None,
    random_aspect_ratio: Sequence[float] | None = None,
    num_workers: int | None = None,
    warmup_size: int | None = None,
    max_num_pixels: int | None = None,
    name: str | None = None,
) -> Any:
    """Decode encoded images, crop each as `image.random_crop` does, and resize it: RGB uint8 [batch, target_height, target_width, 3].

    `num_workers`, `warmup_size` and `max_num_pixels` have no effect.
    """
    what = "image_decoder_random_crop_resize"
    content = on_host(what, input_blob, "bytes")
    images = decoded(what, content.stage, content.rows, "RGB")
    own = body_of(what).unique_name(what) if name is None else name
    part = randomly_cropped(what, images, 10 if num_attempts is None else num_attempts, seed, random_area, random_aspect_ratio, own)
    counts(what, target_width=target_width, target_height=target_height)
    stage = st.Pixels(st.Resized(part.stage, st.Sides((target_width, target_height))), bgr=False)
    return as_tensor(what, stage, images.rows, (target_height, target_width, 3), uint8, name)


def decode_random(
    shape: Sequence[int],
    dtype: DType,
    batch_size: int = 1,
    initializer: Initializer | None = None,
    tick: Tensor | None = None,
    name: str | None = None,
) -> Any:
    """Return random values [batch_size, *shape], new in every run; the default distribution is U[0, 1). `tick` has no effect."""
    body = body_of("decode_random")
    label = body.unique_name("decode_random") if name is None else scope.current().full_name(name)
    counts("decode_random", batch_size=batch_size)
    whole = (int(batch_size), *positive_shape("decode_random", "shape", shape))
    first = random_uniform_initializer() if initializer is None else initializer
    if not hasattr(first, "op"):
        raise ArgumentError(f"decode_random at {user_line()}: initializer must be an initializer such as random_uniform_initializer(), not {first!r}")
    op = first.op(whole, dtype, label, body.seed)
    return apply(op, body.run_counter(), name=name) if isinstance(op, RandomSource) else apply(op, name=name)


globals().update(all_of(__name__, globals(), __name__, of_kinds))
ofrecord_raw_decoder = OFRecordRawDecoder
ofrecord_bytes_decoder = OFRecordBytesDecoder
ofrecord_image_decoder = OFRecordImageDecoder
ofrecord_image_decoder_random_crop = OFRecordImageDecoderRandomCrop
ImageDecoderRandomCropResize = image_decoder_random_crop_resize
