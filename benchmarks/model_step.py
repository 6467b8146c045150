"""Training steps of a model of `models/` on order: `python model_step.py MODEL`, on the library that BENCHMARK_LIBRARY names.

PyTorch runs eagerly. jobflow runs the same eager step, an `nn.Graph` for each loss, or the eager step by `flow.compile`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

START = time.perf_counter()
sys.path.insert(0, str(Path(__file__).parent))

from models.library import flow, nn  # noqa: E402 - its import is timed

IMPORTED = time.perf_counter() - START

import worker  # noqa: E402
from models import table  # noqa: E402

TORCH = os.environ.get("BENCHMARK_LIBRARY") == "torch"


def build(row: table.Row) -> Any:
    """Return the module with its initial values."""
    file, name = row.file_and_class
    module = getattr(import_module(file), name)()
    with flow.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(flow.tensor(table.first_value(key, tuple(parameter.shape))))
    return module


def training_step(module: Any, training: table.Training, mode: str) -> Callable[..., Any]:
    """Return a function of a batch that makes one whole step: forward, loss, backward, update."""
    part = getattr(module, training.part) if training.part else module
    optimizer = getattr(flow.optim, training.optimizer)(part.parameters(), **training.options)
    loss_of = getattr(module, training.loss)
    if mode == "graph":
        return _graph(module, optimizer, training.loss)

    def step(*batch: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return flow.compile(step) if mode == "compile" else step


def _graph(module: Any, optimizer: Any, loss_of: str) -> Callable[..., Any]:
    class TrainGraph(nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.add_optimizer(optimizer)

        def build(self, *batch: Any) -> Any:
            loss = getattr(self.module, loss_of)(*batch)
            loss.backward()
            return loss

    return TrainGraph()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=table.ROWS)
    parser.add_argument("--mode", choices=("eager", "graph", "compile"), default="eager")
    parser.add_argument("--kernels", default="auto", help="the tier of jobflow's kernels")
    options = parser.parse_args()
    if TORCH:
        flow.set_num_threads(1)
    else:
        flow.config.kernels(options.kernels)
    row = table.ROWS[options.model]
    module = build(row)
    batch = [flow.tensor(np.ascontiguousarray(part)) for part in table.batch(options.model)]
    steps = [training_step(module, training, options.mode) for training in row.trainings]

    def step() -> Any:
        losses = [one(*batch) for one in steps]
        return losses

    def loss_of(losses: Any) -> float:
        return float(sum(loss.item() for loss in losses))

    start = time.perf_counter()
    first_loss = loss_of(step())
    first_step = time.perf_counter() - start

    def facts() -> dict[str, Any]:
        return {"version": flow.__version__, "import_s": IMPORTED, "first_step_s": first_step, "first_loss": first_loss}

    worker.serve(step, loss_of, facts)


if __name__ == "__main__":
    main()
