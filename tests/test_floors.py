"""Imports go down: a module imports its own folder and lower floors only, also through names of modules in strings and stubs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jobflow"

#: the folders, from the lowest floor to the highest; those in one line do not know each other
FLOORS = """
core
typing
expressions
ops
graph
plan
kernels
compiler runtime
program
engine
storage tensors
functional
data distributions strategies
host_pipeline
legacy
optim
nn
models
distributed
tools
trainer
cli compat utils
__main__
"""
FLOOR_OF = {f"jobflow.{folder}": number for number, line in enumerate(FLOORS.strip().splitlines()) for folder in line.split()}

#: upward names of modules in strings and stubs, "importer -> imported"; delete an entry once it is no longer needed, and add none
UPWARD = set(
    """
jobflow.compat.import_forms -> jobflow
jobflow.core.errors -> jobflow
jobflow.core.errors -> jobflow.cli
jobflow.data -> jobflow.legacy.extras.data_readers
jobflow.data -> jobflow.legacy.record_codecs
jobflow.data -> jobflow.legacy.record_data
jobflow.legacy.extras.experimental -> jobflow
jobflow.runtime.world.launched -> jobflow.distributed.launch
""".strip().splitlines()
)
#: a whole string that is a dotted name, or the constant start of one ("jobflow.functional." of an f-string), or an import statement in a string
DOTTED = re.compile(r"jobflow(?:\.\w+)+\.?(?::\w+)?")
REQUEST = re.compile(r"\b(?:import_module|__import__|find_spec|modules|modules\.get)$")
STATEMENT = re.compile(r"\b(?:from|import) (jobflow(?:\.\w+)+)")


def modules(root: Path = PACKAGE) -> dict[str, Path]:
    """Dotted name -> file of every module below `root`, which is the package `jobflow`."""
    files = {}
    for path in sorted(root.rglob("*.py")):
        parts = ["jobflow", *path.relative_to(root).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def folder_of(module: str) -> str:
    """The folder of the package in which a module is."""
    return ".".join(module.split(".")[:2])


def everywhere(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements of a module."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, block, ()):
            yield node
            yield from everywhere(node)


def at_once(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported: no bodies of functions, and no imports for type checkers."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, block, ()):
            later = isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
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


def documentation(tree: ast.AST) -> set[ast.AST]:
    """Return the nodes of docstrings and of other strings that are statements."""
    return {node.value for node in everywhere(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}


def named_in_strings(source: str, names: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) for every string in code that names a module of the package, or starts such a name."""
    tree = ast.parse(source)
    ignored = documentation(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in ignored:
            texts = [node.value] if DOTTED.fullmatch(node.value) else STATEMENT.findall(node.value)
            yield from ((node.lineno, module) for text in texts if (module := longest_module(text, names)))
        elif top_package := requested(node):
            yield node.lineno, top_package


def longest_module(text: str, names: set[str]) -> str:
    """Return the longest prefix of a dotted name that is a module of the package, or ""."""
    parts = text.partition(":")[0].rstrip(".").split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 1, -1))
    return next((prefix for prefix in prefixes if prefix in names), "")


def requested(node: ast.AST) -> str:
    """Return "jobflow" for import_module("jobflow") and sys.modules["jobflow"], else ""; elsewhere the string is the name of a command."""
    if isinstance(node, ast.Call):
        owner, keys = node.func, node.args[:1]
    elif isinstance(node, ast.Subscript):
        owner, keys = node.value, [node.slice]
    else:
        return ""
    constant = any(isinstance(key, ast.Constant) and key.value == "jobflow" for key in keys)
    return "jobflow" if constant and REQUEST.search(ast.unparse(owner)) else ""


@cache
def upward_names() -> list[tuple[str, str]]:
    """(place, "importer -> imported") for the modules above their own that strings and the stubs beside modules name."""
    files = modules()
    names, entries = set(files), []
    for module, path in files.items():
        stub = path.with_suffix(".pyi")
        named = [(path, entry) for entry in named_in_strings(path.read_text(encoding="utf-8"), names)]
        if stub.exists():
            named += [(stub, entry) for entry in imports(module, stub.read_text(encoding="utf-8"), names, path.name == "__init__.py")]
        if module != "jobflow":
            places = ((f"{file.relative_to(PACKAGE.parent)}:{line}", imported) for file, (line, imported) in named)
            entries += [(where, f"{module} -> {imported}") for where, imported in places if complaint(module, imported)]
    return entries


def complaint(importer: str, imported: str) -> str | None:
    """Return the fault of this import, or None."""
    if imported == "jobflow":
        return "the top package is the face and is imported by no module of the package"
    above, below = folder_of(importer), folder_of(imported)
    homeless = [name for name in (above, below) if name not in FLOOR_OF]
    if homeless:
        return f"{homeless[0]} is on no floor"
    if above == below or FLOOR_OF[below] < FLOOR_OF[above]:
        return None
    if FLOOR_OF[below] == FLOOR_OF[above]:
        return f"{importer} and {imported} are on one floor and do not know each other"
    return f"{importer} imports {imported}, which is above it"


def complaints(files: dict[str, Path]) -> list[str]:
    names, problems = set(files), []
    for module, path in files.items():
        if module == "jobflow":
            continue
        for line, imported in imports(module, path.read_text(encoding="utf-8"), names, path.name == "__init__.py"):
            problem = complaint(module, imported)
            if problem:
                problems.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {problem}")
    return problems


def circle(needs: dict[str, set[str]]) -> list[str]:
    """Names of which each needs the next and the last the first; [] if there are none."""
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        cycle = [] if name in done else next(filter(None, (follow(other, [*path, name]) for other in sorted(needs.get(name, ())))), [])
        done.add(name)
        return cycle

    return next(filter(None, (follow(name, []) for name in sorted(needs))), [])


def test_every_folder_has_a_floor() -> None:
    """And there are no modules beside the folders."""
    assert {folder_of(name) for name in modules() if name != "jobflow"} == set(FLOOR_OF)


def test_imports_go_down() -> None:
    assert len(modules()) > 20, "the package was not found"
    assert complaints(modules()) == []


def test_strings_and_stubs_name_no_module_above() -> None:
    problems = [f"{where}: {entry}" for where, entry in upward_names() if entry not in UPWARD]
    assert not problems, "strings or stubs name modules above their own:\n" + "\n".join(problems)


def test_upward_list_has_no_stale_entry() -> None:
    """Keep the list from growing back: delete an entry once no string needs it."""
    assert UPWARD - {entry for _, entry in upward_names()} == set()


#: folders that other modules import only inside functions, and the stubs that name their public modules
ON_FIRST_USE = ("jobflow.legacy.extras",)


def test_folders_on_first_use_are_not_imported_before() -> None:
    names = modules()
    eager = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {imported}"
        for module, path in names.items()
        if not module.startswith(ON_FIRST_USE)
        for line, imported in imports(module, path.read_text(encoding="utf-8"), set(names), path.name == "__init__.py", at_once)
        if imported.startswith(ON_FIRST_USE)
    ]
    assert eager == [], "import these inside the function that needs them"


def test_no_modules_need_each_other() -> None:
    """Whichever module is imported first, what it needs is there."""
    files = modules()
    needs = {
        module: {imported for _, imported in imports(module, path.read_text("utf-8"), set(files), path.name == "__init__.py", at_once)}
        for module, path in files.items()
    }
    assert circle(needs) == []


def test_a_cycle_is_reported() -> None:
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
    names = {*modules(), "jobflow.graph.ir", "jobflow.layers", "jobflow.core.scope", "jobflow.ops.op", "jobflow.runtime.executor"}
    assert any(complaint(module, imported) for _, imported in imports(module, source, names)) == wrong


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('import_module("jobflow.nn.graph")', ["jobflow.nn"]),
        ('import_module(f"jobflow.nn.{home}")', ["jobflow.nn"]),
        ('TABLE = {"relu": "jobflow.nn:relu"}', ["jobflow.nn"]),
        ('def __getattr__(name):\n    return {"a": "jobflow.core.scope"}[name]', ["jobflow.core.scope"]),
        ('run([python, "-c", "import jobflow.nn as n; n.f()"])', ["jobflow.nn"]),
        ('import_module("jobflow")', ["jobflow"]),
        ('sys.modules["jobflow"].__path__', ["jobflow"]),
        ('PROGRAM = "jobflow"', []),
        ('raise ValueError("an optimizer of jobflow.nn is needed")', []),
        ('"""jobflow.nn"""\nx: int = 1\n"jobflow.nn"', []),
    ],
)
def test_the_checker_reads_strings(source: str, named: list[str]) -> None:
    assert [name for _, name in named_in_strings(source, {"jobflow", "jobflow.nn", "jobflow.core.scope"})] == named


@pytest.mark.parametrize(
    "path", [*sorted((PACKAGE / "runtime/world/service").glob("*.py")), PACKAGE / "runtime/world/monitor.py"], ids=lambda path: path.stem
)
def test_helper_processes_import_only_the_standard_library(path: Path) -> None:
    """They are started without a path to packages, so that they are there at once."""
    for node in at_once(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("call", [r"\bExecutor\(", r"\bplan_rank\(", r"\bRun\("])
def test_programs_are_planned_bound_and_run_in_one_folder(call: str) -> None:
    """Jobs, graphs, redistribution, verify and explain have no runner of their own."""
    users = {folder_of(name) for name, path in modules().items() if re.search(call, path.read_text(encoding="utf-8"))}
    assert users - {"jobflow.compiler", "jobflow.runtime"} == {"jobflow.program"}


#: modules that may name CuPy: the door to GPUs, its kernels, the probe of `jobflow doctor`, and functions that CuPy has in `cupyx` only
DOOR = ("jobflow/runtime/device/", "jobflow/kernels/cuda/", "jobflow/cli/health/", "jobflow/expressions/error_function.py")
CUPY = re.compile(r"(?:cupy|cupyx|cupy_backends)(?:\.\w+)*")


def cupy_names(source: str) -> Iterator[int]:
    """Yield the lines that import CuPy, or name one of its modules in a string."""
    if "cupy" not in source:
        return
    tree = ast.parse(source)
    ignored = documentation(tree)
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in ignored:
            names = [node.value]
        yield from (node.lineno for name in names if CUPY.fullmatch(name))


def test_only_the_door_names_cupy() -> None:
    places = [(f"jobflow/{path.relative_to(PACKAGE)}", path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    places_outside = [f"{name}:{line}" for name, source in places if not name.startswith(DOOR) for line in cupy_names(source)]
    assert places_outside == [], "call a method of jobflow.runtime.device.cuda_device instead"
    assert any(list(cupy_names(source)) for name, source in places if name.startswith(DOOR))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import cupy as cp", [1]),
        ("from cupy_backends.cuda.libs import nvrtc", [1]),
        ('x = 1\nimport_module("cupyx.scipy.special")', [2]),
        ('"""cupy"""\nname = "CuPy"\nfrom jobflow.runtime.device import cuda_device', []),
    ],
)
def test_names_of_cupy_are_reported(source: str, lines: list[int]) -> None:
    assert list(cupy_names(source)) == lines
