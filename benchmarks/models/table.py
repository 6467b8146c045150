"""Which models there are: what makes each, its batch, and its optimizers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Training:
    """One optimizer: its class, the loss it makes small, and the part of the module whose parameters it changes."""

    optimizer: str
    options: Mapping[str, Any]
    loss: str = "forward"
    part: str = ""


@dataclass(frozen=True)
class Row:
    """A model by its class and file."""

    module: str
    trainings: Sequence[Training]
    batch: Callable[[np.random.RandomState], Sequence[Array]]

    @property
    def file_and_class(self) -> tuple[str, str]:
        """The module of Python, and the name in it."""
        file, name = self.module.split(".")
        return f"models.{file}", name


def _sgd() -> tuple[Training, ...]:
    return (Training("SGD", {"lr": 0.05, "momentum": 0.9}),)


def _adam(kind: str = "Adam") -> tuple[Training, ...]:
    return (Training(kind, {"lr": 1e-3} | ({"weight_decay": 0.01} if kind == "AdamW" else {})),)


def _images(*shape: int, classes: int = 10) -> Callable[[np.random.RandomState], Sequence[Array]]:
    return lambda r: (_random_values(r, *shape), r.randint(0, classes, shape[0]))


def _random_values(r: np.random.RandomState, *shape: int) -> Array:
    return r.standard_normal(shape).astype(np.float32)


def _often(r: np.random.RandomState, size: int, *shape: int) -> Array:
    """Numbers below `size` of which few come often, as words and things do."""
    return np.minimum(size * r.random_sample(shape) ** 3, size - 1).astype(np.int64)


def _words(r: np.random.RandomState, size: int, batch: int, length: int) -> Sequence[Array]:
    words = _often(r, size, batch, length + 1)
    return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])


def _truths(r: np.random.RandomState, rows: int) -> Array:
    return r.randint(0, 2, (rows, 1)).astype(np.float32)


_OF_PAIR = {"lr": 2e-4, "betas": (0.5, 0.999)}

ROWS: dict[str, Row] = {
    "residual": Row("convolutional.Residual", _sgd(), _images(32, 3, 32, 32)),
    "depthwise": Row("convolutional.Depthwise", _adam("AdamW"), _images(32, 3, 32, 32)),
    "u_shaped": Row("convolutional.UShaped", _adam(), lambda r: (_random_values(r, 4, 3, 64, 64), r.randint(0, 4, (4, 64, 64)))),
    "autoencoder": Row("convolutional.Autoencoder", _adam(), lambda r: (r.random_sample((64, 1, 28, 28)).astype(np.float32),)),
    "super_resolution": Row("convolutional.SuperResolution", _adam(), lambda r: (_random_values(r, 8, 1, 32, 32), _random_values(r, 8, 1, 64, 64))),
    "gan_pair": Row(
        "convolutional.Pair",
        (Training("Adam", _OF_PAIR, "judging", "critic"), Training("Adam", _OF_PAIR, "making", "generator")),
        lambda r: (np.tanh(_random_values(r, 32, 1, 28, 28)), _random_values(r, 32, 32)),
    ),
    "joined": Row("convolutional.Joined", _adam("AdamW"), _images(16, 3, 28, 28)),
    "dilated": Row("sequences.Dilated", _adam(), lambda r: (_random_values(r, 16, 4, 128), _random_values(r, 16, 4, 128))),
    "encoder": Row("sequences.Encoder", _adam("AdamW"), lambda r: (_often(r, 5000, 16, 64), r.randint(0, 5, 16))),
    "decoder": Row("sequences.Decoder", _adam("AdamW"), lambda r: _words(r, 1000, 8, 64)),
    "mixer": Row("sequences.Mixer", _adam(), _images(16, 3, 35, 35, classes=11)),
    "experts": Row("sequences.Experts", _adam(), _images(256, 40, classes=8)),
    "text_convolution": Row("sequences.TextConvolution", _adam(), lambda r: (_often(r, 20000, 32, 50), r.randint(0, 2, 32))),
    "translator": Row("sequences.Translator", _adam(), lambda r: (_often(r, 2000, 12, 45), *_words(r, 1500, 12, 37))),
    "messages": Row(
        "records.Messages", _adam(), lambda r: (_random_values(r, 600, 24), r.randint(0, 600, 2500), r.randint(0, 600, 2500), r.randint(0, 7, 600))
    ),
    "tabular": Row("records.Tabular", _sgd(), lambda r: (_random_values(r, 256, 50), _random_values(r, 256, 1))),
    "recommendation": Row(
        "records.Recommendation", _adam(), lambda r: (_often(r, 20000, 256), _often(r, 10000, 256), r.randint(0, 50, 256), _truths(r, 256))
    ),
    "interactions": Row(
        "records.Interactions",
        (Training("Adagrad", {"lr": 0.01}),),
        lambda r: (_random_values(r, 256, 13), np.stack([_often(r, n, 256) for n in (30000, 10000, 5000, 1000, 100, 10)], 1), _truths(r, 256)),
    ),
    "siamese": Row(
        "records.Siamese", (Training("SGD", {"lr": 0.01, "momentum": 0.9}),), lambda r: tuple(_random_values(r, 16, 1, 28, 28) for _ in range(3))
    ),
}


def batch(name: str) -> Sequence[Array]:
    """The one batch of a model."""
    return ROWS[name].batch(np.random.RandomState(11))


def first_value(name: str, shape: tuple[int, ...]) -> Array:
    """Return the initial value of a parameter by its name and shape.

    Vectors are ones or zeros; others are normal numbers over the root of the number of summands.
    """
    if len(shape) < 2:
        return np.full(shape, 1.0 if name.endswith("weight") and shape != (1,) else 0.25 if shape == (1,) else 0.0, np.float32)
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return (random.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float32)
