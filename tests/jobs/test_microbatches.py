"""Gradient accumulation has the results of the whole batch, on any number of devices, with less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import constant, declare

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, JobError
from jobflow.engine.job import job_of
from jobflow.tools.explain import laid_out

ROWS, WIDTH, CLASSES, STEPS = 10, 6, 4, 10
DOUBLE = 1e-9

On = Callable[[int], None]
Curve = tuple[list[Any], dict[str, Any]]


def steps(count: int) -> Any:
    config = flow.function_config()
    config.default_data_type(flow.float64)
    config.train.num_gradient_accumulation_steps(count)
    return config


def dense(x: Any, units: int, name: str, **options: Any) -> Any:
    return flow.layers.dense(x, units, kernel_initializer=flow.random_normal_initializer(), name=name, **options)


def net(x: Any) -> Any:
    hidden = flow.nn.dropout(dense(x, 16, "hidden", activation=flow.math.tanh, kernel_regularizer=flow.regularizers.l2(0.01)), 0.3)
    return dense(hidden, CLASSES, "output")


def per_row(y: Any, logits: Any) -> Any:
    return flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def mean(y: Any, logits: Any) -> Any:
    return flow.math.reduce_mean(per_row(y, logits))


def clipped_adam() -> Any:
    return flow.optimizer.Adam(constant(0.05), grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.5), loss_scale_factor=8)


def batches(rows: int = ROWS) -> list[tuple[Any, Any]]:
    random = np.random.RandomState(0)
    return [(random.randn(rows, WIDTH), random.randint(0, CLASSES, rows).astype(np.int32)) for _ in range(STEPS)]


def variables() -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}


def curve(count: int, loss: Any = per_row, optimizer: Any = clipped_adam, model: Any = net) -> Curve:
    """Return the losses of every step, and the final variables."""

    @flow.global_function("train", steps(count))
    def job(x: tp.Numpy.Placeholder((ROWS, WIDTH), flow.float64), y: tp.Numpy.Placeholder((ROWS,), flow.int32)) -> tp.Numpy:
        loss_value = loss(y, model(x))
        optimizer().minimize(loss_value)
        return loss_value

    return [job(x, y) for x, y in batches()], variables()


def same(results: Any, expected: Any) -> None:
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=DOUBLE, atol=DOUBLE, err_msg=name)


def check(on: On, devices: int, count: int, run: Callable[..., Curve] = curve, **options: Any) -> None:
    """Compare losses and variables of `count` microbatches on several devices with the whole batch on one."""
    on(1)
    losses, expected = run(1, **options)
    on(devices)
    result, after = run(count, **options)
    np.testing.assert_allclose(result, losses, rtol=DOUBLE, atol=DOUBLE)
    same(after, expected)


# ---- the numbers of the whole batch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 10])
def test_losses_and_variables_equal_the_whole_batch(on: On, devices: int, count: int) -> None:
    check(on, devices, count)


def test_the_losses_change(on: On) -> None:
    on(1)
    assert np.ptp(np.mean(curve(1)[0], axis=1)) > 0.1


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("count", [2, 3])
def test_a_mean_loss_is_weighted_by_the_rows_of_its_microbatch(on: On, devices: int, count: int) -> None:
    on(1)
    losses, expected = curve(1, mean)
    on(devices)
    result, after = curve(count, mean)
    same(after, expected)
    assert result[0].shape == (count,)  # one value per microbatch
    sizes = [len(part) for part in np.array_split(np.arange(ROWS), count)]
    np.testing.assert_allclose(np.average(result, axis=1, weights=sizes), np.ravel(losses), rtol=DOUBLE)


def test_the_old_form_of_the_configuration(on: On) -> None:
    def run(count: int) -> Curve:
        config = steps(count)
        config.train.primary_lr(0.1)
        config.train.model_update_conf({"naive_conf": {}})

        @flow.global_function(config)
        def job(x: tp.Numpy.Placeholder((ROWS, WIDTH), flow.float64), y: tp.Numpy.Placeholder((ROWS,), flow.int32)) -> tp.Numpy:
            loss = per_row(y, net(x))
            flow.losses.add_loss(loss)
            return loss

        return [job(x, y) for x, y in batches()], variables()

    check(on, 2, 3, run)


@pytest.mark.parametrize("devices", [1, 2])
def test_products_accumulate_onto_earlier_microbatches(on: On, devices: int) -> None:
    """Use weights so large that a product accumulates into the sum directly."""

    def model(x: Any) -> Any:
        wide = dense(x, 256, "first", activation=flow.math.tanh)
        return dense(dense(wide, 256, "second", activation=flow.math.tanh), CLASSES, "output")

    def slow() -> Any:
        return flow.optimizer.SGD(constant(0.001))

    check(on, devices, 4, optimizer=slow, model=model)


@pytest.mark.parametrize("devices", [1, 2])
def test_random_numbers_equal_the_whole_batch(on: On, devices: int) -> None:
    """The first axis is the batch's or a multiple of it; numbers without a row axis are drawn once."""

    def model(x: Any) -> Any:
        rows, width = x.shape
        coin = flow.random.bernoulli(flow.constant_like(x, 0.5), name="coin")
        noise = flow.reshape(flow.nn.dropout(flow.reshape(x * coin, [rows * 2, width // 2]), 0.4, name="halves"), [rows, width])
        weight = flow.get_variable("w", (WIDTH, CLASSES), flow.float64, flow.random_normal_initializer())
        return flow.matmul(noise, flow.nn.dropout(weight, 0.3, name="of_the_weight"))

    for count in (2, 3):
        check(on, devices, count, model=model)


def test_microbatches_draw_their_own_numbers_if_the_batch_is_not_the_first_axis(on: On) -> None:
    on(1)

    @flow.global_function("train", steps(2))
    def job(x: tp.Numpy.Placeholder((6, 5), flow.float64)) -> tp.Numpy:
        w = flow.get_variable("w", (1,), flow.float64, flow.ones_initializer())
        mask = flow.nn.dropout(flow.transpose(x, perm=[1, 0]), 0.5, name="drop")
        loss = flow.math.reduce_sum(mask, axis=[0]) * w
        flow.optimizer.SGD(constant(0.0)).minimize(loss)
        return mask

    first, second = np.split(job(np.ones((6, 5))), 2)
    assert first.shape == (5, 3)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("devices", [1, 2])
def test_moving_statistics_pass_from_microbatch_to_microbatch(on: On, devices: int) -> None:
    """Compare with a hand-written reference: microbatches of 4, 3 and 3 rows, each normalized by its own statistics."""

    def model(x: Any) -> Any:
        return dense(flow.layers.batch_normalization(x, axis=1, momentum=0.7, name="bn"), CLASSES, "output")

    on(devices)
    _, after = curve(3, model=model)
    average, variance = np.zeros(WIDTH), np.ones(WIDTH)
    for x, _ in batches():
        for part in np.array_split(x, 3):
            average = 0.7 * average + 0.3 * part.mean(axis=0)
            variance = 0.7 * variance + 0.3 * part.var(axis=0, ddof=1)
    np.testing.assert_allclose(after["bn-moving_mean"], average, rtol=DOUBLE)
    np.testing.assert_allclose(after["bn-moving_variance"], variance, rtol=DOUBLE)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_next_microbatch_reads_an_assigned_variable(on: On, devices: int) -> None:
    on(devices)

    @flow.global_function("train", steps(3))
    def job(x: tp.Numpy.Placeholder((7, 2), flow.float64)) -> tuple[tp.Numpy, tp.Numpy]:
        microbatch_count = flow.get_variable("seen", (1,), flow.float64, flow.zeros_initializer(), trainable=False)
        w = flow.get_variable("w", (1,), flow.float64, flow.ones_initializer())
        flow.assign(microbatch_count, microbatch_count + float(x.shape[0]))
        loss = flow.math.reduce_sum(x, axis=[1]) * w
        flow.optimizer.SGD(constant(0.1)).minimize(loss)
        return loss + 0.0 * flow.math.reduce_sum(loss) + microbatch_count, microbatch_count

    x = np.zeros((7, 2))
    rows, before = job(x)
    np.testing.assert_array_equal(rows, [0, 0, 0, 3, 3, 5, 5])
    np.testing.assert_array_equal(before, [0])
    rows, before = job(x)
    np.testing.assert_array_equal(rows, [7, 7, 7, 10, 10, 12, 12])
    np.testing.assert_array_equal(before, [7])


# ---- results and watches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("count", [2, 3])
def test_results_and_watches_equal_the_whole_batch(on: On, devices: int, count: int) -> None:
    def run(count: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
        watched: dict[str, Any] = {}

        def into(key: str) -> Any:
            def show(value: tp.Numpy) -> None:
                watched[key] = value

            return show

        @flow.global_function("train", steps(count))
        def job(
            x: tp.Numpy.Placeholder((ROWS, WIDTH), flow.float64), y: tp.Numpy.Placeholder((ROWS,), flow.int32)
        ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
            w = flow.get_variable("w", (WIDTH, CLASSES), flow.float64, flow.random_normal_initializer())
            logits = flow.matmul(x, w)
            loss = per_row(y, logits)
            flow.watch(logits, into("logits"))
            flow.watch(w, into("w"))
            flow.watch_diff(logits, into("d logits"))
            flow.watch_diff(w, into("d w"))
            flow.watch_diff(loss, into("d loss"))
            flow.optimizer.SGD(constant(0.1)).minimize(loss)
            return flow.nn.softmax(logits), w, flow.math.reduce_max(logits)

        return watched, job(*batches()[0])

    on(1)
    watched, (probabilities, w, largest) = run(1)
    on(devices)
    watched_results, results = run(count)
    same(watched_results, watched)
    np.testing.assert_allclose(results[0], probabilities, rtol=DOUBLE)
    np.testing.assert_allclose(results[1], w, rtol=DOUBLE)
    assert results[2].shape == (count,) and results[2].max() == pytest.approx(largest.item())


# ---- the mirrored view ---------------------------------------------------------------------------------------------------------------


def mirrored(count: int, parts: list[int], loss: Any = per_row, model: Any = net) -> Curve:
    @flow.global_function("train", steps(count))
    def job(x: tp.ListNumpy.Placeholder((max(parts), WIDTH), flow.float64), y: tp.ListNumpy.Placeholder((max(parts),), flow.int32)) -> tp.ListNumpy:
        loss_value = loss(y, model(x))
        flow.optimizer.SGD(constant(0.5)).minimize(loss_value)
        return loss_value

    cuts = np.cumsum(parts)[:-1]
    arguments = [(np.split(x, cuts), np.split(y, cuts)) for x, y in batches(sum(parts))]
    return [job(x, y) for x, y in arguments], variables()


@pytest.mark.parametrize("parts", [[ROWS], [5, 5], [5, 5, 5]])
@pytest.mark.parametrize("count", [2, 3])
def test_each_device_cuts_its_own_rows(on: On, parts: list[int], count: int) -> None:
    on(len(parts))
    losses, expected = mirrored(1, parts)
    on(len(parts))
    result, after = mirrored(count, parts)
    np.testing.assert_allclose(np.array(result), np.array(losses), rtol=DOUBLE, atol=DOUBLE)
    same(after, expected)


def test_devices_share_each_microbatch_of_an_array_for_all(on: On) -> None:
    """Dropout and watched gradients equal those of the whole batch."""
    x = np.arange(1.0, 25).reshape(8, 3)

    def run(devices: int, count: int) -> Any:
        on(devices)
        config, gradients = steps(count), []
        config.default_logical_view(flow.scope.mirrored_view())

        @flow.global_function("train", config)
        def job(x: tp.Numpy.Placeholder((8, 3), flow.float64)) -> tp.Numpy:
            y = x * flow.get_variable("w", (3,), flow.float64, flow.ones_initializer())
            flow.watch_diff(y, lambda gradient: gradients.append(gradient.numpy()))
            dropped = flow.nn.dropout(y, 0.5)
            flow.optimizer.SGD(constant(0.1), momentum=0).minimize(flow.math.reduce_sum(dropped, 1))
            return dropped

        rows = job(x)
        order = np.argsort(rows.sum(1) + gradients[0].sum(1), kind="stable")  # devices' results lie behind each other, microbatches within
        return rows[order], gradients[0][order], variables()["w"]

    expected = run(1, 1)
    for result, reference in zip(run(2, 2), expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=DOUBLE)


@pytest.mark.parametrize("loss", [per_row, mean])
def test_devices_with_different_numbers_of_rows(on: On, loss: Any) -> None:
    """There is no dropout here, because it differs from the whole batch."""

    def model(x: Any) -> Any:
        return dense(dense(x, 16, "hidden", activation=flow.math.tanh), CLASSES, "output")

    on(2)
    losses, expected = mirrored(1, [4, 6], loss, model)
    on(2)
    result, after = mirrored(3, [4, 6], loss, model)
    same(after, expected)
    if loss is per_row:
        for step, reference in zip(result, losses, strict=True):
            for device, array in zip(step, reference, strict=True):
                np.testing.assert_allclose(device, array, rtol=DOUBLE, atol=DOUBLE)


def test_microbatches_of_one_row_on_one_of_unlike_devices(on: On) -> None:
    on(2)
    with pytest.raises(JobError, match=r"the ranks' arguments differ in length \(\[3, 7\]\).*request fewer than 3"):
        mirrored(3, [3, 7])


# ---- memory and communication --------------------------------------------------------------------------------------------------------


def plain_job(count: int, rows: int = 512) -> Any:
    """Declare a job with activations much larger than parameters."""

    @flow.global_function("train", steps(count))
    def job(x: tp.Numpy.Placeholder((rows, 64), flow.float64), y: tp.Numpy.Placeholder((rows,), flow.int32)) -> tp.Numpy:
        for i in range(6):
            x = dense(x, 64, f"layer{i}", activation=flow.math.tanh)
        loss = mean(y, x)
        flow.optimizer.SGD(constant(0.1)).minimize(loss)
        return loss

    return job_of(job)


@pytest.mark.parametrize("devices", [1, 2])
def test_memory_is_that_of_one_microbatch(fresh: None, devices: int) -> None:
    arena = {}
    for count in (1, 2, 4, 8):
        flow.clear_default_session()
        arena[count] = laid_out(plain_job(count), devices).plan(0).buffers["arena"]
    arguments, gradients = 512 // devices * 65 * 8, 6 * 65 * 64 * 8
    activations = {count: size - arguments for count, size in arena.items()}
    assert activations[2] < 0.65 * activations[1]
    assert activations[4] < 0.65 * activations[2]
    assert activations[8] < 2 * gradients + activations[1] / 8


@pytest.mark.parametrize("count", [1, 3, 4])
def test_gradients_are_exchanged_once(fresh: None, count: int) -> None:
    plan = laid_out(plain_job(count), 2).plan(0)
    reduced = [announced for announced in plan.schedule if announced.what in ("all_reduce", "reduce_scatter")]
    assert sorted(announced.nbytes for announced in reduced)[-1] >= 6 * 65 * 64 * 8
    assert len(plan.schedule) == 2  # the gradients in one bucket, and the loss that is returned


# ---- what does not work --------------------------------------------------------------------------------------------------------------


def train_step(x: Any, w_shape: Any = None) -> Any:
    w = flow.get_variable("w", w_shape or (1,), flow.float64, flow.ones_initializer())
    loss = flow.math.reduce_sum(x * w, axis=[1])
    flow.optimizer.SGD(constant(0.1)).minimize(loss)
    return loss


def other_results(x: Any) -> Any:
    loss = train_step(x)
    return [loss] if x.shape[0] == 3 else [loss, loss]


#: body, number of microbatches, shapes of the arguments, what is said
WRONG: dict[str, tuple[Callable[..., Any], int, list[tuple[int, ...]], str]] = {
    "more microbatches than rows": (
        lambda x: train_step(x),
        5,
        [(3, 2)],
        r"5 microbatches, requested at test_microbatches\.py:\d+: the batch has 3 rows \(x\).*request at most 3",
    ),
    "arguments of different lengths": (
        lambda x, table: train_step(x),
        2,
        [(4, 2), (3, 2)],
        r"the arguments differ in the length of their first axis \(x 4, table 3\).*first axis of length 1, or store them in",
    ),
    "no batch": (lambda x: train_step(x), 2, [(1, 2)], r"no argument has a first axis longer than 1, so there is no batch to divide \(x \[1, 2\]\)"),
    "a body that names the length of the batch": (
        lambda x: train_step(flow.reshape(x, [6, 2])),
        2,
        [(6, 2)],
        r"reshape.*\(the body was traced for a microbatch of 3 of the 6 rows of the batch.*for example x.shape\[0\]\)",
    ),
    "a variable of the length of the batch": (
        lambda x: train_step(x, x.shape),
        2,
        [(5, 2)],
        r'of 3 and of 2 rows.*variable "w" as float64\[3,2\] in the first trace and as float64\[2,2\] in the second; declare it with a type that',
    ),
    "a body that differs from trace to trace": (other_results, 2, [(5, 2)], "has 1 results in the first trace and 2 in the second"),
}


@pytest.mark.parametrize("name", WRONG)
def test_batches_that_cannot_be_divided_raise(on: On, name: str) -> None:
    body, count, shapes, message = WRONG[name]
    on(1)
    arguments = [tp.Numpy.Placeholder(shape, flow.float64) for shape in shapes]
    job = declare(body, *arguments, gives=tp.Bundle[tp.Numpy], type="train", config=steps(count))
    with pytest.raises(ArgumentError if "reshape" in message else JobError, match=message):
        job(*map(np.ones, shapes))


def test_arguments_without_a_row_axis_are_passed_whole(on: On) -> None:
    on(2)

    @flow.global_function("train", steps(3))
    def job(
        x: tp.Numpy.Placeholder((7, 2), flow.float64),
        factor: tp.Numpy.Placeholder((1,), flow.float64),
        row: tp.Numpy.Placeholder((1, 2), flow.float64),
    ) -> tp.Numpy:
        return train_step(x * factor + row)

    x = np.arange(14.0).reshape(7, 2)
    np.testing.assert_allclose(job(x, np.array([2.0]), np.array([[1.0, 3.0]])), (2 * x + [1, 3]).sum(axis=1))


def test_predict_jobs_pass_the_batch_whole(on: On) -> None:
    on(1)
    lengths: list[int] = []

    @flow.global_function("predict", steps(2))
    def job(x: tp.Numpy.Placeholder((6, 2), flow.float64)) -> tp.Numpy:
        lengths.append(x.shape[0])
        return x + 1.0

    assert job(np.zeros((6, 2))).shape == (6, 2)
    assert lengths == [6]


def test_labels_out_of_range_raise_with_the_argument(on: On) -> None:
    on(1)

    @flow.global_function("train", steps(2))
    def job(x: tp.Numpy.Placeholder((4, WIDTH), flow.float64), y: tp.Numpy.Placeholder((4,), flow.int32)) -> tp.Numpy:
        loss = per_row(y, net(x))
        flow.optimizer.SGD(constant(0.1)).minimize(loss)
        return loss

    with pytest.raises(ValueError, match='argument "y" holds 9'):
        job(np.zeros((4, WIDTH)), np.array([0, 1, 2, 9], np.int32))
