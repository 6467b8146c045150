"""Clipping by global norm: the norm is that of the whole gradient, however it is cut, scaled, or come by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import optimizer as opt
from jobflow.engine.job import job_of
from jobflow.tools.explain import explain

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(12, 4)), RANDOM.normal(size=(12, 5))
A, B = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(6, 5))
CLIP, RATE = 0.5, 0.125  # the rate is a float32


pytestmark = pytest.mark.usefixtures("fresh")


def expected(clip: float = CLIP, l2: float = 0.0, steps: int = 3) -> dict[str, Any]:
    """Plain SGD on the mean of (x a b - y)^2, by hand."""
    a, b = A.copy(), B.copy()
    for _ in range(steps):
        error = 2 * (X @ a @ b - Y) / Y.size
        da, db = X.T @ error @ b.T + l2 * a, (X @ a).T @ error
        factor = clip / max(clip, np.sqrt((da**2).sum() + (db**2).sum()))
        a, b = a - RATE * factor * da, b - RATE * factor * db
    return {"a": a, "b": b}


def variable(name: str, value: Any, axis: int | None, regularizer: Any = None) -> Any:
    how = None if axis is None else flow.distribute.split(axis)
    return flow.get_variable(
        name, value.shape, dtype=flow.float64, initializer=flow.constant_initializer(0.0), distribute=how, regularizer=regularizer
    )


def job(ranks: int, axes: tuple[int | None, int | None] = (None, None), *, staged: bool = False, l2: float = 0.0, **options: Any) -> Any:
    flow.clear_default_session()
    flow.config.cpu_device_num(ranks)
    micro, dtype = options.pop("microbatches", 1), flow.float64
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(micro)
    optimizer = opt.SGD(opt.PiecewiseConstantScheduler([], [RATE]), momentum=0, grad_clipping=opt.grad_clipping.by_global_norm(CLIP), **options)
    first = f"0:0-{ranks // 2 - 1}" if staged else f"0:0-{ranks - 1}"
    second = f"0:{ranks // 2}-{ranks - 1}" if staged else first

    @flow.global_function(type="train", function_config=config)
    def train(x: tp.Numpy.Placeholder(X.shape, dtype=dtype), y: tp.Numpy.Placeholder(Y.shape, dtype=dtype)) -> tp.Numpy:
        with flow.scope.placement("cpu", first):
            hidden = flow.matmul(x, variable("a", A, axes[0], flow.regularizers.l2(l2) if l2 else None))
        with flow.scope.placement("cpu", second):
            error = flow.matmul(hidden, variable("b", B, axes[1])) - y
            loss = flow.math.square(error)
        optimizer.minimize(loss)
        return loss

    return train


def trained(*arguments: Any, **options: Any) -> dict[str, Any]:
    train = job(*arguments, **options)
    flow.load_variables({"a": A, "b": B})
    for _ in range(3):
        train(X, Y)
    return {name: flow.get_all_variables()[name].numpy() for name in ("a", "b")}


def check(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_the_clip_matters() -> None:
    assert np.abs(expected()["a"] - expected(clip=1e9)["a"]).max() > 1e-2


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("axes", [(None, None), (0, None), (1, 0), (0, 1), (None, 1)], ids=str)
def test_rows_and_columns(ranks: int, axes: tuple[int | None, int | None]) -> None:
    check(trained(ranks, axes), expected())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("axes", [(None, None), (1, 0)], ids=str)
def test_stages_on_ranks_of_their_own(ranks: int, axes: tuple[int | None, int | None]) -> None:
    check(trained(ranks, axes, staged=True), expected())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [2, 5])
def test_microbatches_are_added_up_before(ranks: int, microbatches: int) -> None:
    check(trained(ranks, (0, None), microbatches=microbatches), expected())
    check(trained(ranks, microbatches=microbatches), expected())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("axes", [(None, None), (0, 1)], ids=str)
def test_the_norm_is_of_unscaled_gradients(ranks: int, axes: tuple[int | None, int | None]) -> None:
    check(trained(ranks, axes, loss_scale_factor=4096.0), expected())
    check(trained(ranks, axes, loss_scale_policy=opt.loss_scale.dynamic_loss_scale(4096.0)), expected())
    check(trained(ranks, axes, loss_scale_policy=opt.loss_scale.dynamic_loss_scale(), microbatches=3), expected())


def test_all_at_once_on_stages() -> None:
    policy = opt.loss_scale.dynamic_loss_scale(4096.0, increment_period=1)
    check(trained(4, (0, 1), staged=True, microbatches=4, l2=0.1, loss_scale_policy=policy), expected(l2=0.1))


def test_the_norm_counts_the_regularizer() -> None:
    check(trained(2, l2=0.3), expected(l2=0.3))


def test_data_parallel_gradients_are_reduced_once() -> None:
    """For the norm and for the update: one all_reduce of both gradients; the norm itself is known to all then."""
    train = job(2)
    text = explain(job_of(train), devices=2, stages=("boxing",))
    assert text.count("all_reduce") == 1 and "reduce_scatter" not in text and "all_gather" not in text
