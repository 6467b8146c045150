"""A program in which rank 1 fails while rank 0 continues: `first_cause.py CASE DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow import distributed
from jobflow.cli import main
from jobflow.core.errors import DataError

#: of batches of 16, rank 1 reads the second half
BAD = 60
CONFIG = """
output: {output}
data:
  train: {{reader: python, function: "first_cause:pictures", arguments: {{kind: {kind}}}}}
  batch_size: 16
  shuffle: false
  prefetch: {prefetch}
model: {{builder: "first_cause:model"}}
optimizer: {{name: sgd, lr: 0.1}}
training: {{epochs: 3}}
checkpoint: {{every_steps: 1, asynchronous: true}}
logging: {{progress: none}}
"""


class Pictures:
    def __init__(self, kind: str) -> None:
        self.kind = {"value": ValueError, "data": DataError}[kind]

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == BAD:
            raise self.kind(f"picture {number} cannot be read")
        return {"x": np.full(4, number, np.float32), "y": np.int32(number % 3)}


def pictures(kind: str) -> Pictures:
    return Pictures(kind)


def model(x: Any, y: Any) -> dict[str, Any]:
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.layers.dense(x, 3, name="scores"))}


def train(directory: str, kind: str, prefetch: int) -> int:
    own, file = Path(directory, f"{distributed.get_rank()}.yaml"), Path(directory, "run.yaml")
    own.write_text(CONFIG.format(output=Path(directory) / "out", kind=kind, prefetch=prefetch))
    own.replace(file)
    return main(["train", str(file)])


def loop(last: str) -> None:
    """Train in a loop whose `finally` block calls a collective."""
    flow.env.client("multi")
    x = flow.ones(4, 4, placement=flow.placement("cpu", ranks=[0, 1]), sbp=flow.sbp.split(0))

    @flow.global_function()
    def total(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:
        return flow.math.reduce_sum(x * 2.0)

    @flow.global_function()
    def mean(x: tp.Numpy.Placeholder((8,))) -> tp.Numpy:
        return flow.math.reduce_mean(x * 3.0)

    endings = {"numpy": lambda: (x * 2).sum().numpy(), "job": lambda: mean(np.ones(8, np.float32))}
    for _ in range(5):  # clients compare the arguments of the first calls
        total(np.ones(8, np.float32)), mean(np.ones(8, np.float32))
    try:
        for step in range(50):
            if step == 7 and distributed.get_rank() == 1:
                raise ValueError(f"picture {BAD} cannot be read")
            total(np.ones(8, np.float32))
            assert x.sum().numpy() == 16
    finally:
        endings[last]()


if __name__ == "__main__":
    case, directory = sys.argv[1:]
    name, *words = case.split(":")
    sys.exit(train(directory, words[0], int(words[1])) if name == "train" else loop(*words))
