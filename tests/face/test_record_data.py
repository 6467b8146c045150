"""Readers and decoders in the body of a job: samples of files in a known order, equal on any number of devices."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import jobflow as flow
import jobflow.typing as tp
from jobflow.data.ofrecord import record_classes
from jobflow.data.sample_order import Order as SampleOrder
from jobflow.host_pipeline.job_batches import PREFETCH
from jobflow.host_pipeline.sample_sources import PartFiles, RecordFiles
from jobflow.host_pipeline.stages import Decoded

COUNT = 12
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 20, 3), np.uint8)
NUMBERS = np.random.default_rng(1).normal(size=(COUNT, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write two part files of six records: sample i has label i, i + 1 numbers in "ragged", and an image of 16 x (20 + i)."""
    path, kinds = tmp_path_factory.mktemp("records"), record_classes()
    for part in range(2):
        with open(path / f"part-{part:05d}", "wb") as file:
            for i in range(part * 6, part * 6 + 6):
                features = {
                    "label": {"int32_list": {"value": [i]}},
                    "numbers": {"float_list": {"value": NUMBERS[i].tolist()}},
                    "ragged": {"int64_list": {"value": list(range(i + 1))}},
                    "signed": {"bytes_list": {"value": [bytes([255, i])]}},
                    "image": {"bytes_list": {"value": [png(IMAGES[i])]}},
                    "wider": {"bytes_list": {"value": [png(np.pad(IMAGES[i], ((0, 0), (0, i), (0, 0))))]}},
                }
                record = kinds["OFRecord"](feature={name: kinds["Feature"](**value) for name, value in features.items()}).SerializeToString()
                file.write(len(record).to_bytes(8, "little") + record)
    return str(path)


def png(pixels: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def reader(folder: str, batch: int = 4, **more: Any) -> Any:
    return flow.data.ofrecord_reader(folder, batch_size=batch, data_part_num=2, part_name_suffix_length=5, **more)


def results_of_job(body: Callable[[], Any], runs: int = 1) -> list[Any]:
    """Return the results of `runs` runs of a job with this body."""

    @flow.global_function()
    def job() -> tp.Bundle[tp.Numpy]:
        return body()

    results = [job() for _ in range(runs)]
    return results if runs > 1 else results[0]


def test_images_labels_and_numbers(devices: int, folder: str) -> None:
    """Read an augmented image and its label; batches continue across the end of an epoch."""
    mean, std = [123.0, 116.0, 103.0], [58.0, 57.0, 57.0]

    def body() -> list[Any]:
        record = reader(folder)
        label = flow.data.OFRecordRawDecoder(record, "label", shape=(), dtype=flow.int64)
        values = flow.data.OFRecordRawDecoder(record, "numbers", shape=(2, 3), dtype=flow.float)
        image, scale, size = flow.image.Resize(flow.data.OFRecordImageDecoder(record, "image", "RGB"), target_size=(20, 16))
        assert image.shape == (4, 16, 20, 3) and image.dtype is flow.uint8 and size is None
        mirror = flow.cast(flow.math.mod(label, flow.constant(2, flow.int64, (1,))), flow.int8)
        y = flow.image.CropMirrorNormalize(image, mirror, "RGB", crop_h=8, crop_w=10, crop_pos_x=1.0, mean=mean, std=std)
        return [label, values, y, scale]

    for run, (label, values, y, scale) in enumerate(results_of_job(body, runs=4)):
        which = (np.arange(4) + 4 * run) % COUNT
        assert label.tolist() == which.tolist() and (scale == 1).all()
        np.testing.assert_array_equal(values, NUMBERS[which].reshape(4, 2, 3))
        part = IMAGES[which][:, 4:12, 10:]
        part[which % 2 == 1] = part[which % 2 == 1][:, :, ::-1]
        np.testing.assert_allclose(y, ((part - np.float32(mean)) / np.float32(std)).transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-6)


def test_images_flipped_by_computed_labels(devices: int, folder: str) -> None:
    """Images belong to the records whose labels select them in the same run, also without other uses of the labels."""

    def body() -> list[Any]:
        record = reader(folder)
        label = flow.data.OFRecordRawDecoder(record, "label", shape=(), dtype=flow.int32)
        bound = flow.get_variable("bound", (1,), initializer=flow.constant_initializer(5.0), trainable=False)
        codes = flow.cast(flow.math.greater(flow.cast(label, flow.float), bound), flow.int8)
        images = flow.image.flip(flow.data.OFRecordImageDecoder(record, "image", "RGB"), codes)
        return [flow.tensor_buffer_to_tensor(images, flow.uint8, (16, 20, 3))]

    for run, (images,) in enumerate(results_of_job(body, runs=4)):
        for image, i in zip(images, (np.arange(4) + 4 * run) % COUNT, strict=True):
            np.testing.assert_array_equal(image, IMAGES[i][:, ::-1] if i > 5 else IMAGES[i])


def test_features_of_several_shapes_become_rows_of_one_shape(session: None, folder: str) -> None:
    def body() -> list[Any]:
        record = reader(folder)
        wider = flow.data.OFRecordImageDecoder(record, "wider")
        small, scale, size = flow.image.Resize(wider, target_size=8, keep_aspect_ratio=True)
        return [
            flow.data.OFRecordRawDecoder(record, "ragged", (5,), flow.float, auto_zero_padding=True),
            flow.data.OFRecordRawDecoder(record, "signed", (2,), flow.int32),
            flow.image.batch_align(wider, (16, 30, 3), flow.uint8, alignment=16),
            size,
            scale,
            flow.image.CropMirrorNormalize(small, crop_h=8, crop_w=8),
            flow.tensor_buffer_to_tensor(flow.image.flip(flow.data.OFRecordImageDecoder(record, "image"), 1), flow.uint8, (16, 20, 3)),
        ]

    uneven, signed, aligned, size, scale, small, flipped = results_of_job(body)
    assert uneven.tolist() == [[0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 2, 0, 0], [0, 1, 2, 3, 0]]
    assert signed.tolist() == [[-1, i] for i in range(4)]
    assert aligned.shape == (4, 16, 32, 3) and not aligned[0, :, 20:].any()
    np.testing.assert_array_equal(aligned[:, :, :20], IMAGES[:4, :, :, ::-1])
    assert size.tolist() == [[10, 8], [10, 8], [11, 8], [12, 8]]  # round(21 / 2) is 10
    np.testing.assert_allclose(scale[:, 0], [0.5, 10 / 21, 0.5, 12 / 23], rtol=1e-6)
    assert small.shape == (4, 3, 8, 8)
    np.testing.assert_array_equal(flipped, IMAGES[:4, :, ::-1, ::-1])


def test_random_crops_depend_on_seed_and_sample(devices: int, folder: str) -> None:
    def body() -> Any:
        content = flow.data.OFRecordBytesDecoder(reader(folder), "image")
        return flow.data.image_decoder_random_crop_resize(content, target_width=6, target_height=5, seed=7, name="crop")

    first, second = results_of_job(body, runs=2)
    assert first.shape == (4, 5, 6, 3) and first.std() > 0 and (first != second).any()
    assert (int(first.sum()), int(second.sum())) == (45457, 45833)  # by Pillow 12


def test_the_old_call_and_the_old_spellings(session: None, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = flow.data

    def body() -> list[Any]:
        norm = data.NormByChannelPreprocessor((10.0, 20.0, 30.0), (2.0, 4.0, 5.0), "channels_first")
        codec = data.ImageCodec([data.ImageResizePreprocessor(20, 16), data.ImagePreprocessor("bgr2rgb")])
        blobs = (data.BlobConf("image", (16, 20, 3), flow.float, codec, [norm]), data.BlobConf("label", (1,), flow.int32, data.RawCodec()))
        images, labels = data.decode_ofrecord(folder, blobs, batch_size=3, data_part_num=2, part_name_suffix_length=5)
        old = flow.image.Resize(
            data.OFRecordImageDecoder(reader(folder, 3), "image", "GRAY"), resize_x=20, resize_y=16, channels=1, color_space="GRAY"
        )
        return [images, labels, old]

    images, labels, old = results_of_job(body)
    np.testing.assert_allclose(images, ((IMAGES[:3] - np.float32([10, 20, 30])) / np.float32([2, 4, 5])).transpose(0, 3, 1, 2), rtol=1e-5)
    assert labels.tolist() == [[0], [1], [2]] and old.shape == (3, 16, 20, 1) and "deprecated" in capsys.readouterr().err


def test_microbatches_are_batches_of_the_reader(devices: int, folder: str) -> None:
    """Accumulating gradients over two batches equals a job with batches of twice the size."""
    losses = []
    for batch, microbatches in ((2, 2), (4, 1)):
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        config = flow.function_config()
        config.train.num_gradient_accumulation_steps(microbatches)

        @flow.global_function(type="train", function_config=config)
        def job() -> tp.Numpy:
            record = reader(folder, batch)  # noqa: B023
            x = flow.data.OFRecordRawDecoder(record, "numbers", (6,), flow.float)
            logits = flow.layers.dense(x, COUNT, kernel_initializer=flow.random_normal_initializer(), name="dense")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.data.OFRecordRawDecoder(record, "label", (), flow.int32), logits)
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
            return loss

        losses.append([job() for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def flipped(batch: int, folder: str) -> Any:
    images = flow.image.flip(flow.data.OFRecordImageDecoder(reader(folder, batch), "image"), flow.random.CoinFlip(batch, seed=2))
    return flow.cast(flow.tensor_buffer_to_tensor(images, flow.uint8, (16, 20, 3)), flow.float)


def passed(x: Any, rows: int) -> Any:
    images = flow.image.flip(flow.tensor_to_tensor_buffer(x + 1, 3), flow.random.CoinFlip(rows, seed=2, name="coins"))
    return flow.tensor_buffer_to_tensor(images, flow.float, (16, 20, 3))


#: what a microbatch of so many rows takes: of an argument, which each of them has rows of or all of, and of readers and tensor buffers
MICROBATCHES: dict[str, tuple[int, Callable[[Any, int, str], Any]]] = {
    "images turned by coins": (1, lambda x, rows, folder: flipped(rows, folder) + x),
    "images turned by a number": (1, lambda x, rows, folder: flow.image.flip(flipped(rows, folder), 1) * x),
    "made buffers": (1, lambda x, rows, folder: flipped(rows, folder) + flow.tensor_buffer_to_tensor(constants(rows), flow.float, (16, 20, 3))),
    "rows of an argument": (8, lambda x, rows, folder: flipped(rows, folder) * x),
    "buffers of an argument": (8, lambda x, rows, folder: flipped(rows, folder) + passed(x, rows)),
}


def constants(rows: int) -> Any:
    return flow.gen_tensor_buffer([rows], [(16, 20, 3)] * rows, [0.5] * rows)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("what", MICROBATCHES)
def test_microbatches_of_records_and_arguments(session: None, devices: int, what: str, folder: str) -> None:
    """Two microbatches of four have the rows, and the coins, of one batch of eight."""
    length, make = MICROBATCHES[what]
    images = np.random.default_rng(0).normal(size=(length, 16, 20, 3)).astype(np.float32)
    results = []
    for microbatches in (2, 1):
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        config = flow.function_config()
        config.train.num_gradient_accumulation_steps(microbatches)

        @flow.global_function("train", config)
        def job(x: tp.Numpy.Placeholder(images.shape)) -> tp.Numpy:  # type: ignore[valid-type]
            w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
            loss = flow.math.reduce_mean(make(x, 8 // microbatches, folder) * w, axis=[2, 3])  # noqa: B023
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1e-3]), momentum=0).minimize(loss)
            return loss

        results.append([*[job(images * (1 + run)) for run in range(3)], flow.get_all_variables()["w"].numpy()])
    for parts, whole in zip(*results, strict=True):
        np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("length", "make", "message"),
    [
        (
            1,
            lambda x, folder: flow.image.batch_align(flow.data.OFRecordImageDecoder(reader(folder), "wider"), (16, 40, 3), flow.uint8, 8),
            "image.Resize",
        ),
        (4, lambda x, folder: flipped(4, folder), r"has 2 rows of the arguments, but the readers return 4; read as many rows"),
    ],
)
def test_unsupported_readers_in_microbatches_raise(session: None, length: int, make: Callable[..., Any], message: str, folder: str) -> None:
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((length,))) -> tp.Numpy:  # type: ignore[valid-type]
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.cast(make(x, folder), flow.float) * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1e-3]), momentum=0).minimize(loss)
        return loss

    with pytest.raises(flow.JobError, match=message):
        job(np.ones(length, np.float32))


def test_records_are_decoded_ahead_of_the_runs(session: None, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first run of a job, other threads decode the records of its next runs."""
    read, decoded, plain = threading.Semaphore(0), list[tuple[int, str]](), Decoded.of

    def counted(stage: Decoded, run: Any, *values: Any) -> Any:
        decoded.append((run.number, threading.current_thread().name))
        read.release()
        return plain(stage, run, *values)

    monkeypatch.setattr(Decoded, "of", counted)
    results_of_job(lambda: flow.image.Resize(flow.data.OFRecordImageDecoder(reader(folder), "image"), target_size=(4, 4))[0])
    assert all(read.acquire(timeout=60) for _ in range(4 * (1 + PREFETCH)))
    run_numbers, threads = zip(*decoded, strict=True)
    assert sorted(run_numbers) == list(range(4 * (1 + PREFETCH))) and all(thread.startswith("reader-") for thread in threads)


def test_the_mirrored_view_has_a_batch_on_each_device(devices: int, folder: str) -> None:
    @flow.global_function()
    def job() -> tp.ListNumpy:
        with flow.scope.mirrored_view():
            label = flow.data.OFRecordRawDecoder(reader(folder, 2), "label", (), flow.int32)
            assert label.shape == (2,)
            return label + 0

    assert [each.tolist() for each in job()] == [[0, 1], [2, 3]][:devices]


def test_a_placeholder_is_cut_over_the_devices_of_the_mirrored_view(devices: int) -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((1,))) -> tp.ListNumpy:  # type: ignore[valid-type]
        assert x.shape == (4 // devices, 3) and y.shape == (1,)
        return x * y

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert [each.tolist() for each in job(x, np.float32([2]))] == [(2 * each).tolist() for each in np.split(x, devices)]


def test_random_numbers_are_other_ones_in_each_run(session: None) -> None:
    def body() -> list[Any]:
        normal = flow.random_normal_initializer(mean=5, stddev=0.1)
        return [flow.data.decode_random((50,), flow.float, batch_size=2), flow.data.decode_random((50,), flow.float, 2, normal, name="n")]

    (first, near), (second, _) = results_of_job(body, runs=2)
    assert first.shape == (2, 50) and (first != second).any() and first.min() >= 0 and first.max() < 1 and abs(near.mean() - 5) < 0.1


#: a seed for which the second epoch begins with the second file
SWAPS = next(seed for seed in range(20) if SampleOrder(seed, 2).indices(1, 0, 2)[0] == 1)
ORDERS = {
    "in order": ({}, [*range(12), *range(12)]),
    "other files in other epochs": ({"after_epoch": True, "seed": SWAPS}, [*range(12), *range(6, 12), *range(6)]),
}


@pytest.mark.parametrize(("options", "expected"), ORDERS.values(), ids=list(ORDERS))
def test_the_order_of_records(options: dict[str, Any], expected: list[int], folder: str) -> None:
    assert order(folder, 24, **options) == expected


def order(folder: str, count: int, **options: Any) -> list[int]:
    """Return the labels of the first records."""
    files = RecordFiles(PartFiles(Path(folder), 2, suffix_length=5), **options)
    batches = files.batches(count)
    kind = record_classes()["OFRecord"]
    return [kind.FromString(files.record(position)).feature["label"].int32_list.value[0] for position in next(batches)]


def test_a_buffer_shuffles_within_its_length(folder: str) -> None:
    drawn = order(folder, 120, shuffle=True, buffer=5)
    assert drawn == order(folder, 120, shuffle=True, buffer=5) != order(folder, 120, shuffle=True, buffer=5, seed=1)
    assert drawn[:7] != list(range(7)) and all(drawn[i] < i + 5 for i in range(7))  # the i-th is one of the first i + 5


def eight() -> Any:
    return flow.gen_tensor_buffer((2,), [(8, 8, 3), (4, 4, 3)], [1, 2], flow.uint8)


def jpegs(folder: str) -> Any:
    return flow.data.OFRecordImageDecoder(reader(folder), "image")


WRONG = {
    "no folder": (lambda folder: reader(folder + "x"), "no such file"),
    "a feature that is not there": (lambda folder: flow.data.OFRecordRawDecoder(reader(folder), "labl", (), flow.int32), 'did you mean "label"'),
    "too many values": (lambda folder: flow.data.OFRecordRawDecoder(reader(folder), "numbers", (5,), flow.float), "has 6 values"),
    "images of different sizes": (
        lambda folder: flow.image.CropMirrorNormalize(flow.data.OFRecordImageDecoder(reader(folder), "image")),
        "require crop_h",
    ),
    "not an image": (lambda folder: flow.data.OFRecordImageDecoder(reader(folder), "numbers"), "cannot identify image"),
    "a batch size that is a text": (
        lambda folder: flow.data.ofrecord_reader(folder, batch_size="2"),
        "batch_size is '2' of type str",
    ),
    "a shape that is a text": (
        lambda folder: flow.data.OFRecordRawDecoder(reader(folder), "numbers", "5", flow.float),
        "a sequence of whole numbers",
    ),
    "random numbers of no shape": (lambda folder: flow.data.decode_random("x", flow.float, 3), "a sequence of whole numbers"),
    "more parts than can be": (lambda folder: flow.data.ofrecord_reader(folder, data_part_num=2**40), "int of at most 2147483647"),
    "very many parts": (
        lambda folder: flow.data.ofrecord_reader(folder + "x", 2, data_part_num=2**31 - 1),
        r"no such file: .*part-0 \(number 0 of 2147483647 files\)",
    ),
    "names of parts as long as no file's": (
        lambda folder: flow.data.ofrecord_reader(folder, part_name_suffix_length=10**9),
        "part_name_suffix_length 1000000000 must be at most 255",
    ),
    "a crop of one fraction": (
        lambda folder: flow.image.random_crop(jpegs(folder), random_area=[0.5]),
        r"random_area must be .smallest, largest., not \[0.5\]",
    ),
    "a side below zero": (lambda folder: flow.image.target_resize(jpegs(folder), 4, min_size=-1), "min_size must be a positive int, not -1"),
    "an interpolation of no release": (
        lambda folder: flow.image.Resize(jpegs(folder), resize_x=4, resize_y=4, interp_type="Lanczos"),
        "interpolation_type must be one of .*, not 'Lanczos'",
    ),
    "pixels that wrap around": (
        lambda folder: flow.image.Resize(jpegs(folder), (4, 4), dtype=flow.int8),
        "dtype int8 cannot represent pixels from 0 to 255",
    ),
    "aligned pixels that wrap around": (lambda folder: flow.image.batch_align(eight(), (8, 8, 3), flow.int8, 4), "cannot represent pixels"),
    "a batch of no height": (lambda folder: flow.image.batch_align(eight(), (8, 8), flow.float, 4), "shape must be .height, width, channels."),
    "colours of no camera": (
        lambda folder: flow.image.CropMirrorNormalize(jpegs(folder), color_space="YUV", crop_h=4, crop_w=4),
        'color_space must be "BGR", "RGB" or "GRAY", and output_dtype a float type, not .YUV.',
    ),
    "normal pixels in integers": (
        lambda folder: flow.image.CropMirrorNormalize(jpegs(folder), crop_h=4, crop_w=4, output_dtype=flow.int8),
        "output_dtype a float type",
    ),
    "a deviation of 0": (lambda folder: flow.image.normalize(eight(), [0.0], [0.0]), "and std must not be 0"),
    "means of two channels": (lambda folder: flow.image.normalize(jpegs(folder), [1.0], [0.5, 0.5]), "one for each of 3 channels"),
    "means of two channels of arrays": (
        lambda folder: flow.image.batch_align(flow.image.normalize(eight(), [1.0], [0.5, 0.5]), (8, 8, 3), flow.float, 4),
        "an image of 3 channels requires as many means and deviations, not 2 and 1",
    ),
    "no codec": (
        lambda folder: flow.data.BlobConf("label", (1,), flow.int32, None),
        "BlobConf at .*: codec must be RawCodec or ImageCodec, not None",
    ),
    "one description for a list": (
        lambda folder: flow.data.decode_ofrecord(folder, flow.data.BlobConf("label", (1,), flow.int32, flow.data.RawCodec())),
        "blobs must be a list of BlobConf, not BlobConf",
    ),
    "steps of images in words": (lambda folder: flow.data.ImageCodec(["mirror"]), "image_preprocessors must be ImagePreprocessor or"),
    "a size below 1": (lambda folder: flow.data.ImageResizePreprocessor(0, 8), "ImageResizePreprocessor at .*: width must be a positive int, not 0"),
    "a tensor": (lambda folder: flow.image.random_crop(flow.constant(1.0, flow.float, (4, 4))), "from a reader of this job"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_arguments_raise(make: Callable[[str], Any], message: str, session: None, folder: str) -> None:
    def body() -> Any:
        value = make(folder)
        if getattr(value, "kind", "") == "records":
            return flow.data.OFRecordRawDecoder(value, "label", (), flow.int32)
        return flow.tensor_buffer_to_tensor(value, flow.uint8, (16, 20, 3)) if hasattr(value, "kind") else value

    with pytest.raises((flow.ArgumentError, flow.errors.DataError), match=message):
        results_of_job(body)


def test_a_reader_needs_a_job(folder: str) -> None:
    with pytest.raises(flow.JobError, match="outside a job"):
        reader(folder)
    assert Path(folder).exists()
