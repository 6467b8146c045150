"""Run a program as its author would, on a few batches: `limited.py PROGRAM BATCHES [float64 [DEVICES]]`.

`data.load_mnist` serves that many batches, once.  With float64, `flow.float` means that, and DEVICES takes the place of the number
of devices that the program asks for.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
from jobflow.data.digits import expanded, originals

program, batches = sys.argv[1], int(sys.argv[2])


def batches_of(size: int, data_format: str) -> tuple[Iterator[Any], Iterator[Any]]:
    images, labels = expanded(*originals(), batches * size, seed=0)
    shape = (batches, size, 1, 28, 28) if data_format == "NCHW" else (batches, size, 28, 28, 1)
    return iter((images / np.float32(255)).reshape(shape)), iter(labels.astype(np.int32).reshape(batches, size))


def few(train_batch_size: int = 100, test_batch_size: int = 100, data_format: str = "NCHW") -> Any:
    return batches_of(train_batch_size, data_format), batches_of(test_batch_size, data_format)


class Asked:
    """`flow.config`, whose number of devices has been decided already."""

    def __getattr__(self, name: str) -> Any:
        return (lambda count: None) if name == "gpu_device_num" else getattr(config, name)


config = flow.config
flow.data.load_mnist = few
if sys.argv[3:4] == ["float64"]:
    flow.float = flow.float64
if len(sys.argv) > 4:
    config.gpu_device_num(int(sys.argv[4]))
    flow.config = Asked()  # type: ignore[assignment]
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # where mnist_util is
runpy.run_path(program, run_name="__main__")
