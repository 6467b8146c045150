"""Training steps compiled for a GPU have the recorded numbers of calls, casts and bytes."""

from __future__ import annotations

import plan_counts
import pytest

RECORDED = dict(line.split("; ", 1) for line in plan_counts.TARGET.read_text(encoding="utf-8").splitlines())


def test_the_table_has_every_model() -> None:
    assert list(RECORDED) == [", ".join(model) for model in plan_counts.MODELS]


@pytest.mark.parametrize("model", plan_counts.MODELS, ids=", ".join)
def test_a_plan_has_the_recorded_counts(model: tuple[str, str, str]) -> None:
    name = ", ".join(model)
    assert plan_counts.line(*model) == f"{name}; {RECORDED[name]}", "write an intended change with python tests/gpu/plan_counts.py --write"


def test_separate_casts_convert_weights() -> None:
    """Other casts are computed by the kernels and products that read or write their values."""
    for name, figures in RECORDED.items():
        columns = dict(figure.rsplit(" ", 1) for figure in figures.split("; "))
        assert columns["casts"] == columns["casts of weights"], name
