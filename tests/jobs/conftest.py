"""Sessions of devices; the modules beside this file and the programs are importable by the tests in this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jobflow as flow
from jobflow import scope
from jobflow.core import notices

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "programs")]


@pytest.fixture
def fresh() -> Iterator[None]:
    """A session and an environment that nobody has touched, and notices that were not given yet."""
    notices.forget()
    with scope.using(root=scope.Root()):
        yield
        flow.clear_default_session()


@pytest.fixture(params=[1, 2], ids=["solo", "threads"])
def devices(request: pytest.FixtureRequest, fresh: None) -> int:
    """A fresh session on one device, and on two."""
    count: int = request.param
    flow.config.cpu_device_num(count)
    return count


@pytest.fixture
def on(fresh: None) -> Callable[[int], None]:
    """Begin a session anew, on so many devices."""

    def begin(count: int) -> None:
        flow.clear_default_session()
        flow.config.cpu_device_num(count)

    return begin
