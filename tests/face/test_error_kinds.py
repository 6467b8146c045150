"""Errors of the legacy API have the published classes and our messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import JobflowError

X = np.ones((4, 3), np.float32)
RATE = flow.optimizer.CosineScheduler(0.1, 5)


pytestmark = pytest.mark.usefixtures("session")


def variable(**options: Any) -> Any:
    return flow.get_variable("w", **{"shape": (3, 2), "initializer": flow.ones_initializer(), **options})


#: in the body of a predict job with an argument x of float32[4,3]: what is done -> the kind that it raised
BODIES: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "reshape to another number of elements": (AssertionError, lambda x: flow.reshape(x, (5,))),
    "reshape with two unknown axes": (AssertionError, lambda x: flow.reshape(x, (-1, -1))),
    "transpose without perm": (AssertionError, lambda x: flow.transpose(x)),
    "constant without dtype": (AssertionError, lambda x: flow.constant(1)),
    "dropout of everything": (AssertionError, lambda x: flow.nn.dropout(x, 1.0)),
    "a sum over an axis that is no int": (AssertionError, lambda x: flow.math.reduce_sum(x, "1")),
    "a comparison with nothing": (AssertionError, lambda x: flow.math.equal(x, None)),
    "a diagonal that is no int": (AssertionError, lambda x: flow.math.tril(x, "0")),
    "clip without bounds": (ValueError, lambda x: flow.math.clip_by_value(x)),
    "slice outside": (ValueError, lambda x: flow.slice(x, [9, 0], [1, 1])),
    "slice with too few entries": (ValueError, lambda x: flow.slice(x, [0], [1])),
    "product of a vector": (ValueError, lambda x: flow.matmul(flow.reshape(x, (12,)), x)),
    "gather of later batch axes": (NotImplementedError, lambda x: flow.gather(x, flow.cast(x, flow.int32), axis=1, batch_dims=2)),
    "add_loss in a predict job": (NotImplementedError, lambda x: flow.losses.add_loss(x)),
    "pooling in one dimension": (NotImplementedError, lambda x: flow.nn.max_pool1d(x, 2, 1, "VALID")),
    "a variable without shape": (AssertionError, lambda x: variable(shape=None)),
    "a variable twice without reuse": (AssertionError, lambda x: (variable(), variable(reuse=False))),
    "a variable of two shapes": (AssertionError, lambda x: (variable(), variable(shape=(2, 2)))),
    "two layers of one name": (AssertionError, lambda x: [flow.layers.dense(x, 2, name="a") for _ in range(2)]),
    "an unknown option of a scope": (AssertionError, lambda x: flow.experimental.scope.config(stage=1)),
    "a split axis that is no int": (AssertionError, lambda x: flow.distribute.split("0")),  # type: ignore[arg-type]
    "softmax of a vector": (AssertionError, lambda x: flow.nn.softmax(flow.reshape(x, (12,)))),
    "a pad for too few axes": (ValueError, lambda x: flow.pad(x, [[1, 1]])),
    "stack of different shapes": (AssertionError, lambda x: flow.stack([x, flow.reshape(x, (3, 4))])),
    "concat of nothing": (AssertionError, lambda x: flow.concat([])),
    "an unknown padding": (ValueError, lambda x: flow.nn.max_pool2d(flow.reshape(x, (1, 1, 4, 3)), 2, 1, "SOME")),
    "a depth below 1": (AssertionError, lambda x: flow.one_hot(flow.cast(x, flow.int32), -3, dtype=flow.float)),
    "a number of classes that is no int": (AssertionError, lambda x: flow.one_hot(flow.cast(x, flow.int32), "3")),
    "shared axes that are no list": (AssertionError, lambda x: flow.layers.prelu(x, shared_axes=1)),
    "a deviation that is no list": (AssertionError, lambda x: flow.image.normalize(flow.reshape(x, (1, 2, 2, 3)), 1, [0])),
    "a summary of no tensor": (AssertionError, lambda x: flow.summary.scalar(1.0, 0, "a")),
    "a summary at no step": (AssertionError, lambda x: flow.summary.scalar(flow.math.reduce_sum(x), "0", "a")),
    "minimize in a predict job": (NotImplementedError, lambda x: flow.optimizer.SGD(RATE).minimize(x)),
}


@pytest.mark.parametrize("what", BODIES)
def test_errors_in_the_body_of_a_job(what: str) -> None:
    kind, function = BODIES[what]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        function(x)
        return x

    with pytest.raises(kind) as raised:
        job(X)
    assert isinstance(raised.value, JobflowError) and "test_error_kinds.py:" in str(raised.value)


def called(*arguments: Any) -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return x

    return job(*arguments)


def wrongly_annotated() -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> int:
        return 1

    return job


def returns_too_much() -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> None:
        return x

    return job(X)


ELSEWHERE: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "a list for an array": (AssertionError, lambda: called([1])),
    "an array of another shape": (AssertionError, lambda: called(X[:2])),
    "too many arguments": (AssertionError, lambda: called(X, X)),
    "a job of no type": (AssertionError, lambda: flow.global_function("some")),
    "a return annotation": (NotImplementedError, wrongly_annotated),
    "a result of a job that returns None": (AssertionError, returns_too_much),
    "an op outside of jobs": (NotImplementedError, lambda: flow.layers.dense(X, 1)),  # type: ignore[arg-type]
    "a number of devices that is a text": (AssertionError, lambda: flow.config.gpu_device_num("2")),
    "an option that there is not": (AssertionError, lambda: flow.function_config().enable_everything(True)),
    "an address twice": (AssertionError, lambda: flow.env.machine([{"addr": "a"}, {"addr": "a"}])),
    "variables before jobs": (AssertionError, flow.get_all_variables),
    "a folder that is no checkpoint": (AssertionError, lambda: flow.checkpoint.get("/nowhere")),
    "two scales of a loss": (
        ValueError,
        lambda: flow.optimizer.SGD(flow.optimizer.CosineScheduler(0.1, 5), loss_scale_factor=2.0, loss_scale_policy=3),
    ),
    "a model at no path": (AssertionError, lambda: flow.saved_model.ModelBuilder([1])),  # type: ignore[arg-type]
    "a summary of no text": (AssertionError, lambda: flow.summary.text(1)),  # type: ignore[arg-type]
    "a random normal with a seed": (AssertionError, lambda: flow.random_normal_initializer(seed=1)),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_outside_of_jobs(what: str) -> None:
    kind, function = ELSEWHERE[what]
    with pytest.raises(kind) as raised:
        function()
    assert isinstance(raised.value, JobflowError)
