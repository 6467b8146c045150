"""One small job under any strategy, whose variables the tests of this folder save and load."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.session import Session, started_session

IDS = np.array([0, 3, 10, 7, 7, 1, 2, 9], np.int32)
#: name -> (devices, strategy); sizes of axes are odd, so that pieces are uneven
LAYOUTS: dict[str, tuple[int, Any]] = {
    "one": (1, flow.strategies.consistent()),
    "DP2": (2, flow.strategies.data_parallel()),
    "DP4": (4, flow.strategies.data_parallel()),
    "TP2": (2, flow.strategies.tensor_parallel()),
    "TP4": (4, flow.strategies.tensor_parallel()),
    "PP2": (2, flow.strategies.pipeline(microbatches=2)),
    "2x2": (4, flow.strategies.mesh(data=2, tensor=2)),
    "ZeRO-1": (4, flow.strategies.zero(1, least=8)),
    "ZeRO-3": (3, flow.strategies.zero(3, least=8)),
    "mirrored": (2, flow.strategies.mirrored()),
    "PP2xZeRO-1": (4, flow.strategies.mesh(pipeline=2, data=2, zero=1, microbatches=2)),
}


def begin(devices: int, strategy: Any = None, width: int = 7) -> Any:
    """Begin a new session with a train job."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    if strategy is not None:
        config.strategy(strategy)

    @flow.global_function("train", config)
    def train_job(ids: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        normal = flow.random_normal_initializer(stddev=0.3)
        x = flow.gather(flow.get_variable("table", (11, 6), initializer=normal), ids)
        x = flow.layers.dense(x, width, activation=flow.math.relu, kernel_initializer=normal, name="up")
        x = flow.nn.dropout(flow.layers.dense(x, 5, kernel_initializer=normal, name="down"), rate=0.1)
        loss = flow.math.reduce_mean(x, axis=1)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    return train_job


def session_under(name: str) -> Session:
    """Return a new session whose job is traced and bound but not run."""
    begin(*LAYOUTS[name])
    return started_session()


def values(session: Session) -> dict[str, Any]:
    """Return the current values of all variables."""
    return session.read(list(session.variables))


def values_by_name(session: Session) -> dict[str, Any]:
    """Return values for all variables that depend on their names only."""
    result = {}
    for name, variable in session.variables.items():
        random = np.random.default_rng(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
        result[name] = random.integers(-1000, 1000, variable.type.shape).astype(variable.type.dtype.numpy)
    return result


def same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare every bit of every variable."""
    assert set(result) == set(expected)
    for name, value in result.items():
        assert value.dtype == expected[name].dtype and value.shape == expected[name].shape, name
        assert value.tobytes() == expected[name].tobytes(), name
