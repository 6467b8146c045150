"""Tensors pass through random layouts, meshes and placements and must not change.

mpiexec -n 4 python travels.py SEED       prints the comparisons
"""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

SHAPE = (7, 5)
PLACES: list[tuple[Any, tuple[int, ...] | None]] = [
    ("0:0-3", (2, 2)),
    ("0:0-3", (2, 2)),
    ("0:0-3", None),
    ([[0, 2], [1, 3]], None),
    ("0:0-1", None),
    ("0:1-3", None),
    ("0:2", None),
]


def travel(x: Any, stops: int, chance: random.Random) -> Any:
    """Return x after conversion to each of the layouts in `stops`."""
    for _ in range(stops):
        devices, hierarchy = chance.choice(PLACES)
        with flow.scope.placement("cpu", devices, hierarchy):
            mesh = 2 if hierarchy or isinstance(devices, list) else 1
            x = flow.hierarchical_parallel_cast(x, [chance.choice(["S(0)", "S(1)", "B", "P"]) for _ in range(mesh)])
    return x


def main(seed: int) -> int:
    """Return the number of arrays that arrived."""
    flow.config.cpu_device_num(4)
    chance = random.Random(seed)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(SHAPE, dtype=flow.float64)) -> list[tp.Numpy]:  # type: ignore[valid-type]
        return [travel(x, 12, chance) for _ in range(8)]

    arrived = 0
    for run, offset in itertools.product(range(2), (0.0, -17.0)):
        x = np.arange(35.0).reshape(SHAPE) + offset
        for result in job(x):
            np.testing.assert_array_equal(result, x, err_msg=f"run {run}")
            arrived += 1
    return arrived


if __name__ == "__main__":
    print(f"{main(int(sys.argv[1]))} arrays arrived")
