"""Jobs whose planned memory is compared with their allocations, and a counter of allocations."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import gpt
import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.models import lenet, mlp
from jobflow.runtime.device.numpy_device import ALIGNMENT, aligned_zeros
from jobflow.runtime.world.world import Rank

SIZE = gpt.Size(batch=8, length=32, width=64, blocks=2)
IMAGES, LABELS = np.ones((8, 1, 28, 28), np.float32), np.arange(8, dtype=np.int32) % 10
WORDS = np.arange(8 * 32, dtype=np.int32).reshape(8, 32) % 256


def image_job(model: Callable[[Any, Any], Any]) -> Callable[[Any, str], Any]:
    def make(strategy: Any, precision: str) -> Any:
        config = flow.function_config()
        config.strategy(strategy)
        if precision == "bfloat16":
            config.mixed_precision(flow.bfloat16)

        @flow.global_function("train", config)
        def train(x: tp.Numpy.Placeholder(IMAGES.shape), y: tp.Numpy.Placeholder(LABELS.shape, dtype=flow.int32)) -> tp.Numpy:
            loss = model(x, y)["loss"]
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
            return loss

        return train

    return make


MODELS: dict[str, tuple[Callable[[Any, str], Any], tuple[Any, ...]]] = {
    "gpt": (lambda strategy, _: gpt.make_train_job(SIZE, strategy=strategy), (WORDS, WORDS)),
    "lenet": (image_job(lambda x, y: lenet(x, y, filters=(8, 16), hidden=64)), (IMAGES, LABELS)),
    "mlp": (image_job(mlp), (IMAGES, LABELS)),
}


class CountedZeros:
    """A replacement of `aligned_zeros` that lists the memory it has allocated."""

    def __init__(self) -> None:
        self._allocated: list[weakref.ref[Any]] = []

    def __call__(self, nbytes: int, alignment: int = ALIGNMENT) -> Any:
        array = aligned_zeros(nbytes, alignment)
        self._allocated.append(weakref.ref(array.base))
        return array

    def alive(self) -> int:
        """The bytes in use."""
        return sum(array.nbytes for reference in self._allocated if (array := reference()) is not None)


COUNTED = CountedZeros()


def allocated_in_windows(rank: Rank, _: None) -> int:
    """Return the bytes of a rank that is a process: its own memory, and its parts of shared windows."""
    gc.collect()
    windows = rank.comm._windows  # type: ignore[attr-defined]
    return COUNTED.alive() + (0 if windows is None else int(windows.total))
