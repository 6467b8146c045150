"""Mistakes that make the measured system hang, crash or compute wrong values; here they raise on every rank, or work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow.core.errors import JobflowError
from jobflow.core.layout import B, P, S
from jobflow.engine.placements import placement

#: seconds until every rank knows; ranks may wait a while for one that computes
SOON = 20.0


def both() -> placement:
    return placement("cpu", [0, 1])


def raises_while_the_other_reads(rank: int, x: Any) -> None:
    if rank == 1:
        raise ValueError("mine")
    x.numpy()


def ends_while_the_other_reads(rank: int, x: Any) -> None:
    if rank == 0:
        x.sum().item()


def reads_on_one_rank_only(rank: int, x: Any) -> None:
    if rank == 0:
        x.numpy()
    x.to_global(sbp=B)


def changes_in_another_order(rank: int, x: Any) -> None:
    y = x * 3
    first, second = (x, y) if rank == 0 else (y, x)
    first.to_global(sbp=B)
    second.to_global(sbp=B)


def changes_to_another_layout(rank: int, x: Any) -> None:
    x.to_global(sbp=B if rank == 0 else S(1))


def makes_another_shape(rank: int, x: Any) -> None:
    flow.ones(4 + 2 * rank, 6, placement=both(), sbp=S(0)).numpy()


def makes_another_type(rank: int, x: Any) -> None:
    flow.ones(4, 6, dtype=flow.float32 if rank else flow.int32, placement=both(), sbp=S(0)).numpy()


def makes_another_layout(rank: int, x: Any) -> None:
    flow.ones(4, 6, placement=both(), sbp=S(rank)).numpy()


def makes_on_another_placement(rank: int, x: Any) -> None:
    flow.ones(4, 6, placement=placement("cpu", [rank]), sbp=B).numpy()


def makes_another_value(rank: int, x: Any) -> None:
    flow.full((4,), rank + 1.0, placement=both(), sbp=S(0)).numpy()


def passes_other_data(rank: int, x: Any) -> None:
    flow.tensor([1.0, 2.0 + rank], placement=both(), sbp=S(0))


def computes_something_else(rank: int, x: Any) -> None:
    (x.sum(1) if rank == 0 else flow.relu(x).amax(1)).numpy()


def reads_a_tensor_of_one_rank(rank: int, x: Any) -> None:
    if rank == 1:
        flow.ones(2, placement=placement("cpu", [1]), sbp=B).numpy()


def prints_on_one_rank(rank: int, x: Any) -> None:
    if rank == 0:
        repr(x)


def draws_on_one_rank(rank: int, x: Any) -> None:
    if rank == 0:
        flow.randn(3, placement=both(), sbp=B)
    flow.randn(3, placement=both(), sbp=S(0)).numpy()


def fits_with_no_other_rank(rank: int, x: Any) -> None:
    flow.ones(2 + 3 * rank, 3).to_global(placement=both(), sbp=S(0))


MISTAKES: list[Callable[[int, Any], None]] = [
    raises_while_the_other_reads,
    ends_while_the_other_reads,
    reads_on_one_rank_only,
    changes_in_another_order,
    changes_to_another_layout,
    makes_another_shape,
    makes_another_type,
    makes_another_layout,
    makes_on_another_placement,
    makes_another_value,
    passes_other_data,
    computes_something_else,
    reads_a_tensor_of_one_rank,
    prints_on_one_rank,
    draws_on_one_rank,
    fits_with_no_other_rank,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_diverging_ranks_raise(mistake: Callable[[int, Any], None]) -> None:
    results: dict[int, BaseException] = {}

    def program(rank: int) -> None:
        x = flow.ones(4, 6, placement=both(), sbp=S(0))
        try:
            mistake(rank, x)
        except BaseException as error:
            results[rank] = error
            raise

    start = time.monotonic()
    with pytest.raises(JobflowError):
        on_ranks(2, program)
    assert time.monotonic() - start < SOON
    assert results and all(isinstance(error, JobflowError | ValueError) and str(error) for error in results.values())


def test_diverged_error_describes_each_rank() -> None:
    with pytest.raises(JobflowError, match=r"(?s)to_global.*test_pain_points.py:\d+.*to_global.*test_pain_points.py:\d+"):
        on_ranks(2, lambda rank: changes_to_another_layout(rank, flow.ones(4, 6, placement=both(), sbp=S(0))))


@with_ranks(3)
def test_axes_shorter_than_ranks() -> None:
    here = placement("cpu", [0, 1, 2])
    value = np.arange(8.0).reshape(2, 4)
    for how in (B, S(0), S(1), P):
        x = flow.tensor(value, placement=here, sbp=how)
        for to in (S(0), S(1), B, P):
            y = x.to_global(sbp=to)
            np.testing.assert_array_equal(y.numpy(), value)
            np.testing.assert_array_equal((y * 2 + 1).sum(0).numpy(), (value * 2 + 1).sum(0))


def test_placements_preserve_the_order_of_ranks() -> None:
    def program(rank: int) -> Any:
        x = flow.arange(4, placement=placement("cpu", [1, 0]), sbp=S(0))
        return x.to_local().tolist(), x.numpy().tolist()

    assert on_ranks(2, program) == [([2, 3], [0, 1, 2, 3]), ([0, 1], [0, 1, 2, 3])]


def test_partial_floats_are_summed_before_the_cast_to_integers() -> None:
    def program(rank: int) -> Any:
        return flow.full((3,), 0.5).to_global(placement=both(), sbp=P).long().tolist()

    assert on_ranks(2, program) == [[1, 1, 1]] * 2


@pytest.mark.parametrize("how", [S(0), S(1)])
@with_ranks(2)
def test_gather_from_split_tensors(how: Any) -> None:
    value, index = np.arange(24.0).reshape(4, 6), np.array([[0, 3, 1, 2], [2, 2, 0, 1]])
    expected = np.take_along_axis(value[:, :4], index, 0)
    for other in (B, S(0), S(1)):
        x, i = flow.tensor(value, placement=both(), sbp=how), flow.tensor(index, placement=both(), sbp=other)
        np.testing.assert_array_equal(flow.gather(x, 0, i).numpy(), expected)


def test_the_same_seed_gives_the_same_values_in_every_layout() -> None:
    def program(rank: int, n: int) -> list[Any]:
        results = []
        for how in (B, S(0), S(1)):
            flow.manual_seed(1)
            results.append(flow.randn(4, 6, placement=placement("cpu", range(n)), sbp=how).tolist())
        flow.manual_seed(1)
        return [*results, flow.randn(4, 6).tolist()]

    every = [values for n in (1, 2, 3) for values in on_ranks(n, lambda rank, n=n: program(rank, n))[0]]
    assert all(values == every[0] for values in every)
