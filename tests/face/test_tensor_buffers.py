"""Tensor buffers and tensor lists: arrays of different shapes as arguments and results of jobs, and operations on images."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import jobflow as flow
import jobflow.typing as tp

#: two images for each of two devices
IMAGES = [[np.random.default_rng(2 * d + i).random((1, 8 + i, 10 + d, 3), np.float32) for i in range(2)] for d in range(2)]
LISTS = tp.ListListNumpy.Placeholder((2, 12, 12, 3))


@pytest.fixture
def session() -> Iterator[None]:
    flow.clear_default_session()
    yield
    flow.clear_default_session()
    flow.enable_eager_execution(False)


def mirrored() -> Any:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    return config


def test_lists_of_images_as_arguments_and_results(devices: int) -> None:
    """Resize each image and flip it by the run's coins.

    The images return as a list in their shapes, and as one tensor.
    """

    @flow.global_function(function_config=mirrored())
    def job(lists: LISTS) -> tuple[tp.ListListNumpy, tp.ListNumpy, tp.ListNumpy, tp.ListNumpy]:  # type: ignore[valid-type]
        flip = flow.random.CoinFlip(2)
        images = flow.image_flip(flow.tensor_list_to_tensor_buffer(lists), flip)
        assert images.shape == (2,) and images.dtype is flow.tensor_buffer and images.is_dynamic
        small, size, _ = flow.image_target_resize(images, 5, interpolation_type="nearest_neighbor")
        whole = flow.image_batch_align(flow.image.normalize(small, [2.0], [1.0]), (5, 12, 3), flow.float, 2)
        assert whole.shape == (2, 6, 12, 3), "the largest there may be"
        whole = flow.concat([whole, whole * 2], axis=3)
        return flow.tensor_buffer_to_tensor_list(images, (12, 12, 3), flow.float), size, whole, flow.cast(flip, flow.float)

    all_flips = set()
    for _ in range(3):
        result, size, whole, flips = job(IMAGES[:devices])
        for own, own_images, sizes, each, flip in zip(result, IMAGES, size, whole, flips, strict=False):
            for array, image, turned in zip(own, own_images, flip, strict=True):
                np.testing.assert_array_equal(array, image[:, :, ::-1] if turned else image)
            widths = [round(5 * image.shape[2] / image.shape[1]) for image in own_images]
            assert [w for w, _ in sizes] == widths and each.shape == (2, 6, max(widths) + max(widths) % 2, 6)
            assert (each[:, 5:] == 0).all() and (each[:, :5, :5] < 0).all() and (each[..., 3:] == 2 * each[..., :3]).all()
            all_flips |= set(flip.tolist())
    assert all_flips == {0.0, 1.0}


def test_lists_are_split_and_read_without_annotation(devices: int) -> None:
    @flow.global_function(function_config=mirrored())
    def job(lists=flow.MirroredTensorListDef((2, 12, 12, 3))):  # type: ignore[no-untyped-def]  # noqa: B008
        buffers = flow.tensor_list_to_tensor_buffer(lists)
        return flow.tensor_buffer_to_tensor_list(buffers, (12, 12, 3), flow.float), *flow.tensor_list_split(lists)

    whole, *each = job(IMAGES[:devices]).get()
    for i, one in enumerate(each):
        for d, (array, list_of_device) in enumerate(zip(one.numpy_list(), whole.numpy_lists(), strict=True)):
            assert (array == IMAGES[d][i]).all() and (list_of_device[i] == array).all() and array is not IMAGES[d][i]


def test_the_instances_of_tensors(devices: int) -> None:
    """Also for tensors that depend on variables, where the job itself computes the result."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6, 8, 3))) -> tp.Bundle[tp.ListNumpy]:  # type: ignore[valid-type]
        w = flow.get_variable("w", (8, 3), initializer=flow.ones_initializer())
        known, later = flow.tensor_to_tensor_buffer(x + x, instance_dims=3), flow.tensor_to_tensor_buffer(x * w, instance_dims=2)
        assert known.shape == (4,) and later.shape == (4, 6)
        small, _, _ = flow.image.Resize(known, target_size=(4, 3), interpolation_type="nearest_neighbor")
        return [
            flow.tensor_buffer_to_list_of_tensors(known, (9, 9, 3), flow.float, True),
            flow.tensor_buffer_to_tensor(later, flow.double, (8, 3)),
            flow.tensor_buffer_to_list_of_tensors(later, (8, 3), flow.float)[7],
            small,
            flow.tensor_buffer_to_tensor(flow.image.random_crop(known, 10, 3, [1.0, 1.0], [4 / 3, 4 / 3]), flow.float, (6, 8, 3)),
        ]

    x = np.arange(4 * 6 * 8 * 3, dtype=np.float32).reshape(4, 6, 8, 3)
    for _ in range(2):
        dynamic, whole, one, small, cropped = job(x)
        assert all((array == 2 * row).all() for (array,), row in zip(dynamic, x, strict=True))
        assert (whole[0] == x).all() and whole[0].dtype == np.float64 and (one[0] == x[1, 1]).all()
        assert small[0].shape == (4, 3, 4, 3) and (small[0] == 2 * x[:, 1::2, 1::2]).all() and (cropped[0] == 2 * x).all()
        x = x + 1


def test_plain_sizes_are_widths_and_heights(devices: int) -> None:
    """Scale boxes and polygons in images of 40 x 30 and 20 x 50: sizes as an argument, a constant and a computed tensor."""

    @flow.global_function(function_config=mirrored())
    def job(
        boxes: tp.ListListNumpy.Placeholder((2, 3, 4)),  # type: ignore[valid-type]
        corners: tp.ListListNumpy.Placeholder((2, 4, 2)),  # type: ignore[valid-type]
        index: tp.ListListNumpy.Placeholder((2, 4, 3), flow.int32),  # type: ignore[valid-type]
        sizes: tp.ListNumpy.Placeholder((2, 2), flow.int32),  # type: ignore[valid-type]
    ) -> tuple[tp.ListListNumpy, tp.ListListNumpy, tp.ListListNumpy]:
        w = flow.get_variable("w", (1,), flow.int32, flow.constant_initializer(2, flow.int32), trainable=False)
        turned = flow.detection.object_bbox_flip(flow.tensor_list_to_tensor_buffer(boxes), sizes, flow.constant(1, flow.int8, (2,)))
        points = flow.detection.object_segmentation_polygon_flip(flow.tensor_list_to_tensor_buffer(corners), sizes * w, 1)
        masks = flow.detection.object_segmentation_polygon_to_mask(
            flow.tensor_list_to_tensor_buffer(corners), flow.tensor_list_to_tensor_buffer(index), sizes
        )
        return (
            flow.tensor_buffer_to_tensor_list(turned, (3, 4), flow.float),
            flow.tensor_buffer_to_tensor_list(points, (4, 2), flow.float),
            flow.tensor_buffer_to_tensor_list(masks, (1, 50, 40), flow.int8),
        )

    boxes = [np.array([[[2.0, 3, 8, 29]]], np.float32), np.array([[[0.0, 40, 19, 49], [1, 2, 3, 4]]], np.float32)]
    corners = [np.array([[[5.0, 5], [12, 5], [12, 9], [5, 9]]], np.float32), np.array([[[1.0, 45], [4, 45], [4, 48]]], np.float32)]
    index = [np.array([[[i, 0, 0] for i in range(each.shape[1])]], np.int32) for each in corners]
    sizes = np.array([[40, 30], [20, 50]], np.int32)
    turned, points, masks = job([boxes] * devices, [corners] * devices, [index] * devices, [sizes] * devices)
    for own, wider, painted in zip(turned, points, masks, strict=True):
        assert [each[0].tolist() for each in own] == [[[31, 3, 37, 29]], [[0, 40, 19, 49], [16, 2, 18, 4]]]
        assert [each[0, :, 0].tolist() for each in wider] == [[75, 68, 68, 75], [39, 36, 36]]
        assert [each.shape[1:] for each in painted] == [(1, 30, 40), (1, 50, 20)]
        assert painted[0][0, 0, 5:9, 5:12].all() and painted[0].sum() == 4 * 7


@pytest.mark.parametrize("view", ["consistent", "mirrored"])
def test_images_that_the_job_computes(devices: int, view: str) -> None:
    """Flip by computed values, resize, compute with and flip again by variables of each run; train on the result."""
    config = mirrored() if view == "mirrored" else flow.function_config()
    placeholder: Any = (tp.ListNumpy if view == "mirrored" else tp.Numpy).Placeholder((4, 6, 8, 3))

    @flow.global_function("train", config)
    def job(x: placeholder) -> tp.Bundle[tp.ListNumpy]:
        w = flow.get_variable("w", (3,), initializer=flow.constant_initializer(2.0), trainable=False)
        v = flow.get_variable("v", (3,), initializer=flow.constant_initializer(3.0))
        y = x * w
        images = flow.tensor_to_tensor_buffer(y, instance_dims=3)
        assert images.shape == (4,)
        images = flow.image.flip(images, flow.cast(flow.math.reduce_sum(y, axis=[1, 2, 3]) > 0, flow.int8))
        small, size, _ = flow.image.target_resize(images, 4, interpolation_type="nearest_neighbor")
        whole = flow.tensor_buffer_to_tensor(images, flow.float, (6, 8, 3))
        again = flow.image.flip(flow.tensor_to_tensor_buffer(whole + w, 3), 1)
        boxes = flow.detection.object_bbox_scale(
            flow.tensor_to_tensor_buffer(flow.constant(2.0, flow.float, (4, 1, 4)), 2), flow.cast(size, flow.float) * flow.slice(w, [0], [2])
        )
        flow.assign(w, w + 1)
        loss = flow.math.reduce_sum(whole * v, axis=[1, 2, 3])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(loss)
        each = flow.tensor_buffer_to_list_of_tensors(again, (8, 8, 3), flow.float, dynamic_out=True)
        return [
            whole,
            flow.image.batch_align(small, (8, 8, 3), flow.float, 4) + 0,
            each[1] * 2,
            flow.tensor_buffer_to_tensor(boxes, flow.float, (1, 4)),
            loss,
        ]

    rng, v = np.random.default_rng(0), np.full(3, 3.0)
    for run in range(3):
        xs = [rng.normal(size=(4, 6, 8, 3)).astype(np.float32) for _ in range(devices if view == "mirrored" else 1)]
        rows = job(xs if view == "mirrored" else xs[0])
        images = [np.stack([image[:, ::-1] if image.sum() > 0 else image for image in x * np.float32(2 + run)]) for x in xs]
        for image, *device in zip(images, *rows, strict=True):
            whole, small, one, boxes, loss = device
            np.testing.assert_allclose(whole, image, rtol=1e-6)
            assert small.shape == (4, 4, 8, 3) and (small[:, :, 5:] == 0).all() and np.isin(small[:, :, :5], whole).all()
            np.testing.assert_allclose(one, 2 * (image[1] + 2 + run)[:, ::-1], rtol=1e-5)
            np.testing.assert_allclose(boxes, np.float32([[2 * 5, 2 * 4] * 2] * 4)[:, None] * (2 + run), rtol=1e-6)
            np.testing.assert_allclose(loss, (image * v).sum((1, 2, 3)), rtol=1e-4, atol=1e-4)
        v = v - 0.01 * np.mean([image.sum((1, 2)) for image in images], axis=(0, 1))
        np.testing.assert_allclose(flow.get_all_variables()["v"].numpy(), v, rtol=1e-4)


def test_buffers_of_computed_tensors(devices: int) -> None:
    """Take tensors of data-dependent shape and tensors of the host; also in eager jobs."""

    def body(x: Any) -> list[Any]:
        rows = flow.gather_nd(x, flow.argwhere(flow.math.reduce_sum(x, axis=[1, 2, 3]) > 0))
        normalized = flow.tensor_buffer_to_tensor(flow.image.normalize(buffers((2, 2, 3), (2, 2, 3)), [0.5], [0.0]), flow.float, (2, 2, 3))
        flipped = [flow.image.flip(flow.tensor_to_tensor_buffer(each, 3), 1) for each in (rows, normalized + 1)]
        return [flow.tensor_buffer_to_tensor(each, flow.float, (2, 2, 3)) for each in flipped]

    def check() -> None:
        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((6, 2, 2, 3))) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
            return body(x)

        for count in (3, 5, 0, 3):
            x = np.full((6, 2, 2, 3), -1, np.float32)
            x[:count] = np.random.default_rng(count).random((count, 2, 2, 3), np.float32)
            rows, normalized = job(x)
            np.testing.assert_array_equal(rows, x[:count, :, ::-1])
            assert normalized.shape == (2, 2, 2, 3) and (normalized == 3).all()

    check()
    flow.clear_default_session()
    flow.enable_eager_execution()
    check()
    flow.clear_default_session()
    flow.enable_eager_execution(False)


def test_host_operations_have_no_gradient(session: None) -> None:
    """They raise in microbatches too, and each device must have the same number of rows."""

    def run(parts: int, trainable: bool) -> None:
        flow.clear_default_session()
        config = flow.function_config()
        config.train.num_gradient_accumulation_steps(parts)

        @flow.global_function("train", config)
        def job(x: tp.Numpy.Placeholder((4, 6, 8, 3))) -> tp.Numpy:  # type: ignore[valid-type]
            w = flow.get_variable("w", (3,), initializer=flow.ones_initializer(), trainable=trainable)
            v = flow.get_variable("v", (3,), initializer=flow.ones_initializer())
            images = flow.image.flip(flow.tensor_to_tensor_buffer(x * w, 3), 1)
            loss = flow.tensor_buffer_to_tensor(images, flow.float, (6, 8, 3)) * v
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
            return loss

        job(np.ones((4, 6, 8, 3), np.float32))

    run(1, False)
    with pytest.raises(flow.JobError, match=r"depends on multiply_0 through tensor_buffer_to_tensor_0, which .* trainable=False"):
        run(1, True)
    with pytest.raises(flow.JobError, match=r"with 2 microbatches cannot have earlier phases; compute the tensor in a separate job"):
        run(2, False)
    flow.clear_default_session()
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def uneven(x: tp.ListNumpy.Placeholder((4, 2, 3))) -> tp.ListNumpy:  # type: ignore[valid-type]
        return flow.tensor_buffer_to_tensor(flow.image.flip(flow.tensor_to_tensor_buffer(x, 2), 0), flow.float, (2, 3))

    with pytest.raises(flow.ShapeError, match=r"the tensors of the devices are \[\[2, 2, 3\], \[4, 2, 3\]\]; pass arrays of equal length"):
        uneven([np.ones((2, 2, 3), np.float32), np.ones((4, 2, 3), np.float32)])


def test_generated_buffers_and_decoded_images(devices: int) -> None:
    pixels, content = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3), io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    file = np.frombuffer(content.getvalue(), np.int8)

    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((1, 900), flow.int8)) -> tp.Bundle[tp.ListNumpy]:  # type: ignore[valid-type]
        buffers = flow.gen_tensor_buffer([2], [(2, 1), (1, 2)], [0.0, 1.0])
        images = flow.image.decode(flow.tensor_list_to_tensor_buffer(x), flow.int32, "RGB")
        return [
            *flow.tensor_buffer_to_list_of_tensors(buffers, (9, 9), flow.float, True),
            flow.tensor_buffer_to_tensor(images, flow.int32, (4, 5, 3)),
        ]

    for first, second, image in zip(*job([[file[None]]] * devices), strict=True):
        assert first.tolist() == [[0], [0]] and second.tolist() == [[1, 1]] and (image == pixels).all()


def test_arrays_of_any_shape_are_computed_with_and_trained_on(devices: int) -> None:
    """The loss is the mean over the samples of all devices, for any number per device; the body has the declared shapes."""

    @flow.global_function("train", mirrored())
    def job(x: LISTS) -> tuple[tp.ListNumpy, tp.ListNumpy]:  # type: ignore[valid-type]
        first, second = flow.tensor_buffer_to_list_of_tensors(flow.tensor_list_to_tensor_buffer(x), (12, 12, 3), flow.float, dynamic_out=True)
        assert first.shape == (12, 12, 3) and first.is_dynamic
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_sum(flow.concat([first, second], 0, max_dim_size=24) * w, axis=[1, 2])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
        return loss, second

    w = np.ones(3)
    for cut in (12, 7):
        images = [[image[:, :cut], image] for image, _ in IMAGES[:devices]]
        losses, seconds = job(images)
        rows = [np.concatenate([a[0], b[0]]) for a, b in images]
        for loss, row, second, (_, image) in zip(losses, rows, seconds, images, strict=True):
            np.testing.assert_allclose(loss, (row * w).sum((1, 2)), rtol=1e-5)
            np.testing.assert_array_equal(second, image[0])
        w = w - 0.5 * sum(row.sum((0, 1)) for row in rows) / sum(map(len, rows))
        np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), w, rtol=1e-5)


def test_eager_jobs(session: None) -> None:
    flow.enable_eager_execution()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3, 4, 1))) -> tp.Bundle[tp.ListNumpy]:  # type: ignore[valid-type]
        images = flow.image.flip(flow.tensor_to_tensor_buffer(x * 2, 3), 1)
        return [
            flow.tensor_buffer_to_tensor(images, flow.float, (3, 4, 1)) + 1,
            *flow.tensor_buffer_to_list_of_tensors(images, (4, 4, 4), flow.float, True),
            flow.image.batch_align(images, (12, 12, 1), flow.float, 4),
        ]

    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4, 1)
    for _ in range(2):
        (whole,), (first,), (second,), (aligned,) = job(x)
        assert aligned.shape == (2, 4, 4, 1)
        assert (whole == 2 * x[:, :, ::-1] + 1).all() and (first == whole[0] - 1).all() and (second == whole[1] - 1).all()
        x = x + 1


def buffers(*shapes: tuple[int, ...]) -> Any:
    return flow.gen_tensor_buffer([len(shapes)], shapes, [1.0] * len(shapes))


WRONG: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "a tensor where buffers are asked for": (lambda x: flow.image.random_crop(x), flow.ArgumentError, "tensor_to_tensor_buffer"),
    "instances of all axes": (lambda x: flow.tensor_to_tensor_buffer(x, 4), flow.ShapeError, "instance_dims 4 must be below"),
    "another shape": (lambda x: flow.tensor_buffer_to_tensor(flow.tensor_to_tensor_buffer(x, 3), flow.float, (3, 3)), flow.ShapeError, r"\[3, 3\]"),
    "a smaller type": (lambda x: flow.tensor_buffer_to_tensor(buffers((2,)), flow.int32, (2,)), flow.DtypeError, "float32 cannot be converted"),
    "arrays of several shapes": (
        lambda x: flow.tensor_buffer_to_tensor(buffers((2,), (3,)), flow.float, (2,)),
        flow.DataError,
        r"an array has shape \[3\]",
    ),
    "an array that is larger": (
        lambda x: flow.tensor_buffer_to_list_of_tensors(buffers((2,)), (1,), flow.float, True),
        flow.DataError,
        "more elements or other axes than",
    ),
    "too few shapes": (lambda x: flow.gen_tensor_buffer([2], [(1,)], [0.0]), flow.ArgumentError, "has 2 arrays, but shape_list has length 1"),
    "too few codes": (lambda x: flow.image.flip(flow.tensor_to_tensor_buffer(x, 3), flow.random.CoinFlip(3)), flow.ShapeError, r"tensor \[2\]"),
    "a list that is none": (lambda x: flow.tensor_list_to_tensor_buffer(x), flow.ArgumentError, "ListListNumpy"),
}


@pytest.mark.parametrize(("make", "kind", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_arguments_raise(make: Callable[..., Any], kind: type[Exception], message: str) -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 2, 2, 3))) -> tp.Bundle[tp.ListNumpy]:  # type: ignore[valid-type]
        output = make(x)
        return flow.tensor_buffer_to_tensor(output, flow.float, (2, 2, 3)) if hasattr(output, "stage") else output

    with pytest.raises(kind, match=message):
        job(np.ones((2, 2, 2, 3), np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (IMAGES, "the job runs on 1 device"),
        ([IMAGES[0][0]], "Pass a list of 2 arrays"),
        ([IMAGES[0][:1]], "has 1 element;"),
        ([[each[0] for each in IMAGES[0]]], "as many axes as declared"),
        ([[np.ones((1, 13, 12, 3), np.float32)] * 2], "at most 432 elements"),
        ([[np.ones((2, 6, 2, 3), np.float32)] * 2], "Pass arrays with a first axis of length 1"),
        ([["a", "b"]], r"x\[0\]\[0\]"),
    ],
)
def test_wrong_lists_raise(arguments: Any, message: str) -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job(x: LISTS) -> tp.ListListNumpy:  # type: ignore[valid-type]
        return flow.tensor_buffer_to_tensor_list(flow.tensor_list_to_tensor_buffer(x), (12, 12, 3), flow.float)

    with pytest.raises(flow.ArgumentError, match=message):
        job(arguments)
    assert len(job(IMAGES[:1])[0]) == 2  # an error does not end the job
