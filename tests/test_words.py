"""One word per concept: names inside the package avoid the vague and the legacy ones, and no file names somebody's machine."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import writing

ROOT = Path(__file__).parents[1]
#: words that say nothing, or belong to the legacy surface only
UNWANTED = {"blob", "desc", "symbol", "conf", "util", "utils", "manager", "helper", "helpers", "handler", "context"}
#: below the faces nobody has an excuse; floors 5 to 7 carry public legacy names
INSIDE = ("ops", "graph", "plan", "compiler", "runtime", "errors.py", "types.py", "layout.py", "operators.py")
#: rooms in front of the core, where a class may have the name that users know it by in each of the ways to call it
FRONT = {
    "functional",
    "nn",
    "optim",
    "legacy",
    "tensors",
    "data",
    "distributions",
    "host_pipeline",
    "utils",
    "trainer",
    "cli",
    "storage",
    "strategies",
    "typing",
    "tools",
}
#: names that programs know: `flow.scope.placement` and `flow.placement`, `flow.experimental.scope` and `flow.scope`
PUBLIC_TWICE = {"placement", "scope"}
FOREIGN = {"torch", "jax", "tensorflow"}
#: the recorders of reference values run in an environment of their own and are no tests
RECORDERS = set((ROOT / "tests").rglob("references/record.py"))
ELSEWHERE = re.compile(r"(?<![\w.])/(?:work|opt|home|root|Users)/\w+")
SKIPPED = {".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "__pycache__"}


def files(suffixes: set[str], *folders: str) -> list[Path]:
    starts = [ROOT / folder for folder in folders] or [ROOT]
    paths = [path for start in starts for path in ([start] if start.is_file() else sorted(start.rglob("*")))]
    return [p for p in paths if p.is_file() and p.suffix in suffixes and not SKIPPED & set(p.relative_to(ROOT).parts)]


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def defined_names(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of everything a module gives a name to: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def unwanted_names(path: Path) -> list[str]:
    where = path.relative_to(ROOT)
    named = [(0, path.stem), *defined_names(path.read_text(encoding="utf-8"))]
    return [f"{where}:{line}: {name}" for line, name in named if words(name) & UNWANTED]


def repeated(named: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Names that stand in several places, and where."""
    places = defaultdict(list)
    for name, path in named:
        if name not in PUBLIC_TWICE:
            places[name].append(str(path.relative_to(ROOT)))
    return {name: listed for name, listed in places.items() if len(listed) > 1}


def test_no_two_modules_have_the_same_name() -> None:
    modules = [path for path in files({".py"}, "jobflow") if not path.stem.startswith("__")]
    assert len(modules) > 300
    assert repeated((path.stem, path) for path in modules) == {}


def test_no_two_classes_below_the_front_have_the_same_name() -> None:
    below = [path for path in files({".py"}, "jobflow") if path.relative_to(ROOT).parts[1] not in FRONT]
    classes = [(node.name, path) for path in below for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    assert len(classes) > 300
    assert repeated(classes) == {}


def imported_packages(source: str) -> set[str]:
    packages: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.split(".")[0])
    return packages


def test_names_inside_say_what_they_are() -> None:
    inside = files({".py"}, *(f"jobflow/{name}" for name in INSIDE))
    assert len(inside) > 10, "the package was not found"
    assert [problem for path in inside for problem in unwanted_names(path)] == []


def test_no_other_framework_is_imported() -> None:
    texts = {p: p.read_text(encoding="utf-8") for p in files({".py"}, "jobflow", "tests", "examples") if p not in RECORDERS}
    named = {path: text for path, text in texts.items() if any(name in text for name in FOREIGN)}
    assert {str(p.relative_to(ROOT)): foreign for p, text in named.items() if (foreign := imported_packages(text) & FOREIGN)} == {}


def test_no_file_names_somebodys_machine() -> None:
    texts = files({".py", ".md", ".toml", ".txt", ".yaml", ".in", ""})
    named = {str(p.relative_to(ROOT)): ELSEWHERE.findall(p.read_text(encoding="utf-8", errors="replace")) for p in texts}
    assert {name: machine_names for name, machine_names in named.items() if machine_names} == {}


def test_no_file_breaks_more_rules_than_its_record_allows() -> None:
    by_file = writing.all_breaches()
    assert len(by_file) > 1000, "the package was not searched"
    above = writing.excess(writing.counted(by_file), writing.read_bounds())
    lines = []
    for (file, rule), number in above.items():
        lines.append(f"{number} more than the record allows in {file}, one or more of:")
        lines += [f"    {file}:{breach.line}: {breach.advice}" for breach in by_file[file] if breach.rule == rule]
    assert not lines, "\n".join([*lines, "moved code between files? scripts/tighten_writing accepts that if no total grows"])


@pytest.mark.parametrize(
    ("source", "is_unwanted"),
    [
        ("def make_blob(): ...", True),
        ("class TensorDesc: ...", True),
        ("def f(conf): ...", True),
        ("self.manager = 1", True),
        ("from contextlib import contextmanager", False),
        ("description = configure(unittest)", False),
    ],
)
def test_the_checker_reads_whole_words(source: str, is_unwanted: bool) -> None:
    assert any(words(name) & UNWANTED for _, name in defined_names(source)) == is_unwanted


def test_the_path_pattern_wants_a_whole_path() -> None:
    assert ELSEWHERE.search("run /" + "home/me") and not ELSEWHERE.search("jobflow/work/x and ./opt/y and 3/work")
