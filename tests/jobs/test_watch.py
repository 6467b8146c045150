"""watch and watch_diff: functions of the program receive tensors and gradients of every run before the call returns."""

from typing import Any

import numpy as np
import pytest
from parts import Begin, Rows, X, sgd

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import JobError


class Watched:
    """A record of the values that watches receive."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def array(self, value: tp.Numpy) -> None:
        self.values.append(value)

    def arrays(self, value: tp.ListNumpy) -> None:
        self.values.append(value)

    def object(self, value) -> None:  # type: ignore[no-untyped-def]
        self.values.append(value)


def test_values_are_shown_before_the_call_returns(devices: int) -> None:
    watched = Watched()

    @flow.global_function()
    def job(x: Rows) -> tp.Numpy:
        y = x * 2
        flow.watch(y, watched.array)
        flow.watch(x, watched.object)
        flow.watch(flow.math.reduce_sum(y), watched.arrays)
        return y + 1

    for run in (1, 2):
        result = job(X * run)
        array, of_x, total = watched.values[-3:]
        assert len(watched.values) == 3 * run and type(array) is np.ndarray
        np.testing.assert_array_equal(array + 1, result)
        np.testing.assert_array_equal(of_x.numpy(), X * run)
        assert len(total) == 1 and total[0].shape == (1,)


def test_a_watched_tensor_may_be_returned_too(devices: int) -> None:
    watched = Watched()

    @flow.global_function()
    def job(x: Rows) -> tuple[tp.Numpy, tp.Numpy]:
        flow.watch(x, watched.array)
        return x, x

    for array in (*job(X), *watched.values):
        np.testing.assert_array_equal(array, X)


def test_a_watch_gets_a_variable_before_its_update(devices: int) -> None:
    watched = Watched()

    @flow.global_function(type="train")
    def job(x: Rows) -> None:
        w = flow.get_variable("w", (6, 1), initializer=flow.ones_initializer())
        flow.watch(w, watched.array)
        sgd().minimize(flow.matmul(x, w))

    job(X)
    job(X)
    first, second = watched.values
    assert (first == 1).all()
    np.testing.assert_allclose(second, 1 - 0.5 * X.mean(0, keepdims=True).T, rtol=1e-5)


def train(x: Any, per_device: bool, scale: float, penalty: float) -> tuple[Watched, Watched, Watched, Watched]:
    """Run y = x w with loss y^2 once; return the watched gradients of y, w, the loss and x."""
    watched = Watched(), Watched(), Watched(), Watched()
    of = (tp.ListNumpy if per_device else tp.Numpy).Placeholder((4, 6))

    @flow.global_function(type="train")
    def job(x: of) -> None:  # type: ignore[valid-type]
        regularizer = flow.regularizers.l2(penalty)
        w = flow.get_variable("w", (6, 1), initializer=flow.ones_initializer(), regularizer=regularizer)
        y = flow.matmul(x, w)
        loss = y * y
        flow.watch_diff(y, watched[0].array)
        flow.watch_diff(w, watched[1].array)
        flow.watch_diff(loss, watched[2].arrays)
        flow.watch_diff(x, watched[3].array)
        sgd(loss_scale_factor=scale, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1e-3)).minimize(loss)

    job(x)
    return watched


def test_watched_gradients_are_of_the_sum_of_the_loss(devices: int) -> None:
    of_y, of_w, of_loss, of_x = train(X, per_device=False, scale=4.0, penalty=10.0)
    y = X.sum(1, keepdims=True)
    np.testing.assert_allclose(of_y.values[0], 4 * 2 * y, rtol=1e-5)
    np.testing.assert_allclose(of_w.values[0], 4 * X.T @ (2 * y), rtol=1e-5)
    np.testing.assert_array_equal(of_loss.values[0][0], np.full((4, 1), 4.0))
    assert of_x.values == [], "an argument has no gradient"


def test_gradients_are_exact_where_the_number_of_elements_is_none_of_two(devices: int) -> None:
    watched = Watched()

    @flow.global_function(type="train")
    def job() -> None:
        w = flow.get_variable("w", (243,), initializer=flow.ones_initializer())
        flow.watch_diff(w, watched.array)
        sgd().minimize(w * 3.0)

    job()
    np.testing.assert_array_equal(watched.values[0], np.full(243, 3, np.float32))
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), np.full(243, 1 - 1.5 / 243), rtol=1e-6)


@pytest.mark.parametrize("rows", [(2, 2), (3, 1)])
def test_in_the_mirrored_view(on: Begin, rows: tuple[int, int]) -> None:
    on(2)
    of_y, of_w, of_loss, _ = train(list(np.split(X, [rows[0]])), per_device=True, scale=1.0, penalty=0.0)
    y = X.sum(1, keepdims=True)
    np.testing.assert_allclose(of_y.values[0], 2 * y, rtol=1e-5)
    assert [a.shape for a in of_loss.values[0]] == [(rows[0], 1), (rows[1], 1)]
    np.testing.assert_allclose(np.concatenate(of_loss.values[0]), np.ones((4, 1)), rtol=1e-6)
    np.testing.assert_allclose(of_w.values[0], X.T @ (2 * y), rtol=1e-5)


def test_predict_jobs_have_no_gradients_to_watch(devices: int) -> None:
    watched = Watched()

    @flow.global_function()
    def job(x: Rows) -> tp.Numpy:
        flow.watch_diff(x, watched.array)
        return x

    job(X)
    assert watched.values == []


def test_a_text_is_printed_before_the_value(fresh: None, capsys: pytest.CaptureFixture[str]) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> None:
        flow.watch(x, "of x")
        flow.watch(x * 2)

    job(np.array([1, 2], np.float32))
    assert capsys.readouterr().out == "of x\n[1. 2.]\n[2. 4.]\n"


def test_objects_that_cannot_be_watched_raise(fresh: None) -> None:
    def declare(*watched: Any) -> Any:
        @flow.global_function()
        def job(x: Rows) -> tp.Numpy:
            flow.watch(*watched)
            return x

        return job

    def annotated(x: int) -> None: ...

    with pytest.raises(JobError, match=r"watch at test_watch.py:\d+: blob_watched must be a tensor of the job, not 3"):
        declare(3)(X)
    with pytest.raises(JobError, match=r"watch at test_watch.py:\d+: called outside a job"):
        flow.watch(X)
    x = np.zeros(1)
    flow.clear_default_session()

    @flow.global_function()
    def two(x: tp.Numpy.Placeholder((1,))) -> None:
        flow.watch(x, lambda a, b: None)

    with pytest.raises(JobError, match=r"watch at .* must accept one argument, the value, but its signature is \(a, b\)"):
        two(x)
    flow.clear_default_session()

    @flow.global_function()
    def wrong(x: tp.Numpy.Placeholder((1,))) -> None:
        flow.watch(x, annotated)

    with pytest.raises(JobError, match=r"argument x of .* is annotated <class 'int'>; write tp.Numpy"):
        wrong(x)


def test_a_raising_watch_is_reported_and_the_session_continues(devices: int) -> None:
    calls = []

    def fail(x: tp.Numpy) -> None:
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("not this one")

    @flow.global_function()
    def job(x: Rows) -> tp.Numpy:
        flow.watch(flow.math.exp(x, name="e"), fail)
        return x

    with pytest.raises(ValueError, match="not this one") as caught:
        job(X)
    (note,) = caught.value.__notes__
    assert note.startswith("while job job (test_watch.py:") and "passed e to the callback of watch at test_watch.py:" in note
    np.testing.assert_array_equal(job(X), X)
