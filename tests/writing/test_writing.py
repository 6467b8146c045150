"""Detection of names and docstrings that break the writing rules; tests/test_words.py applies it to all files."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
import writing
from writing import FIRST, LONG, breaches, excess, rules_broken_by_name, sentences


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("found", ["found"]),
        ("_FOUND", ["found"]),
        ("modules_found", ["found"]),
        ("FarHome", ["far_home"]),
        ("view_strides_of", ["view_strides"]),
        ("HostResult", ["host_result"]),
        ("place", ["place"]),
        ("Step", ["Step"]),
        ("foundation", []),
        ("in_place", []),
        ("placement", []),
        ("optimizer_step", []),
        ("step", []),
        ("strides", []),
    ],
)
def test_rules_broken_by_name(name: str, rules: list[str]) -> None:
    assert rules_broken_by_name(name) == rules


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def found(): ...",
        "class Found: ...",
        "def f(found): ...",
        "lambda found: 1",
        "for found in x: ...",
        "self.found = 1",
        "import numpy as found",
        "with f() as found: ...",
        "if (found := f()): ...",
        "try: ...\nexcept ValueError as found: ...",
        "match x:\n    case [found]: ...",
    ],
)
def test_each_kind_of_definition_counts(source: str) -> None:
    assert [name for _, name in writing.defined_names(ast.walk(ast.parse(source))) if rules_broken_by_name(name)]


@pytest.mark.parametrize("source", ["f(found=1)", "x.found", "print(found)", "from a import found"])
def test_uses_do_not_count(source: str) -> None:
    assert not [name for _, name in writing.defined_names(ast.walk(ast.parse(source))) if rules_broken_by_name(name)]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("Return one. Return two words.", [2, 3]),
        ("Return the sum, e.g.\nof rows.\n\nSecond paragraph", [4, 2, 2]),
        ("Run it:\n\n    code is not counted at all\n", [2]),
        ("ops     small operations\nstep    a training step", [3, 4]),
        ("- first item\n- second longer item", [2, 3]),
    ],
)
def test_sentences(text: str, lengths: list[int]) -> None:
    assert [len(sentence) for sentence in sentences(text) if sentence] == lengths


def test_docstrings_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'"""What it is."""\ndef f():\n    """Return {"a " * 25}b."""\ndef g():\n    """Return {"a " * 23}b."""\n')
    assert [(breach.line, breach.rule) for breach in breaches(path)] == [(1, FIRST), (3, LONG)]


BOUNDS = {"a.py": Counter(found=2), "gone.py": Counter(found=3)}


@pytest.mark.parametrize(
    ("counts", "above"),
    [
        ({"a.py": Counter(found=2)}, {}),
        ({"a.py": Counter(found=1)}, {}),
        ({"a.py": Counter(found=3)}, {("a.py", "found"): 1}),
        ({"a.py": Counter(made=1)}, {("a.py", "made"): 1}),
        ({"a.py": Counter(), "moved.py": Counter(found=3)}, {}),
        ({"a.py": Counter(), "moved.py": Counter(found=2), "second.py": Counter(found=2)}, {("second.py", "found"): 1}),
        ({"a.py": Counter(), "gone.py": Counter(), "new.py": Counter(found=1)}, {("new.py", "found"): 1}),
    ],
)
def test_new_files_use_the_budget_of_files_that_are_gone(counts: writing.Counts, above: dict[tuple[str, str], int]) -> None:
    assert excess(counts, BOUNDS) == above
