"""A U-Net for images (Ronneberger et al. 2015), as a plain module to copy and change.

Features: residual blocks with group normalization and SiLU, strided convolutions, nearest upsampling, skip connections, an optional time embedding
for diffusion (`times`).

    model: {builder: "jobflow.models:UNet", arguments: {channels: 1, outputs: 2, width: 16}, loss: cross_entropy}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jobflow.functional as flow
import jobflow.nn as nn
import jobflow.nn.functional as F


class UNetBlock(nn.Module):
    """Two 3x3 convolutions, each after a norm and SiLU, added to the input; the time is added between them."""

    def __init__(self, channels: int, outputs: int, groups: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, channels), nn.Conv2d(channels, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs) if time else None
        self.skip = nn.Conv2d(channels, outputs, 1) if channels != outputs else None

    def forward(self, x: Any, time: Any = None) -> Any:
        y = self.conv1(F.silu(self.norm1(x)))  # [n, outputs, h, w]
        if self.time is not None:
            y = y + self.time(F.silu(time))[:, :, None, None]  # [n, outputs, h, w]
        y = self.conv2(F.silu(self.norm2(y)))  # [n, outputs, h, w]
        return y + (x if self.skip is None else self.skip(x))  # [n, outputs, h, w]


class UNet(nn.Module):
    """A U-Net: images [n, channels, h, w] -> scores or an image [n, outputs, h, w], where 2^(stages - 1) divides h and w.

    `factors` has the width of each stage relative to `width`; each stage after the first halves the image. With `times`, forward also gets one time
    per image [n].
    """

    def __init__(
        self, channels: int = 3, outputs: int = 3, width: int = 32, factors: Sequence[int] = (1, 2, 4), groups: int = 8, times: bool = False
    ) -> None:
        super().__init__()
        self.width = width
        time = 4 * width if times else 0
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time)) if times else None
        widths = [width * factor for factor in factors]
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        pairs = list(zip(widths, widths[1:], strict=False))
        self.down = nn.ModuleList([UNetBlock(each, each, groups, time) for each in widths[:-1]])
        self.halve = nn.ModuleList([nn.Conv2d(narrow, wide, 3, 2, padding=1) for narrow, wide in pairs])
        self.middle = UNetBlock(widths[-1], widths[-1], groups, time)
        self.widen = nn.ModuleList([nn.Conv2d(wide, narrow, 3, padding=1) for narrow, wide in pairs])
        self.up = nn.ModuleList([UNetBlock(2 * each, each, groups, time) for each in widths[:-1]])
        self.norm, self.head = nn.GroupNorm(groups, widths[0]), nn.Conv2d(widths[0], outputs, 3, padding=1)

    def forward(self, images: Any, times: Any = None) -> Any:
        x = images if images.ndim == 4 else flow.unsqueeze(images, 1)  # [n, channels, h, w]
        time = None if self.time is None else self.time(self.waves(times))  # [n, 4 width]
        x = self.stem(x)  # [n, width, h, w]
        skips = []
        for block, halve in zip(self.down, self.halve, strict=True):
            skips.append(block(x, time))  # [n, width factor, h / 2^stage, w / 2^stage]
            x = halve(skips[-1])  # [n, next width, h / 2^(stage + 1), w / 2^(stage + 1)]
        x = self.middle(x, time)
        for block, widen, skip in reversed(list(zip(self.up, self.widen, skips, strict=True))):
            x = widen(F.interpolate(x, scale_factor=2, mode="nearest"))  # [n, width factor, h / 2^stage, w / 2^stage]
            x = block(flow.cat([x, skip], dim=1), time)  # [n, width factor, h / 2^stage, w / 2^stage]
        return self.head(F.silu(self.norm(x)))  # [n, outputs, h, w]

    def waves(self, times: Any) -> Any:
        """Return sine and cosine waves of the times [n] in several frequencies, [n, width]."""
        half = self.width // 2
        rates = flow.exp(flow.arange(half, device=times.device) * (-math.log(10000.0) / half))  # [width / 2]
        angles = times[:, None] * rates  # [n, width / 2]
        return flow.cat([angles.sin(), angles.cos()], dim=1)  # [n, width]
