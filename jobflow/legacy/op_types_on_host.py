"""Rows of `op_types` for what is done before a job runs: readers, decoders, images of different sizes, objects in them, tensor buffers.

    reader = flow.user_op_builder("reader").Op("OFRecordReader").Output("out").Attr("data_dir", folder).Attr("batch_size", 8).Build()
    label = flow.user_op_builder("label").Op("ofrecord_raw_decoder").Input("in", reader.InferAndTryRun().RemoteBlobList()) ...

Readers know further attributes that say where and how they read, which mean nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jobflow.legacy.data_readers as readers
import jobflow.legacy.detection as detection
import jobflow.legacy.image as image
import jobflow.legacy.record_data as records
import jobflow.legacy.tensor_buffers as buffers
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import float32, int64, uint8


def _seed(seed: int | None, has_seed: bool) -> int | None:
    """The seed of an op: -1 stands for none, and so does any without `has_seed` where the type has that."""
    return seed if has_seed and seed != -1 else None


def _ofrecord_reader(
    *,
    data_dir: str,
    data_part_num: int = 1,
    batch_size: int = 1,
    part_name_prefix: str = "part-",
    part_name_suffix_length: int = -1,
    random_shuffle: bool = False,
    seed: int = -1,
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    name: str | None = None,
) -> Any:
    order = random_shuffle, shuffle_buffer_size, shuffle_after_epoch
    return records.ofrecord_reader(data_dir, batch_size, data_part_num, part_name_prefix, part_name_suffix_length, *order, name)


def _raw(
    in_: Any,
    *,
    name_: str,
    shape: Sequence[int],
    data_type: Any,
    dim1_varying_length: bool = False,
    auto_zero_padding: bool = False,
    truncate: bool = False,
    name: str | None = None,
) -> Any:
    return records.OFRecordRawDecoder(in_, name_, tuple(shape), data_type, dim1_varying_length, auto_zero_padding or truncate, name)


def _randomly_cropped(
    in_: Any,
    *,
    name_: str,
    color_space: str = "BGR",
    num_attempts: int = 10,
    seed: int = -1,
    has_seed: bool = False,
    random_area: Sequence[float] = records.AREA,
    random_aspect_ratio: Sequence[float] = records.RATIO,
    name: str | None = None,
) -> Any:
    ranges = random_area, random_aspect_ratio
    key = name or "OFRecordImageDecoderRandomCrop"
    return records.OFRecordImageDecoderRandomCrop(in_, name_, color_space, num_attempts, _seed(seed, has_seed), *ranges, key)


def _classification_reader(
    *,
    data_dir: str,
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
    seed: int = -1,
    name: str | None = None,
) -> Any:
    parts = batch_size, data_part_num, part_name_prefix, part_name_suffix_length
    order = random_shuffle, shuffle_buffer_size, shuffle_after_epoch
    return records.ofrecord_image_classification_reader(data_dir, image_feature_name, label_feature_name, *parts, *order, color_space, name=name)


def _onerec_reader(
    *,
    files: Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_mode: str = "instance",
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    verify_example: bool = True,
    seed: int = -1,
    name: str | None = None,
) -> Any:
    order = random_shuffle, shuffle_mode, shuffle_buffer_size, shuffle_after_epoch
    return readers.onerec_reader(list(files), batch_size, *order, verify_example, name)


def _coco_reader(
    *,
    annotation_file: str,
    image_dir: str,
    batch_size: int,
    session_id: int = 0,
    shuffle_after_epoch: bool = True,
    random_seed: int | None = None,
    group_by_ratio: bool = True,
    stride_partition: bool = True,
    remove_images_without_annotations: bool = True,
    name: str | None = None,
) -> Any:
    seed = _seed(random_seed, True)
    how = shuffle_after_epoch, seed, group_by_ratio, stride_partition, remove_images_without_annotations
    return readers.coco_reader(annotation_file, image_dir, batch_size, *how, name)


def _onerec_decoder(
    in_: Any,
    *,
    key: str,
    data_type: Any,
    static_shape: Sequence[int],
    is_dynamic: bool = False,
    has_reshape: bool = False,
    reshape: Sequence[int] | None = None,
    has_batch_padding: bool = False,
    batch_padding: Sequence[int] | None = None,
    name: str | None = None,
) -> Any:
    changed = reshape if has_reshape else None, batch_padding if has_batch_padding else None
    return readers.OneRecDecoder(in_, key, data_type, tuple(static_shape), is_dynamic, *changed, name)


def _megatron(
    *,
    data_file_prefix: str,
    seq_length: int,
    num_samples: int,
    batch_size: int,
    label_length: int = 1,
    dtype: Any = int64,
    shuffle: bool = True,
    random_seed: int | None = None,
    split_sizes: Sequence[int] | None = None,
    split_index: int | None = None,
    parallel_distribution: Sequence[str] | None = None,
    name: str | None = None,
) -> Any:
    if label_length != 1:
        raise ArgumentError(f"megatron_gpt_mmap_data_loader at {user_line()}: label_length is 1, not {label_length!r}")
    part = split_sizes or None, split_index if split_sizes else None
    how = dtype, shuffle, _seed(random_seed, True), *part, parallel_distribution or None
    return readers.megatron_gpt_mmap_data_loader(data_file_prefix, seq_length, num_samples, batch_size, *how, name=name)


def _image_random_crop(
    in_: Any,
    *,
    num_attempts: int = 10,
    seed: int = -1,
    has_seed: bool = False,
    random_area: Sequence[float] | None = None,
    random_aspect_ratio: Sequence[float] | None = None,
    name: str | None = None,
) -> Any:
    return image.random_crop(in_, num_attempts, _seed(seed, has_seed), random_area, random_aspect_ratio, name or "ImageRandomCrop")


def _resized_to_fixed(
    in_: Any,
    *,
    target_width: int,
    target_height: int,
    channels: int = 3,
    data_type: Any = uint8,
    interpolation_type: str = "bilinear",
    name: str | None = None,
) -> Any:
    size = target_width, target_height
    return image.Resize(in_, size, channels=channels, dtype=data_type, interpolation_type=interpolation_type, name=name)[:2]


def _resized_in_proportion(
    in_: Any,
    *,
    target_size: int,
    resize_longer: bool = False,
    min_size: int = 0,
    max_size: int = 0,
    interpolation_type: str = "bilinear",
    name: str | None = None,
) -> Any:
    limits = min_size or None, max_size or None
    return image.target_resize(in_, target_size, *limits, "longer" if resize_longer else "shorter", interpolation_type, name)


def _crop_mirror_normalize(
    in_: Any,
    mirror: Any = None,
    *,
    color_space: str = "BGR",
    output_layout: str = "NCHW",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    crop_h: int = 0,
    crop_w: int = 0,
    crop_pos_x: float = 0.5,
    crop_pos_y: float = 0.5,
    output_dtype: Any = float32,
    name: str | None = None,
) -> Any:
    crop = crop_h, crop_w, crop_pos_y, crop_pos_x
    return image.CropMirrorNormalize(in_, mirror, color_space, output_layout, *crop, mean, std, output_dtype, name)


def _buffers(
    *,
    shape: Sequence[int],
    shape_list: Sequence[Sequence[int]],
    value_list: Sequence[float],
    data_type: Any = float32,
    dynamic_out: bool = False,
    name: str | None = None,
) -> Any:
    return buffers.gen_tensor_buffer(list(shape), [list(each) for each in shape_list], list(value_list), data_type, dynamic_out, name)


OP_TYPES_ON_HOST: Mapping[str, Callable[..., Any]] = {
    # readers
    "OFRecordReader -> out": _ofrecord_reader,
    "ofrecord_image_classification_reader -> image label": _classification_reader,
    "OneRecReader -> out": _onerec_reader,
    "COCOReader -> image image_id image_size gt_bbox gt_label gt_segm gt_segm_index": _coco_reader,
    "megatron_gpt_mmap_data_loader -> out": _megatron,
    # decoders of records
    "ofrecord_raw_decoder -> out": _raw,
    "ofrecord_bytes_decoder -> out": lambda in_, *, name_, name=None: records.OFRecordBytesDecoder(in_, name_, name),
    "ofrecord_image_decoder -> out": lambda in_, *, name_, color_space="BGR", name=None: records.OFRecordImageDecoder(in_, name_, color_space, name),
    "ofrecord_image_decoder_random_crop -> out": _randomly_cropped,
    "onerec_decoder -> out": _onerec_decoder,
    # images
    "image_decode -> out": lambda in_, *, color_space="BGR", data_type=uint8, name=None: image.decode(in_, data_type, color_space, name),
    "image_random_crop -> out": _image_random_crop,
    "image_resize_to_fixed -> out scale": _resized_to_fixed,
    "image_resize_keep_aspect_ratio -> out size scale": _resized_in_proportion,
    "image_target_resize -> out size scale": _resized_in_proportion,
    **{f"{word} -> out": _crop_mirror_normalize for word in ("crop_mirror_normalize_from_tensorbuffer", "crop_mirror_normalize_from_uint8")},
    "image_flip -> out": lambda in_, flip_code, *, name=None: image.flip(in_, flip_code, name),
    "image_normalize -> out": lambda in_, *, std, mean, name=None: image.normalize(in_, std, mean, name),
    "image_batch_align -> out": lambda in_, *, shape, data_type, alignment, dynamic_out=True, name=None: image.batch_align(
        in_, list(shape), data_type, alignment, name
    ),
    # objects in images
    "object_bbox_flip -> out": lambda bbox, image_size, flip_code, *, name=None: detection.object_bbox_flip(bbox, image_size, flip_code, name),
    "object_bbox_scale -> out": lambda bbox, scale, *, name=None: detection.object_bbox_scale(bbox, scale, name),
    "object_segmentation_polygon_flip -> out": lambda poly, image_size, flip_code, *, name=None: detection.object_segmentation_polygon_flip(
        poly, image_size, flip_code, name
    ),
    "object_segmentation_polygon_scale -> out": lambda poly, scale, *, name=None: detection.object_segmentation_polygon_scale(poly, scale, name),
    "object_segmentation_polygon_to_mask -> out": lambda poly, poly_index, image_size, *, name=None: detection.object_segmentation_polygon_to_mask(
        poly, poly_index, image_size, name
    ),
    # tensor buffers
    "tensor_to_tensor_buffer -> out": lambda in_, *, instance_dims, name=None: buffers.tensor_to_tensor_buffer(in_, instance_dims, name),
    "tensor_buffer_to_tensor -> out": lambda in_, *, dtype, instance_shape, name=None: buffers.tensor_buffer_to_tensor(
        in_, dtype, list(instance_shape), name
    ),
    "tensor_buffer_to_list_of_tensors -> out*": lambda in_, *, out_shape, out_dtype, dynamic_out=False, name=None: (
        buffers.tensor_buffer_to_list_of_tensors(in_, list(out_shape), out_dtype, dynamic_out, name)
    ),
    "gen_tensor_buffer -> out": _buffers,
}
