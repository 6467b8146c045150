"""GPU plans of GPT models have no value of queries times keys, and the recorded sizes."""

from __future__ import annotations

import pytest
import record_attention

CASES = [(name, half) for name in record_attention.PROGRAMS for half in (True, False)]


def recorded() -> list[str]:
    return record_attention.TARGET.read_text().splitlines()[2:]


def test_no_recorded_plan_has_a_value_of_queries_times_keys() -> None:
    assert len(recorded()) == len(CASES)
    for row in recorded():
        squares, attention = row.rsplit(maxsplit=2)[1:]
        assert squares == "0" and float(attention) <= 70, row


@pytest.mark.parametrize(("name", "half"), [CASES[0], CASES[2], *(pytest.param(*case, marks=pytest.mark.full) for case in (CASES[1], *CASES[3:]))])
def test_plans_of_attention_equal_the_recorded_table(name: str, half: bool) -> None:
    assert record_attention.row(name, half) in recorded(), "run python tests/gpu/record_attention.py and read the difference"
