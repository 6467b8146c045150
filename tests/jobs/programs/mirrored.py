"""Mirrored train jobs whose devices have different numbers of rows, and an existing checkpoint path: `python mirrored.py FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn

STEPS = 3


class Buffered(nn.Module):
    """A layer with a buffer of floats and one of integers, both computed from the rows of a device."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)
        self.register_buffer("average", flow.zeros(6))
        self.register_buffer("samples", flow.zeros((), dtype=flow.int64))

    def forward(self, x: Any) -> Any:
        self.average = 0.9 * self.average + 0.1 * x.mean(0)
        self.samples = self.samples + x.shape[0]
        return self.out(x)


def legacy(x: Any) -> Any:
    hidden = flow.layers.dense(x, 5, kernel_initializer=flow.ones_initializer(), name="hidden")
    hidden = flow.layers.batch_normalization(hidden, axis=1, name="norm")
    return flow.layers.dense(hidden, 4, kernel_initializer=flow.random_uniform_initializer(), name="out")


def convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.GELU(), nn.MaxPool2d((1, 2)), nn.Flatten(), nn.Linear(3, 4))


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(6, 4),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)),
    "layer norm": lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4)),
    "convolution": convolution,
    "buffers": Buffered,
    "legacy batch norm": lambda: legacy,
}


def train_job(model: Any, reduction: str, microbatches: int = 1) -> Any:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    config.train.num_gradient_accumulation_steps(microbatches)

    @flow.global_function("train", config)
    def train(x: tp.ListNumpy.Placeholder((8, 6)), y: tp.ListNumpy.Placeholder((8,), dtype=flow.int32)) -> tp.ListNumpy:  # type: ignore[valid-type]
        loss = nn.CrossEntropyLoss(reduction=reduction)(model(x), y)
        clipping = flow.optimizer.grad_clipping.by_global_norm(1.0)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9, grad_clipping=clipping).minimize(loss)
        return loss

    return train


def batch(lengths: tuple[int, ...]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return rows that do not depend on their division."""
    rows = sum(lengths)
    x, y = np.random.default_rng(0).random((rows, 6), np.float32), (np.arange(rows) % 4).astype(np.int32)
    ends = np.cumsum(lengths)[:-1]
    return np.split(x, ends), np.split(y, ends)


def trained(name: str, lengths: tuple[int, ...], reduction: str = "mean", devices: int | None = None) -> dict[str, np.ndarray]:
    """Return the variables after some steps with these numbers of rows per device, in a fresh session."""
    flow.clear_default_session()
    if devices is not None:
        flow.config.cpu_device_num(devices)
    flow.manual_seed(1)
    model = MODELS[name]()
    job = train_job(model, reduction)
    for _ in range(STEPS):
        job(*batch(lengths))
    state = flow.get_all_variables() if model is legacy else model.state_dict()
    return {key: value.numpy().copy() for key, value in state.items() if not key.startswith("System-")}


#: cases of two devices
CASES = [("batch norm", (4, 4)), ("batch norm", (4, 3)), ("buffers", (3, 4)), ("buffers", (0, 4)), ("legacy batch norm", (4, 0))]


def run(folder: Path, devices: int | None = None) -> dict[str, np.ndarray]:
    """Return the variables of all cases; save two checkpoints to one path."""
    variables: dict[str, np.ndarray] = {}
    for name, lengths in CASES:
        variables |= {f"{name} {lengths} {key}": value for key, value in trained(name, lengths, devices=devices).items()}
    for _ in range(2):
        flow.train.CheckPoint().save(str(folder / "saved"))
    return variables


if __name__ == "__main__":
    np.savez(Path(sys.argv[1]) / "found.npz", **run(Path(sys.argv[1])))
