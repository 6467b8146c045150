"""Sessions one after another on the same ranks: what they gave stays as it was, whatever becomes of the memory that ranks shared."""

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
