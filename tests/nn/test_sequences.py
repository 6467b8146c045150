"""Recurrent modules and packed sequences: outputs and gradients equal those of PyTorch, eagerly and in programs, in many layouts."""

from __future__ import annotations

from typing import Any

import pytest
from nn_cases import Case
from ranks import on_ranks
from sequence_cases import NETWORKS, SEQUENCES
from surroundings import check, run_case

from jobflow.core.layout import B, Layout, P, Placement, S

FILE = "sequences.npz"
_LINE, _MESH = Placement("cpu", (0, 1)), Placement("cpu", (0, 1, 2, 3), (2, 2))


def _split(axis: int) -> Any:
    return lambda i, ndim: Layout(_LINE, (S(axis) if ndim > axis else B,))


def _whole(i: int, ndim: int) -> Layout:
    return Layout(_LINE, (B,))


#: layouts of inputs and parameters
LAYOUTS = {
    "steps": (_split(0), _whole),
    "sequences": (_split(1), _whole),
    "weights": (_split(1), _split(0)),
    "sums": (lambda i, ndim: Layout(_LINE, (P if i == 0 else B,)), _split(1)),
}


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case.name)
def test_sequences_on_one_rank_equal_pytorch(case: Case) -> None:
    (results,) = on_ranks(1, lambda rank: run_case(case))
    check(case, results, file=FILE)


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case.name)
def test_sequences_on_two_ranks_equal_pytorch(case: Case) -> None:
    for results in on_ranks(2, lambda rank: {how: run_case(case, *layouts) for how, layouts in LAYOUTS.items()}):
        for how, each in results.items():
            check(case, each, how, FILE)


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_networks_on_a_mesh_equal_pytorch(case: Case) -> None:
    def inputs(i: int, ndim: int) -> Layout:
        return Layout(_MESH, (S(1) if ndim > 1 else B, S(0) if ndim else B))

    def weights(i: int, ndim: int) -> Layout:
        return Layout(_MESH, (B, S(0) if ndim else B))

    for results in on_ranks(4, lambda rank: run_case(case, inputs, weights)):
        check(case, results, file=FILE)
