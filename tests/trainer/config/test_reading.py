"""Parsing and merging: values, their positions, and precedence."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from config_cases import cases

from jobflow.trainer.config import reading
from jobflow.trainer.config.loading import with_settings
from jobflow.trainer.config.reading import read, value_of
from jobflow.trainer.config.showing import word
from jobflow.trainer.config.tree import ConfigErrors, Mark, Origin, Problems, Tree, dotted, steps_of

FILE = "case.yaml"


def tree_of(text: str) -> Tree:
    problems = Problems()
    tree = read(text, FILE, problems)
    problems.stop_if_any([])
    assert tree is not None and isinstance(tree.plain, dict)
    return tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, None) for text in ("", "~", "null", "Null")],
        *[(text, True) for text in ("true", "True", "TRUE")],
        *[(text, 1000.0) for text in ("1e3", "1E3", "1e+3", "1000.0", "1000.", "1.e3")],
        *[
            (text, text)
            for text in (
                "yes",
                "no",
                "on",
                "off",
                "y",
                "n",
                "1_000",
                "1:30",
                "2024-01-01",
                "tRUE",
                "1e",
                "e3",
                ".",
                "-",
                "0b1",
                "0x",
                "+",
                "infinity",
            )
        ],
        *[("-3", -3), ("+3", 3), ("0", 0), ("0x1F", 31), ("0o17", 15), (".5", 0.5), ("-1.5e-3", -0.0015), ("-.inf", -math.inf)],
    ],
)
def test_what_a_word_means(text: str, value: Any) -> None:
    assert value_of(text) == value and type(value_of(text)) is type(value)


@pytest.mark.parametrize(
    "value", [None, True, 3, -0.5, 1e-8, 1e300, "a b", "no", "3", "", "null", "it's", "a: b", "# a", "é\n", [1, "x", [2.5]], {"a b": {"c": []}}]
)
def test_a_value_that_is_written_reads_as_it_was(value: Any) -> None:
    assert tree_of(f"x: {word(value)}").plain == {"x": value}


def test_everything_has_a_place() -> None:
    tree = tree_of("a:\n  b: 1\n  c: [x, {d: 2}]\ne: |\n  text\n")
    places = {dotted(path): (mark.at.line, mark.at.column) for path, mark in tree.marks.items()}
    assert places == {"": (1, 1), "a": (2, 3), "a.b": (2, 6), "a.c": (3, 6), "a.c.0": (3, 7), "a.c.1": (3, 10), "a.c.1.d": (3, 14), "e": (4, 4)}
    named = {dotted(path): (mark.key.line, mark.key.column) for path, mark in tree.marks.items() if mark.key is not None}
    assert named == {"a": (1, 1), "a.b": (2, 3), "a.c": (3, 3), "a.c.1.d": (3, 11), "e": (4, 1)}


def test_maps_are_merged_lists_replaced_and_null_takes_away() -> None:
    under = tree_of("a: {b: 1, c: [1, 2], d: {e: 1}}\nf: 3\ng: {h: 1}")
    over = tree_of("a: {c: [3], d: null, i: null}\ng: 5\nj: {k: 1}")
    assert under.under(over, {}).plain == {"a": {"b": 1, "c": [3], "i": None}, "f": 3, "g": 5, "j": {"k": 1}}


def test_settings_lie_over_files_and_are_their_own_origin() -> None:
    problems = Problems()
    tree = tree_of("a: {b: 1, l: [{m: 1}, 2], x: {y: 1}}")
    tree = with_settings(tree, ["a.b=1e-3", "a.l.0.m=true", "c.d={e: [1]}", "a.x={z: 2}", "a.l.1=two", "a.b=0.5"], problems)
    problems.stop_if_any([])
    assert tree.plain == {"a": {"b": 0.5, "l": [{"m": True}, "two"], "x": {"y": 1, "z": 2}}, "c": {"d": {"e": [1]}}}
    assert tree.mark(("a", "b")) == Mark(Origin("--set a.b=0.5"), Origin("--set a.b=0.5")) and str(tree.mark(("a", "b")).at) == "--set a.b=0.5"
    assert with_settings(tree, ["a=null", "c.d.e=null"], problems).plain == {"c": {"d": {}}}


@pytest.mark.parametrize(
    ("setting", "key", "part"),
    [
        ("optimizer.lr", "optimizer.lr", "is not a setting"),
        ("=3", "", "is not a setting"),
        ("a..b=3", "a.b", "is not a setting"),
        ("a.b=", "a.b", "there is no value for a.b"),
        ("extends=x.yaml", "extends", "in files only"),
        ("a.b=[1", "a.b", '"]" is missing'),
        ("a.b=010", "a.b", "different readers"),
        ("a.l.7=3", "a.l.7", "a.l is not a map and has no position 7"),
        ("a.b.c=3", "a.b.c", "a.b is not a map"),
    ],
)
def test_settings_that_cannot_be(setting: str, key: str, part: str) -> None:
    problems = Problems()
    with_settings(tree_of("a: {b: 1, l: [1]}"), [setting], problems)
    with pytest.raises(ConfigErrors, match=r"^--set ") as raised:
        problems.stop_if_any([])
    (problem,) = raised.value.problems
    assert (problem.file, problem.line, problem.key) == (f"--set {setting}", 0, key) and part in problem.message


def test_paths_of_keys_with_dots() -> None:
    path = ("a", 'b.c"d', "0", "")
    assert dotted(path) == r'a."b.c\"d".0.""' and steps_of(dotted(path)) == path
    assert tree_of("a: {}").having(("a", "b.c"), {"d": 1}, Mark(Origin(FILE))).plain == {"a": {"b.c": {"d": 1}}}


def test_aliases_of_aliases_make_nothing_deeper_or_larger_than_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write short lines whose expansion is 60 levels deeper, or ten times as large, as the line before."""
    monkeypatch.setattr(reading, "MOST", 2000)  # it takes a while to count further
    for line, reason in (("[" * 60 + "{}" + "]" * 60, "more than 64 deep"), ("[" + "{}, " * 9 + "{}]", "expand to more than")):
        lines = ["a0: &a0 " + line.replace("{}", "1"), *(f"a{i}: &a{i} " + line.replace("{}", f"*a{i - 1}") for i in range(1, 7))]
        with pytest.raises(ConfigErrors, match=reason):
            tree_of("\n".join(lines))


def test_the_number_of_reported_problems_is_limited(tmp_path: Path) -> None:
    """Checking stops at the limit too, because each problem might be compared with all others."""
    from jobflow.trainer.config import load

    strange = "\n".join(f"k{i}: ${{nothing{i}}}" for i in range(250))
    wrong = f"optimizer: {{name: sgd, lr: 1, schedule: {{name: piecewise, scales: [1], boundaries: [{', '.join('x' * 250)}]}}}}"
    for text in (strange, strange.replace("$", ""), wrong):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ConfigErrors) as raised:
            load(tmp_path / FILE, look_outside=False)
        assert len(raised.value.problems) == 200


_BITS = ["null", "{}", "[]", "- a", "3", '"x"', "${", "${a}", "${model}", "&a ", "*a", "!t ", "|", "\t", ":", "- ", "extends:", "'", '"', "#"]
_BITS += ["\n  ", "{a: 1}", ".nan", "-1", "010", "? ", "<<: ", "%", "@", "\u2028", "é", "1" * 5000, "a.b: ", "\x00", "[" * 300]


def test_any_text_is_accepted_or_rejected(tmp_path: Path) -> None:
    """Remove, insert and exchange pieces of the corpus: no other failure occurs."""
    from jobflow.trainer.config import load

    rng = random.Random(5)
    texts = [case.text.replace("good.yaml", "case.yaml") for folder in ("good", "broken") for case in cases(folder)]
    for _ in range(250):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 3)):
            at, other = rng.randrange(len(text) + 1), rng.choice(texts)
            start = rng.randrange(len(other))
            text = text[:at] + rng.choice(["", rng.choice(_BITS), other[start : start + 30]]) + text[at + rng.randint(0, 4) :]
        (tmp_path / FILE).write_text(text, encoding="utf-8")
        try:
            load(tmp_path / FILE, look_outside=False)
        except ConfigErrors as errors:
            assert all(problem.line >= 1 and problem.column >= 1 for problem in errors.problems if problem.file != "default"), text
