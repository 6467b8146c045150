"""Distribute objects: singletons, their layouts, and the casts that apply them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jobflow import distribute
from jobflow.core.errors import ArgumentError, SbpError
from jobflow.core.layout import B, P, Placement, S
from jobflow.ops.layout_ops import GradientLayout, ToLayout

TWO, GRID = Placement("cpu", (0, 1)), Placement("cpu", (0, 1, 2, 3), (2, 2))
X = np.zeros((4, 6))


def test_each_distribute_is_a_singleton() -> None:
    assert distribute.split(1) is distribute.split(axis=1) and distribute.split(1) is not distribute.split(0)
    assert distribute.broadcast() is distribute.broadcast() and distribute.auto() is distribute.auto()
    assert repr(distribute.split(1)) == "jobflow.distribute.split(axis=1)" and repr(distribute.auto()) == "jobflow.distribute.auto()"
    with pytest.raises(AssertionError, match="axis must be an int"):
        distribute.split("0")  # type: ignore[arg-type]


def layouts(run: Any) -> list[Any]:
    return [(op.sbp, op.grad_sbp) for op in run.job.ops if isinstance(op, ToLayout)]


def test_with_distribute(run: Any) -> None:
    run(lambda x: distribute.with_distribute(x, distribute.split(-1)), X, placement=TWO)
    assert layouts(run) == [((S(1),), None)]
    assert run(lambda x: distribute.with_distribute(x, distribute.auto()) is x, X, placement=TWO)


def test_distribute_of_returns_the_requested_distribute(run: Any) -> None:
    for spec in (distribute.split(1), distribute.broadcast(), distribute.auto()):
        assert run(lambda x, w=spec: distribute.distribute_of(distribute.with_distribute(x, w)), X, placement=TWO) is spec


def test_parallel_cast(run: Any) -> None:
    split, broadcast = distribute.split(0), distribute.broadcast()
    run(lambda x: distribute.parallel_cast(x, "cast", split, broadcast), X, placement=TWO)
    assert layouts(run) == [((S(0),), (B,))] and run.job.names == ["cast"]
    run(lambda x: distribute.parallel_cast(x, distribute=broadcast), X, placement=TWO)
    assert layouts(run) == [((B,), None)]
    assert run(lambda x: distribute.parallel_cast(x, "free"), X).shape == X.shape and layouts(run) == [] and run.job.names == ["free"]
    run(lambda x: distribute.parallel_cast(x, "grad", gradient_distribute=split), X, placement=TWO)
    assert run.job.ops == [GradientLayout((S(0),))] and run.job.names == ["grad"]


def test_hierarchical_parallel_cast(run: Any) -> None:
    def cast(*arguments: Any, placement: Placement = GRID) -> list[Any]:
        run(lambda x: distribute.hierarchical_parallel_cast(x, *arguments), X, placement=placement)
        return layouts(run)

    assert cast(["S(0)", "B"]) == [((S(0), B), None)] and cast(["B"], placement=TWO) == [((B,), None)]
    assert cast(["S(0)", "S(1)"], "manual", ["P", "B"]) == [((S(0), S(1)), (P, B))]
    assert cast(["B", "S(1)"], "restore") == [((B, S(1)), None)]
    for wrong in ((["B", "B"], "manual"), (["B", "B"], None, ["B", "B"]), (["B", "B"], "mnual")):
        with pytest.raises(ArgumentError, match="grad_"):
            cast(*wrong)
    with pytest.raises(SbpError, match="2 entries"):
        cast(["B", "B"], placement=TWO)
