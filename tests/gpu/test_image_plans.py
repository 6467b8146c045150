"""Plans of convolutional nets for GPUs: the recorded calls of ResNet-50, and no copies of images."""

from __future__ import annotations

from typing import Any

import image_plans
import pytest

import jobflow as flow
import jobflow.typing as tp


@pytest.fixture(scope="module")
def table() -> list[str]:
    return list(image_plans.lines(image_plans.resnet50()))


def test_resnet50_has_the_recorded_calls(table: list[str]) -> None:
    recorded = image_plans.TARGET.read_text(encoding="utf-8").splitlines()
    assert table == recorded, "write an intended change with python tests/gpu/image_plans.py --write"


def test_resnet50_copies_no_image(table: list[str]) -> None:
    assert table[0].endswith("copied images 0")
    assert table[1] == "float32 images 0; images without channels innermost 0"


def channels_last_job(dtype: Any, half: bool) -> Any:
    """Return a training job on images [n,h,w,c] with filters [o,h,w,c]."""
    config = flow.function_config()
    if half:
        config.mixed_precision(flow.bfloat16)
    order: Any = {"padding": "SAME", "data_format": "NHWC"}

    @flow.global_function("train", config)
    def step(images: tp.Numpy.Placeholder((4, 16, 16, 3), dtype=dtype)) -> tp.Numpy:
        x = images if dtype is flow.float32 else flow.cast(images, flow.float32) * (1 / 255)
        x = flow.layers.conv2d(x, 8, 3, name="a", **order)
        x = flow.nn.relu(flow.layers.batch_normalization(x, axis=3, name="bn", training=True))
        x = flow.nn.avg_pool2d(flow.nn.max_pool2d(x, 2, 2, **order), 2, 2, **order)
        x = flow.nn.relu(flow.layers.conv2d(x, 16, 3, use_bias=True, name="b", **order))
        losses = flow.math.reduce_mean(flow.layers.dense(flow.math.reduce_mean(x, axis=[1, 2]), 8, name="c"), axis=[1])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(losses)
        return losses

    return step


@pytest.mark.parametrize("dtype", [flow.float32, flow.uint8], ids=str)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_programs_with_channels_last_are_not_transposed(dtype: Any, half: bool) -> None:
    plan = image_plans.plan_of(channels_last_job(dtype, half))
    assert image_plans.copies(plan) == []
