"""Jobs of different strategies share variables: they have one storage, and each job reads them as it needs them."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import trained

import jobflow as flow
import jobflow.typing as tp
from jobflow import strategies as st

EACH = {
    "none": None,
    "dp": st.data_parallel(),
    "tp": st.tensor_parallel(),
    "zero": st.zero(3, least=1),
    "pp": st.pipeline(),
    "dp x tp": st.mesh(data=2, tensor=2),
    "pp x zero": st.mesh(pipeline=2, data=2, zero=1),
}


def predict_job(strategy: Any) -> Any:
    @flow.global_function(function_config=trained.config_of(strategy))
    def predict_mlp(images: tp.Numpy.Placeholder((trained.BATCH, trained.WIDTH), dtype=flow.float64)) -> tp.Numpy:
        return trained.mlp(images)

    return predict_mlp


def prediction_after_training(training: Any, asking: Any, devices: int) -> Any:
    trained.begin(devices)
    train, predict = trained.mlp_job(training), predict_job(asking)
    for step in range(2):
        train(*trained.mlp_batch(step))
    return predict(trained.mlp_batch(9)[0])


@cache
def alone() -> Any:
    """Return the prediction of one device."""
    return prediction_after_training(None, None, 1)


def pairs() -> list[Any]:
    """All pairs of two; without --full each trains beside the next one, and beside the one after two others."""
    names = list(EACH)
    chosen = {(name, names[(i + far) % len(names)]) for i, name in enumerate(names) for far in (1, 3)}
    every = [pair for pair in product(EACH, EACH) if pair[0] != pair[1]]
    return [pair if pair in chosen else pytest.param(*pair, marks=pytest.mark.full) for pair in every]


@pytest.mark.parametrize(("training", "asking"), pairs())
def test_a_predict_job_shares_variables_with_a_train_job(training: str, asking: str) -> None:
    np.testing.assert_allclose(prediction_after_training(EACH[training], EACH[asking], 4), alone(), rtol=1e-9, atol=1e-12)


def test_the_first_job_decides_the_storage() -> None:
    prediction_after_training(st.zero(1, least=1), st.tensor_parallel(), 4)
    assert set(trained.stored("weight").values()) == {"S(0)"}
    sent = [(boxing.kind, boxing.size) for boxing in trained.boxings("predict_mlp")]
    assert sent == [("all_to_all", 48 * 64 * 8), ("all_reduce", trained.BATCH * 48 * 8), ("all_gather", 48 * 8)], "down-weight, its layer, down-bias"


def test_a_distribute_of_the_program_overrides_the_strategy() -> None:
    trained.begin(2)

    @flow.global_function(function_config=trained.config_of(st.zero(1, least=1)))
    def job(x: tp.Numpy.Placeholder((4, 6), dtype=flow.float64)) -> tp.Numpy:
        return flow.matmul(x, flow.get_variable("w", (6, 8), flow.float64, trained.normal(), distribute=flow.distribute.split(1)))

    job(np.ones((4, 6)))
    assert trained.stored() == {"w": "S(1)"}
    assert "w" not in [boxing.node.inputs[0].name for boxing in trained.boxings("job")], "nor is it gathered"


def test_zero_and_a_checkpoint() -> None:
    """Variables with split storage are saved and loaded whole."""
    trained.begin(4)
    job = trained.mlp_job(st.zero(3, least=1))
    first = float(job(*trained.mlp_batch(0)).mean())
    values = {name: variable.numpy() for name, variable in flow.get_all_variables().items()}
    trained.begin(3)
    job = trained.mlp_job(st.tensor_parallel())
    flow.load_variables(values)
    after = float(job(*trained.mlp_batch(1)).mean())
    np.testing.assert_allclose([first, after], trained.mlp_curve(None, 1, 2), rtol=1e-9)
