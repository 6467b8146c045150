"""After an error that spoils the CUDA context, every later test of the process fails: end a worker of xdist, which starts another one."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.failed and item.get_closest_marker("gpu") and "PYTEST_XDIST_WORKER" in os.environ and "cupy" in sys.modules:
        runtime = importlib.import_module("cupy.cuda.runtime")
        try:
            runtime.deviceSynchronize()
        except runtime.CUDARuntimeError as error:
            os.write(2, f"{item.nodeid}: the CUDA context is unusable ({error}); this worker ends\n{report.longreprtext}\n".encode())
            os._exit(1)
    return report
