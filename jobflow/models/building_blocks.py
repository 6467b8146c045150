"""Components shared by the models: image input, and the loss of a classifier."""

from __future__ import annotations

from typing import TypeAlias

import jobflow.legacy.math as math
import jobflow.nn as nn
from jobflow.core.errors import ShapeError, user_line
from jobflow.core.types import Tensor, float32, int32
from jobflow.legacy.arrays import cast, expand_dims, reshape
from jobflow.legacy.initializers import Initializer, variance_scaling_initializer

#: Result of a builder: tensors by name.
Outputs: TypeAlias = dict[str, Tensor]


def he() -> Initializer:
    """Return an initializer that preserves the variance of a layer's inputs after a relu (He et al., 2015)."""
    return variance_scaling_initializer(2.0, "fan_in", "random_normal", "NCHW")


def pictures(images: Tensor, what: str) -> Tensor:
    """Return images, with or without a channel axis, as float32 [n, channels, height, width].

    Integers are scaled from 0..255 to 0..1; floats are unchanged.
    """
    if images.tensor_type.ndim == 3:
        images = expand_dims(images, 1)
    if images.tensor_type.ndim != 4:
        raise ShapeError(
            f"{what} at {user_line()}: images {images.tensor_type} must have 3 axes, [n, height, width], or 4, [n, channels, height, width]"
        )
    return numbers(images)


def numbers(x: Tensor) -> Tensor:
    """Return x as float32; integers are scaled from 0..255 to 0..1, and floats are unchanged."""
    return cast(x, float32) if x.tensor_type.dtype.is_float else math.multiply(cast(x, float32), 1 / 255)


def rows(x: Tensor) -> Tensor:
    """Return x [n, ...] as a matrix [n, features], with all axes after the first flattened."""
    return reshape(x, [x.tensor_type.shape[0], -1])


def classified(scores: Tensor, labels: Tensor | None) -> Outputs:
    """Return loss [n] and accuracy [n] for scores [n, classes] and labels [n]; without labels, return the scores.

    The loss is the softmax cross entropy in nats.  The accuracy of a sample is 1 or 0.
    """
    if labels is None:
        return {"scores": scores}
    labels = cast(labels, int32)
    loss = nn.sparse_softmax_cross_entropy_with_logits(labels, scores, name="loss")
    return {"loss": loss, "accuracy": cast(math.equal(math.argmax(scores), labels), float32)}
