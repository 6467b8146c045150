"""Invalid jobs raise with the job and the line; the session continues.

Cases of tests/wrong are not repeated. In the texts below «code» means the "file.py:line" of that code: the message must point at it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import Rows, X, constant, message_of

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import DtypeError, DuplicateNameError, JobError, PlacementError, ShapeError


def run_body(body: Callable[[Any], Any], type: str = "predict", config: Any = None) -> Any:
    """Declare a job with this body, and call it."""

    @flow.global_function(type=type, function_config=config)
    def job(x: Rows) -> tp.Numpy:  # type: ignore[valid-type]
        return body(x)

    return job(X)


TRACED = "\nwhile job job («@flow.global_function(type=type, function_config=config)») was traced"


def two_unnamed_layers(x: Any) -> Any:
    hidden = flow.layers.dense(x, 6)
    return flow.layers.dense(hidden, 5)


def two_ops(x: Any) -> Any:
    first = flow.nn.relu(x, name="r")
    return flow.nn.relu(first, name="r")


def two_shapes(x: Any) -> Any:
    first = flow.get_variable("w", (6,), initializer=flow.zeros_initializer())
    return x + first + flow.get_variable("w", (4, 6), initializer=flow.zeros_initializer())


def dtypes(x: Any) -> Any:
    return flow.matmul(x, flow.cast(x, flow.float64), transpose_b=True, name="product")


def no_such_device(x: Any) -> Any:
    with flow.scope.placement("gpu", "0:7"):
        return flow.nn.relu(x)


def one_device_twice(x: Any) -> Any:
    with flow.scope.placement("cpu", ["0:0", "0:0"]):
        return flow.nn.relu(x)


BODIES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "two layers of the default name": (
        two_unnamed_layers,
        DuplicateNameError,
        "variable 'Dense-weight' at «return flow.layers.dense(hidden, 5)» already exists in this job; "
        "pass another name to the layer, or open a scope.namespace" + TRACED,
    ),
    "two ops of one name": (
        two_ops,
        DuplicateNameError,
        'job job: two ops are named "r", at «first = flow.nn.relu(x, name="r")» and at «return flow.nn.relu(first, name="r")»; '
        "give one of them another name" + TRACED,
    ),
    "a variable of two shapes": (
        two_shapes,
        ShapeError,
        "get_variable('w') at «return x + first + flow.get_variable(\"w\", (4, 6), initializer=flow.zeros_initializer())»: "
        "shape (4, 6) differs from float32[6], its type in this job; pass another name" + TRACED,
    ),
    "element types that do not fit": (
        dtypes,
        DtypeError,
        'matmul at «return flow.matmul(x, flow.cast(x, flow.float64), transpose_b=True, name="product")» (layer "product"): '
        "a float32[4,6] and b float64[4,6] differ in element type; cast one of them" + TRACED,
    ),
    "a device twice": (
        one_device_twice,
        PlacementError,
        "placement('cpu', ['0:0', '0:0']) at «with flow.scope.placement(\"cpu\", [\"0:0\", \"0:0\"])»: a device occurs twice; list each device once"
        + TRACED,
    ),
    "an exception of its own": (lambda x: 1 / 0, ZeroDivisionError, "division by zero" + TRACED),
}


@pytest.mark.parametrize("name", BODIES)
def test_wrong_body(devices: int, name: str) -> None:
    body, kind, text = BODIES[name]
    for _ in range(2):  # it stays wrong, and says so again
        with pytest.raises(kind) as caught:
            run_body(body)
        assert type(caught.value) is kind
        assert message_of(caught.value) == text
    np.testing.assert_array_equal(run_body(lambda x: x + 1), X + 1)  # a job of this name takes the place of the wrong one


@pytest.mark.parametrize(("count", "there"), [(1, "is one device"), (2, "are 2 devices")])
def test_unknown_device(on: Callable[[int], None], count: int, there: str) -> None:
    on(count)
    with pytest.raises(PlacementError) as caught:
        run_body(no_such_device)
    assert message_of(caught.value) == (
        "placement('gpu', ['0:7']) at «with flow.scope.placement(\"gpu\", \"0:7\")»: device 7 does not exist, "
        f"because there {there}; set config.gpu_device_num or config.cpu_device_num before the first job call" + TRACED
    )
    np.testing.assert_array_equal(run_body(lambda x: x + 1), X + 1)


def test_cpu_devices_beyond_the_last_fold(on: Callable[[int], None], capsys: pytest.CaptureFixture[str]) -> None:
    on(2)

    def beyond(x: Any) -> Any:
        with flow.scope.placement("cpu", "0:3"):
            return x * 3

    np.testing.assert_array_equal(run_body(beyond), X * 3)
    assert "cpu devices beyond the 2 available are mapped onto the available ones" in capsys.readouterr().err


def without_loss(x: Any) -> Any:
    return flow.layers.dense(x, 3, name="fc")


def with_loss(x: Any) -> Any:
    loss = flow.layers.dense(x, 3, name="fc")
    flow.losses.add_loss(loss)
    return loss


def with_an_empty_list(x: Any) -> Any:
    flow.optimizer.SGD(constant(0.1)).minimize([])
    return flow.layers.dense(x, 3, name="fc")


def with_a_variable_of_integers(x: Any) -> Any:
    n = flow.get_variable("n", (3,), flow.int32, flow.zeros_initializer(flow.int32))
    flow.optimizer.SGD(constant(0.1)).minimize(flow.cast(n, flow.float, name="cast"))
    return x


def with_losses_that_differ(x: Any) -> Any:
    loss = flow.layers.dense(x, 3, name="fc")
    flow.optimizer.SGD(constant(0.1)).minimize([loss, flow.math.reduce_mean(loss, name="mean")])
    return x


NO_OPTIMIZER = (
    "train job job at «@flow.global_function(type=type, function_config=config)»: a train job requires an optimizer, but function_config.{} "
    "is not set; set it on the function_config, or call optimizer.SGD(...).minimize(loss) in the job"
)
NAIVE: dict[str, Any] = {"train.primary_lr": 0.1, "train.model_update_conf": {"naive_conf": {}}}
TRAINING: dict[str, tuple[Callable[[Any], Any], dict[str, Any], str]] = {
    "no optimizer": (with_loss, {}, NO_OPTIMIZER.format("train.model_update_conf")),
    "half of an optimizer": (with_loss, {"train.model_update_conf": {"naive_conf": {}}}, NO_OPTIMIZER.format("train.primary_lr")),
    "no loss": (
        without_loss,
        NAIVE,
        "job job at «@flow.global_function(type=type, function_config=config)»: a train job needs at least one loss; "
        "pass it to minimize or to losses.add_loss",
    ),
    "an empty list of losses": (
        with_an_empty_list,
        {},
        "job job at «flow.optimizer.SGD(constant(0.1)).minimize([])»: a train job needs at least one loss; pass it to minimize or to losses.add_loss",
    ),
    "a loss of integers": (
        with_a_variable_of_integers,
        {},
        'job job at «flow.optimizer.SGD(constant(0.1)).minimize(flow.cast(n, flow.float, name="cast"))»: '
        "loss cast does not depend on any trainable variable (integer variables are not trained: n); "
        "compute it from a trainable floating-point variable",
    ),
    "losses of two shapes": (
        with_losses_that_differ,
        {},
        'job job at «flow.optimizer.SGD(constant(0.1)).minimize([loss, flow.math.reduce_mean(loss, name="mean")])»: '
        "losses fc-bias_add float32[4,3] and mean float32[1] differ in shape or dtype; reduce and cast them to one type",
    ),
}


@pytest.mark.parametrize("name", TRAINING)
def test_wrong_training(devices: int, name: str) -> None:
    body, options, text = TRAINING[name]
    config = flow.function_config()
    for option, value in options.items():
        config.set(option, value)
    with pytest.raises(JobError) as caught:
        run_body(body, "train", config)
    assert message_of(caught.value) == text
    flow.clear_default_session()
    np.testing.assert_array_equal(run_body(lambda x: x + 1), X + 1)


# -------------------------------------------------------------------- declarations


def test_without_return_annotation_the_result_is_a_future(devices: int) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))):  # type: ignore[no-untyped-def]
        return x + 1

    np.testing.assert_array_equal(job(X).get().numpy(), X + 1)


def test_function_without_call_parentheses(fresh: None) -> None:
    with pytest.raises(JobError) as caught:

        @flow.global_function  # type: ignore[arg-type]
        def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
            return x

    assert message_of(caught.value) == (
        "global_function at «@flow.global_function  # type: ignore[arg-type]» requires call parentheses; "
        'write @global_function() or @global_function(type="train")'
    )


def test_variables_before_there_is_a_job(devices: int) -> None:
    with pytest.raises(JobError) as caught:
        flow.get_all_variables()
    text = "session at «flow.get_all_variables()»: there is no job yet; declare one with @global_function before variables are used"
    assert message_of(caught.value) == text
    np.testing.assert_array_equal(run_body(lambda x: x + 1), X + 1)
