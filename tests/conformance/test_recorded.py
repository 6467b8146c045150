"""What PyTorch answered to its own sample and error inputs, recorded by scripts/conformance: jobflow answers the same, or differs on purpose."""

from __future__ import annotations

from pathlib import Path

import conformance_deliberate as deliberate
import pytest
from conformance_format import read_kept
from conformance_replay import replay_of

KEPT, NUMBERS = read_kept(Path(__file__).with_name("recorded.zip"))
PARTS = 24


@pytest.mark.parametrize("part", range(PARTS))
def test_recorded_cases(part: int) -> None:
    wrong, checked = [], 0
    for name in sorted(KEPT)[part::PARTS]:
        outcomes = deliberate.marked(list(replay_of(name, KEPT[name], NUMBERS).outcomes()))
        wrong += [f"{outcome.kind}: {outcome.key}: {outcome.reason}" for outcome in outcomes if outcome.kind not in ("equal", "deliberate")]
        checked += len(outcomes)
    assert checked
    assert wrong == []


def test_the_reasons_of_deliberate_differences() -> None:
    """Each has a reason that says something, and a pattern that can meet a check."""
    for entry in deliberate.read():
        assert len(entry.reason.split()) > 4
        assert entry.key.pattern.count("/") == 3, entry.key.pattern
