"""Entries of `op_types` for the host pipeline: readers, decoders, images of different sizes, objects in images, tensor buffers.

    reader = flow.user_op_builder("reader").Op("OFRecordReader").Output("out").Attr("data_dir", folder).Attr("batch_size", 8).Build()
    label = flow.user_op_builder("label").Op("ofrecord_raw_decoder").Input("in", reader.InferAndTryRun().RemoteBlobList()) ...

Other attributes of readers, about devices and threads, have no effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jobflow.legacy.extras.data_readers as readers
import jobflow.legacy.extras.detection as detection
import jobflow.legacy.image as image
import jobflow.legacy.record_data as records
import jobflow.legacy.tensor_buffers as buffers
from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import int64, uint8
from jobflow.host_pipeline.outputs import body_of
from jobflow.legacy.extras.op_type_rows import named_as


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
        raise ArgumentError(f"megatron_gpt_mmap_data_loader at {user_line()}: label_length must be 1, not {label_length!r}")
    part = split_sizes or None, split_index if split_sizes else None
    how = dtype, shuffle, None if random_seed == -1 else random_seed, *part, parallel_distribution or None
    return readers.megatron_gpt_mmap_data_loader(data_file_prefix, seq_length, num_samples, batch_size, *how, name=name)


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


def _seeded(reader: Callable[..., Any], renamed: str = "") -> Callable[..., Any]:
    """Return `reader` as an entry with an additional attribute `seed`, which replaces the job's seed for the order of the records."""

    def read(*inputs: Any, seed: int | None = None, **options: Any) -> Any:
        body = body_of(reader.__name__)
        before, body.seed = body.seed, body.seed if seed is None else seed
        try:
            return reader(*inputs, **options)
        finally:
            body.seed = before

    signature = inspect.signature(reader)
    seed = inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=None)
    read.__signature__ = signature.replace(parameters=[*signature.parameters.values(), seed])  # type: ignore[attr-defined]
    return named_as(read, "", renamed)


OP_TYPES_ON_HOST: Mapping[str, Callable[..., Any]] = {
    # readers
    "OFRecordReader -> out": _seeded(records.ofrecord_reader, "data_dir=ofrecord_dir"),
    "ofrecord_image_classification_reader -> image label": _seeded(records.ofrecord_image_classification_reader, "data_dir=ofrecord_dir"),
    "OneRecReader -> out": _seeded(readers.onerec_reader),
    "COCOReader -> image image_id image_size gt_bbox gt_label gt_segm gt_segm_index": named_as(
        readers.coco_reader, "", "shuffle_after_epoch=shuffle group_by_ratio=group_by_aspect_ratio", "session_id"
    ),
    "megatron_gpt_mmap_data_loader -> out": _megatron,
    # decoders of records
    "ofrecord_raw_decoder -> out": _raw,
    "ofrecord_bytes_decoder -> out": named_as(records.OFRecordBytesDecoder, "in=input_blob", "name_=blob_name"),
    "ofrecord_image_decoder -> out": named_as(records.OFRecordImageDecoder, "in=input_blob", "name_=blob_name"),
    "ofrecord_image_decoder_random_crop -> out": named_as(records.OFRecordImageDecoderRandomCrop, "in=input_blob", "name_=blob_name", "has_seed"),
    "onerec_decoder -> out": named_as(readers.OneRecDecoder, "in=input_blob", "data_type=dtype static_shape=shape", "has_reshape has_batch_padding"),
    # images
    "image_decode -> out": named_as(image.decode, "in=images_bytes_buffer", "data_type=dtype"),
    "image_random_crop -> out": named_as(image.random_crop, "in=input_blob", "", "has_seed"),
    "image_resize_to_fixed -> out scale": _resized_to_fixed,
    **{f"image_{word} -> out size scale": _resized_in_proportion for word in ("resize_keep_aspect_ratio", "target_resize")},
    **{
        f"crop_mirror_normalize_from_{word} -> out": named_as(image.CropMirrorNormalize, "in=input_blob mirror=mirror_blob")
        for word in ("tensorbuffer", "uint8")
    },
    "image_flip -> out": named_as(image.flip, "in=image flip_code"),
    "image_normalize -> out": named_as(image.normalize, "in=image"),
    "image_batch_align -> out": named_as(image.batch_align, "in=images", "data_type=dtype", "dynamic_out"),
    # objects in images
    "object_bbox_flip -> out": named_as(detection.object_bbox_flip, "bbox image_size flip_code"),
    "object_bbox_scale -> out": named_as(detection.object_bbox_scale, "bbox scale"),
    "object_segmentation_polygon_flip -> out": named_as(detection.object_segmentation_polygon_flip, "poly image_size flip_code"),
    "object_segmentation_polygon_scale -> out": named_as(detection.object_segmentation_polygon_scale, "poly scale"),
    "object_segmentation_polygon_to_mask -> out": named_as(detection.object_segmentation_polygon_to_mask, "poly poly_index image_size"),
    # tensor buffers
    "tensor_to_tensor_buffer -> out": named_as(buffers.tensor_to_tensor_buffer, "in=x"),
    "tensor_buffer_to_tensor -> out": named_as(buffers.tensor_buffer_to_tensor, "in=x"),
    "tensor_buffer_to_list_of_tensors -> out*": named_as(buffers.tensor_buffer_to_list_of_tensors, "in=x"),
    "gen_tensor_buffer -> out": named_as(buffers.gen_tensor_buffer),
}
