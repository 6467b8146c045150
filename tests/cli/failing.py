"""Builders and samples with mistakes; tests name them by their lines."""

from __future__ import annotations

from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp


def plain(images: Any, labels: Any = None) -> dict[str, Any]:
    scores = flow.layers.dense(flow.reshape(images, [images.shape[0], -1]), 10, name="scores")
    if labels is None:
        return {"scores": scores}
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)}


def deep(images: Any, labels: Any = None) -> dict[str, Any]:
    return wrong(plain(images, labels))


def wrong(outputs: dict[str, Any]) -> dict[str, Any]:
    return {"loss": outputs["lss"]}  # line of deep


def forgetful(images: Any, labels: Any = None) -> None:
    plain(images, labels)


def numpys(images: Any, labels: Any = None) -> dict[str, Any]:
    return plain(np.exp(images), labels)  # line of numpys


def floats(images: Any, labels: Any = None) -> dict[str, Any]:
    return plain(images * float(images), labels)  # line of floats


def asks(images: Any, labels: Any = None) -> dict[str, Any]:
    if images > 0:  # line of asks
        return plain(images, labels)
    return {}


def counts(images: Any, labels: Any = None) -> dict[str, Any]:
    return plain(flow.reshape(images, [50, 64]), labels)  # line of counts


def watches(images: Any, labels: Any = None) -> dict[str, Any]:
    flow.watch(images, on_images)
    return plain(images, labels)


def on_images(images: tp.Numpy) -> None:
    raise LookupError("nobody there")  # line of watches


class Torn:
    """A data set of 200 samples, one of which cannot be read or has an invalid label."""

    def __init__(self, torn: int | None, label: int | None) -> None:
        self.torn, self.label = torn, label

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == self.torn:
            raise ArithmeticError("the file is torn")  # line of torn
        return {"images": np.zeros((1, 8, 8), np.float32), "labels": np.int32(10 if number == self.label else number % 10)}


def torn(at: int | None = None, label: int | None = None) -> Torn:
    return Torn(at, label)


def stream(epoch: int) -> Any:
    for number in range(200):
        if number == 60:
            raise ArithmeticError("the line is torn")  # line of stream
        yield {"images": np.zeros((1, 8, 8), np.float32), "labels": np.int32(number % 10)}
