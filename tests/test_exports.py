"""The names of `import jobflow`, and its cost."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import jobflow
from jobflow.core.lazy_imports import read

#: imported only where a world or a device needs them
HEAVY = ("mpi4py", "cupy", "scipy", "sklearn", "torch", "multiprocessing")


def fresh(code: str) -> str:
    """Return the output of a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_all_names_exist_once() -> None:
    assert len(set(jobflow.__all__)) == len(jobflow.__all__)
    assert [name for name in jobflow.__all__ if not hasattr(jobflow, name)] == []


def test_all_says_what_jobs_have() -> None:
    """Names outside of `import *` would hide Python's names or belong to the tensor API."""
    homes, public = read("jobflow", Path(jobflow.__file__).with_suffix(".pyi"))
    assert set(public) == set(jobflow.__all__) and set(public) <= {*homes, "__version__"}
    parts = {"amp", "compiler", "distributed", "distributions", "errors", "filters", "functional", "models", "optim", "utils", "version"}
    others = {name for name in set(homes) - set(public) if homes[name][0] != "jobflow.functional" or not homes[name][1]}
    assert others == parts | {"Size", "autocast", "get_autocast_dtype", "inf", "is_autocast_enabled", "load", "nan", "pi", "save"}


def test_no_name_is_also_that_of_another_module() -> None:
    """Importing jobflow.a makes `jobflow.a` that module, whatever the table of contents says."""
    homes, _ = read("jobflow", Path(jobflow.__file__).with_suffix(".pyi"))
    modules = {path.stem for path in Path(jobflow.__file__).parent.iterdir()}
    assert [name for name, (_, attribute) in homes.items() if attribute and name in modules] == []


def test_star_import() -> None:
    namespace: dict[str, object] = {}
    exec("from jobflow import *", namespace)
    assert set(jobflow.__all__) <= set(namespace)


def test_typing_is_a_module_of_its_own() -> None:
    typing = importlib.import_module("jobflow.typing")
    assert typing.Numpy.Placeholder and typing.ListNumpy.Placeholder


def test_package_data_is_there() -> None:
    package = Path(jobflow.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "data" / "digits.npz").stat().st_size < 200_000


def test_empty_folder_of_an_older_version_hides_no_module() -> None:
    """Git and editable installs leave a folder with `__pycache__` behind, where a package was renamed."""
    code = """
import pathlib, tempfile, jobflow
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "checkpoint", "__pycache__").mkdir(parents=True)
    jobflow.__path__.insert(0, folder)
    from jobflow.checkpoint.series import Series
    print(Series.__name__)
"""
    assert fresh(code) == "Series"


def test_import_is_light() -> None:
    """A tensor needs no compiler and no world of several ranks; each module costs 0.4 ms in every process."""
    loaded = fresh("import sys, jobflow; jobflow.zeros(2); print(*sys.modules)").split()
    assert "jobflow" in loaded
    assert set(HEAVY) & {name.split(".")[0] for name in loaded} == set()
    assert len([name for name in loaded if name.startswith("jobflow")]) < 160


def test_import_starts_no_thread_and_prints_nothing() -> None:
    assert fresh("import jobflow, threading; assert threading.active_count() == 1") == ""
