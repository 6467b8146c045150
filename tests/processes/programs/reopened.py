"""Consecutive sessions on the same ranks: results of earlier sessions do not change when the ranks reuse shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

SIZE = 300_000


def cell(number: int) -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((SIZE,))) -> tp.Numpy:
        w = flow.get_variable("w", shape=(SIZE,), initializer=flow.constant_initializer(float(number)))
        return flow.math.reduce_sum(x * w) + w

    return job


results = []
for number in range(4):
    results.append(cell(number)(np.ones(SIZE, np.float32)))
    results.append(flow.get_all_variables()["w"].numpy())
    flow.clear_default_session()

for number in range(4):
    result, variable = results[2 * number : 2 * number + 2]
    assert result.tolist() == [number * SIZE + float(number)] * SIZE
    assert variable.tolist() == [float(number)] * SIZE
print("right")
