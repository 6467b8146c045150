"""The three benchmark models as numbers: shapes, first weights, one batch, and the matrix products of one training step.

Both sides of a comparison build their model from this file, so they start from the same values and do the same work.
Names of weights are those of jobflow's variables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MODELS = ("mlp", "lenet", "gpt")

BATCH = 100
HIDDEN = 512
CLASSES = 10
LENET_RATE = 0.5
SGD_RATE = 0.1

GPT_BATCH, GPT_LENGTH, GPT_WIDTH, GPT_HEADS, GPT_BLOCKS, GPT_WORDS = 8, 128, 256, 4, 4, 256
ADAMW_RATE, ADAMW_DECAY = 3e-4, 0.1


@dataclass(frozen=True)
class Gemm:
    """`count` products of `batch` pairs [m,k] @ [k,n] in one training step."""

    m: int
    k: int
    n: int
    count: int = 1
    batch: int = 1


def divide(parts: int) -> None:
    """Let every batch from here on be the `parts`-th part of what it was."""
    global BATCH, GPT_BATCH
    BATCH, GPT_BATCH = BATCH // parts, GPT_BATCH // parts


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """The trainable variables of a model."""
    return {"mlp": _mlp_shapes, "lenet": _lenet_shapes, "gpt": _gpt_shapes}[model]()


def _dense(name: str, units: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}-weight": (units, inputs), f"{name}-bias": (units,)}


def _mlp_shapes() -> dict[str, tuple[int, ...]]:
    return _dense("hidden", HIDDEN, 784) | _dense("output", CLASSES, HIDDEN)


def _lenet_shapes() -> dict[str, tuple[int, ...]]:
    convolutions = {"conv1-weight": (32, 1, 5, 5), "conv1-bias": (32,), "conv2-weight": (64, 32, 5, 5), "conv2-bias": (64,)}
    return convolutions | _dense("hidden", HIDDEN, 64 * 7 * 7) | _dense("outlayer", CLASSES, HIDDEN)


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}-gamma": (GPT_WIDTH,), f"{name}-beta": (GPT_WIDTH,)}


def _gpt_shapes() -> dict[str, tuple[int, ...]]:
    d = GPT_WIDTH
    shapes: dict[str, tuple[int, ...]] = {"words": (GPT_WORDS, d), "positions": (GPT_LENGTH, d)}
    for block in (f"block{i}" for i in range(GPT_BLOCKS)):
        shapes |= _norm(f"{block}-norm1") | _dense(f"{block}-qkv", 3 * d, d) | _dense(f"{block}-out", d, d)
        shapes |= _norm(f"{block}-norm2") | _dense(f"{block}-up", 4 * d, d) | _dense(f"{block}-down", d, 4 * d)
    return shapes | _norm("norm") | _dense("head", GPT_WORDS, d)


def weights(model: str, dtype: Any = np.float32) -> dict[str, Array]:
    """First values: ones for gamma, zeros for biases, small normal numbers for the rest."""
    random = np.random.RandomState(7)
    result: dict[str, Array] = {}
    for name, shape in shapes(model).items():
        if name.endswith("gamma"):
            value = np.ones(shape)
        elif name.endswith(("bias", "beta")):
            value = np.zeros(shape)
        else:
            value = random.standard_normal(shape) * (0.02 if model == "gpt" else 1 / math.sqrt(math.prod(shape[1:])))
        result[name] = value.astype(dtype)
    return result


def batch(model: str, dtype: Any = np.float32) -> tuple[Array, Array]:
    """One batch: images and labels, or words and the words after them."""
    random = np.random.RandomState(11)
    if model == "gpt":
        words = random.randint(0, GPT_WORDS, (GPT_BATCH, GPT_LENGTH + 1)).astype(np.int32)
        return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])
    labels = random.randint(0, CLASSES, BATCH).astype(np.int32)
    images = random.random_sample((BATCH, 1, 28, 28)) * 0.5 + labels[:, None, None, None] * 0.05
    return images.astype(dtype), labels


def _linear(rows: int, inputs: int, units: int, first: bool = False) -> list[Gemm]:
    """Forward, gradient of the weights and, unless it is the first layer, gradient of the input."""
    products = [Gemm(rows, inputs, units), Gemm(units, rows, inputs)]
    return products if first else [*products, Gemm(rows, units, inputs)]


def gemms(model: str) -> list[Gemm]:
    """The matrix products that a training step cannot do without (convolutions as direct products over their windows)."""
    if model == "mlp":
        return _linear(BATCH, 784, HIDDEN, first=True) + _linear(BATCH, HIDDEN, CLASSES)
    if model == "lenet":
        convolutions = _linear(BATCH * 28 * 28, 25, 32, first=True) + _linear(BATCH * 14 * 14, 32 * 25, 64)
        return convolutions + _linear(BATCH, 64 * 7 * 7, HIDDEN) + _linear(BATCH, HIDDEN, CLASSES)
    rows, d, t, each = GPT_BATCH * GPT_LENGTH, GPT_WIDTH, GPT_LENGTH, GPT_WIDTH // GPT_HEADS
    block = _linear(rows, d, 3 * d) + _linear(rows, d, d) + _linear(rows, d, 4 * d) + _linear(rows, 4 * d, d)
    pairs = GPT_BATCH * GPT_HEADS
    attention = [Gemm(t, each, t, 2, pairs), Gemm(t, t, each, 4, pairs)]  # scores and their gradient; context, dV, dQ, dK
    return [Gemm(g.m, g.k, g.n, GPT_BLOCKS * g.count, g.batch) for g in block + attention] + _linear(rows, d, GPT_WORDS)
