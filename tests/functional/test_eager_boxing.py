"""Measured redistributions through to_global: the same pieces on every rank, and the same logical value on all ranks.

Redistributions that raised or crashed in the measured system work here.  An axis with fewer elements than ranks leaves some ranks empty, and
every element type has every conversion.  A placement keeps the order of its ranks, which the measured system sorted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks
from test_propagation import MARKS, held, type_named

from jobflow.core.errors import SbpError
from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.core.types import type_of
from jobflow.engine.placements import placement
from jobflow.functional.creation import tensor
from jobflow.functional.global_tensors import to_global, to_local
from jobflow.functional.tensor_class import Tensor

MEASURED = json.loads((Path(__file__).parents[1] / "compiler" / "data" / "measured_boxing.json").read_text(encoding="utf-8"))
FAILED = ("refused", "died")


def ranks_of(case: dict[str, Any]) -> int:
    """Return the number of ranks of a measurement."""
    return 2 if max(np.ravel(case["from"]).max(), np.ravel(case["to"]).max()) < 2 else 4


SIZES = {n: [case for case in MEASURED if ranks_of(case) == n] for n in (2, 4)}


def ends(case: dict[str, Any], pair: str) -> list[Layout]:
    return [lies(case[where], marks) for where, marks in zip(("from", "to"), pair.split(" -> "), strict=True)]


def lies(ranks: Any, marks: str) -> Layout:
    grid = np.array(ranks)
    return Layout(Placement("cpu", tuple(grid.ravel().tolist()), grid.shape), tuple(MARKS[mark] for mark in marks.split(",")))


def logical(case: dict[str, Any]) -> np.ndarray[Any, Any]:
    type = type_named(case["type"])
    return (np.arange(type.size).reshape(type.shape) * 4 % 97).astype(type.dtype.numpy)


def shape_of(array: np.ndarray[Any, Any]) -> str:
    return "x".join(map(str, array.shape))


def changed(rank: int, cases: list[dict[str, Any]]) -> list[tuple[str, str, Any, bool]]:
    """Return the shapes of this rank's pieces before and after each redistribution, and True if the value is right."""
    results = []
    for case in cases:
        array = logical(case)
        for pair in case["pieces"]:
            source, target = ends(case, pair)
            mine = held(array, source) if rank in source.placement.ranks else np.empty((0,) * array.ndim, array.dtype)
            x = Tensor(type_of(array), source, np.array(mine))
            y = to_global(x, placement=placement.of(target.placement), sbp=list(target.sbp))
            assert y.layout == target
            results.append((shape_of(x.array), shape_of(y.array), to_local(y).numpy(), np.array_equal(y.numpy(), array)))
    return results


@pytest.mark.parametrize("n", [2, 4])
def test_changes_of_layout_equal_the_measurements(n: int) -> None:
    everywhere = on_ranks(n, changed, SIZES[n])
    pairs = [(case, pair, measured) for case in SIZES[n] for pair, measured in case["pieces"].items()]
    for i, (case, pair, measured) in enumerate(pairs):
        before, after, pieces, right = zip(*(results[i] for results in everywhere), strict=True)
        named = f"{case['type']} {case['from']} to {case['to']}: {pair}"
        assert all(right), named
        sorted_ranks = all(list(np.ravel(ranks)) == sorted(np.ravel(ranks)) for ranks in (case["from"], case["to"]))
        if measured not in FAILED and sorted_ranks:
            assert f"{' '.join(before)} -> {' '.join(after)}" == measured, named
        if "P" not in pair.split(" -> ")[1]:
            array, (_, target) = logical(case), ends(case, pair)
            for rank in target.placement.ranks:
                np.testing.assert_array_equal(pieces[rank], array[target.box(array.shape, rank).slices], err_msg=named)


def test_counts() -> None:
    """Of 586 redistributions, 20 failed in the measured system."""
    outcomes = [measured for cases in SIZES.values() for case in cases for measured in case["pieces"].values()]
    assert (len(outcomes), sum(measured in FAILED for measured in outcomes)) == (586, 20)


def test_changes_that_ended_processes_raise_or_work() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        row = tensor(np.arange(4.0).reshape(1, 4), placement=here, sbp=B)
        shapes = [to_local(row.to_global(sbp=S(0))).shape, to_local(row.to_global(sbp=P).to_global(sbp=S(0))).shape]
        for wrong, words in (
            (lambda: row.to_global(sbp=[B, B]), "2 entries"),
            (lambda: row.to_global(sbp=S(2)), "the tensor has the axes 0 to 1"),
            (lambda: tensor([1.0], placement=here, sbp=[B, B]), "2 entries"),
            (lambda: tensor([1.0], placement=here, sbp=S(1)), "the axes 0 to 0"),
        ):
            with pytest.raises(SbpError, match=words):
                wrong()
        return shapes

    assert on_ranks(2, program) == [[(1, 4)] * 2, [(0, 4)] * 2]
