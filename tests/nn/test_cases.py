"""Every module and function of nn: outputs, gradients and buffers are PyTorch's, on one rank and in many layouts."""

from __future__ import annotations

from typing import Any

import pytest
from cases import CASES, Case
from ranks import on_ranks
from surroundings import check, run_case

from jobflow.layout import B, Layout, P, Placement, S


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_on_one_rank(case: Case) -> None:
    (found,) = on_ranks(1, lambda rank: run_case(case))
    check(case, found)


def _split(n: int, axis: int) -> Any:
    """Everything split along an axis that has it, else whole."""
    return lambda i, ndim: Layout(Placement("cpu", tuple(range(n))), (S(axis) if ndim > axis else B,))


def _whole(n: int) -> Any:
    return lambda i, ndim: Layout(Placement("cpu", tuple(range(n))), (B,))


def _first_partial(n: int) -> Any:
    """The first input is a sum, the others whole."""
    return lambda i, ndim: Layout(Placement("cpu", tuple(range(n))), (P if i == 0 else B,))


_MESH = Placement("cpu", (0, 1, 2, 3), (2, 2))


def _on_mesh(i: int, ndim: int) -> Layout:
    return Layout(_MESH, (S(0) if ndim else B, S(1) if ndim > 1 else B))


def _weights_on_mesh(i: int, ndim: int) -> Layout:
    return Layout(_MESH, (B, S(0) if ndim else B))


LAYOUTS = {
    "batch": (2, _split(2, 0), _whole(2)),
    "features": (2, _split(2, 1), _whole(2)),
    "weights": (2, _split(2, 0), _split(2, 0)),
    "sums": (2, _first_partial(2), _split(2, 1)),
}


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_on_two_ranks(case: Case, how: str) -> None:
    n, inputs, weights = LAYOUTS[how]
    if how == "sums" and case.inputs[0][0][0] not in "xpvc":
        inputs = _whole(n)  # there is no sum of numbers of rows
    for found in on_ranks(n, lambda rank: run_case(case, inputs, weights)):
        check(case, found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_on_a_mesh(case: Case) -> None:
    for found in on_ranks(4, lambda rank: run_case(case, _on_mesh, _weights_on_mesh)):
        check(case, found)
