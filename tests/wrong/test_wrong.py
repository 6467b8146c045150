"""A hundred wrong programs: each is told what is wrong, where, and with which values; scripts/refresh_messages shows whose message has changed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from wrong import TABLE, Case, cases, section

import jobflow as flow
from jobflow.core.errors import did_you_mean_or

CASES = list(cases())
PACKAGE = Path(flow.__file__).parent


def test_there_are_a_hundred_of_other_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 100


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_program(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for report in case.run(tmp_path):
        assert report.kind == case.expected_kind, report
        assert case.line in report.message
        assert [fact for fact in case.says if fact not in report.message] == [], report.message
        assert section(case, report) in TABLE.read_text(encoding="utf-8"), "run scripts/refresh_messages if this is meant"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("los", '; did you mean "loss"? There are loss, accuracy'), ("perplexity", "; there are loss, accuracy"), ("", "; there are loss, accuracy")],
)
def test_advice_follows_a_suggestion_as_a_sentence(name: str, expected: str) -> None:
    assert did_you_mean_or(name, ("loss", "accuracy"), "there are loss, accuracy") == expected


def test_messages_continue_after_suggestions_by_did_you_mean_or() -> None:
    """A suggestion may be absent: a fixed text after it then lacks its punctuation, or has two signs."""
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    texts = [
        (path.name, node)
        for path, source in sources.items()
        if "did_you_mean(" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.JoinedStr)
    ]
    wrong = [(name, ast.unparse(node)) for name, node in texts for text in _after_suggestions(node) if not text.startswith((" (", "\n"))]
    assert len(texts) > 100
    assert wrong == []


def _after_suggestions(text: ast.JoinedStr) -> list[str]:
    """Return the constants of an f-string that follow a call of did_you_mean."""
    pairs = zip(text.values, text.values[1:], strict=False)
    return [
        str(after.value)
        for part, after in pairs
        if isinstance(part, ast.FormattedValue) and ast.unparse(part.value).startswith("did_you_mean(") and isinstance(after, ast.Constant)
        if isinstance(part.value, ast.Call)
    ]
