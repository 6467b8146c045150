"""Resampling, windows with positions, margin losses and further layers: outputs and gradients equal those of PyTorch on one and two ranks."""

from __future__ import annotations

from typing import Any

import pytest
from further_cases import FURTHER
from nn_cases import Case
from ranks import on_ranks
from surroundings import check, run_case

from jobflow.core.layout import B, Layout, Placement, S

FILE = "further.npz"
_LINE = Placement("cpu", (0, 1))


def _split(axis: int) -> Any:
    return lambda i, ndim: Layout(_LINE, (S(axis) if ndim > axis else B,))


def _whole(i: int, ndim: int) -> Layout:
    return Layout(_LINE, (B,))


#: layouts of inputs and parameters
LAYOUTS = {"batch": (_split(0), _whole), "features": (_split(1), _split(0))}


@pytest.mark.parametrize("case", FURTHER, ids=lambda case: case.name)
def test_further_layers_equal_pytorch(case: Case) -> None:
    check(case, on_ranks(1, lambda rank: run_case(case))[0], file=FILE)
    for results in on_ranks(2, lambda rank: {how: run_case(case, *layouts) for how, layouts in LAYOUTS.items()}):
        for how, each in results.items():
            check(case, each, how, FILE)
