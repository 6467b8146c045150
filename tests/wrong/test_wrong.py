"""A hundred wrong programs: each is told what is wrong, where, and with which values; scripts/refresh_messages shows whose message has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import TABLE, Case, cases, section

CASES = list(cases())


def test_there_are_a_hundred_of_other_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 100


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_program(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for told in case.run(tmp_path):
        assert told.kind == case.wanted, told
        assert case.line in told.message
        assert [fact for fact in case.says if fact not in told.message] == [], told.message
        assert section(case, told) in TABLE.read_text(encoding="utf-8"), "run scripts/refresh_messages if this is meant"
