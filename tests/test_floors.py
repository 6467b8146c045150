"""Imports go down: a module may import its own floor and those below, and compiler and runtime are strangers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jobflow"

#: module or package -> floor; the longest prefix of a module's name decides
FLOORS = {
    floor: names.split()
    for floor, names in {
        "0": "core typing",
        "1": "ops",
        "2": "graph",
        "3": "plan",
        "4a": "compiler",
        "4b": "runtime",
        "5": "engine variable_io eager checkpoint",
        "6": "legacy functional optim utils strategies models nn data image",
        "7": "distributed trainer cli explain stages pages picture comparison verify __main__",
    }.items()
}
FLOOR_OF = {f"jobflow.{name}": floor for floor, names in FLOORS.items() for name in names}
STRANGERS = {("4a", "4b"), ("4b", "4a")}


def modules(root: Path = PACKAGE) -> dict[str, Path]:
    """Dotted name -> file of every module below `root`, which is the package `jobflow`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = ["jobflow", *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def floor_of(module: str) -> str | None:
    """The floor of a module; None if the table does not name it."""
    return FLOOR_OF.get(".".join(module.split(".")[:2]))


def everywhere(tree: ast.AST) -> Iterator[ast.AST]:
    """All that is written in a module."""
    return ast.walk(tree)


def at_once(tree: ast.AST) -> Iterator[ast.AST]:
    """All that runs when a module is imported: not the bodies of functions, nor what is for type checkers."""
    for node in ast.iter_child_nodes(tree):
        later = isinstance(node, ast.FunctionDef | ast.Lambda) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        if not later:
            yield node
            yield from at_once(node)


def imports(
    module: str, source: str, names: set[str], is_package: bool = False, walk: Callable[[ast.AST], Iterator[ast.AST]] = everywhere
) -> Iterator[tuple[int, str]]:
    """(line, imported module) for every import of jobflow anywhere in `source`; `names` are the modules that exist."""
    here = module.split(".")
    for node in walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "jobflow")
        elif isinstance(node, ast.ImportFrom):
            up = here[: len(here) - node.level + is_package] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            if base == "jobflow":  # `from jobflow import scope` too: the package's __getattr__ answers it, which may import half of the others
                yield node.lineno, base
            elif base.split(".")[0] == "jobflow":
                yield from ((node.lineno, f"{base}.{a.name}" if f"{base}.{a.name}" in names else base) for a in node.names)


def complaint(importer: str, imported: str) -> str | None:
    """What is wrong with this import, or None."""
    above, below = floor_of(importer), floor_of(imported)
    if imported == "jobflow":
        return "the top package is the face and is imported by no module of the package"
    if above is None or below is None:
        return f"{imported if below is None else importer} is on no floor"
    if (above, below) in STRANGERS:
        return f"{importer} and {imported} are strangers: they meet in jobflow.plan"
    return f"{importer} (floor {above}) imports {imported} (floor {below})" if below[0] > above[0] else None


def complaints(files: dict[str, Path]) -> list[str]:
    names, found = set(files), []
    for module, path in files.items():
        if module == "jobflow":
            continue
        for line, imported in imports(module, path.read_text(encoding="utf-8"), names, path.name == "__init__.py"):
            problem = complaint(module, imported)
            if problem:
                found.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {problem}")
    return found


def circle(needs: dict[str, set[str]]) -> list[str]:
    """Names of which each needs the next and the last the first; [] if there are none."""
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        found = [] if name in done else next(filter(None, (follow(other, [*path, name]) for other in sorted(needs.get(name, ())))), [])
        done.add(name)
        return found

    return next(filter(None, (follow(name, []) for name in sorted(needs))), [])


def test_every_module_has_a_floor() -> None:
    homeless = [name for name in modules() if name != "jobflow" and floor_of(name) is None]
    assert not homeless, f"name their floor in {Path(__file__).name}: {homeless}"


def test_imports_go_down() -> None:
    assert len(modules()) > 20, "the package was not found"
    assert complaints(modules()) == []


def test_no_modules_need_each_other() -> None:
    """Whichever module is imported first, what it needs is there."""
    files = modules()
    needs = {
        module: {imported for _, imported in imports(module, path.read_text("utf-8"), set(files), path.name == "__init__.py", at_once)}
        for module, path in files.items()
    }
    assert circle(needs) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b", "c"}, "b": set(), "c": {"d"}, "d": {"c"}}) == ["c", "d"]
    assert circle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) == []


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("jobflow.ops.norm", "def f():\n    from jobflow.graph import ir", True),
        ("jobflow.ops.norm", "from ..graph.ir import Value", True),
        ("jobflow.compiler.rank.lower", "from jobflow.runtime import executor", True),
        ("jobflow.runtime.executor", "import jobflow.compiler.compile", True),
        ("jobflow.nn", "from jobflow import relu", True),
        ("jobflow.nn", "import jobflow", True),
        ("jobflow.ops.norm", "if TYPE_CHECKING:\n    from jobflow.engine.session import Session", True),
        ("jobflow.nn", "from jobflow import layers, scope", True),
        ("jobflow.legacy.loss_functions", "from .. import scope", True),
        ("jobflow.nn", "from jobflow.ops import base\nimport jobflow.core.scope as scope", False),
        ("jobflow.ops.norm", "from .base import Op\nimport numpy", False),
    ],
)
def test_the_checker_sees(module: str, source: str, wrong: bool) -> None:
    names = {*modules(), "jobflow.graph.ir", "jobflow.layers", "jobflow.core.scope", "jobflow.ops.base", "jobflow.runtime.executor"}
    assert any(complaint(module, imported) for _, imported in imports(module, source, names)) == wrong
