"""Training steps compiled for a GPU have the recorded numbers of calls, casts and bytes."""

from __future__ import annotations

import plan_counts
import pytest

RECORDED = dict(line.split("; ", 1) for line in plan_counts.TARGET.read_text(encoding="utf-8").splitlines())


def test_the_table_has_every_model() -> None:
    assert RECORDED.keys() == plan_counts.MODELS.keys()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full) if name in plan_counts.LARGE else name for name in plan_counts.MODELS])
def test_a_plan_has_the_recorded_counts(name: str) -> None:
    assert plan_counts.line(name) == f"{name}; {RECORDED[name]}", "write an intended change with python tests/gpu/plan_counts.py --write"
