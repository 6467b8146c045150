"""The table of GPT-2's products is the plan's; the figures that it records hold."""

from __future__ import annotations

import record_products


def test_the_recorded_table_is_the_plan() -> None:
    table = record_products.lines()
    assert record_products.TABLE.read_text().splitlines() == table, "run tests/gpu/record_products.py --write if the change is meant"
    assert table[1].startswith("a layer has 4 forward, 8 backward products without those of attention;")
    assert table[2].startswith("separate kernels of a layer: none")
    assert table[3].startswith("leading dimensions that are no multiple of 8: 0;")
