"""Layouts, meshes and placements of whole programs: tensors do not change, on threads and between processes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from processes import run

import jobflow

PROGRAMS = Path(__file__).with_name("programs")


def program() -> Any:
    spec = importlib.util.spec_from_file_location("travels", PROGRAMS / "travels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(3))
def test_on_threads(seed: int) -> None:
    jobflow.clear_default_session()
    assert program().main(seed) == 32
    jobflow.clear_default_session()


@pytest.mark.mpi
@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.full)])
def test_among_processes(seed: int) -> None:
    ended = run(PROGRAMS / "travels.py", str(seed), ranks=4)
    assert (ended.code, ended.out.strip()) == (0, "32 arrays arrived"), ended.err
