"""Reductions in microbatches: the numbers of one device, or an error that names the line, for every loss, result, split and strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import JobError

ROWS, WIDTH, UNITS = 8, 5, 3
EXACT = 1e-12
SHAPES = {"w": (WIDTH, UNITS), "v": (UNITS, UNITS)}
m = flow.math

Formula = Callable[[Any, Any], Any]

#: by name, a loss of y [rows, units] and the weights; False: refused
LOSSES: Mapping[str, tuple[Formula, bool]] = {
    "elements": (lambda y, w: m.square(y), True),
    "rows": (lambda y, w: m.reduce_sum(m.square(y), axis=[1]), True),
    "mean": (lambda y, w: m.reduce_mean(m.square(y)), True),
    "sum": (lambda y, w: m.reduce_sum(m.square(y)), True),
    "sum / rows": (lambda y, w: m.reduce_sum(m.square(y)) / ROWS, True),
    "means of columns": (lambda y, w: m.reduce_mean(m.square(y), axis=[0]), True),
    "mean and penalty": (lambda y, w: m.reduce_mean(m.square(y)) + 0.1 * m.reduce_sum(m.square(w)), True),
    "penalty": (lambda y, w: m.reduce_sum(m.square(w)), True),
    "mean and sum": (lambda y, w: 3 - m.reduce_mean(m.sin(y)) + 0.2 * m.reduce_sum(m.square(y)), True),
    "columns": (lambda y, w: flow.transpose(m.square(y), perm=[1, 0]), True),
    "root of mean": (lambda y, w: m.sqrt(m.reduce_mean(m.square(y))), False),
    "square of sum": (lambda y, w: m.square(m.reduce_sum(y)), False),
    "log of sum": (lambda y, w: m.log(m.reduce_sum(m.exp(y))), False),
    "maximum": (lambda y, w: m.reduce_max(y), False),
    "variance": (lambda y, w: m.reduce_variance(y, axis=[0]), False),
    "softmax over rows": (lambda y, w: flow.nn.softmax(y, axis=0) * y, False),
    "product": (lambda y, w: m.reduce_prod(m.sigmoid(y), axis=[0]), False),
}
#: by name, a result of x, y and the weights; False: refused
RESULTS: Mapping[str, tuple[Callable[[Any, Any, Any], Any], bool]] = {
    "rows": (lambda x, y, w: y, True),
    "two per row": (lambda x, y, w: flow.reshape(flow.concat([y, y], axis=1), [-1, UNITS]), True),
    "transposed": (lambda x, y, w: flow.transpose(y, perm=[1, 0]), True),
    "mean": (lambda x, y, w: m.reduce_mean(y), True),
    "mean of columns": (lambda x, y, w: m.reduce_mean(y, axis=[0]), True),
    "sum": (lambda x, y, w: m.reduce_sum(y, axis=[0], keepdims=True), True),
    "affine": (lambda x, y, w: 2 * m.reduce_mean(y) + 1.5, True),
    "maximum": (lambda x, y, w: m.reduce_max(y), True),
    "minimum of columns": (lambda x, y, w: m.reduce_min(y, axis=[0]), True),
    "product with rows": (lambda x, y, w: flow.matmul(x, y, transpose_a=True), True),
    "weights": (lambda x, y, w: w * 2, True),
    "zeros": (lambda x, y, w: flow.zeros_like(m.reduce_sum(y, axis=[0])), True),
    "part of all": (lambda x, y, w: x / m.reduce_sum(x), True),
    "root of the data": (lambda x, y, w: m.sqrt(m.reduce_mean(m.square(x), axis=[0])), True),
    "centred": (lambda x, y, w: x - m.reduce_mean(x, axis=[0], keepdims=True), True),
    "argmax of rows": (lambda x, y, w: m.argmax(y, axis=0), False),
    "root of mean": (lambda x, y, w: m.sqrt(m.reduce_mean(m.square(y))), False),
    "product": (lambda x, y, w: m.reduce_prod(y, axis=[0]), False),
}
SPLITS = (2, 3, 4)
#: by name: how many devices, and the strategy for so many microbatches
STRATEGIES: Mapping[str, tuple[int, Callable[[int], Any]]] = {
    "pipeline": (2, lambda k: flow.strategies.pipeline(microbatches=k)),
    "pipeline and data": (4, lambda k: flow.strategies.mesh(data=2, pipeline=2, microbatches=k)),
    "gpipe": (2, lambda k: flow.strategies.pipeline(microbatches=k, schedule="gpipe")),
    "pipeline and tensor": (4, lambda k: flow.strategies.mesh(tensor=2, pipeline=2, microbatches=k)),
}


def by_turns(*dimensions: Any) -> list[Any]:
    """All combinations; those that hold no value for the first time are marked full."""
    longest = max(map(len, dimensions))
    chosen = [tuple(list(values)[i % len(values)] for values in dimensions) for i in range(longest)]
    others = [one for one in product(*dimensions) if one not in chosen]
    return [*chosen, *(pytest.param(*one, marks=pytest.mark.full) for one in others)]


def step(devices: int, strategy: Any, loss: Formula, result: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any, Any]:
    """Return the result and the loss of one step, and the weights after it."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.default_data_type(flow.float64)
    config.strategy(strategy)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((ROWS, WIDTH), flow.float64)) -> tuple[tp.Numpy, tp.Numpy]:
        w, v = (flow.get_variable(name, shape, flow.float64, flow.ones_initializer()) for name, shape in SHAPES.items())
        y = flow.matmul(m.tanh(flow.matmul(x, w)), v) + flow.slice_v2(x, [(None, None, None), (0, UNITS, 1)])
        loss_value = loss(y, w)
        sgd().minimize(loss_value)
        return result(x, y, w), loss_value

    shown, lost = train(np.random.default_rng(0).normal(size=(ROWS, WIDTH)) + 0.3)
    return shown, lost, flow.get_all_variables()["w"].numpy()


@pytest.mark.parametrize(("loss", "result", "count", "strategy"), by_turns(LOSSES, RESULTS, SPLITS, STRATEGIES))
def test_every_reduction_equals_one_device_or_raises(loss: str, result: str, count: int, strategy: str) -> None:
    (devices, make), (lost, exact), (shown, combines) = STRATEGIES[strategy], LOSSES[loss], RESULTS[result]
    for formula, of_result, fine in ((lost, RESULTS["rows"][0], exact), (LOSSES["rows"][0], shown, combines)):
        if not fine:
            with pytest.raises(JobError, match=rf"\w+ at test_microbatch_reductions\.py:\d+: .* the {count} microbatches requested at"):
                step(devices, make(count), formula, of_result)
            continue
        expected = step(1, flow.strategies.consistent(), formula, of_result)
        for actual, value in zip(step(devices, make(count), formula, of_result), expected, strict=True):
            assert actual.shape == value.shape
            np.testing.assert_allclose(actual, value, rtol=EXACT, atol=EXACT)


def sgd() -> Any:
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0)


def test_a_job_that_sets_accumulation_steps_keeps_their_rule_in_a_pipeline() -> None:
    """Every microbatch gives a loss, and a sum counts as the mean of the microbatches' sums."""
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    config = flow.function_config()
    config.strategy(flow.strategies.pipeline(microbatches=4))
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((ROWS, WIDTH), flow.float64)) -> tp.Numpy:
        hidden = flow.matmul(x, flow.get_variable("w", (WIDTH, 1), flow.float64, flow.ones_initializer()))
        loss = m.reduce_sum(flow.matmul(hidden, flow.get_variable("v", (1, 1), flow.float64, flow.ones_initializer())))
        sgd().minimize(loss)
        return loss

    np.testing.assert_allclose(train(np.ones((ROWS, WIDTH))), [20, 20])
    assert flow.get_all_variables()["v"].numpy().item() == pytest.approx(1 - 0.1 * 40 / 2)


def test_variables_that_a_body_assigns_change_once() -> None:
    def after(devices: int, strategy: Any) -> Mapping[str, Any]:
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        config = flow.function_config()
        config.strategy(strategy)

        @flow.global_function("train", config)
        def train(x: tp.Numpy.Placeholder((ROWS, WIDTH), flow.float64)) -> tp.Numpy:
            w, v = (flow.get_variable(name, shape, flow.float64, flow.ones_initializer()) for name, shape in SHAPES.items())
            zero = flow.zeros_initializer()
            calls, total, largest = (flow.get_variable(name, (1,), flow.float64, zero, trainable=False) for name in ("calls", "total", "largest"))
            flow.assign(calls, calls + 1.0)
            flow.assign(total, total + m.reduce_sum(x))
            flow.assign(largest, m.reduce_max(x))
            loss = m.reduce_sum(flow.matmul(m.tanh(flow.matmul(x, w)), v), axis=[1])
            sgd().minimize(loss)
            return loss

        for seed in range(2):
            train(np.random.default_rng(seed).normal(size=(ROWS, WIDTH)))
        return {name: value.numpy() for name, value in flow.get_all_variables().items()}

    expected, variables = after(1, flow.strategies.consistent()), after(2, flow.strategies.pipeline(microbatches=3))
    for name, value in expected.items():
        np.testing.assert_allclose(variables[name], value, rtol=EXACT, err_msg=name)
