"""Trains as two clients that read their own rows; then passes what differs, and then what cannot be: `sharded.py FOLDER` under mpiexec."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.types import float32, int32
from jobflow.data import Batches, Field, Order, Samples
from jobflow.runtime.world.launched import launched

COUNT, SIZE, REST = 20, 8, 4


class Noted(Samples):
    """Drawn samples; which rows of which fields were read is noted."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__({"images": Field((6,), float32), "labels": Field((), int32)}, COUNT)
        self.images = np.random.RandomState(0).rand(COUNT, 6).astype(np.float32)
        self.labels = np.arange(COUNT, dtype=np.int32) % classes
        self.read_rows: dict[str, list[tuple[int, int]]] = {"images": [], "labels": []}

    def rows(self, rows: np.ndarray[Any, Any], epoch: int, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        for name in names:
            self.read_rows[name].extend((epoch, number) for number in rows.tolist())
        return {name: getattr(self, name)[rows] for name in names}


def train_job(rows: int, name: str = "train") -> Any:
    def train(images: tp.Numpy.Placeholder((rows, 6)), labels: tp.Numpy.Placeholder((rows,), dtype=flow.int32)) -> tp.Numpy:
        logits = flow.layers.dense(images, 3, kernel_initializer=flow.truncated_normal(0.1), name="fc")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0.9).minimize(loss)
        return loss

    train.__name__ = f"{name}_{rows}"
    return flow.global_function(type="train")(train)


def losses_of(jobs: dict[int, Any], samples: Samples, seed: int = 3, epochs: int = 2) -> list[list[float]]:
    with Batches(samples, Order(seed, len(samples)), SIZE).start(epochs=epochs) as reading:
        return [jobs[batch.size](*batch.arguments.values()).tolist() for batch in reading]


def main(folder: Path) -> None:
    started = launched()
    assert started is not None
    flow.env.client("multi")
    flow.config.cpu_device_num(started.size)
    jobs = {rows: train_job(rows) for rows in (SIZE, REST)}
    samples = Noted()
    result = {"losses": losses_of(jobs, samples), "rows": samples.read_rows}
    (folder / f"rank{started.rank}.json").write_text(json.dumps(result))
    try:
        losses_of({SIZE: train_job(SIZE, "other")}, Noted(), seed=started.rank)
    except flow.ArgumentError as error:
        (folder / f"differs{started.rank}").write_text(str(error))
    wrong = Noted()
    wrong.labels[Order(3, COUNT).indices(0, 4, 5)] = 7  # in the part of rank 1
    losses_of(jobs, wrong)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
