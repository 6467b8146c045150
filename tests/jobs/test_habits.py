"""Programs in the habits of the legacy documentation give the same numbers on one device, on threads and on ranks."""

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
    """What one device computes."""
    return habits.run(name, 1)


def check(name: str, found: list[Any]) -> None:
    expected = reference(name)
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", habits.PROGRAMS)
def test_numbers_are_those_of_the_declared_types(name: str) -> None:
    found = reference(name)
    assert {array.dtype for array in found} <= {np.dtype(kind) for kind in (np.float64, np.int32, np.int64, np.int8)}
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("name", habits.PROGRAMS)
def test_threads(name: str, devices: int) -> None:
    found = habits.run(name, devices)
    check(name, found)
    assert [array.dtype for array in found] == [array.dtype for array in reference(name)]


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_ranks(ranks: int, tmp_path: Path) -> None:
    ended = run(PROGRAMS / "habits.py", str(tmp_path / "out.json"), ranks=ranks)
    assert (ended.code, ended.out) == (0, ""), ended.err
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == list(habits.PROGRAMS)
    for name, arrays in found.items():
        check(name, arrays)
