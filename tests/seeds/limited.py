"""Run unmodified programs one after another on a few batches: `limited.py BATCHES PROGRAM...`.

`data.load_mnist` serves that many batches, once. After `limited.py exact DEVICES`, `flow.float` means float64, and DEVICES
replaces the number of devices of a program. Then each program prints a line with its name and the sizes of its variables.
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

exact = sys.argv[1] == "exact"
devices = int(sys.argv[2]) if exact else 0
batches, *programs = sys.argv[3 if exact else 1 :]


def batches_of(size: int, data_format: str) -> tuple[Iterator[Any], Iterator[Any]]:
    images, labels = expanded(*originals(), int(batches) * size, seed=0)
    shape = (-1, size, 1, 28, 28) if data_format == "NCHW" else (-1, size, 28, 28, 1)
    return iter((images / np.float32(255)).reshape(shape)), iter(labels.astype(np.int32).reshape(-1, size))


def few(train_batch_size: int = 100, test_batch_size: int = 100, data_format: str = "NCHW") -> Any:
    return batches_of(train_batch_size, data_format), batches_of(test_batch_size, data_format)


class LimitedConfig:
    """`flow.config`, whose number of devices has been decided already."""

    def __getattr__(self, name: str) -> Any:
        return (lambda count: None) if name == "gpu_device_num" else getattr(config, name)


config = flow.config
flow.data.load_mnist = few
if exact:
    flow.float = flow.float64
    flow.config = LimitedConfig()  # type: ignore[assignment]
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # where mnist_util is
for program in programs:
    if exact:
        config.gpu_device_num(devices)
    runpy.run_path(program, run_name="__main__")
    if exact:
        print(Path(program).stem, {name: float(np.abs(value.numpy()).sum()) for name, value in flow.get_all_variables().items()}, flush=True)
    flow.clear_default_session()
