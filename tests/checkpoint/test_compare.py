"""Comparison of two checkpoints, with the largest differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.core.errors import CheckpointError
from jobflow.storage import difference as compare
from jobflow.storage.difference import Difference, differences, extra_differences, selected
from jobflow.storage.store import Checkpoint, load, save


def pair(root: Path, first: dict[str, Any], second: dict[str, Any]) -> tuple[Checkpoint, Checkpoint]:
    save(root / "a", first)
    save(root / "b", second)
    return load(root / "a"), load(root / "b")


def only(root: Path, a: Any, b: Any, **tolerances: float) -> Difference | None:
    result = list(differences(*pair(root, {"x": a}, {"x": b}), **tolerances))
    assert len(result) < 2
    return result[0] if result else None


def test_names_shapes_and_types(tmp_path: Path) -> None:
    first = {"left": np.zeros(2), "shape": np.zeros((2, 3)), "type": np.zeros(2, np.float32), "same": np.arange(3)}
    second = {"same": np.arange(3), "type": np.zeros(2), "shape": np.zeros((3, 2)), "right": np.zeros(1, np.int8)}
    result = list(differences(*pair(tmp_path, first, second)))
    assert result == [
        Difference("left", "float64[2]", None),
        Difference("shape", "float64[2,3]", "float64[3,2]"),
        Difference("type", "float32[2]", "float64[2]"),
        Difference("right", None, "int8[1]"),
    ]
    assert all(difference.of_type for difference in result)


@pytest.mark.parametrize(
    ("a", "b", "unequal", "absolute", "relative"),
    [
        (np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.5, 3.0]), 2, 1.0, 0.25),
        (np.array([1.0, -3.0]), np.array([1.0, 3.0]), 1, 6.0, 2.0),
        (np.array([0.0]), np.array([-0.0]), 1, 0.0, 0.0),
        (np.array([np.nan, 1.0]), np.array([2.0, 1.0]), 1, np.inf, np.inf),
        (np.array([np.inf]), np.array([1.0]), 1, np.inf, np.inf),
        (np.array([np.inf]), np.array([-np.inf]), 1, np.inf, np.inf),
        (np.array([2**53]), np.array([2**53 + 1]), 1, 1.0, 2.0**-53),
        (np.array([-(2**63)]), np.array([2**63 - 1]), 1, 2.0**64, 2.0),
        (np.array([200], np.uint8), np.array([100], np.uint8), 1, 100.0, 0.5),
        (np.array([True, False]), np.array([True, True]), 1, 1.0, 1.0),
        (np.array([1, 2], np.float16), np.array([1, 4], np.float16), 1, 2.0, 0.5),
        (np.float32(3), np.float32(4), 1, 1.0, 0.25),
    ],
)
def test_differences_of_values(tmp_path: Path, a: Any, b: Any, unequal: int, absolute: float, relative: float) -> None:
    result = only(tmp_path, a, b)
    assert result is not None and not result.of_type
    assert (result.unequal, result.absolute, result.relative) == (unequal, absolute, pytest.approx(relative))


def test_equal_bits_are_equal(tmp_path: Path) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], np.float32)
    assert only(tmp_path, odd, odd.copy()) is None
    assert list(differences(*pair(tmp_path / "empty", {"e": np.zeros((0, 3))}, {"e": np.zeros((0, 3))}))) == []


def test_the_largest_difference_is_over_all_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "BLOCK", 4)
    a, b = np.ones(19), np.ones(19)
    b[[3, 4, 17]] = 3.0, 2.0, 1.5
    result = only(tmp_path, a, b)
    assert result is not None and (result.unequal, result.absolute) == (3, 2.0)


def test_tolerances(tmp_path: Path) -> None:
    a, b = np.array([100.0, 1.0]), np.array([100.0001, 1.0])
    assert only(tmp_path / "0", a, b, rtol=1e-7) is not None
    assert only(tmp_path / "1", a, b, rtol=1e-5) is None
    assert only(tmp_path / "2", a, b, atol=1e-3) is None
    assert only(tmp_path / "3", np.array([np.nan]), np.array([1.0]), atol=1e9) is not None


def test_patterns(tmp_path: Path) -> None:
    first, second = pair(tmp_path, {"a/w": np.zeros(1), "b/w": np.zeros(1)}, {"a/w": np.ones(1), "b/w": np.ones(1)})
    assert [result.name for result in differences(first, second, ["b*"])] == ["b/w"]
    assert selected(["*w", "a*"], ["a/w", "b/w", "c"]) == ["a/w", "b/w"]
    with pytest.raises(CheckpointError, match=r'no tensor matches "a/v"; did you mean "a/w"\?'):
        list(differences(first, second, ["a/v"]))


def test_damage_is_an_error(tmp_path: Path) -> None:
    first, second = pair(tmp_path, {"v": np.zeros(3), "w": np.zeros(3)}, {"v": np.zeros(3), "w": np.zeros(3)})
    file = second.stored["w"].file
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match='"w" is damaged'):
        list(differences(first, second))


def test_differences_of_the_json_tree() -> None:
    first = {"step": 1, "position": {"epoch": 0, "sample": 3}, "old": [1]}
    second = {"step": 2, "position": {"epoch": 0, "sample": 4}, "new": None, "metrics": {}}
    assert list(extra_differences(first, second)) == [("step", 1, 2), ("position.sample", 3, 4), ("old", [1], None), ("metrics", None, {})]
