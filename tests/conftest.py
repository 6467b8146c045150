"""After each test nothing is left: no thread, no session, no scope of its own."""

from __future__ import annotations

import os

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start hundreds of interpreters, and each would compile the package anew
if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; NumPy reads these when it is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import atexit
import gc
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import jobflow
from jobflow import scope
from jobflow.core import notices

if "JOBFLOW_CACHE" not in os.environ:  # for the workers of this run, and for the programs that tests start
    os.environ["JOBFLOW_CACHE"] = tempfile.mkdtemp(prefix="jobflow-cache-")
    atexit.register(shutil.rmtree, os.environ["JOBFLOW_CACHE"], ignore_errors=True)

gc.set_threshold(20_000, 25, 25)  # a process of tests keeps a million objects, and full collections took a tenth of its time

# how long a machine takes to make an example says nothing about the example
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

GRACE = 2.0  # seconds a thread may take to end after its session was closed


def extra_threads(before: set[threading.Thread]) -> list[str]:
    """Names of the threads that were started since and still run after a grace period; not of those that tests/support/ranks.py keeps."""
    deadline = time.monotonic() + GRACE
    extra = [thread for thread in set(threading.enumerate()) - before if not thread.name.endswith("(kept)")]
    for thread in extra:
        thread.join(max(0.0, deadline - time.monotonic()))
    return sorted(thread.name for thread in extra if thread.is_alive())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also what is marked full: more cases of what is tested anyway")
    parser.addoption("--tier", choices=("reference", "numpy", "llvm"), help="who computes where a test does not say, here and in what tests start")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tier"):
        os.environ["JOBFLOW_KERNELS"] = config.getoption("--tier")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    more = [item for item in items if item.get_closest_marker("full")]
    if more:
        config.hook.pytest_deselected(items=more)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    """Exclude the million objects of the collected tests from garbage collections; a full one would take half a second."""
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Gives every test a fresh session and checks what remains after it."""
    before, scope_before = set(threading.enumerate()), scope.current()
    yield
    scope_after = scope.current()
    if scope_after.root.session is not None:
        jobflow.clear_default_session()
    assert scope_after is scope_before, f"the test left the scope {scope_after}"
    assert extra_threads(before) == [], "the test left threads running"


@pytest.fixture
def fresh() -> Iterator[None]:
    """A session and an environment that nobody has touched, and notices that were not given yet."""
    notices.forget()
    with scope.using(root=scope.Root()):
        yield
        jobflow.clear_default_session()
