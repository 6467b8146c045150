"""Some random programs, grown with jobflow at once: in every tier, as graphs and as jobs they give the same, or say why they cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from growing_tensors import Growth
from replayed_tensors import WAYS

import jobflow as flow

SEEDS = range(4)


@pytest.fixture(scope="module")
def programs() -> list[Any]:
    return [json.loads(json.dumps(vars(Growth(flow, seed).finish()))) for seed in SEEDS]


@pytest.mark.parametrize("way", ["numpy", "llvm", "reference", "graph", "job2"])
@pytest.mark.filterwarnings("ignore")
def test_every_way_has_equal_results(way: str, programs: list[Any]) -> None:
    assert sum(len(program["lines"]) for program in programs) > 5 * len(programs)
    lines = [line for program in programs for line in WAYS[way](program)]
    assert [line for line in lines if not line.startswith("refused JobError")] == []
