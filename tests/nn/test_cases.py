"""Modules and functions of nn: outputs, gradients and buffers equal those of PyTorch, on one rank and in many layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nn_cases import ACTIVATIONS, AT_ZERO, CASES, LOSSES, POOLS, TWICE, WRITTEN, Case
from ranks import on_ranks
from surroundings import check, forward, reference, run_case, run_twice

from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.core.types import bfloat16, float16, float32


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_on_one_rank_equal_pytorch(case: Case) -> None:
    (results,) = on_ranks(1, lambda rank: run_case(case))
    check(case, results)


_LINE = Placement("cpu", (0, 1))


def _split(axis: int) -> Any:
    """Return a split along an axis if there is one, else broadcast."""
    return lambda i, ndim: Layout(_LINE, (S(axis) if ndim > axis else B,))


def _whole(i: int, ndim: int) -> Layout:
    return Layout(_LINE, (B,))


def _first_partial(i: int, ndim: int) -> Layout:
    """Return partial for the first input, and broadcast for the other inputs."""
    return Layout(_LINE, (P if i == 0 else B,))


_MESH = Placement("cpu", (0, 1, 2, 3), (2, 2))


def _on_mesh(i: int, ndim: int) -> Layout:
    return Layout(_MESH, (S(0) if ndim else B, S(1) if ndim > 1 else B))


def _weights_on_mesh(i: int, ndim: int) -> Layout:
    return Layout(_MESH, (B, S(0) if ndim else B))


#: how inputs and parameters lie
LAYOUTS = {
    "batch": (_split(0), _whole),
    "features": (_split(1), _whole),
    "weights": (_split(0), _split(0)),
    "sums": (_first_partial, _split(1)),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_on_two_ranks_equal_pytorch(case: Case) -> None:
    def program(rank: int) -> Any:
        return {how: run_case(case, _whole if how == "sums" and summable else inputs, weights) for how, (inputs, weights) in LAYOUTS.items()}

    summable = case.inputs[0][0][0] not in "xpvcz"  # there is no sum of numbers of rows
    for results in on_ranks(2, program):
        for how, each in results.items():
            check(case, each, how)


@pytest.mark.parametrize("case", TWICE, ids=lambda case: case.name)
def test_second_gradients(case: Case) -> None:
    (alone,) = on_ranks(1, lambda rank: run_twice(case))
    check(case, alone, "alone", "second.npz")
    for results in on_ranks(2, lambda rank: {how: run_twice(case, *lay) for how, lay in LAYOUTS.items() if how != "sums"}):
        for how, each in results.items():
            check(case, each, how, "second.npz")


#: element by element, or image by image, a mesh is as good as a line
PLAIN = [*ACTIVATIONS, *AT_ZERO, *WRITTEN, *POOLS, *LOSSES]


def _by_turns(cases: list[Case]) -> list[Any]:
    """Return all cases; without --full only every second one."""
    return [case if i % 2 else pytest.param(case, marks=pytest.mark.full) for i, case in enumerate(cases)]


@pytest.mark.parametrize("case", _by_turns([case for case in CASES if case not in PLAIN]), ids=lambda case: case.name)
def test_cases_on_a_mesh_equal_pytorch(case: Case) -> None:
    for results in on_ranks(4, lambda rank: run_case(case, _on_mesh, _weights_on_mesh)):
        check(case, results)


_SOME = Placement("cpu", (2, 0))


@pytest.mark.parametrize("case", [case for case in CASES if case not in PLAIN], ids=lambda case: case.name)
def test_cases_on_a_subset_of_the_ranks_equal_pytorch(case: Case) -> None:
    """Rank 1 runs the same lines without a piece; the other ranks are in another order."""

    def split(i: int, ndim: int) -> Layout:
        return Layout(_SOME, (S(0) if ndim else B,))

    for results in on_ranks(3, lambda rank: run_case(case, split, split)):
        check(case, results)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_in_other_precisions(case: Case) -> None:
    """Outputs have the element type and nearly the same values; backward works."""

    def program(rank: int) -> Any:
        return [[(y.dtype, y.detach().numpy().astype(np.float64)) for y in forward(case, dtype)] for dtype, _ in PRECISIONS]

    (results,) = on_ranks(1, program)
    for (dtype, tolerance), outputs in zip(PRECISIONS, results, strict=True):
        for i, (actual_dtype, value) in enumerate(outputs):
            assert actual_dtype is dtype
            expected = reference(case)[f"out/{i}"]
            size = float(np.sqrt(np.mean(np.square(expected)))) if expected.size else 0.0  # sums lose as much as their terms are large
            np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance * max(1.0, size), err_msg=dtype.name)


PRECISIONS = ((float16, 1e-2), (bfloat16, 8e-2), (float32, 1e-5))
