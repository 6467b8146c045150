"""An interpreter that runs ops immediately."""

from __future__ import annotations

from collections.abc import Iterator

import laws
import pytest

from jobflow import scope


@pytest.fixture
def at_once() -> Iterator[None]:
    with scope.using(interpreter=laws.Immediate()):
        yield
