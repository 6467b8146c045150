"""`ranks` of the eager tests, `nn_cases` and the modules beside this file are importable by the tests in this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobflow as flow
from jobflow import scope
from jobflow.core import notices

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[1] / other) for other in ("eager", "nn"))]


@pytest.fixture
def fresh() -> Iterator[None]:
    """A session that nobody has touched."""
    notices.forget()
    with scope.using(root=scope.Root()):
        yield
        flow.clear_default_session()
