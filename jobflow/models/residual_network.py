"""A residual network for images (He et al. 2016), as a plain module to copy and change.

Features: basic and bottleneck blocks, batch normalization, the stem of ImageNet or a 3x3 stem for small images. Names of parameters are those of
torchvision, so `start_from` loads its files, such as ResNet-18 with blocks=[2, 2, 2, 2], stem="large".

    model: {builder: "jobflow.models:ResNet", arguments: {channels: 1, classes: 10, blocks: [1, 1, 1], width: 16}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jobflow.functional as flow
import jobflow.nn as nn
import jobflow.nn.functional as F
from jobflow.core.errors import ArgumentError, user_line


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to the input."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn1(self.conv1(x)))  # [n, width, h / stride, w / stride]
        y = self.bn2(self.conv2(y))  # [n, width, h / stride, w / stride]
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution, added to the input; the result has 4 width channels."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(channels, 4 * width, stride)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn1(self.conv1(x)))  # [n, width, h, w]
        y = F.relu(self.bn2(self.conv2(y)))  # [n, width, h / stride, w / stride]
        y = self.bn3(self.conv3(y))  # [n, 4 width, h / stride, w / stride]
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(channels: int, outputs: int, stride: int) -> nn.Module | None:
    """Return a 1x1 convolution with a norm, or None if input and output have equal shapes."""
    if stride == 1 and channels == outputs:
        return None
    return nn.Sequential(nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A residual network: images [n, channels, h, w] -> scores [n, classes].

    `blocks` has the number of blocks of each stage. Every stage after the first halves the image and doubles the width.
    """

    def __init__(
        self,
        channels: int = 3,
        classes: int = 10,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        bottleneck: bool = False,
        stem: str = "small",
    ) -> None:
        super().__init__()
        if stem not in ("small", "large"):
            raise ArgumentError(f'ResNet at {user_line()}: stem must be "small" (3x3) or "large" (7x7 and pooling), not {stem!r}')
        kind: Any = Bottleneck if bottleneck else BasicBlock
        self.large = stem == "large"
        self.conv1 = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False) if self.large else nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = len(blocks)
        size = width
        for stage, count in enumerate(blocks):
            layers = []
            for index in range(count):
                layers.append(kind(size, width * 2**stage, 2 if stage and not index else 1))
                size = width * 2**stage * kind.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(size, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Any) -> Any:
        x = images if images.ndim == 4 else flow.unsqueeze(images, 1)  # [n, channels, h, w]
        x = F.relu(self.bn1(self.conv1(x)))  # [n, width, h, w], or half of h and w for the large stem
        if self.large:
            x = F.max_pool2d(x, 3, 2, padding=1)  # [n, width, h / 4, w / 4]
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)  # [n, width 2^stage (4 for bottlenecks), h / 2^stage, w / 2^stage]
        return self.fc(x.mean(dim=(2, 3)))  # [n, classes]
