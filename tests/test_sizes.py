"""Files stay under 500 lines and functions short: half of them under 10 lines, nine of ten under 40."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST_FILE = 500


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def function_lengths(source: str) -> Iterator[tuple[int, str]]:
    """(lines from `def` to the last one, name) of every function, nested ones too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1, node.name


def test_files_are_short() -> None:
    files = python_files("jobflow", "examples", "benchmarks", "tests", "scripts")
    assert len(files) > 20, "the package was not found"
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_functions_are_short() -> None:
    lengths = sorted(n for path in python_files("jobflow") for n, _ in function_lengths(path.read_text(encoding="utf-8")))
    assert statistics.median(lengths) < 10
    assert lengths[len(lengths) * 9 // 10] < 40


def test_the_measure_counts_from_def_to_the_last_line() -> None:
    source = "class A:\n    @property\n    def f(self):\n        def g():\n            return 1\n\n        return g\n"
    assert sorted(function_lengths(source)) == [(2, "g"), (5, "f")]
