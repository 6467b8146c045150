"""Wrong arguments raise with the job, the line, the expected and the actual value; the session continues.

In the texts below «code» means the "file.py:line" of that code: the message must point at it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts import Job, Rows, X, Y, constant, declare, message_of
from processes import run

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError

PROGRAMS = Path(__file__).with_name("programs")


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
        f"is float64 with numbers that int32 cannot represent; the job declares int32[4] ({DECLARED}). "
        "Pass integers in the range of int32, or declare another dtype.",
    ),
    "too large numbers": (
        "labels",
        X,
        Y.astype(np.int64) + 2**40,
        f"is int64 with numbers that int32 cannot represent; the job declares int32[4] ({DECLARED}). "
        "Pass integers in the range of int32, or declare another dtype.",
    ),
    "a label too large": (
        "labels",
        X,
        np.array([0, 1, 2, 3]),
        "holds 3 at [3]; sparse_softmax_cross_entropy at "
        '«loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")» accepts 0 to 2. '
        "Pass values in this range, or enlarge the indexed tensor.",
    ),
    "a negative label": (
        "labels",
        X,
        np.array([0, -1, 2, 0]),
        "holds -1 at [1]; sparse_softmax_cross_entropy at "
        '«loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")» accepts 0 to 2. '
        "Pass values in this range, or enlarge the indexed tensor.",
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
    assert message_of(caught.value) == f'train_job({argument}=...) at {CALLED}: argument "{argument}" {text}'
    assert isinstance(caught.value, AssertionError), "the legacy kind"
    after = train_job(X, Y)
    assert after.shape == (4,) and np.isfinite(after).all()
    if before is not None:
        assert after.mean() < before.mean(), "one step of training between them, and no other"
        assert int(flow.get_all_variables()["System-Train-TrainStep-train_job"].numpy().item()) == 2


@pytest.mark.parametrize(("arguments", "count"), [((X,), 1), ((X, Y, Y), 3), ((), 0)])
def test_wrong_number_of_arguments(devices: int, arguments: tuple[Any, ...], count: int) -> None:
    train_job = declare_train_job()
    with pytest.raises(ArgumentError) as caught:
        call(train_job, *arguments)
    declared = '«@flow.global_function(type="train")»'
    assert message_of(caught.value) == (
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
    ("make_value", "path", "text"),
    [
        (
            lambda n: X,
            "rows",
            f"is float32[4,6]; the job declares a list of one array per device, {LISTED}. "
            "Pass a list with one entry per device, for example np.array_split(rows, {n}).",
        ),
        (lambda n: [X] * (n + 1), "rows", "has {more} arrays; the job runs on {n} devices. Pass a list with one entry per device."),
        (lambda n: [], "rows", "has 0 arrays; the job runs on {n} devices. Pass a list with one entry per device."),
        (
            lambda n: [np.ones((5, 6))] * n,
            "rows[0]",
            f"is float64[5,6]; the job declares at most {LISTED}. Pass as many axes as declared, and at most 24 elements.",
        ),
        (
            lambda n: [*[X] * (n - 1), X[0]],
            "rows[{last}]",
            f"is float32[6]; the job declares at most {LISTED}. Pass as many axes as declared, and at most 24 elements.",
        ),
        (lambda n: [np.full((4, 6), "a")] * n, "rows[0]", f"has elements of type <U1; the job declares {LISTED}. Pass an array of numbers."),
    ],
    ids=["an array", "too many", "none", "too long", "too few axes", "texts"],
)
def test_wrong_list(devices: int, make_value: Callable[[int], Any], path: str, text: str) -> None:
    twice = declare_mirrored()
    with pytest.raises(ArgumentError) as caught:
        call(twice, make_value(devices))
    filled = text.replace("{n}", str(devices)).replace("{more}", str(devices + 1)).replace("{last}", str(devices - 1))
    plural = filled.replace("on 1 devices", "on 1 device")
    where = path.replace("{last}", str(devices - 1))
    assert message_of(caught.value) == f'twice(rows=...) at {CALLED}: argument "{where}" {plural}'
    assert [a.shape for a in twice([X] * devices)] == [(4, 6)] * devices


def test_annotations_as_texts_point_at_their_function(devices: int) -> None:
    @flow.global_function()
    def job(x: "tp.Numpy.Placeholder((4, 6))") -> "tp.Numpy":
        return x + 1

    with pytest.raises(ArgumentError) as caught:
        call(job, X[:1])
    assert message_of(caught.value) == (
        f'job(x=...) at {CALLED}: argument "x" is float32[1,6]; the job declares float32[4,6] («@flow.global_function()»). '
        "Pass 4 rows, or declare the placeholder with 1."
    )
    np.testing.assert_array_equal(job(X), X + 1)


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
    same = declare(lambda x: flow.identity(x), Rows, name="same")
    argument = X.copy()
    result = same(argument)
    argument[:] = 7
    np.testing.assert_array_equal(result, X)
    again = same(argument)
    np.testing.assert_array_equal(result, X)
    assert again is not result and (again == 7).all()


def test_numbers_of_another_type_are_converted(devices: int) -> None:
    train_job = declare_train_job()
    expected = train_job(X, Y)
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    train_job = declare_train_job()
    np.testing.assert_array_equal(train_job(X.astype(np.float64), Y.astype(np.int64)), expected)


def test_nan_is_a_number_like_others(devices: int) -> None:
    doubled = declare(lambda x: x + x, Rows, name="doubled")
    argument = X.copy()
    argument[1, 2], argument[3, 0] = np.nan, np.inf
    np.testing.assert_array_equal(doubled(argument), argument + argument)


def test_nan_in_a_train_job_shows_in_its_loss(devices: int) -> None:
    train_job = declare_train_job()
    assert np.isnan(train_job(X * np.nan, Y)).all()
    assert np.isnan(train_job(X, Y)).all(), "the variables are spoilt too: a plain optimizer takes every gradient"


@pytest.mark.parametrize("count", [2, 3, 4])
def test_fewer_rows_than_devices(on: Callable[[int], None], count: int) -> None:
    losses = []
    for n in (1, count):
        on(n)

        @flow.global_function(type="train")
        def one_row(images: tp.Numpy.Placeholder((1, 6)), labels: tp.Numpy.Placeholder((1,), dtype=flow.int32)) -> tp.Numpy:
            logits = flow.layers.dense(images, 3, kernel_initializer=flow.truncated_normal(0.1), name="fc")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            flow.optimizer.SGD(constant(0.5), momentum=0).minimize(loss)
            return loss

        losses.append([float(one_row(X[:1], Y[:1]).item()) for _ in range(5)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[0][4] < losses[0][0]


# -------------------------------------------------------------------- callbacks


class Refused(Exception):
    """An exception of the program."""


def test_callback_that_raises(devices: int) -> None:
    job = declare(lambda x: x + 1, Rows, gives=tp.Callback[tp.Numpy])

    def refuse(value: Any) -> None:
        raise Refused(value.shape)

    with pytest.raises(Refused, match=r"\(4, 6\)"):
        job(X)(refuse)
    results: list[Any] = []
    job(X)(results.append)
    np.testing.assert_array_equal(results[0], X + 1)


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
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_ranks_survive_errors_of_the_client(client: str, ranks: int) -> None:
    ended = run(PROGRAMS / "refused.py", client, ranks=ranks)
    assert (ended.code, ended.err) == (0, ""), ended.err
    assert ended.out.splitlines() == ["refused 7 times, trained 8 steps"] * (1 if client == "single" else ranks)
