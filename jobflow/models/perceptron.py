"""A multilayer perceptron, whose layers may be split over the devices."""

from __future__ import annotations

from collections.abc import Sequence

import jobflow.engine.distribute as distribute
import jobflow.legacy.layers as layers
import jobflow.nn as nn
from jobflow.core.errors import ArgumentError, did_you_mean, user_line
from jobflow.core.types import Tensor
from jobflow.models.building_blocks import Outputs, classified, he, numbers, rows


def _names(hidden: Sequence[int], split: Sequence[str]) -> list[str]:
    """Return the layer names hidden1, hidden2 ..., classes; raise ArgumentError if `split` contains another name."""
    names = [*(f"hidden{index}" for index in range(1, len(hidden) + 1)), "classes"]
    for name in split:
        if name not in names:
            near = did_you_mean(name, names) or "."
            raise ArgumentError(f'mlp at {user_line()}: split names an unknown layer "{name}"{near} The layers are {", ".join(names)}')
    return names


def mlp(images: Tensor, labels: Tensor | None = None, *, classes: int = 10, hidden: Sequence[int] = (512,), split: Sequence[str] = ()) -> Outputs:
    """Build a multilayer perceptron over the flattened images, with layers named hidden1, hidden2 ... and classes.

    The layers in `split` are model parallel: a device computes some of their units.  The strategy determines the layout of the other layers.
    """
    x = rows(numbers(images))
    for name, units in zip(_names(hidden, split), (*hidden, classes), strict=True):
        layout = distribute.split(0) if name in split else distribute.broadcast()
        activation = None if name == "classes" else nn.relu
        x = layers.dense(x, units, activation=activation, kernel_initializer=he(), model_distribute=layout, name=name)
    return classified(x, labels)
