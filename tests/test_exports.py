"""What `import jobflow` offers, and what it costs."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from pathlib import Path

import jobflow

#: imported only where a world or a device needs them
HEAVY = ("mpi4py", "cupy", "scipy", "sklearn", "torch", "multiprocessing")


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_all_names_exist_once() -> None:
    assert len(set(jobflow.__all__)) == len(jobflow.__all__)
    assert [name for name in jobflow.__all__ if not hasattr(jobflow, name)] == []


def test_all_says_everything() -> None:
    """Every public name of the face is exported; modules that are merely imported on the way need not be."""
    public = {n for n, v in vars(jobflow).items() if not n.startswith("_") and not isinstance(v, types.ModuleType)}
    assert public - set(jobflow.__all__) - {"annotations"} == set()


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


def test_import_is_light() -> None:
    loaded = fresh("import sys, jobflow; print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))").split()
    assert "jobflow" in loaded
    assert set(HEAVY) & set(loaded) == set()


def test_import_starts_no_thread_and_prints_nothing() -> None:
    assert fresh("import jobflow, threading; assert threading.active_count() == 1") == ""
