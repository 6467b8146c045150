"""Programs in the style of the legacy documentation have equal results on one device, on threads and on ranks."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import habits
import numpy as np
import pytest
from processes import run

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.usefixtures("fresh")


@functools.cache
def reference(name: str) -> list[Any]:
    """Return the results of one device."""
    return habits.run(name, 1)


def check(name: str, results: list[Any]) -> None:
    expected = reference(name)
    assert len(results) == len(expected) > 0
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", habits.PROGRAMS)
def test_numbers_are_those_of_the_declared_types(name: str) -> None:
    results = reference(name)
    assert {array.dtype for array in results} <= {np.dtype(kind) for kind in (np.float64, np.int32, np.int64, np.int8)}
    assert all(np.isfinite(array).all() for array in results)


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("name", habits.PROGRAMS)
def test_threads(name: str, devices: int) -> None:
    results = habits.run(name, devices)
    check(name, results)
    assert [array.dtype for array in results] == [array.dtype for array in reference(name)]


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_ranks(ranks: int, tmp_path: Path) -> None:
    ended = run(PROGRAMS / "habits.py", str(tmp_path / "out.json"), ranks=ranks)
    assert (ended.code, ended.out) == (0, ""), ended.err
    results = json.loads((tmp_path / "out.json").read_text())
    assert list(results) == list(habits.PROGRAMS)
    for name, arrays in results.items():
        check(name, arrays)
