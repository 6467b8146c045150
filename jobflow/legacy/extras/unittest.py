"""`flow.unittest`: what programs test themselves with.

The environment says on how many devices tests run: ONEFLOW_TEST_DEVICE_NUM and ONEFLOW_TEST_NODE_NUM, both 1 by default; with
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
    """What the environment says about tests."""

    @staticmethod
    def device_num() -> int:
        """Devices of each machine."""
        return int(os.environ.get("ONEFLOW_TEST_DEVICE_NUM", 1))

    @staticmethod
    def node_list() -> list[str]:
        """Addresses of machines."""
        return os.environ["ONEFLOW_TEST_NODE_LIST"].split(",")

    @staticmethod
    def has_node_list() -> bool:
        """Whether machines are named."""
        return bool(os.environ.get("ONEFLOW_TEST_NODE_LIST"))

    @staticmethod
    def world_size() -> int:
        """Processes, if the environment says so."""
        return int(os.environ["ONEFLOW_TEST_WORLD_SIZE"])

    @staticmethod
    def has_world_size() -> bool:
        """Whether the environment says how many processes there are."""
        return bool(os.environ.get("ONEFLOW_TEST_WORLD_SIZE"))

    @staticmethod
    def node_size() -> int:
        """Machines."""
        if env.has_world_size():
            return env.world_size()
        return len(env.node_list()) if env.has_node_list() else int(os.environ.get("ONEFLOW_TEST_NODE_NUM", 1))

    @staticmethod
    def eager_execution_enabled() -> bool:
        """Whether tests run jobs line by line."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_EAGER") == "1"

    @staticmethod
    def typing_check_enabled() -> bool:
        """Whether annotations are compared strictly; they always are."""
        return os.environ.get("ONEFLOW_TEST_ENABLE_TYPING_CHECK") == "1"


class TestCase(unittest.TestCase):
    """Each test begins with a new session."""

    def setUp(self) -> None:
        clear_default_session()
        enable_eager_execution(env.eager_execution_enabled())


def _skip_unless(nodes: int, devices: int) -> Callable[[Test], Test]:
    if (env.node_size(), env.device_num()) == (nodes, devices):
        return lambda test: test
    return unittest.skip(f"is for {nodes} machines of {devices} devices; ONEFLOW_TEST_NODE_NUM and ONEFLOW_TEST_DEVICE_NUM say otherwise")


def skip_unless_1n1d() -> Callable[[Test], Test]:
    """The test is for one machine with one device."""
    return _skip_unless(1, 1)


def skip_unless_1n2d() -> Callable[[Test], Test]:
    """The test is for one machine with two devices."""
    return _skip_unless(1, 2)


def skip_unless_1n4d() -> Callable[[Test], Test]:
    """The test is for one machine with four devices."""
    return _skip_unless(1, 4)


def skip_unless_2n1d() -> Callable[[Test], Test]:
    """The test is for two machines with one device each."""
    return _skip_unless(2, 1)


def skip_unless_2n2d() -> Callable[[Test], Test]:
    """The test is for two machines with two devices each."""
    return _skip_unless(2, 2)


def skip_unless_2n4d() -> Callable[[Test], Test]:
    """The test is for two machines with four devices each."""
    return _skip_unless(2, 4)


def num_nodes_required(num_nodes: int) -> Callable[[Test], Test]:
    """`register_test_cases` leaves the test out on another number of machines."""

    def mark(test: Test) -> Test:
        test.num_nodes_required = num_nodes  # type: ignore[attr-defined]
        return test

    return mark


class _ClearDefaultSession:
    """Mixed into test cases that are registered."""

    def setUp(self) -> None:
        clear_default_session()


def register_test_cases(
    scope: dict[str, Any],
    directory: str,
    filter_by_num_nodes: Callable[[int], bool],
    base_class: type[unittest.TestCase] = unittest.TestCase,
    test_case_mixin: type[Any] = _ClearDefaultSession,
) -> None:
    """Make a test case of the functions `test_...` of each module `test_*.py` of a directory, and put it into `scope`."""
    for name, cases in _tests_of(directory, filter_by_num_nodes, os.path.realpath(scope.get("__file__", ""))):
        scope[name] = type(name, (test_case_mixin, base_class), {case.__name__: case for case in cases})


def _tests_of(directory: str, wanted: Callable[[int], bool], caller: str) -> Sequence[tuple[str, list[Callable[..., Any]]]]:
    """(module, those of its tests whose number of machines is wanted), in the order of names; the file that asks is none of them."""
    found = []
    for file in sorted(os.listdir(directory)):
        path = os.path.join(directory, file)
        if file.startswith("test_") and file.endswith(".py") and os.path.realpath(path) != caller:
            content = runpy.run_path(path)
            cases = [value for name, value in content.items() if name.startswith("test_") and callable(value)]
            found.append((file.removesuffix(".py"), [case for case in cases if wanted(getattr(case, "num_nodes_required", 1))]))
    return found
