"""A loss scale that follows the gradients: its formula, and steps that are skipped on all ranks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import optimizer as opt

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(8, 4)).astype(np.float32), RANDOM.integers(0, 5, 8).astype(np.int32)
SCALE, GOOD, STEP = "System-Train-DynamicLossScale-job-LossScale", "System-Train-DynamicLossScale-job-GoodStepCounter", "System-Train-TrainStep-job"
#: x with an infinity in the last row, which is on the last rank
BAD = X.copy()
BAD[-1, 2] = np.inf
State = dict[str, Any]
Body = Callable[[Any], Any]


pytestmark = pytest.mark.usefixtures("fresh")


def plain(x: Any) -> Any:
    init = flow.random_normal_initializer(stddev=0.3)
    hidden = flow.layers.dense(x, 6, activation=flow.nn.relu, kernel_initializer=init, name="a")
    return flow.layers.dense(hidden, 5, kernel_initializer=init, name="b")


def split(x: Any) -> Any:
    """Rows of the one weight and columns of the other are split."""
    init = flow.random_normal_initializer(stddev=0.3)
    hidden = flow.layers.dense(x, 6, activation=flow.nn.relu, kernel_initializer=init, name="a", model_distribute=flow.distribute.split(0))
    weight = flow.get_variable("b-weight", (6, 5), initializer=init, distribute=flow.distribute.split(1))
    return flow.matmul(hidden, weight)


def normed(x: Any) -> Any:
    init = flow.random_normal_initializer(stddev=0.3)
    hidden = flow.layers.dense(x, 6, kernel_initializer=init, name="a")
    return flow.layers.dense(flow.layers.batch_normalization(hidden, name="n"), 5, kernel_initializer=init, name="b")


def staged(x: Any) -> Any:
    """Two stages, each on its own half of the ranks."""
    ranks = flow.current_scope().device_parallel_desc_symbol.parallel_num
    init = flow.random_normal_initializer(stddev=0.3)
    with flow.scope.placement("cpu", f"0:0-{ranks // 2 - 1}"):
        hidden = flow.layers.dense(x, 6, activation=flow.nn.relu, kernel_initializer=init, name="a")
    with flow.scope.placement("cpu", f"0:{ranks // 2}-{ranks - 1}"):
        return flow.layers.dense(hidden, 5, kernel_initializer=init, name="b")


LAYOUTS = [(1, plain), (2, plain), (4, plain), (2, split), (4, split), (3, normed), (2, staged), (4, staged)]
NAMES = [f"{body.__name__}{ranks}" for ranks, body in LAYOUTS]


def job_of(ranks: int, body: Body, optimizer: Any, **options: Any) -> Callable[..., Any]:
    flow.clear_default_session()
    flow.config.cpu_device_num(ranks)
    config = flow.function_config()
    for name, value in options.items():
        config.set(name.replace("__", "."), value)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, body(x))
        optimizer.minimize(loss)
        return loss

    return job


def values() -> State:
    return {name: stored.numpy() for name, stored in flow.get_all_variables().items()}


def adam(**policy: Any) -> Any:
    dynamic = opt.loss_scale.dynamic_loss_scale(**policy)
    return opt.Adam(opt.PiecewiseConstantScheduler([3], [0.05, 0.01]), do_bias_correction=True, loss_scale_policy=dynamic)


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("ranks", "body"), LAYOUTS, ids=NAMES)
def test_a_step_with_an_infinity_writes_nothing_but_the_scale(ranks: int, body: Body) -> None:
    job = job_of(ranks, body, adam(initial_loss_scale=1024.0))
    job(X, Y)
    before = values()
    assert (before[SCALE][0], before[GOOD][0], before[STEP][0]) == (1024.0, 1, 1)
    job(BAD, Y)
    after = values()
    assert (after[SCALE][0], after[GOOD][0], after[STEP][0]) == (512.0, 0, 1)
    for state in (before, after):
        del state[SCALE], state[GOOD]
    assert same(before, after), "weights, slots, train step, and moving statistics"
    job(X, Y)
    assert values()[STEP][0] == 2


@pytest.mark.parametrize(("ranks", "body"), LAYOUTS, ids=NAMES)
def test_guarded_updates_leave_no_trace(ranks: int, body: Body) -> None:
    """Scales are powers of two, so dividing by them rounds nothing."""
    job = job_of(ranks, body, adam(initial_loss_scale=256.0))
    losses = [job(x, Y) for x in (BAD, X, X, BAD, BAD, X, X)]
    skipped = values()
    job = job_of(ranks, body, adam(initial_loss_scale=256.0))
    straight = [job(X, Y) for _ in range(4)]
    np.testing.assert_array_equal([losses[i] for i in (1, 2, 5, 6)], straight)
    plainly = values()
    assert (skipped.pop(SCALE)[0], plainly.pop(SCALE)[0]) == (32.0, 256.0)
    del skipped[GOOD], plainly[GOOD]
    assert same(skipped, plainly)


@pytest.mark.parametrize(("ranks", "body"), LAYOUTS[1:], ids=NAMES[1:])
def test_any_layout_trains_like_one_device_without_a_scale(ranks: int, body: Body) -> None:
    if body is staged:
        body_of_one: Body = plain
    else:
        body_of_one = body
    job = job_of(1, body_of_one, opt.Adam(opt.PiecewiseConstantScheduler([3], [0.05, 0.01]), do_bias_correction=True))
    reference = [job(X, Y) for _ in range(5)]
    job = job_of(ranks, body, adam())
    np.testing.assert_allclose([job(X, Y) for _ in range(5)], reference, rtol=2e-5, atol=1e-6)


def test_the_scale_grows_after_a_period_of_finite_steps_and_shrinks_to_one_at_least() -> None:
    job = job_of(1, plain, adam(initial_loss_scale=8.0, increment_period=2, multiplier=4.0))
    scales = []
    for x in (X, X, X, BAD, BAD, BAD, BAD, X, X):
        job(x, Y)
        state = values()
        scales.append((float(state[SCALE][0]), int(state[GOOD][0])))
    assert scales == [(8, 1), (32, 0), (32, 1), (8, 0), (2, 0), (1, 0), (1, 0), (1, 1), (4, 0)]


def test_the_scale_does_not_grow_beyond_float32() -> None:
    huge = float(np.finfo(np.float32).max)
    job = job_of(1, lambda x: plain(flow.math.multiply(x, 1e-30)), adam(initial_loss_scale=huge, increment_period=1))
    job(X, Y)
    assert values()[SCALE][0] in (np.float32(huge), np.float32(huge / 2))


@pytest.mark.parametrize("ranks", [1, 2])
def test_float16_finds_a_scale_it_can_bear(ranks: int) -> None:
    """2^30 overflows float16, so the first steps are skipped, and the scale shrinks until none is."""
    job = job_of(ranks, plain, adam(), enable_auto_mixed_precision=True)
    losses = [float(job(X, Y).mean()) for _ in range(30)]
    state = values()
    assert 1 <= state[SCALE][0] < 2.0**20
    assert 5 <= state[STEP][0] < 25 and losses[0] == losses[3] and losses[-1] < 0.8 * losses[0]
    assert all(a.dtype != np.float16 for a in state.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_with_microbatches_one_infinity_skips_the_step(ranks: int) -> None:
    job = job_of(ranks, normed, adam(initial_loss_scale=64.0), train__num_gradient_accumulation_steps=4)
    job(X, Y)
    before = values()
    job(BAD, Y)
    after = values()
    assert after[SCALE][0] == 32.0
    for state in (before, after):
        del state[SCALE], state[GOOD]
    assert same(before, after)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_in_the_mirrored_view_one_device_decides_for_all(ranks: int) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(ranks)

    @flow.global_function(type="train")
    def job(x: tp.ListNumpy.Placeholder((8, 4)), y: tp.ListNumpy.Placeholder((8,), dtype=flow.int32)) -> tp.ListNumpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, normed(x))
        adam(initial_loss_scale=64.0).minimize(loss)
        return loss

    job([X] * ranks, [Y] * ranks)
    before = values()
    job([X] * (ranks - 1) + [BAD], [Y] * ranks)
    after = values()
    assert (after[SCALE][0], after[STEP][0]) == (32.0, 1)
    for state in (before, after):
        del state[SCALE], state[GOOD]
    assert same(before, after)


def test_assignments_of_the_program_are_guarded_too() -> None:
    def body(x: Any) -> Any:
        counter = flow.get_variable("seen", (1,), initializer=flow.zeros_initializer(), trainable=False)
        flow.assign(counter, counter + 1)
        return plain(x)

    job = job_of(2, body, adam())
    job(X, Y)
    job(BAD, Y)
    assert values()["seen"][0] == 1


def test_combined_optimizers_have_one_scale() -> None:
    rate = opt.PiecewiseConstantScheduler([], [0.1])
    both = opt.CombinedOptimizer(
        [opt.SGD(rate, variables=["a-weight", "a-bias"]), opt.LAMB(rate, variables=["b-weight", "b-bias"])],
        loss_scale_policy=opt.loss_scale.dynamic_loss_scale(128.0),
    )
    job = job_of(2, plain, both)
    job(X, Y)
    before = values()
    job(BAD, Y)
    after = values()
    assert after.pop(SCALE)[0] == 64.0
    del before[SCALE], before[GOOD], after[GOOD]
    assert same(before, after)


def test_the_state_is_in_checkpoints(tmp_path: Any) -> None:
    job = job_of(1, plain, adam(initial_loss_scale=64.0))
    job(BAD, Y)
    job(X, Y)
    flow.train.CheckPoint().save(str(tmp_path / "saved"))
    again = job_of(2, plain, adam(initial_loss_scale=64.0))
    flow.train.CheckPoint().load(str(tmp_path / "saved"))
    again(X, Y)
    assert (values()[SCALE][0], values()[GOOD][0]) == (32.0, 2)


@pytest.mark.parametrize(("ranks", "body"), LAYOUTS, ids=NAMES)
def test_halting_keeps_the_state_before_the_first_step_that_is_not_finite(ranks: int, body: Body) -> None:
    schedule, count = opt.PiecewiseConstantScheduler([], [0.05]), "System-Train-NotFinite-job"
    job = job_of(ranks, body, opt.Adam(schedule, loss_scale_policy=opt.loss_scale.halt_where_not_finite()))
    losses = [job(X, Y), job(X, Y)]
    before = values()
    assert before[count][0] == 0 and before[STEP][0] == 2
    job(BAD, Y)
    first = values()[count][0]
    assert first > 0
    job(X, Y)
    after = values()
    assert after.pop(count)[0] == first, "the count of the first, which later steps keep"
    del before[count]
    assert same(before, after), "weights, slots, train step, and moving statistics: for ever"
    flow.load_variables({count: np.zeros(1, np.int64)})
    job(X, Y)
    assert values()[STEP][0] == 3, "until it is told to go on"
    if body is not staged:
        free = job_of(ranks, body, opt.Adam(schedule))
        np.testing.assert_allclose([free(X, Y), free(X, Y)], losses, rtol=1e-6, err_msg="loops round in the steps of their own chains")
