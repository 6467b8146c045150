"""Convolutional networks for images: LeNet and a residual network."""

from __future__ import annotations

from collections.abc import Sequence

import jobflow.legacy.layers as layers
import jobflow.legacy.math as math
import jobflow.nn as nn
from jobflow.core.types import Tensor
from jobflow.models.building_blocks import Outputs, classified, he, pictures, rows


def _dense(x: Tensor, units: int, name: str, relu: bool = False) -> Tensor:
    return layers.dense(x, units, activation=nn.relu if relu else None, kernel_initializer=he(), name=name)


def _conv(x: Tensor, filters: int, size: int, name: str, strides: int = 1, relu: bool = False, bias: bool = True) -> Tensor:
    activation = nn.relu if relu else None
    return layers.conv2d(x, filters, size, strides, "SAME", use_bias=bias, activation=activation, kernel_initializer=he(), name=name)


def lenet(
    images: Tensor, labels: Tensor | None = None, *, classes: int = 10, filters: Sequence[int] = (32, 64), hidden: int = 512, dropout: float = 0.5
) -> Outputs:
    """Build LeNet: 5x5 convolutions and 2x2 pooling, a hidden layer with dropout, and a classifier.

    Images are [n, height, width] or [n, channels, height, width].  `filters` has the number of filters of each convolution.
    """
    x = pictures(images, "lenet")
    for index, n in enumerate(filters, 1):
        x = _conv(x, n, 5, f"conv{index}", relu=True)
        x = nn.max_pool2d(x, ksize=2, strides=2, padding="SAME", name=f"pool{index}")
    x = _dense(rows(x), hidden, "hidden", relu=True)
    return classified(_dense(nn.dropout(x, rate=dropout, name="dropout"), classes, "classes"), labels)


def _normalised(x: Tensor, name: str) -> Tensor:
    return layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=1e-5, name=name)


def _residual(x: Tensor, filters: int, strides: int, name: str) -> Tensor:
    """Return relu(shortcut + y), where y is x after two 3x3 convolutions with batch normalization.

    The shortcut is x, or a normalized 1x1 convolution of x if the shape changes.
    """
    y = nn.relu(_normalised(_conv(x, filters, 3, f"{name}-conv1", strides, bias=False), f"{name}-norm1"))
    y = _normalised(_conv(y, filters, 3, f"{name}-conv2", bias=False), f"{name}-norm2")
    if strides > 1 or x.tensor_type.shape[1] != filters:
        x = _normalised(_conv(x, filters, 1, f"{name}-short", strides, bias=False), f"{name}-norm")
    return nn.relu(math.add(x, y))


def resnet(images: Tensor, labels: Tensor | None = None, *, classes: int = 10, blocks: Sequence[int] = (1, 1, 1), width: int = 16) -> Outputs:
    """Build a residual network (He et al., 2016, section 4.2) for images [n, height, width] or [n, channels, height, width].

    `blocks` has the number of residual blocks of each stage.  The first stage has `width` filters; every later stage halves the image and doubles
    the filters.
    """
    x = nn.relu(_normalised(_conv(pictures(images, "resnet"), width, 3, "stem", bias=False), "stem-norm"))
    for stage, count in enumerate(blocks, 1):
        for index in range(1, count + 1):
            x = _residual(x, width * 2 ** (stage - 1), 2 if stage > 1 and index == 1 else 1, f"stage{stage}-block{index}")
    return classified(_dense(math.reduce_mean(x, axis=[2, 3]), classes, "classes"), labels)
