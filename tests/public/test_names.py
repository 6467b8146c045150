"""Public names: every name can be the first import of a new interpreter, and `dir` and type checkers list it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pickle
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import jobflow as flow
from jobflow.core.lazy_imports import read
from jobflow.functional.later_methods import families

PACKAGE = Path(flow.__file__).parent
#: faces whose names are imported when they are asked for
LAZY = ("flow", "flow.functional", "flow.nn")
#: modules of others
INNER = ("flow.optim.lr_scheduler", "flow.utils.data", "flow.experimental.scope")

TABLE = Path(__file__).with_name("names.txt")
CLASS = re.compile(r"^[* ] (jobflow\.[\w.]+)\(.*\): class", re.MULTILINE)


def homes(path: str) -> dict[str, str]:
    """Return the module that defines each name, from the stub of a namespace with lazy imports."""
    package = path.replace("flow", "jobflow", 1)
    entries, _ = read(package, PACKAGE.joinpath(*path.split(".")[1:], "__init__.pyi"))
    return {name: module for name, (module, _) in entries.items()}


def named(path: str) -> object:
    value: object = flow
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


def groups() -> Iterator[tuple[str, str, list[str]]]:
    """Return (namespace, module, names of the namespace that the module defines)."""
    for path in LAZY:
        by_home: dict[str, list[str]] = {}
        for name, module in homes(path).items():
            by_home.setdefault(module, []).append(name)
        yield from ((path, module, names) for module, names in by_home.items())


def ask(code: str) -> None:
    """Run a program in a new interpreter, which must neither fail nor print."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", f"import jobflow as flow\n{code}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{code}\n{done.stderr}"


#: runs each code that it reads in a copy of a process that has imported nothing but jobflow and what lies under all faces: imports go down
#: (tests/test_floors.py), so that it cannot matter there which face is asked for first, and it is half of what there is to import
SEQUENTIAL_FORKS = """
import json, os, sys
import jobflow as flow
import jobflow.compiler.compile
for code in json.load(sys.stdin):
    if not os.fork():
        exec(code)
        os._exit(0)
    if os.wait()[1]:
        print(code)
"""


def run_in_forks(codes: Iterable[str]) -> None:
    """Run many programs as `ask` does."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # Python warns of forks beside threads
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SEQUENTIAL_FORKS], input=json.dumps(list(codes)), capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stdout + done.stderr


@pytest.mark.parametrize("path", LAZY)
def test_names_of_a_module_can_be_imported_first(path: str) -> None:
    """A module also has all names that `dir` lists."""
    run_in_forks(
        f"for name in {names}:\n  found = getattr({path}, name)\n  if type(found) is type(flow):\n    for each in dir(found): getattr(found, each)"
        for of, _, names in groups()
        if of == path
    )


@pytest.mark.parametrize("name", INNER)
def test_nested_modules_can_be_imported_first(name: str) -> None:
    ask(f"for each in dir({name}): getattr({name}, each)")


@pytest.mark.full
@pytest.mark.parametrize("name", [f"{path}.{name}" for path in LAZY for name in homes(path)])
def test_every_name_can_be_imported_first(name: str) -> None:
    ask(name)


@pytest.mark.parametrize("path", LAZY)
def test_dir_shows_the_names_of_the_stub(path: str) -> None:
    assert set(homes(path)) <= set(dir(named(path)))


def test_functions_of_tensors_are_names_of_flow() -> None:
    assert set(flow.functional.__all__) - set(dir(flow)) == set()


def test_nn_has_all_modules() -> None:
    classes = {name for name in dir(flow.nn.modules) if isinstance(getattr(flow.nn.modules, name), type) and not name.startswith("_")}
    assert len(classes) > 80 and classes - set(dir(flow.nn)) == set()


def test_later_methods_list_the_methods_of_their_classes() -> None:
    table = families()
    classes = [getattr(importlib.import_module(module), family) for module, family in table]
    defined = {name for each in classes for name in set(dir(each)) - set(dir(object))} - {"__module__", "__slots__"}
    assert {name for names in table.values() for name in names} == defined


def test_layers_name_the_job_function_of_the_same_name() -> None:
    for module in ("convolution", "loss_functions", "normalization"):
        functions = vars(importlib.import_module(f"jobflow.legacy.{module}"))
        shared = {name for name in dir(flow.nn.modules) if name in functions and isinstance(getattr(flow.nn.modules, name), type)}
        assert {name for name in shared if getattr(flow.nn.modules, name).job_functions != f"jobflow.legacy.{module}"} == set()


@pytest.mark.parametrize("owner", [flow.Tensor, flow.ones(1)], ids=["class", "tensor"])
def test_dir_shows_the_methods_of_tensors(owner: object) -> None:
    assert {"sort", "add_", "backward", "to_global", "T", "device"} <= set(dir(owner))


@pytest.mark.parametrize(
    ("ask_for", "near"),
    [(lambda: flow.global_functoin, "global_function"), (lambda: flow.nn.Linaer, "Linear"), (lambda: flow.argsrot, "argsort")],
)
def test_errors_of_wrong_names_suggest_the_closest_name(ask_for: Callable[[], object], near: str) -> None:
    with pytest.raises(AttributeError) as caught:
        ask_for()
    assert near in str(caught.value)


@pytest.mark.parametrize("name", ["promotion", "devices", "arithmetic", "np", "Any"])
def test_names_outside_of_the_stub_raise(name: str) -> None:
    with pytest.raises(AttributeError):
        getattr(flow, name)


def test_the_program_that_is_checked_for_types_runs() -> None:
    program = runpy.run_path(str(Path(__file__).with_name("typed_program.py")))["program"]
    assert program().shape == (4, 2)


def test_public_names_and_signatures_equal_the_record() -> None:
    script = Path(__file__).parents[2] / "scripts" / "refresh_names"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run scripts/refresh_names if this is meant:\n{done.stdout}{done.stderr}"


def table_of_classes() -> Iterator[type]:
    for name in CLASS.findall(TABLE.read_text(encoding="utf-8")):
        with contextlib.suppress(ModuleNotFoundError):  # some modules are attributes only
            importlib.import_module(name.rpartition(".")[0])
        yield functools.reduce(getattr, name.split(".")[1:], flow)


def test_public_classes_are_pickled_by_their_names() -> None:
    """Pickle sends samples, arguments and modules of users between processes."""
    classes = list(table_of_classes())
    assert len(classes) > 200
    assert [each for each in classes if pickle.loads(pickle.dumps(each)) is not each] == []
