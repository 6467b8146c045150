"""PyTorch's results for its sample and error inputs, recorded by scripts/conformance: jobflow's are equal, or differ deliberately."""

from __future__ import annotations

from pathlib import Path

import conformance_deliberate as deliberate
import pytest
from conformance_format import read_entries
from conformance_replay import replay_of

ENTRIES, NUMBERS = read_entries(Path(__file__).with_name("recorded.zip"))
PARTS = 24


@pytest.mark.parametrize("part", range(PARTS))
def test_recorded_cases(part: int) -> None:
    wrong, count = [], 0
    for name in sorted(ENTRIES)[part::PARTS]:
        outcomes = deliberate.marked(list(replay_of(name, ENTRIES[name], NUMBERS).outcomes()))
        wrong += [f"{outcome.kind}: {outcome.key}: {outcome.reason}" for outcome in outcomes if outcome.kind not in ("equal", "deliberate")]
        count += len(outcomes)
    assert count
    assert wrong == []


def test_the_reasons_of_deliberate_differences() -> None:
    """Deliberate differences have a reason, and a pattern that can match a check."""
    for entry in deliberate.read():
        assert len(entry.reason.split()) > 4
        assert entry.key.pattern.count("/") == 3, entry.key.pattern
