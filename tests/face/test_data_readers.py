"""Readers of OneRec, COCO and Megatron files in the body of a job: batches on 1 and 2 devices, and errors of damaged files."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
import xxhash
from PIL import Image
from reading import megatron, results_of_job

import jobflow as flow
import jobflow.typing as tp
from jobflow.data.ofrecord import record_classes
from jobflow.legacy.extras.op_types_on_host import OP_TYPES_ON_HOST
from jobflow.legacy.extras.user_ops import op_type

# OneRec -------------------------------------------------------------------------------------------------------------

KINDS = {np.dtype(kind): number for number, kind in enumerate(("int8", "int16", "int32", "int64", "float32", "float64"), 1)}


def example(features: dict[str, Any]) -> bytes:
    """Return an example as the FlatBuffers library writes it; any value but an array is a list of texts."""
    builder, offsets = flatbuffers.Builder(), []
    for name, array in features.items():
        if isinstance(array, np.ndarray):
            values, number = builder.CreateNumpyVector(array.reshape(-1)), KINDS[array.dtype]
            shape = builder.CreateNumpyVector(np.array(array.shape, np.int32))
        else:
            values, number, shape = builder.CreateString(array), 7, 0
        builder.StartObject(1)
        builder.PrependUOffsetTRelativeSlot(0, values, 0)
        data = builder.EndObject()
        builder.StartObject(3)
        builder.PrependUOffsetTRelativeSlot(0, shape, 0)
        builder.PrependUint8Slot(1, number, 0)
        builder.PrependUOffsetTRelativeSlot(2, data, 0)
        tensor, word = builder.EndObject(), builder.CreateString(name)
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, word, 0)
        builder.PrependUOffsetTRelativeSlot(1, tensor, 0)
        offsets.append(builder.EndObject())
    builder.StartVector(4, len(offsets), 4)
    for feature in reversed(offsets):
        builder.PrependUOffsetTRelative(feature)
    listed = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, listed, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def frame(payload: bytes) -> bytes:
    head = b"^ONEREC$" + struct.pack("<ii", 0, len(payload))
    return head + xxhash.xxh64_digest(head) + payload + bytes(-len(payload) % 8) + xxhash.xxh64_digest(payload)


@pytest.fixture(scope="module")
def onerec(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write two files of four examples each."""
    folder = tmp_path_factory.mktemp("onerec")
    for part in range(2):
        rows = range(4 * part, 4 * part + 4)
        examples = [
            {"label": np.int64([i]), "x": np.float32([[i, 1, 2], [3, 4, 5]]), "some": np.arange(i % 3 + 1, dtype=np.int32), "t": "x"} for i in rows
        ]
        (folder / f"{part}.onerec").write_bytes(b"".join(frame(example(each)) for each in examples))
    return [str(folder / f"{part}.onerec") for part in range(2)]


def test_onerec(devices: int, onerec: list[str]) -> None:
    def body() -> list[Any]:
        record = flow.data.onerec_reader(onerec, batch_size=6)
        assert record.dtype is flow.record and record.shape == (6,)
        some = flow.data.onerec_decoder(record, "some", flow.int32, (3,), is_dynamic=True, batch_padding=[4])
        return [
            flow.data.OneRecDecoder(record, "label", flow.int64, (1,)),
            flow.data.OneRecDecoder(record, "x", flow.float, (2, 3), reshape=(6,)),
            some,
            flow.data.onerec_decoder(record, "some", flow.int32, (9,), is_dynamic=True),
        ]

    for run, (label, x, some, longest) in enumerate(results_of_job(body, 2)):
        which = np.arange(6 * run, 6 * run + 6) % 8
        assert label[:, 0].tolist() == which.tolist() == x[:, 0].tolist() and x.shape == (6, 6)
        assert some.tolist() == [[j if j <= i % 3 else 0 for j in range(4)] for i in which]
        assert longest.shape == (6, 3) and longest.tolist() == some[:, :3].tolist()


def test_onerec_shuffles_examples_or_batches(session: None, onerec: list[str]) -> None:
    def body() -> list[Any]:
        modes = [flow.data.onerec_reader(onerec, 2, True, mode, shuffle_buffer_size=3) for mode in ("instance", "batch")]
        return [flow.data.OneRecDecoder(record, "label", flow.int64, (1,)) for record in modes]

    one, batches = (np.concatenate(each)[:, 0] for each in zip(*results_of_job(body, 8), strict=True))
    assert one.tolist() != sorted(one) and len(set(one[:8].tolist())) > 3
    assert (batches[1::2] == batches[::2] + 1).all() and batches[::2].tolist() != [0, 2, 4, 6, 0, 2, 4, 6]


def test_onerec_in_the_mirrored_view(devices: int, onerec: list[str]) -> None:
    def body() -> Any:
        with flow.scope.mirrored_view():
            return flow.data.OneRecDecoder(flow.data.onerec_reader(onerec, 2), "label", flow.int64, (1,)) + 0

    assert [each[:, 0].tolist() for each in results_of_job(body, 1, tp.ListNumpy)[0]] == [[0, 1], [2, 3]][:devices]


WHOLE = frame(example({"label": np.int64([3])}))
DAMAGED = {
    "a cut head": (WHOLE + WHOLE[:20], f"frame at byte {len(WHOLE)} is cut off after 20 of 24"),
    "other letters": (b"^ONEREX$" + WHOLE[8:], "frame at byte 0 starts with"),
    "a length beyond the end": (WHOLE[:-9], r"only \d+ more bytes"),
    "a length below 0": (WHOLE[:12] + b"\xff" * 4 + WHOLE[16:], "starts with"),
    "another head": (WHOLE[:16] + bytes(8) + WHOLE[24:], "wrong checksum of its head"),
    "another example": (WHOLE[:30] + b"\x01" + WHOLE[31:], "wrong checksum of its example"),
    "no FlatBuffers": (frame(b"\xff" * 40), "exceed its 40 bytes"),
    "an empty example": (frame(b""), "exceed its 0 bytes"),
    "another type": (frame(example({"label": np.int32([3])})), 'feature "label" contains int32, not int64'),
    "texts": (frame(example({"label": "three"})), "strings or bytes, not int64"),
    "another name": (frame(example({"labels": np.int64([3])})), 'did you mean "labels"'),
    "more values": (frame(example({"label": np.int64([3, 4])})), r"an array has shape \[2\]"),
    "no file": (None, "no such file"),
    "nothing": (b"", "no record"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=list(DAMAGED))
def test_damaged_onerec_files(content: bytes | None, message: str, session: None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "0").write_bytes(content)
    with pytest.raises(flow.DataError, match=message) as caught:
        results_of_job(lambda: flow.data.OneRecDecoder(flow.data.onerec_reader([str(tmp_path / "0")], 2), "label", flow.int64, (1,)))
    assert str(tmp_path / "0") in str(caught.value)


def test_the_order_of_onerec_follows_the_seed_of_the_operation(session: None, onerec: list[str]) -> None:
    def labels(seed: int) -> Any:
        builder = flow.user_op_builder(f"reader{next(calls)}").Op("OneRecReader").Output("out")
        for key, value in {"files": onerec, "batch_size": 8, "random_shuffle": True, "seed": seed}.items():
            builder.Attr(key, value)
        return flow.data.OneRecDecoder(builder.Build().InferAndTryRun().RemoteBlobList()[0], "label", flow.int64, (1,))

    calls = itertools.count()
    ((first, same, other),) = results_of_job(lambda: [labels(seed) for seed in (1, 1, 2)])
    assert first.tolist() == same.tolist() != other.tolist()


# COCO ---------------------------------------------------------------------------------------------------------------

SIZES = [(12, 20), (20, 12), (12, 24), (10, 30), (24, 12)]  # (height, width) of images 10 to 14


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Write five images. The fourth has no object, every other has two, and the second object has two polygons.

    The first image also has a crowd and an empty box.
    """
    folder = tmp_path_factory.mktemp("coco")
    images, annotations = [], []
    for i, (height, width) in enumerate(SIZES):
        Image.fromarray(np.full((height, width, 3), 10 * i, np.uint8)).save(folder / f"{i}.png")
        images.append({"id": 10 + i, "file_name": f"{i}.png", "height": height, "width": width})
        square = [1, 1, 5, 1, 5, 5, 1, 5]
        own = {"image_id": 10 + i, "segmentation": [square], "iscrowd": 0}
        if i == 0:
            annotations += [own | {"category_id": 7, "bbox": [1, 1, 4, 4], "iscrowd": 1, "segmentation": {"counts": ""}}]
            annotations += [own | {"category_id": 7, "bbox": [1, 1, 0, 4]}]
        if i != 3:
            annotations += [own | {"category_id": 7, "bbox": [1, 1, 4.5, 4]}]
            annotations += [own | {"category_id": 2, "bbox": [-3, 2, 100, 6], "segmentation": [square, [6, 6, 9, 6, 9, 9]]}]
    tree = {"images": images[::-1], "annotations": annotations, "categories": [{"id": 7}, {"id": 2}]}
    (folder / "instances.json").write_text(json.dumps(tree))
    return str(folder / "instances.json"), str(folder)


def test_coco_images_and_objects_turned_and_scaled(devices: int, coco: tuple[str, str]) -> None:
    """Read images in the order of their ids, with boxes inside the image and categories from 1; flip, scale and paint them."""
    det = flow.detection

    def body() -> Any:
        content, number, size, boxes, labels, corners, index = flow.data.coco_reader(*coco, 2, False, None, False, name="coco")
        flip = flow.slice(flow.math.mod(flow.range(0, 2, 1, flow.int32), flow.constant(2, flow.int32, (1,))), [0], [2])
        images = flow.image.flip(flow.image.decode(content), flip)
        small, small_size, scale = flow.image.target_resize(images, 6)
        boxes = det.object_bbox_flip(boxes, flow.identity(flow.cast(size, flow.int64)), flip)  # still (height, width)
        corners = det.object_segmentation_polygon_flip(corners, size, flip)
        small_boxes = det.object_bbox_scale(boxes, scale)
        masks = det.object_segmentation_polygon_to_mask(corners, index, size)
        small_masks = det.object_segmentation_polygon_to_mask(det.object_segmentation_polygon_scale(corners, scale), index, small_size)

        def listed(x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
            return flow.tensor_buffer_to_list_of_tensors(x, shape, dtype, True)

        return [
            number,
            listed(boxes, (2, 4), flow.float),
            listed(labels, (2,), flow.int32),
            listed(masks, (2, 20, 20), flow.int8),
            listed(small_boxes, (2, 4), flow.float),
            listed(small_masks, (2, 60, 60), flow.int8),
            listed(small, (60, 60, 3), flow.uint8),
        ]

    number, boxes, labels, masks, small_boxes, small_masks, small = results_of_job(body, 1, tp.Bundle[tp.ListNumpy])[0]
    boxes, labels, masks, small_boxes, small_masks, small = (
        [each for (each,) in every] for every in (boxes, labels, masks, small_boxes, small_masks, small)
    )
    assert number[0].tolist() == [10, 11] and [each.tolist() for each in labels] == [[2, 1]] * 2
    assert boxes[0].tolist() == [[1, 1, 4.5, 4], [0, 2, 19, 7]] and boxes[1].tolist() == [[6.5, 1, 10, 4], [0, 2, 11, 7]]
    assert [each.shape for each in masks] == [(2, 12, 20), (2, 20, 12)] and [each.shape for each in small] == [(6, 10, 3), (10, 6, 3)]
    np.testing.assert_allclose(small_boxes[0], boxes[0] / 2)
    square = np.zeros((12, 20), np.int8)
    square[1:5, 1:5] = 1
    assert (masks[0][0] == square).all() and masks[0][1, :6].tolist() == square[:6].tolist() and masks[0][1, 6, 7:9].all()
    turned = np.zeros((20, 12), np.int8)
    turned[1:5, 7:11] = 1  # x becomes width - x
    assert (masks[1][0] == turned).all()
    assert [each.shape for each in small_masks] == [(2, 6, 10), (2, 10, 6)] and small_masks[0][0, 1:3, 1:3].all()


def test_the_order_of_coco_images(session: None, coco: tuple[str, str]) -> None:
    """Shuffle all images with objects in each epoch; a batch has images of one orientation."""

    def body() -> list[Any]:
        return [flow.data.coco_reader(*coco, 2, True, seed, True, name=f"coco{seed}")[1] for seed in (1, 2)]

    one, two = (np.array(each) for each in zip(*results_of_job(body, 6), strict=True))
    assert all({a, b} <= {10, 12} or {a, b} <= {11, 14} for a, b in [*one.tolist(), *two.tolist()]) and one.tolist() != two.tolist()
    assert sorted(np.unique(one, return_counts=True)[1].tolist()) == [3, 3, 3, 3]


def _tree(**changed: Any) -> str:
    tree: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "0.png", "height": 12, "width": 20}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4], "segmentation": [[1, 1, 2, 2, 3, 3]], "iscrowd": 0}],
        "categories": [{"id": 1}],
    }
    for path, value in changed.items():
        at = tree
        *names, last = path.split("__")
        for name in names:
            at = at[name] if isinstance(at, dict) else at[int(name)]
        at[last] = value
    return json.dumps(tree)


WRONG_COCO = {
    "no JSON": ("{", "Expecting"),
    "a list": ("[]", 'has no "images"'),
    "a category that is not there": (_tree(annotations__0__category_id=4), "annotation 0: image_id 1 or category_id 4 is not defined"),
    "a box of three": (_tree(annotations__0__bbox=[1, 2, 3]), "annotation 0: bbox must be"),
    "a box of no numbers": (_tree(annotations__0__bbox=[1, 2, 3, float("nan")]), "bbox must be"),
    "a polygon of two corners": (_tree(annotations__0__segmentation=[[1, 1, 2, 2]]), "three or more pairs"),
    "a path that leads away": (_tree(images__0__file_name="../0.png"), "not the name of a file"),
    "an id that is a list": (_tree(annotations__0__image_id=[1]), '"image_id" must be'),
    "a huge image": (_tree(images__0__width=10**9), "JOBFLOW_MAX_PIXELS"),
    "no image with objects": (_tree(annotations=[]), "no image with annotations"),
    "no image file": (_tree(images__0__file_name="none.png"), "no such file"),
    "no image": (_tree(images__0__file_name="wrong.json"), "cannot identify image"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_COCO.values(), ids=list(WRONG_COCO))
def test_wrong_coco_files(text: str, message: str, session: None, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(flow.DataError, match=message) as caught:
        results_of_job(
            lambda: flow.image.batch_align(
                flow.image.decode(flow.data.coco_reader(str(tmp_path / "wrong.json"), str(tmp_path), 1, name="x")[0]), (8, 8, 3), flow.uint8, 8
            )
        )
    assert str(tmp_path) in str(caught.value)


# What is wrong ------------------------------------------------------------------------------------------------------

WRONG = {
    "COCO without a name": (lambda: flow.data.coco_reader("a", "b", 1), flow.JobError, "pass name="),
    "a path for a list": (lambda: flow.data.onerec_reader("abc"), flow.ArgumentError, "sequence of texts"),
    "another mode": (lambda: flow.data.onerec_reader(["a"], shuffle_mode="x"), flow.ArgumentError, '"instance" or "batch"'),
    "floats as tokens": (lambda: flow.data.megatron_gpt_mmap_data_loader("a", 4, 4, 4, dtype=flow.float), flow.ArgumentError, "integer type"),
    "a split that is none": (
        lambda: flow.data.megatron_gpt_mmap_data_loader("a", 4, 4, 4, split_sizes=[1, 1], split_index=2),
        flow.ArgumentError,
        "split_index 2 must be an index of split_sizes",
    ),
    "padding of what is not dynamic": (
        lambda: flow.data.OneRecDecoder(flow.data.onerec_reader(["a"]), "x", flow.float, (2,), batch_padding=[2]),
        flow.ArgumentError,
        "batch_padding",
    ),
}


@pytest.mark.parametrize(("make", "kind", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_arguments(make: Callable[[], Any], kind: type[Exception], message: str, session: None) -> None:
    with pytest.raises(kind, match=message):
        results_of_job(make)


# By the names of their types ----------------------------------------------------------------------------------------


def test_readers_and_images_by_type(session: None, onerec: list[str], coco: tuple[str, str], tmp_path: Path) -> None:
    """Check that every operation type on the host returns the result of its function."""
    flow.config.cpu_device_num(2)
    prefix, kinds, det = megatron(tmp_path), record_classes(), flow.detection
    png = (Path(coco[1]) / "0.png").read_bytes()
    features = {"image": {"bytes_list": {"value": [png]}}, "label": {"int32_list": {"value": [3]}}}
    record = kinds["OFRecord"](feature={name: kinds["Feature"](**value) for name, value in features.items()}).SerializeToString()
    (tmp_path / "part-0").write_bytes((len(record).to_bytes(8, "little") + record) * 2)
    words: set[str] = set()

    def typed(word: str, *inputs: Any, outputs: str = "out", count: int = 1, **attributes: Any) -> Any:
        words.add(word)
        builder = flow.user_op_builder(f"{word}_by_type").Op(word)
        for key, x in zip(op_type(word).inputs or (), inputs, strict=False):
            builder.Input(key, [x])
        for key in outputs.split():
            builder.Output(key, count)
        for key, value in attributes.items():
            builder.Attr(key, value)
        blobs = builder.Build().InferAndTryRun().RemoteBlobList()
        return blobs if len(blobs) > 1 else blobs[0]

    def pairs() -> Any:
        records = typed("OFRecordReader", data_dir=str(tmp_path), batch_size=2, data_part_num=1)
        plain = flow.data.ofrecord_reader(str(tmp_path), 2, 1)
        yield typed("ofrecord_raw_decoder", records, name="label", shape=(), data_type=flow.int32), flow.constant(3, flow.int32, (2,))
        content = typed("ofrecord_bytes_decoder", records, name="image")
        images = [
            typed("ofrecord_image_decoder", records, name="image", color_space="RGB"),
            typed("image_decode", content, color_space="RGB"),
            typed(
                "ofrecord_image_classification_reader",
                outputs="image label",
                data_dir=str(tmp_path),
                batch_size=2,
                image_feature_name="image",
                label_feature_name="label",
            )[0],
        ]
        whole = flow.data.OFRecordImageDecoder(plain, "image", "RGB")
        for each in images:
            yield flow.image.batch_align(each, (12, 20, 3), flow.uint8, 4), flow.image.batch_align(whole, (12, 20, 3), flow.uint8, 4)
        image = images[0]
        crop = {"num_attempts": 3, "seed": 5, "has_seed": True}
        a = typed("ofrecord_image_decoder_random_crop", records, name="image", **crop), typed("image_random_crop", image, **crop)
        for each, word in zip(a, ("ofrecord_image_decoder_random_crop", "image_random_crop"), strict=True):
            b = flow.image.random_crop(flow.data.OFRecordImageDecoder(plain, "image"), 3, 5, name=f"{word}_by_type")
            yield flow.image.Resize(each, (6, 6))[0], flow.image.Resize(b, (6, 6))[0]
        fixed = typed("image_resize_to_fixed", image, outputs="out scale", target_width=6, target_height=4, data_type=flow.float)
        yield from zip(fixed, flow.image.Resize(whole, (6, 4), dtype=flow.float, interpolation_type="bilinear"), strict=False)
        for word in ("image_resize_keep_aspect_ratio", "image_target_resize"):
            small = typed(word, image, outputs="out size scale", target_size=6, max_size=8)
            like = flow.image.target_resize(whole, 6, None, 8, interpolation_type="bilinear")
            yield from zip(small[1:], like[1:], strict=True)
            aligned = typed("image_batch_align", small[0], shape=[8, 12, 3], data_type=flow.float, alignment=4) if "target" in word else None
            yield (aligned or flow.image.batch_align(small[0], (8, 12, 3), flow.float, 4)), flow.image.batch_align(like[0], (8, 12, 3), flow.float, 4)
        flipped = typed("image_normalize", typed("image_flip", image, flow.constant(1, flow.int8, (2,))), std=[2.0], mean=[1.0])
        yield (
            typed("tensor_buffer_to_tensor", flipped, dtype=flow.float, instance_shape=(12, 20, 3)),
            flow.tensor_buffer_to_tensor(flow.image.normalize(flow.image.flip(whole, 1), [2.0], [1.0]), flow.float, (12, 20, 3)),
        )
        norm = {"mean": [1.0, 2.0, 3.0], "std": [2.0, 2.0, 4.0], "crop_h": 4, "crop_w": 5}
        mirrored = flow.image.CropMirrorNormalize(whole, **norm)
        yield typed("crop_mirror_normalize_from_tensorbuffer", image, **norm), mirrored
        dense = flow.tensor_buffer_to_tensor(whole, flow.uint8, (12, 20, 3))
        yield typed("crop_mirror_normalize_from_uint8", dense, **norm), mirrored
        blobs = typed("gen_tensor_buffer", shape=[2], shape_list=[[2], [2]], value_list=[1.0, 2.0])
        first, second = typed("tensor_buffer_to_list_of_tensors", blobs, out_shape=[2], out_dtype=flow.float, count=2)
        yield flow.stack([first, second]), flow.stack([flow.ones((2,), flow.float), flow.constant(2, flow.float, (2,))])
        rows = typed("tensor_to_tensor_buffer", dense, instance_dims=3)
        yield flow.tensor_buffer_to_tensor(rows, flow.uint8, (12, 20, 3)), dense
        examples = typed("OneRecReader", files=onerec, batch_size=4)
        yield (
            typed("onerec_decoder", examples, key="x", data_type=flow.float, static_shape=[2, 3], has_reshape=True, reshape=[6]),
            flow.data.onerec_decoder(flow.data.onerec_reader(onerec, 4), "x", flow.float, (2, 3), reshape=(6,)),
        )
        tokens = {"seq_length": 10, "num_samples": 7, "batch_size": 4, "shuffle": False}
        yield (
            typed("megatron_gpt_mmap_data_loader", data_file_prefix=prefix, **tokens),
            flow.data.megatron_gpt_mmap_data_loader(prefix, **tokens),
        )
        names = "image image_id image_size gt_bbox gt_label gt_segm gt_segm_index"
        sample = typed(
            "COCOReader", outputs=names, annotation_file=coco[0], image_dir=coco[1], batch_size=2, shuffle_after_epoch=False, group_by_ratio=False
        )
        known = flow.data.coco_reader(*coco, 2, False, None, False, name="coco")
        yield sample[1], known[1]
        flip, scale = flow.constant(1, flow.int8, (2,)), flow.constant(2, flow.float, (2, 2))
        boxes = typed("object_bbox_scale", typed("object_bbox_flip", sample[3], sample[2], flip), scale)
        corners = typed("object_segmentation_polygon_scale", typed("object_segmentation_polygon_flip", sample[5], sample[2], flip), scale)
        masks = typed("object_segmentation_polygon_to_mask", sample[5], sample[6], sample[2])
        like_corners = det.object_segmentation_polygon_scale(det.object_segmentation_polygon_flip(known[5], known[2], 1), scale)
        others = (
            (boxes, det.object_bbox_scale(det.object_bbox_flip(known[3], known[2], 1), scale), (2, 4), flow.float),
            (corners, like_corners, (11, 2), flow.float),
            (masks, det.object_segmentation_polygon_to_mask(known[5], known[6], known[2]), (2, 20, 20), flow.int8),
        )
        for one, other, shape, dtype in others:
            yield from zip(*(flow.tensor_buffer_to_list_of_tensors(x, shape, dtype, True) for x in (one, other)), strict=True)

    for one, other in results_of_job(lambda: list(pairs()), 1, tp.Bundle[tp.ListNumpy])[0]:
        assert one[0].tolist() == other[0].tolist() and one[0].size
    assert words == {key.partition(" ")[0] for key in OP_TYPES_ON_HOST}
