"""What a program does wrong is told in one sentence that names the job, the line, what was expected and what was given; the session lives on.

In the texts below «code» stands for the "file.py:line" of that code: the message must point at it.
"""

import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import PROGRAMS, run_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow.errors import ArgumentError, ConfigError, DtypeError, DuplicateNameError, JobError, PlacementError, ShapeError

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
Y = np.array([0, 1, 2, 0], np.int32)
Job = Callable[..., Any]


def told(error: BaseException) -> str:
    """The message and its notes; places in this file as the code that stands there."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])

    def code(match: re.Match[str]) -> str:
        line = linecache.getline(__file__, int(match[1])).strip()
        return f"«{line.rstrip(':')}»"

    return re.sub(re.escape(Path(__file__).name) + r":(\d+)", code, text)


def constant(rate: float) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def declare_train_job() -> Job:
    @flow.global_function(type="train")
    def train_job(images: tp.Numpy.Placeholder((4, 6)), labels: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        logits = flow.layers.dense(images, 3, kernel_initializer=flow.truncated_normal(0.1), name="fc")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
        return loss

    return train_job


DECLARED = "«def train_job(images: tp.Numpy.Placeholder((4, 6)), labels: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy»"


# -------------------------------------------------------------------- arguments


def call(job: Job, *arguments: Any) -> Any:
    return job(*arguments)


CALLED = "«return job(*arguments)»"
#: arguments, and what is said about them after "train_job(<name>=...) at <line>: argument <name> "
WRONG: dict[str, tuple[str, Any, Any, str]] = {
    "fewer rows": (
        "images",
        X[:3],
        Y,
        f"is float32[3,6]; the job declares float32[4,6] ({DECLARED}). Pass 4 rows, or declare the placeholder with 3.",
    ),
    "more columns": ("images", np.ones((4, 7)), Y, f"is float64[4,7]; the job declares float32[4,6] ({DECLARED}). Pass an array of shape (4, 6)."),
    "other axes": ("images", X.reshape(4, 6, 1), Y, f"is float32[4,6,1]; the job declares float32[4,6] ({DECLARED}). Pass images.reshape(4, 6)."),
    "a scalar": (
        "images",
        np.float32(1),
        Y,
        f"is a float32; the job declares float32[4,6] ({DECLARED}). Pass a numpy.ndarray, for example np.array(...).",
    ),
    "nothing": ("labels", X, None, f"is a NoneType; the job declares int32[4] ({DECLARED}). Pass a numpy.ndarray, for example np.array(...)."),
    "an empty batch": ("images", X[:0], Y[:0], f"is float32[0,6], which is empty; the job declares float32[4,6] ({DECLARED}). Pass 4 rows."),
    "a list for an array": (
        "images",
        [X[:2], X[2:]],
        Y,
        f"is a list; the job declares float32[4,6] ({DECLARED}). "
        "Pass one numpy.ndarray, for example np.concatenate of the list; lists are for ListNumpy.Placeholder.",
    ),
    "texts": ("images", np.full((4, 6), "a"), Y, f"has elements of type <U1; the job declares float32[4,6] ({DECLARED}). Pass an array of numbers."),
    "complex numbers": (
        "images",
        X + 1j,
        Y,
        f"has elements of type complex64; the job declares float32[4,6] ({DECLARED}). Pass an array of numbers.",
    ),
    "halves for whole numbers": (
        "labels",
        X,
        Y + 0.5,
        f"is float64 with numbers that int32 cannot hold; the job declares int32[4] ({DECLARED}). "
        "Pass whole numbers that int32 can hold, or declare another dtype.",
    ),
    "too large numbers": (
        "labels",
        X,
        Y.astype(np.int64) + 2**40,
        f"is int64 with numbers that int32 cannot hold; the job declares int32[4] ({DECLARED}). "
        "Pass whole numbers that int32 can hold, or declare another dtype.",
    ),
    "a label too large": (
        "labels",
        X,
        np.array([0, 1, 2, 3]),
        'holds 3; softmax_loss at «loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")» takes 0 to 2. '
        "Pass such numbers, or make what they point into larger.",
    ),
    "a negative label": (
        "labels",
        X,
        np.array([0, -1, 2, 0]),
        'holds -1; softmax_loss at «loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")» takes 0 to 2. '
        "Pass such numbers, or make what they point into larger.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("when", ["first", "later"])
def test_wrong_argument(devices: int, name: str, when: str) -> None:
    argument, images, labels, text = WRONG[name]
    train_job = declare_train_job()
    before = train_job(X, Y) if when == "later" else None
    with pytest.raises(ArgumentError) as caught:
        call(train_job, images, labels)
    assert told(caught.value) == f'train_job({argument}=...) at {CALLED}: argument "{argument}" {text}'
    assert isinstance(caught.value, AssertionError), "the legacy kind"
    after = train_job(X, Y)
    assert after.shape == (4,) and np.isfinite(after).all()
    if before is not None:
        assert after.mean() < before.mean(), "one step of training between them, and no other"
        assert int(flow.get_all_variables()["System-Train-TrainStep-train_job"].numpy().item()) == 2


@pytest.mark.parametrize(("given", "count"), [((X,), 1), ((X, Y, Y), 3), ((), 0)])
def test_wrong_number_of_arguments(devices: int, given: tuple[Any, ...], count: int) -> None:
    train_job = declare_train_job()
    with pytest.raises(ArgumentError) as caught:
        call(train_job, *given)
    declared = '«@flow.global_function(type="train")»'
    assert told(caught.value) == (
        f"train_job(...) at {CALLED}: wrong number of arguments, {count}; the job takes 2 (images, labels) ({declared}). Pass them by position."
    )
    assert train_job(X, Y).shape == (4,)


def declare_mirrored() -> Job:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def twice(rows: tp.ListNumpy.Placeholder((4, 6))) -> tp.ListNumpy:
        return rows * 2

    return twice


LISTED = "float32[4,6] per device («def twice(rows: tp.ListNumpy.Placeholder((4, 6))) -> tp.ListNumpy»)"


@pytest.mark.parametrize(
    ("given", "path", "text"),
    [
        (
            lambda n: X,
            "rows",
            f"is float32[4,6]; the job declares a list of one array per device, {LISTED}. "
            "Pass a list of {n}, for example np.array_split(rows, {n}).",
        ),
        (lambda n: [X] * (n + 1), "rows", "has {more} arrays; the job runs on {n} devices. Pass a list of {n}, one per device."),
        (lambda n: [], "rows", "has 0 arrays; the job runs on {n} devices. Pass a list of {n}, one per device."),
        (
            lambda n: [np.ones((5, 6))] * n,
            "rows[0]",
            f"is float64[5,6]; the job declares at most {LISTED}. Pass as many axes as declared, none of them longer and none of them empty.",
        ),
        (
            lambda n: [*[X] * (n - 1), X[0]],
            "rows[{last}]",
            f"is float32[6]; the job declares at most {LISTED}. Pass as many axes as declared, none of them longer and none of them empty.",
        ),
        (
            lambda n: [*[X] * (n - 1), X[:0]],
            "rows[{last}]",
            f"is float32[0,6], which is empty; the job declares at most {LISTED}. "
            "Pass as many axes as declared, none of them longer and none of them empty.",
        ),
        (lambda n: [np.full((4, 6), "a")] * n, "rows[0]", f"has elements of type <U1; the job declares {LISTED}. Pass an array of numbers."),
    ],
    ids=["an array", "too many", "none", "too long", "too few axes", "an empty one", "texts"],
)
def test_wrong_list(devices: int, given: Callable[[int], Any], path: str, text: str) -> None:
    twice = declare_mirrored()
    with pytest.raises(ArgumentError) as caught:
        call(twice, given(devices))
    filled = text.replace("{n}", str(devices)).replace("{more}", str(devices + 1)).replace("{last}", str(devices - 1))
    plural = filled.replace("on 1 devices", "on 1 device")
    where = path.replace("{last}", str(devices - 1))
    assert told(caught.value) == f'twice(rows=...) at {CALLED}: argument "{where}" {plural}'
    assert [a.shape for a in twice([X] * devices)] == [(4, 6)] * devices


# -------------------------------------------------------------------- what is accepted


def test_strided_arguments_are_as_good_as_dense_ones(devices: int) -> None:
    train_job = declare_train_job()
    wide = np.zeros((8, 12), np.float32)
    wide[::2, ::-2] = X
    labels = np.asfortranarray(np.stack([Y, Y], 1))[:, 0]
    expected = train_job(X, Y)
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    train_job = declare_train_job()
    assert not wide[::2, ::-2].flags.c_contiguous
    np.testing.assert_array_equal(train_job(wide[::2, ::-2], labels), expected)


def test_arguments_may_be_changed_after_the_call(devices: int) -> None:
    @flow.global_function()
    def same(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        return flow.identity(x)

    given = X.copy()
    found = same(given)
    given[:] = 7
    np.testing.assert_array_equal(found, X)
    again = same(given)
    np.testing.assert_array_equal(found, X)
    assert again is not found and (again == 7).all()


def test_numbers_of_another_type_are_converted(devices: int) -> None:
    train_job = declare_train_job()
    expected = train_job(X, Y)
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    train_job = declare_train_job()
    np.testing.assert_array_equal(train_job(X.astype(np.float64), Y.astype(np.int64)), expected)


def test_nan_is_a_number_like_others(devices: int) -> None:
    @flow.global_function()
    def doubled(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        return x + x

    given = X.copy()
    given[1, 2], given[3, 0] = np.nan, np.inf
    np.testing.assert_array_equal(doubled(given), given + given)


def test_nan_in_a_train_job_shows_in_its_loss(devices: int) -> None:
    train_job = declare_train_job()
    assert np.isnan(train_job(X * np.nan, Y)).all()
    assert np.isnan(train_job(X, Y)).all(), "the variables are spoilt too: a plain optimizer takes every gradient"


@pytest.mark.parametrize("count", [2, 3, 4])
def test_fewer_rows_than_devices(on: Callable[[int], None], count: int) -> None:
    found = []
    for n in (1, count):
        on(n)

        @flow.global_function(type="train")
        def one_row(images: tp.Numpy.Placeholder((1, 6)), labels: tp.Numpy.Placeholder((1,), dtype=flow.int32)) -> tp.Numpy:
            logits = flow.layers.dense(images, 3, kernel_initializer=flow.truncated_normal(0.1), name="fc")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            flow.optimizer.SGD(constant(0.5), momentum=0).minimize(loss)
            return loss

        found.append([float(one_row(X[:1], Y[:1]).item()) for _ in range(5)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert found[0][4] < found[0][0]


# -------------------------------------------------------------------- bodies


def run_body(body: Callable[[Any], Any], type: str = "predict", config: Any = None) -> Any:
    """Declare a job with this body, and call it."""

    @flow.global_function(type=type, function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        return body(x)

    return job(X)


TRACED = "\nwhile job job («@flow.global_function(type=type, function_config=config)») was traced"


def two_layers(x: Any) -> Any:
    hidden = flow.layers.dense(x, 6, name="fc")
    return flow.layers.dense(hidden, 5, name="fc")


def two_unnamed_layers(x: Any) -> Any:
    hidden = flow.layers.dense(x, 6)
    return flow.layers.dense(hidden, 5)


def two_ops(x: Any) -> Any:
    first = flow.nn.relu(x, name="r")
    return flow.nn.relu(first, name="r")


def two_shapes(x: Any) -> Any:
    first = flow.get_variable("w", (6,), initializer=flow.zeros_initializer())
    return x + first + flow.get_variable("w", (4, 6), initializer=flow.zeros_initializer())


def shapes(x: Any) -> Any:
    return flow.matmul(x, x, name="product")


def dtypes(x: Any) -> Any:
    return flow.matmul(x, flow.cast(x, flow.float64), transpose_b=True, name="product")


def no_initializer(x: Any) -> Any:
    return x + flow.get_variable("w", (6,))


def no_such_device(x: Any) -> Any:
    with flow.scope.placement("gpu", "0:7"):
        return flow.nn.relu(x)


def no_such_tag(x: Any) -> Any:
    with flow.scope.placement("tpu", "0:0"):
        return flow.nn.relu(x)


def no_such_text(x: Any) -> Any:
    with flow.scope.placement("gpu", "zero"):
        return flow.nn.relu(x)


def one_device_twice(x: Any) -> Any:
    with flow.scope.placement("cpu", ["0:0", "0:0"]):
        return flow.nn.relu(x)


def loss_in_predict_job(x: Any) -> Any:
    flow.losses.add_loss(x)
    return x


BODIES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "two layers of one name": (
        two_layers,
        DuplicateNameError,
        "variable 'fc-weight' at «return flow.layers.dense(hidden, 5, name=\"fc\")» exists already in this job; "
        "give the layer a name of its own, or put it in a scope.namespace" + TRACED,
    ),
    "two layers of the default name": (
        two_unnamed_layers,
        DuplicateNameError,
        "variable 'Dense-weight' at «return flow.layers.dense(hidden, 5)» exists already in this job; "
        "give the layer a name of its own, or put it in a scope.namespace" + TRACED,
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
        "shape (4, 6), but in this job it is float32[6] already" + TRACED,
    ),
    "shapes that do not fit": (
        shapes,
        ShapeError,
        'matmul at «return flow.matmul(x, x, name="product")» (layer "product"): '
        "a float32[4,6] and b float32[4,6] disagree on the summed axis (6 != 4)" + TRACED,
    ),
    "element types that do not fit": (
        dtypes,
        DtypeError,
        'matmul at «return flow.matmul(x, flow.cast(x, flow.float64), transpose_b=True, name="product")» (layer "product"): '
        "a float32[4,6] and b float64[4,6] differ in element type; cast one of them" + TRACED,
    ),
    "a variable without initializer": (
        no_initializer,
        ConfigError,
        "variable 'w' at «return x + flow.get_variable(\"w\", (6,))» has no initializer; "
        "give initializer=, or default_initializer_conf in the function_config" + TRACED,
    ),
    "an unknown kind of device": (
        no_such_tag,
        PlacementError,
        'placement at «with flow.scope.placement("tpu", "0:0")»: unknown device tag \'tpu\'; use "cpu" or "gpu"' + TRACED,
    ),
    "a placement that cannot be read": (
        no_such_text,
        PlacementError,
        "placement('gpu', ['zero']) at «with flow.scope.placement(\"gpu\", \"zero\")»: "
        'cannot read "zero"; write "machine:device" or "machine:first-last", for example "0:0-3"' + TRACED,
    ),
    "a device twice": (
        one_device_twice,
        PlacementError,
        "placement('cpu', ['0:0', '0:0']) at «with flow.scope.placement(\"cpu\", [\"0:0\", \"0:0\"])» names a device twice" + TRACED,
    ),
    "a loss in a predict job": (
        loss_in_predict_job,
        JobError,
        'job job: add_loss at «flow.losses.add_loss(x)» in a job of type "predict"; decorate it with @global_function(type="train")' + TRACED,
    ),
    "an exception of its own": (lambda x: 1 / 0, ZeroDivisionError, "division by zero" + TRACED),
    "no result": (
        lambda x: None,
        JobError,
        "job job («@flow.global_function(type=type, function_config=config)»): the result is None; it must be a tensor that the body computed",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_wrong_body(devices: int, name: str) -> None:
    body, kind, text = BODIES[name]
    for _ in range(2):  # it stays wrong, and says so again
        with pytest.raises(kind) as caught:
            run_body(body)
        assert type(caught.value) is kind
        assert told(caught.value) == text
    np.testing.assert_array_equal(run_body(lambda x: x + 1), X + 1)  # a job of this name takes the place of the wrong one


@pytest.mark.parametrize(("count", "there"), [(1, "is one"), (2, "are 2")])
def test_unknown_device(on: Callable[[int], None], count: int, there: str) -> None:
    on(count)
    with pytest.raises(PlacementError) as caught:
        run_body(no_such_device)
    assert told(caught.value) == (
        "placement('gpu', ['0:7']) at «with flow.scope.placement(\"gpu\", \"0:7\")»: device 7 does not exist; "
        f"there {there}: set config.gpu_device_num or config.cpu_device_num before the first job call" + TRACED
    )
    np.testing.assert_array_equal(run_body(lambda x: x + 1), X + 1)


def test_cpu_devices_beyond_the_last_fold(on: Callable[[int], None], capsys: pytest.CaptureFixture[str]) -> None:
    on(2)

    def beyond(x: Any) -> Any:
        with flow.scope.placement("cpu", "0:3"):
            return x * 3

    np.testing.assert_array_equal(run_body(beyond), X * 3)
    assert "cpu devices beyond the 2 there are fold onto them" in capsys.readouterr().err


def without_loss(x: Any) -> Any:
    return flow.layers.dense(x, 3, name="fc")


def with_loss(x: Any) -> Any:
    loss = flow.layers.dense(x, 3, name="fc")
    flow.losses.add_loss(loss)
    return loss


def with_an_empty_list(x: Any) -> Any:
    flow.optimizer.SGD(constant(0.1)).minimize([])
    return flow.layers.dense(x, 3, name="fc")


def with_a_constant_loss(x: Any) -> Any:
    flow.optimizer.SGD(constant(0.1)).minimize(flow.math.square(x, name="squares"))
    return x


def with_losses_that_differ(x: Any) -> Any:
    loss = flow.layers.dense(x, 3, name="fc")
    flow.optimizer.SGD(constant(0.1)).minimize([loss, flow.math.reduce_mean(loss, name="mean")])
    return x


NO_OPTIMIZER = (
    "train job job («@flow.global_function(type=type, function_config=config)»): a train job needs an optimizer, and function_config.{} is not set; "
    "set it on the function_config, or call optimizer.SGD(...).minimize(loss) in the job"
)
NAIVE: dict[str, Any] = {"train.primary_lr": 0.1, "train.model_update_conf": {"naive_conf": {}}}
TRAINING: dict[str, tuple[Callable[[Any], Any], dict[str, Any], str]] = {
    "neither loss nor optimizer": (without_loss, {}, NO_OPTIMIZER.format("train.model_update_conf")),
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
    "a loss of nothing": (
        with_a_constant_loss,
        {},
        'job job at «flow.optimizer.SGD(constant(0.1)).minimize(flow.math.square(x, name="squares"))»: '
        "loss squares does not depend on any trainable variable",
    ),
    "losses of two shapes": (
        with_losses_that_differ,
        {},
        'job job at «flow.optimizer.SGD(constant(0.1)).minimize([loss, flow.math.reduce_mean(loss, name="mean")])»: '
        "losses fc-bias_add float32[4,3] and mean float32[1] differ in shape or dtype",
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
    assert told(caught.value) == text
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

    assert told(caught.value) == (
        "global_function at «@flow.global_function  # type: ignore[arg-type]» needs call parentheses: "
        'write @global_function() or @global_function(type="train")'
    )


def test_annotations_as_texts_point_at_their_function(devices: int) -> None:
    @flow.global_function()
    def job(x: "tp.Numpy.Placeholder((4, 6))") -> "tp.Numpy":
        return x + 1

    with pytest.raises(ArgumentError) as caught:
        call(job, X[:1])
    assert told(caught.value) == (
        f'job(x=...) at {CALLED}: argument "x" is float32[1,6]; the job declares float32[4,6] («@flow.global_function()»). '
        "Pass 4 rows, or declare the placeholder with 1."
    )
    np.testing.assert_array_equal(job(X), X + 1)


def test_unknown_type_of_job(fresh: None) -> None:
    with pytest.raises(JobError) as caught:
        flow.global_function(type="trian")
    assert told(caught.value) == 'global_function at «flow.global_function(type="trian")»: type is \'trian\'; use "predict" or "train"'


def test_unknown_options(fresh: None) -> None:
    with pytest.raises(ConfigError) as caught:
        flow.function_config().default_data_typ(flow.float)
    assert told(caught.value) == (
        "function_config.default_data_typ at «flow.function_config().default_data_typ(flow.float)»: "
        'there is no such option; did you mean "default_data_type"?'
    )
    with pytest.raises(ConfigError) as caught:
        flow.config.gpu_devices_num(2)
    assert told(caught.value) == 'config.gpu_devices_num at «flow.config.gpu_devices_num(2)»: there is no such option; did you mean "gpu_device_num"?'


def test_variables_before_there_is_a_job(devices: int) -> None:
    with pytest.raises(JobError) as caught:
        flow.get_all_variables()
    assert told(caught.value) == "at «flow.get_all_variables()»: there is no job yet; declare one with @global_function before variables are used"
    np.testing.assert_array_equal(run_body(lambda x: x + 1), X + 1)


# -------------------------------------------------------------------- callbacks


class Refused(Exception):
    """What a program raises itself."""


def test_callback_that_raises(devices: int) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Callback[tp.Numpy]:
        return x + 1

    def refuse(value: Any) -> None:
        raise Refused(value.shape)

    with pytest.raises(Refused, match=r"\(4, 6\)"):
        job(X)(refuse)
    found: list[Any] = []
    job(X)(found.append)
    np.testing.assert_array_equal(found[0], X + 1)


def test_async_callback_that_raises(devices: int) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))):  # type: ignore[no-untyped-def]
        return x + 1

    def refuse(value: Any) -> None:
        raise Refused(value.numpy().shape)

    with pytest.raises(Refused, match=r"\(4, 6\)"):
        job(X).async_get(refuse)
    np.testing.assert_array_equal(job(X).get().numpy(), X + 1)


# -------------------------------------------------------------------- ranks


@pytest.mark.mpi
@pytest.mark.parametrize("client", ["single", "multi"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_survive_what_the_client_refuses(client: str, ranks: int) -> None:
    ended = run_ranks(PROGRAMS / "refused.py", client, ranks=ranks)
    assert (ended.code, ended.err) == (0, ""), ended.err
    assert ended.out.splitlines() == ["refused 7 times, trained 8 steps"] * (1 if client == "single" else ranks)
