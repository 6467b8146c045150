"""Layers and losses of all case tables on 3 and 4 ranks and on a grid, each with random layouts of inputs and parameters, equal PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from further_cases import FURTHER
from model_cases import MODELS
from nn_cases import CASES, Case
from ranks import on_ranks
from sequence_cases import SEQUENCES
from surroundings import check, run_case

from jobflow.core.layout import B, Layout, P, Placement, S, Sbp

PLACEMENTS = {"3": Placement("cpu", (0, 1, 2)), "4": Placement("cpu", (0, 1, 2, 3)), "2x2": Placement("cpu", (0, 1, 2, 3), (2, 2))}
TABLES = {"references.npz": CASES, "further.npz": FURTHER, "models.npz": MODELS, "sequences.npz": SEQUENCES}


def drawn(where: Placement, seed: str, ndim: int, partial: bool) -> Layout:
    """Return a random layout on a placement, without partial dimensions unless `partial`."""
    generator = random.Random(seed)
    choices: list[Sbp] = [B, *([P] if partial else []), *(S(axis) for axis in range(ndim))]
    return Layout(where, tuple(generator.choice(choices) for _ in where.mesh))


def layouts_of(case: Case, where: Placement, seed: str) -> tuple[Callable[[int, int], Layout], Callable[[int, int], Layout]]:
    """Return the layouts of inputs and of parameters; -1 is the index of weights and buffers, which are broadcast."""
    summed = [array.dtype.kind == "f" and bool(np.isfinite(array).all()) for array in case.arrays()]
    whole = Layout(where, (B,) * len(where.mesh))

    def inputs(i: int, ndim: int) -> Layout:
        return whole if i < 0 else drawn(where, f"{seed} input {i}", ndim, summed[i])

    def parameters(i: int, ndim: int) -> Layout:
        return whole if i < 0 else drawn(where, f"{seed} parameter {i}", ndim, False)

    return inputs, parameters


@pytest.mark.full
@pytest.mark.parametrize("where", PLACEMENTS)
@pytest.mark.parametrize(("file", "case"), [pytest.param(file, case, id=case.name) for file, cases in TABLES.items() for case in cases])
def test_layers_in_random_layouts_equal_pytorch(file: str, case: Case, where: str) -> None:
    inputs, parameters = layouts_of(case, PLACEMENTS[where], f"{case.name} {where}")
    for results in on_ranks(PLACEMENTS[where].size, lambda rank: run_case(case, inputs, parameters)):
        check(case, results, where, file)
