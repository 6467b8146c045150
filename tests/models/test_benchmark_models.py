"""The models that are timed next to PyTorch train."""

from __future__ import annotations

import numpy as np
import pytest
from model_step import build, training_step
from models.table import ROWS, batch

import jobflow as flow

#: the others are trained with --full
USUAL = ("interactions", "experts")


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.full) for name in ROWS])
def test_the_loss_of_a_model_falls(name: str, mode: str) -> None:
    module = build(ROWS[name])
    arguments = [flow.tensor(np.ascontiguousarray(part)) for part in batch(name)]
    steps = [training_step(module, training, mode) for training in ROWS[name].trainings]
    losses = [sum(step(*arguments).item() for step in steps) for _ in range(4)]
    assert losses[-1] < losses[0]
