"""The namespace `flow.unittest`: support for tests of programs.

Environment variables set the number of devices: ONEFLOW_TEST_DEVICE_NUM and ONEFLOW_TEST_NODE_NUM, both 1 by default. With
ONEFLOW_TEST_ENABLE_EAGER=1 the jobs of a `TestCase` are eager.
"""

from __future__ import annotations

import os
import runpy
import unittest
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jobflow.engine.session import clear_default_session
from jobflow.legacy.aliases import enable_eager_execution

__all__ = [
    "TestCase",
    "env",
    "num_nodes_required",
    "register_test_cases",
    "skip_unless_1n1d",
    "skip_unless_1n2d",
    "skip_unless_1n4d",
    "skip_unless_2n1d",
    "skip_unless_2n2d",
    "skip_unless_2n4d",
]

Test = TypeVar("Test", bound=Callable[..., Any])


class env:
    """The settings of tests in environment variables."""

    @staticmethod
    def device_num() -> int:
        """Return the number of devices per machine in ONEFLOW_TEST_DEVICE_NUM, 1 by default."""
        return int(os.environ.get("ONEFLOW_TEST_DEVICE_NUM", 1))

    @staticmethod
    def node_list() -> list[str]:
        """Return the addresses of the machines in ONEFLOW_TEST_NODE_LIST; raise KeyError if the variable is not set."""
        return os.environ["ONEFLOW_TEST_NODE_LIST"].split(",")

    @staticmethod
    def has_node_list() -> bool:
        """Return True if ONEFLOW_TEST_NODE_LIST is set."""
        return bool(os.environ.get("ONEFLOW_TEST_NODE_LIST"))

    @staticmethod
    def world_size() -> int:
        """Return the number of processes in ONEFLOW_TEST_WORLD_SIZE; raise KeyError if the variable is not set."""
        return int(os.environ["ONEFLOW_TEST_WORLD_SIZE"])

    @staticmethod
    def has_world_size() -> bool:
        """Return True if ONEFLOW_TEST_WORLD_SIZE is set."""
        return bool(os.environ.get("ONEFLOW_TEST_WORLD_SIZE"))

    @staticmethod
    def node_size() -> int:
        """Return the number of machines: ONEFLOW_TEST_WORLD_SIZE, or the length of ONEFLOW_TEST_NODE_LIST, or ONEFLOW_TEST_NODE_NUM.

        The first of these environment variables that is set determines the number, which is 1 by default.
        """
        if env.has_world_size():
            return env.world_size()
        return len(env.node_list()) if env.has_node_list() else int(os.environ.get("ONEFLOW_TEST_NODE_NUM", 1))

    @staticmethod
    def eager_execution_enabled() -> bool:
        """Return True if ONEFLOW_TEST_ENABLE_EAGER is 1, so that tests run eager jobs."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_EAGER") == "1"

    @staticmethod
    def typing_check_enabled() -> bool:
        """Return True if ONEFLOW_TEST_ENABLE_TYPING_CHECK is 1; annotations are always checked."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_TYPING_CHECK") == "1"


class TestCase(unittest.TestCase):
    """A test case with a new session for each test."""

    def setUp(self) -> None:
        clear_default_session()
        enable_eager_execution(env.eager_execution_enabled())


def _skip_unless(nodes: int, devices: int) -> Callable[[Test], Test]:
    if (env.node_size(), env.device_num()) == (nodes, devices):
        return lambda test: test
    return unittest.skip(f"requires {nodes} machines of {devices} devices; set ONEFLOW_TEST_NODE_NUM and ONEFLOW_TEST_DEVICE_NUM")


def skip_unless_1n1d() -> Callable[[Test], Test]:
    """Skip the test unless there is one machine with one device."""
    return _skip_unless(1, 1)


def skip_unless_1n2d() -> Callable[[Test], Test]:
    """Skip the test unless there is one machine with two devices."""
    return _skip_unless(1, 2)


def skip_unless_1n4d() -> Callable[[Test], Test]:
    """Skip the test unless there is one machine with four devices."""
    return _skip_unless(1, 4)


def skip_unless_2n1d() -> Callable[[Test], Test]:
    """Skip the test unless there are two machines with one device each."""
    return _skip_unless(2, 1)


def skip_unless_2n2d() -> Callable[[Test], Test]:
    """Skip the test unless there are two machines with two devices each."""
    return _skip_unless(2, 2)


def skip_unless_2n4d() -> Callable[[Test], Test]:
    """Skip the test unless there are two machines with four devices each."""
    return _skip_unless(2, 4)


def num_nodes_required(num_nodes: int) -> Callable[[Test], Test]:
    """Return a decorator that sets the number of machines of a test, which `register_test_cases` passes to its filter."""

    def mark(test: Test) -> Test:
        test.num_nodes_required = num_nodes  # type: ignore[attr-defined]
        return test

    return mark


class _ClearDefaultSession:
    """A mixin that starts a new session before each registered test."""

    def setUp(self) -> None:
        clear_default_session()


def register_test_cases(
    scope: dict[str, Any],
    directory: str,
    filter_by_num_nodes: Callable[[int], bool],
    base_class: type[unittest.TestCase] = unittest.TestCase,
    test_case_mixin: type[Any] = _ClearDefaultSession,
) -> None:
    """Add to `scope` a test case for each module `test_*.py` in `directory`, with the functions `test_...` that the filter accepts.

    `filter_by_num_nodes` receives the number of machines of a test, 1 by default.
    """
    for name, cases in _tests_of(directory, filter_by_num_nodes, os.path.realpath(scope.get("__file__", ""))):
        scope[name] = type(name, (test_case_mixin, base_class), {case.__name__: case for case in cases})


def _tests_of(directory: str, target: Callable[[int], bool], caller: str) -> Sequence[tuple[str, list[Callable[..., Any]]]]:
    """Return pairs (module name, test functions) of the modules `test_*.py` in `directory`, sorted by name, without the module `caller`.

    `target` selects the test functions by their number of machines.
    """
    result = []
    for file in sorted(os.listdir(directory)):
        path = os.path.join(directory, file)
        if file.startswith("test_") and file.endswith(".py") and os.path.realpath(path) != caller:
            content = runpy.run_path(path)
            cases = [value for name, value in content.items() if name.startswith("test_") and callable(value)]
            result.append((file.removesuffix(".py"), [case for case in cases if target(getattr(case, "num_nodes_required", 1))]))
    return result
