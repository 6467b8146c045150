"""Redistributions measured on another system: jobflow has the same pieces on every rank and the same values, and supports all of them.

Deliberate differences:

* the other system rejects an axis with fewer elements than ranks, or ends the process; here some pieces are empty;
* it lacks some conversions of float16 and uint8; here a conversion only moves and adds bytes;
* it treats the placement [1, 0] as [0, 1]; here a placement keeps the order of its ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed import agree

from jobflow.core.layout import B, Layout, P, Placement, S, Sbp
from jobflow.core.types import TensorType, dtype_named

MEASURED = json.loads((Path(__file__).parent / "data" / "measured_boxing.json").read_text(encoding="utf-8"))
FAILED = ("refused", "died")


def named(case: dict[str, Any]) -> str:
    return f"{case['type']} {case['from']} to {case['to']}"


def type_of(case: dict[str, Any]) -> TensorType:
    dtype, _, shape = case["type"].rstrip("]").partition("[")
    return TensorType(tuple(map(int, shape.split(","))), dtype_named(dtype))


def placement(ranks: Any) -> Placement:
    array = np.array(ranks)
    return Placement("cpu", tuple(map(int, array.ravel())), array.shape)


def layout(ranks: Any, sbp: str) -> Layout:
    return Layout(placement(ranks), tuple(map(read, sbp.split(","))))


def read(text: str) -> Sbp:
    return {"B": B, "P": P}.get(text) or S(int(text[1:]))


def ends(case: dict[str, Any], pair: str) -> tuple[Layout, Layout]:
    source, target = pair.split(" -> ")
    return layout(case["from"], source), layout(case["to"], target)


def pieces(layout: Layout, shape: tuple[int, ...], ranks: int) -> str:
    """Return the measured shapes of the pieces on each rank of the world; ranks outside of the placement have no data."""
    shapes = {rank: box.shape for rank, box in layout.boxes(shape).items()}
    return " ".join("x".join(map(str, shapes.get(rank, (0,) * len(shape)))) for rank in range(ranks))


@pytest.mark.parametrize("case", MEASURED, ids=named)
def test_pieces_on_ranks_equal_the_measured_ones(case: dict[str, Any]) -> None:
    shape = type_of(case).shape
    for pair, measured in case["pieces"].items():
        if measured in FAILED:
            continue
        source, target = (replaced_in_order(layout) for layout in ends(case, pair))
        ranks = len(measured.split(" -> ")[0].split(" "))
        assert f"{pieces(source, shape, ranks)} -> {pieces(target, shape, ranks)}" == measured, pair


def replaced_in_order(layout: Layout) -> Layout:
    """Return the layout on the same ranks in rising order."""
    return Layout(Placement("cpu", tuple(sorted(layout.placement.ranks)), layout.placement.mesh), layout.sbp)


@pytest.mark.parametrize("case", MEASURED, ids=named)
def test_measured_conversions_keep_values(case: dict[str, Any]) -> None:
    pairs = [ends(case, pair) for pair in case["pieces"]]
    agree(1 + max(np.ravel(case["from"]).max(), np.ravel(case["to"]).max()), pairs, type_of(case))


def test_conversions_that_failed_when_measured_are_supported() -> None:
    """Run the conversions of the test above that failed on the other system."""
    failed = [(case["type"], pair) for case in MEASURED for pair, measured in case["pieces"].items() if measured in FAILED]
    kinds = {kind: [pair for type, pair in failed if type == kind] for kind in dict.fromkeys(type for type, _ in failed)}
    assert {kind: len(pairs) for kind, pairs in kinds.items()} == {
        "float32[1,4]": 3, "float32[4,1]": 4, "float32[1]": 3, "float16[4,6]": 6, "uint8[4,6]": 4,
    }  # fmt: skip
