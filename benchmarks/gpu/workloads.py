"""GPT-2 124M and ResNet-50 as both sides train them: sizes, initial weights, batches, learning rates.

Weights and batches are NumPy arrays drawn from fixed seeds, so jobflow and PyTorch use the same initial values and batches.
GPT-2 follows Radford et al. (2019), with GELU by tanh, and with a word table padded to a multiple of 64.  ResNet-50 follows He et al.
(2015), with the stride on the 3x3 convolution.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

#: warm-up and timed steps
WARM, TIMED = 3, 10
#: step whose loss is compared, and an earlier step on the same batch (1-based)
COMPARED, EARLIER = 10, 2
#: number of distinct batches, alternating
BATCHES = 2
MODELS = ("gpt2", "resnet50")


@dataclass(frozen=True)
class Gpt2:
    words: int = 50304
    length: int = 1024
    width: int = 768
    heads: int = 12
    blocks: int = 12
    batches: tuple[int, ...] = (8, 16)
    rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    decay: float = 0.1

    def items(self, batch: int) -> int:
        """Return tokens per step."""
        return batch * self.length

    def parameters(self) -> Iterator[tuple[str, tuple[int, ...], float]]:
        """Yield name, shape and standard deviation of each weight; biases are 0 and gammas 1."""
        w, deep = self.width, 0.02 / (2 * self.blocks) ** 0.5
        yield "words", (self.words, w), 0.02
        yield "positions", (self.length, w), 0.02
        for i in range(self.blocks):
            yield from _norm(f"blocks-{i}-norm1", w)
            yield from _dense(f"blocks-{i}-qkv", w, 3 * w, 0.02)
            yield from _dense(f"blocks-{i}-out", w, w, deep)
            yield from _norm(f"blocks-{i}-norm2", w)
            yield from _dense(f"blocks-{i}-up", w, 4 * w, 0.02)
            yield from _dense(f"blocks-{i}-down", 4 * w, w, deep)
        yield from _norm("norm", w)

    def batch(self, random: np.random.Generator, batch: int) -> tuple[Any, ...]:
        """Draw token ids and next-token labels, both [batch, length]."""
        text = random.integers(0, self.words, (batch, self.length + 1), np.int32)
        return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])


@dataclass(frozen=True)
class ResNet50:
    image: int = 224
    classes: int = 1000
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    batches: tuple[int, ...] = (128, 256)
    rate: float = 0.01
    momentum: float = 0.9
    decay: float = 1e-4

    def items(self, batch: int) -> int:
        """Return images per step."""
        return batch

    def stages(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield name, input channels, inner width and stride of each block."""
        channels = self.width
        for stage, count in enumerate(self.blocks):
            for index in range(count):
                yield f"stages-{stage}-{index}", channels, self.width << stage, 2 if stage and not index else 1
                channels = 4 * (self.width << stage)

    def parameters(self) -> Iterator[tuple[str, tuple[int, ...], float]]:
        yield from _convolution("conv", 3, self.width, 7)
        yield from _norm("bn", self.width)
        channels = self.width
        for name, channels, width, stride in self.stages():
            if stride > 1 or channels != 4 * width:
                yield from _convolution(f"{name}-shortcut", channels, 4 * width, 1)
                yield from _norm(f"{name}-shortcut_bn", 4 * width)
            for k, (inputs, outputs, side) in enumerate(((channels, width, 1), (width, width, 3), (width, 4 * width, 1)), 1):
                yield from _convolution(f"{name}-conv{k}", inputs, outputs, side)
                yield from _norm(f"{name}-bn{k}", outputs)
            channels = 4 * width
        yield from _dense("classes", channels, self.classes, 0.01)

    def batch(self, random: np.random.Generator, batch: int) -> tuple[Any, ...]:
        """Draw images [batch, 3, image, image] and labels [batch]."""
        images = random.standard_normal((batch, 3, self.image, self.image), np.float32)
        return images, random.integers(0, self.classes, batch, np.int32)


def _dense(name: str, inputs: int, outputs: int, deviation: float) -> Iterator[tuple[str, tuple[int, ...], float]]:
    yield f"{name}-weight", (outputs, inputs), deviation
    yield f"{name}-bias", (outputs,), 0.0


def _convolution(name: str, inputs: int, outputs: int, side: int) -> Iterator[tuple[str, tuple[int, ...], float]]:
    yield f"{name}-weight", (outputs, inputs, side, side), (2 / (outputs * side * side)) ** 0.5


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...], float]]:
    yield f"{name}-gamma", (width,), 0.0
    yield f"{name}-beta", (width,), 0.0


#: for tests and for runs without a GPU
SMALL = {
    "gpt2": Gpt2(words=512, length=32, width=64, heads=4, blocks=2, batches=(2, 4)),
    "resnet50": ResNet50(image=64, classes=10, width=16, blocks=(1, 1, 1, 1), batches=(8, 16), rate=0.002),
}
FULL = {"gpt2": Gpt2(), "resnet50": ResNet50()}


def sizes(small: bool) -> dict[str, Any]:
    return SMALL if small else FULL


def weights(size: Gpt2 | ResNet50) -> dict[str, Any]:
    """Return the initial float32 weights by variable name."""
    values = {}
    for name, shape, deviation in size.parameters():
        if deviation:
            random = np.random.default_rng(zlib.crc32(name.encode()))
            values[name] = random.standard_normal(shape, np.float32) * np.float32(deviation)
        else:
            values[name] = np.full(shape, float(name.endswith("-gamma")), np.float32)
    return values


def batches(size: Gpt2 | ResNet50, batch: int) -> list[tuple[Any, ...]]:
    random = np.random.default_rng(7)
    return [size.batch(random, batch) for _ in range(BATCHES)]
