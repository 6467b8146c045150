"""Planned memory is what ranks allocate: variables, buffers, staging of collectives, scratch of kernels, windows."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gpt
import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.allocation import allocation
from jobflow.engine.binding import Loaded, StorageChoice
from jobflow.engine.session import current_session
from jobflow.models import lenet, mlp
from jobflow.runtime.device import numpy_device
from jobflow.runtime.device.numpy_device import ALIGNMENT, aligned_zeros
from jobflow.runtime.world import threads

#: planned memory may exceed allocated memory by so much: bytes, and a part of it
SLACK, PART = 1 << 20, 0.05
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
#: model, ranks, strategy, precision: each value of each at least once
CASES = [
    ("mlp", 1, "dp", "float32"),
    ("lenet", 2, "dp", "float32"),
    ("mlp", 3, "dp", "bfloat16"),
    ("gpt", 4, "2x2", "float32"),
    ("gpt", 2, "zero3", "float32"),
    ("gpt", 2, "pp", "float32"),
    ("lenet", 4, "zero1", "bfloat16"),
]
STRATEGIES = ("dp", "tp", "pp", "zero1", "zero2", "zero3")


def every_case() -> Iterator[Any]:
    yield from CASES
    for case in itertools.product(MODELS, (1, 2, 3, 4), STRATEGIES, ("float32", "bfloat16")):
        if case not in CASES and not (case[2] == "pp" and case[0] != "gpt"):
            yield pytest.param(*case, marks=pytest.mark.full)


def planned_bytes(ranks: int) -> int:
    """Of the job that the session has compiled, over all ranks; what they have in common counts once."""
    session = current_session()
    (compiled,) = session._compiled.values()
    storage = StorageChoice(share=True, io_buffers=True)
    figures = [allocation(Loaded(program, storage, session.target()), rank, ranks) for rank, program in enumerate(compiled.programs)]
    assert all(figure is not None for figure in figures)
    return sum(figure.total for figure in figures if figure) - (ranks - 1) * figures[0].common  # type: ignore[union-attr]


class CountedZeros:
    """`aligned_zeros`, with a list of the memory that it has allocated."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []

    def __call__(self, nbytes: int, alignment: int = ALIGNMENT) -> Any:
        array = aligned_zeros(nbytes, alignment)
        self._made.append(weakref.ref(array.base))
        return array

    def alive(self) -> int:
        """The bytes that are still used."""
        return sum(array.nbytes for reference in self._made if (array := reference()) is not None)


@pytest.mark.parametrize(("model", "ranks", "strategy", "precision"), list(every_case()))
@pytest.mark.usefixtures("fresh")
def test_threads_allocate_what_is_planned(model: str, ranks: int, strategy: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedZeros()
    for module in (numpy_device, threads):
        monkeypatch.setattr(module, "aligned_zeros", counted)
    flow.config.cpu_device_num(ranks)
    make, batch = MODELS[model]
    train = make(flow.strategies.named(strategy), precision)
    for _ in range(2):
        train(*batch)
    gc.collect()
    allocated = counted.alive()
    planned = planned_bytes(ranks)
    assert allocated <= planned <= allocated + max(SLACK, PART * allocated), (allocated, planned)
