"""Profiled steps equal ordinary steps: they leave the same variables on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from profiled import Row, profiled

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.session import current_session
from jobflow.program.commands import executors_of
from jobflow.runtime.world.world import Rank

STEPS = 30


@dataclass(frozen=True)
class Profile:
    number: int

    def __call__(self, rank: Rank, feeds: Mapping[str, Any]) -> list[Row]:
        return profiled(executors_of(rank)[self.number], feeds, STEPS)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("share", [True, False])
def test_profiled_steps_leave_the_variables_of_ordinary_steps(fresh: None, ranks: int, share: bool) -> None:
    flow.config.cpu_device_num(ranks)
    flow.config.share_variables(share)

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((6, 3))) -> tp.Numpy:
        w = flow.get_variable("w", shape=(3, 2), initializer=flow.zeros_initializer())
        loss = flow.math.reduce_mean(flow.matmul(x, w))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    ones = np.ones((6, 3), np.float32)
    session = current_session()
    assert train(ones) == 0
    compiled = session.compiled(train.job, ((6, 3),))
    bound = train.job.signature.bind((ones,), ranks)
    assert session.world is not None
    result = session.world.call(Profile(compiled.number), compiled.feeds(compiled.arguments(bound, 1)))
    assert train(ones) == -1.5 * (1 + 1 + STEPS)
    for rows in result:
        assert any(row.kernel == "matmul" and row.where.startswith("test_profile.py:") for row in rows)
        assert all(0 <= row.seconds < 1 and row.calls >= 1 for row in rows)
