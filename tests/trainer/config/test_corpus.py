"""Broken configurations are rejected with line, column and key; good ones load with the expected values."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from config_cases import HERE, Case, cases

from jobflow.trainer.config import ConfigErrors, Problem, load
from jobflow.trainer.config.keys import sections_with
from jobflow.trainer.config.showing import show

BROKEN, GOOD = list(cases("broken")), list(cases("good"))
VARIABLES = {"CORPUS_FOLDER": "somewhere", "CORPUS_NUMBER": "12"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Change to a folder with the files that the cases name."""
    path = tmp_path_factory.mktemp("corpus")
    shutil.copytree(HERE / "beside", path, dirs_exist_ok=True)
    (path / "corpus_torn.py").write_text("def net(:\n")
    before = list(sys.path)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(path)
        for name, value in VARIABLES.items():
            patched.setenv(name, value)
        yield path
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("corpus_")]:
        del sys.modules[name]


def problems_of(text: str, folder: Path) -> list[Problem]:
    (folder / "case.yaml").write_text(text, encoding="utf-8")
    try:
        load("case.yaml")
    except ConfigErrors as errors:
        return errors.problems
    return []


def test_there_are_enough_cases() -> None:
    assert len(BROKEN) >= 250 and len(GOOD) >= 50
    names = [case.name for case in (*BROKEN, *GOOD)]
    assert len(set(names)) == len(names)
    assert all(case.problems for case in BROKEN), "each says what is wrong with it"


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken_configurations_are_rejected_with_line_and_key(case: Case, folder: Path) -> None:
    problems = problems_of(case.text, folder)
    places = [("" if problem.file == "case.yaml" else problem.file, problem.line, problem.column, problem.key) for problem in problems]
    assert sorted(places) == sorted((wrong.file, wrong.line, wrong.column, wrong.key) for wrong in case.problems), case.text
    for wrong in case.problems:
        message = next(
            problem.message for problem in problems if (problem.line, problem.column, problem.key) == (wrong.line, wrong.column, wrong.key)
        )
        assert wrong.part in message


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_good_configurations_load_with_the_expected_values(case: Case, folder: Path) -> None:
    (folder / "case.yaml").write_text(case.text, encoding="utf-8")
    loaded = load("case.yaml")
    for key, value in case.values.items():
        actual: Any = loaded.plain
        for step in key.split("."):
            actual = actual[int(step)] if isinstance(actual, list) else actual[step]
        assert actual == value and type(actual) is type(value), key
    # what is shown is the same configuration
    (folder / "shown.yaml").write_text(show(loaded), encoding="utf-8")
    assert load("shown.yaml").plain == loaded.plain


def _misspelt(text: str, seed: int) -> Iterator[tuple[int, str, str]]:
    """Yield (line, right key, text with one letter of the key changed) for every key alone on its line."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        key = re.match(r"(\s*(?:- )?)(\w{4,}):", line)
        if key is not None:
            at = 1 + (seed * 7 + i) % (len(key[2]) - 2)
            word = key[2]
            wrong = [word[:at] + word[at + 1 :], word[:at] + word[at + 1] + word[at] + word[at + 2 :], word[:at] + "q" + word[at:]][(seed + i) % 3]
            changed = [*lines[:i], f"{key[1]}{wrong}{line[key.end(2) :]}", *lines[i + 1 :]]
            if wrong != word and wrong not in sections_with():
                yield i + 1, word, "\n".join(changed) + "\n"


def test_nine_of_ten_misspelled_keys_get_the_right_suggestion(folder: Path) -> None:
    """Drop one letter, exchange two, or add one, in every key of a long configuration."""
    (folder / "case.yaml").write_text(
        "extends: good.yaml\noptimizer: {name: adamw, schedule: {name: cosine}}\nevaluation: {early_stopping: {patience: 2}}\n"
    )
    whole = re.sub(r"\s+#.*", "", show(load("case.yaml")))
    tried = right = 0
    for seed in range(3):
        for line, key, text in _misspelt(whole, seed):
            problems = [problem for problem in problems_of(text, folder) if problem.message.startswith(("unknown key", "reader digits takes no"))]
            assert [problem.line for problem in problems] == [line], text
            tried += 1
            right += f'did you mean "{key}"' in problems[0].message
    assert tried > 120 and right / tried >= 0.9, f"{right} of {tried}"


def test_a_cut_off_file_never_passes_for_another(folder: Path) -> None:
    """Any prefix of a file is rejected, or its keys have the values of the whole file."""
    text = (folder / "good.yaml").read_text(encoding="utf-8")
    whole = load("good.yaml").plain
    for end in range(0, len(text), 7):
        (folder / "case.yaml").write_text(text[:end], encoding="utf-8")
        try:
            cut = load("case.yaml").plain
        except ConfigErrors:
            continue
        assert {**cut, "name": 0, "output": 0, "checkpoint": 0} == {**whole, "name": 0, "output": 0, "checkpoint": 0}, text[:end]
