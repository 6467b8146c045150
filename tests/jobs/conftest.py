"""Sessions of devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jobflow as flow


@pytest.fixture(params=[1, 2], ids=["solo", "threads"])
def devices(request: pytest.FixtureRequest, fresh: None) -> int:
    """Start a fresh session on one device, and on two."""
    count: int = request.param
    flow.config.cpu_device_num(count)
    return count


@pytest.fixture
def on(fresh: None) -> Callable[[int], None]:
    """Return a function that starts a fresh session on a number of devices."""

    def begin(count: int) -> None:
        flow.clear_default_session()
        flow.config.cpu_device_num(count)

    return begin
