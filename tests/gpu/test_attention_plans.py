"""GPU plans of GPT models have no value of queries times keys, and the recorded sizes."""

from __future__ import annotations

import record_attention


def test_plans_of_attention_equal_the_recorded_table() -> None:
    recorded = record_attention.TARGET.read_text()
    assert record_attention.table() == recorded, "run python tests/gpu/record_attention.py and read the difference"
    for row in recorded.splitlines()[2:]:
        squares, attention = row.rsplit(maxsplit=2)[1:]
        assert squares == "0" and float(attention) <= 70, row
