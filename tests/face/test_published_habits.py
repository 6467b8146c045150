"""Calls of published programs: seeds, integers, sizes beyond an axis, open layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

X = np.float32([1, 2, 3])
math, nn = flow.math, flow.nn
ones = flow.ones_initializer()


def train(loss: Any, rate: float = 1.0) -> Any:
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0).minimize(loss)
    return loss


def run(body: Callable[..., Any], *arrays: Any, type: str = "predict", config: Any = None) -> Any:
    """Return the results of a job with this body for these arrays."""
    declared = [tp.Numpy.Placeholder(a.shape, flow.int32 if a.dtype.kind == "i" else flow.float) for a in arrays]
    names = [f"a{i}" for i in range(len(arrays))]
    namespace = {"body": body, "Given": tp.Bundle[tp.Numpy], **{f"P{name}": each for name, each in zip(names, declared, strict=True)}}
    exec(f"def job({', '.join(f'{n}: P{n}' for n in names)}) -> Given:\n    return body({', '.join(names)})", namespace)
    return flow.global_function(type, config)(namespace["job"])(*arrays)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, **options: nn.dropout(x, 0.5, **options),
        lambda x, **options: nn.random_mask_like(x, 0.5, **options),
        lambda x, **options: nn.fused_bias_add_dropout(x, flow.constant(0.0, flow.float, (8,)), rate=0.5, **options),
        lambda x, **options: nn.fused_scale_tril_softmax_dropout(x, rate=0.5, **options),
        lambda x, **options: flow.random.bernoulli(x / 2, **options),
        lambda x, **options: flow.random.CoinFlip(64, **options),
        lambda x, **options: flow.random.generate_random_batch_permutation_indices(flow.reshape(x, (64, 1)), **options),
        lambda x, seed, name: flow.get_variable(name, (8, 8), initializer=flow.random_normal_initializer(), random_seed=seed),
    ],
    ids=["dropout", "mask", "bias_add", "softmax", "bernoulli", "coins", "shuffle", "variable"],
)
def test_equal_seeds_draw_equal_numbers_under_any_name(fresh: None, draw: Callable[..., Any]) -> None:
    def body(x: Any) -> list[Any]:
        train(math.reduce_mean(x * flow.get_variable("v", (1,), initializer=ones)))
        return [draw(x, seed=seed, name=name) for seed, name in ((3, "first"), (3, "second"), (4, "third"))]

    first, second, third = run(body, np.ones((8, 8), np.float32), type="train")
    np.testing.assert_array_equal(first, second)
    assert (first != third).any()


INTEGER_BODIES: dict[str, Callable[..., Any]] = {
    "sum": lambda i, k: i + i,
    "shift": lambda i, k: i + 1,
    "difference": lambda i, k: k - 2 * i,
    "square": lambda i, k: math.multiply(i, i),
    "product": lambda i, k: math.multiply(i, k),
    "larger": lambda i, k: math.maximum(i, -i),
    "largest": lambda i, k: math.reduce_max(flow.reshape(i, (1, 3)), 1),
    "distance": lambda i, k: math.squared_difference(i, 3 * k),
    "matrix": lambda i, k: flow.matmul(flow.reshape(i, (3, 1)), flow.reshape(k, (1, 3))),
    "rows": lambda i, k: flow.gather(i * i, flow.constant(1, flow.int32, (2,))),
    "selection": lambda i, k: flow.where(math.greater(i, 2), i * 2, k),
    "joined": lambda i, k: flow.concat([i, k, i * i], 0),
    "quotient": lambda i, k: math.floordiv(i, k),
}


@pytest.mark.parametrize("name", INTEGER_BODIES)
def test_operations_on_integers_have_the_gradients_of_floats(fresh: None, name: str) -> None:
    def trained(integers: bool) -> float:
        flow.clear_default_session()

        def body(x: Any) -> Any:
            v = flow.get_variable("v", (1,), initializer=ones)
            i, k = (flow.cast(each, flow.int32) if integers else each for each in (x * v, x))
            return train(flow.cast(INTEGER_BODIES[name](i, k), flow.float))

        run(body, X, type="train")
        return float(flow.get_all_variables()["v"].numpy()[0])

    np.testing.assert_allclose(trained(integers=True), trained(integers=False), rtol=1e-6)


VALUES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "gather along the axis after the batch, as BERT does": (
        lambda x, i: flow.gather(params=x, indices=i, axis=2, batch_dims=2),
        (np.arange(24, dtype=np.float32).reshape(2, 4, 3), np.int32([[0, 3], [2, 2]])),
        np.arange(24, dtype=np.float32).reshape(2, 4, 3)[[[0], [1]], [[0, 3], [2, 2]]],
    ),
    "gather with one row of indices": (
        lambda x, i: flow.gather(x, i, batch_dims=1),
        (np.eye(3, dtype=np.float32), np.int32([2, 0])),
        np.eye(3)[[2, 0]],
    ),
    "slice to the end": (lambda x: flow.slice(x, [None, 1], [None, 9]), (np.float32([[1, 2, 3]]),), [[2, 3]]),
    "slice from behind to the end": (lambda x: flow.slice(x, [None, -2], [None, 4]), (np.float32([[1, 2, 3]]),), [[2, 3]]),
    "channels of a transposed convolution, as DCGAN has them": (
        lambda x: nn.conv2d_transpose(x, flow.get_variable("w", (2, 3, 1, 1), initializer=ones), (1, 2, 2, 2), [1, 1], "SAME"),
        (np.ones((1, 2, 2, 2), np.float32),),
        np.full((1, 3, 2, 2), 2.0),
    ),
    "no layout": (lambda x: flow.hierarchical_parallel_cast(x, parallel_distribution=[]), (X,), X),
    "no layout of a gradient": (lambda x: flow.hierarchical_parallel_cast(x, ["B"], "manual", []), (X,), X),
    "no layout of a variable": (lambda x: x * flow.get_variable("w", (3,), initializer=ones, parallel_distribution=[]), (X,), X),
    "norms without names": (
        lambda x: [nn.InstanceNorm1d(x, affine=False), nn.InstanceNorm1d(x, affine=False), nn.GroupNorm(x, 1, affine=False), nn.GroupNorm(x, 1)][1:],
        (np.float32([[[1, 3]]]),),
        [[[[-1, 1]]]] * 3,
    ),
    "a label that is the blank": (
        lambda x: _loss_of_labels(x),
        (np.full((3, 1, 2), np.log(0.5), np.float32),),
        [-np.log(5 / 8)],
    ),
    "no quantization in a scope": (lambda x: _quantized(x), (np.float32([[0.1, 0.77]]),), [[0.1, 0.77]]),
    "the kind of a device": (lambda x: x * {"cpu": 2, "gpu": 3}[x.parallel_conf.device_tag()], (X,), 2 * X),
}


def _loss_of_labels(x: Any) -> Any:
    labels = flow.reshape(flow.range(0, 2, dtype=flow.int32), (1, 2))
    frames, count = (flow.constant(n, flow.int32, (1,)) for n in (3, 2))
    return flow.ctc_loss(x, labels, frames, count, blank=1, reduction="none")


def _quantized(x: Any) -> Any:
    with flow.experimental.scope.config(quantization_aware_training=False):
        return flow.matmul(
            x, flow.get_variable("eye", (2, 2), initializer=flow.constant_initializer(0)) + flow.diag(flow.constant(1.0, flow.float, (2,)))
        )


@pytest.mark.parametrize("what", VALUES)
def test_published_calls_give_the_published_values(fresh: None, what: str) -> None:
    body, arrays, expected = VALUES[what]
    config = flow.function_config()
    config.enable_qat(True)
    config.enable_ssp(True)
    np.testing.assert_allclose(run(body, *arrays, config=config), expected, atol=1e-4)


def test_the_loss_scale_follows_its_schedule(fresh: None) -> None:
    """Double after two finite steps; halve after a step that is not finite, but not below 1."""

    def body(bad: Any) -> Any:
        scale = flow.get_variable("scale", (1,), initializer=flow.constant_initializer(2.0), trainable=False)
        good = flow.get_variable("good", (1,), flow.int64, flow.zeros_initializer(), trainable=False)
        op = flow.user_op_builder("schedule").Op("dynamic_loss_scale_schedule").Input("count_not_finite", [flow.cast(bad, flow.int64)])
        op = op.Input("loss_scale", [scale]).Input("good_step_counter", [good]).Attr("increment_period", 2).Attr("multiplier", 2.0)
        op.Build().InferAndTryRun()
        return flow.identity(scale)

    @flow.global_function()
    def job(bad: tp.Numpy.Placeholder((1,), dtype=flow.int32)) -> tp.Numpy:  # type: ignore[valid-type]
        return body(bad)

    assert [float(job(np.int32([bad]))[0]) for bad in (0, 0, 0, 5, 1, 1, 0)] == [2, 2, 4, 4, 2, 1, 1]


def per_device(body: Callable[..., Any], *declared: Any) -> Callable[..., Any]:
    """Return a mirrored job on one device."""
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    names = [f"a{i}" for i in range(len(declared))]
    namespace = {"body": body, "Given": tp.ListNumpy, **{f"P{n}": tp.ListNumpy.Placeholder(*each) for n, each in zip(names, declared, strict=True)}}
    exec(f"def job({', '.join(f'{n}: P{n}' for n in names)}) -> Given:\n    return body({', '.join(names)})", namespace)
    return lambda *arrays: flow.global_function(function_config=config)(namespace["job"])(*([a] for a in arrays))[0]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (lambda x: flow.slice_v2(x, [(None, None, None), (None, None, None), (2, 3, None)]), (5, 0, 1)),
        (lambda x: flow.slice_v2(x, [(6, None, None)]), (0, 0, 5)),
        (lambda x: flow.slice(x, [6, 0, 3], [1, 2, 9]), (0, 0, 2)),
    ],
)
def test_parts_of_few_elements_may_be_empty(fresh: None, body: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert per_device(body, ((8, 2, 10),))(np.ones((5, 0, 5), np.float32)).shape == shape


def test_in_top_k_compares_as_many_rows_as_are_passed(fresh: None) -> None:
    job = per_device(lambda t, p: math.in_top_k(t, p, k=1), ((20,), flow.int32), ((15, 10),))
    assert job(np.int32([0, 1, 1]), np.eye(3, 5, dtype=np.float32)).tolist() == [1, 1, 0]
    with pytest.raises(flow.ShapeError, match="must have the same number of rows"):
        job(np.zeros(20, np.int32), np.zeros((15, 10), np.float32))


def test_sampled_classes_begin_with_the_labels_of_each_device(fresh: None) -> None:
    flow.config.cpu_device_num(2)

    def body(labels: Any) -> Any:
        weight = flow.get_variable("w", (20, 2), initializer=ones, distribute=flow.distribute.split(0))
        return list(flow.distributed_partial_fc_sample(weight, labels, 12)[:2])

    mapped, sampled = run(body, np.int32([14, 3, 19, 3, 7]))
    assert mapped.tolist() == [6, 0, 7, 0, 1] and sampled[:2].tolist() == [3, 7] and sampled[6:8].tolist() == [14, 19]
    assert len(set(sampled)) == 12 and set(sampled[:6]) < set(range(10))


def test_a_job_with_many_computed_shapes_is_compiled_once(fresh: None) -> None:
    bodies: list[int] = []

    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((6,))) -> tp.Bundle[tp.ListNumpy]:  # type: ignore[valid-type]
        bodies.append(1)
        return [flow.gather(x, flow.reshape(flow.argwhere(math.greater(x, float(i))), (-1,))) for i in range(18)]

    counts = []
    for _ in range(2):
        assert [len(each[0]) for each in job([np.float32([0, 4, 8, 12, 16, 20])])][::4] == [5, 4, 3, 2, 1]
        counts.append(len(bodies))
    assert counts[0] == counts[1]


def test_eager_programs_may_initialize_before_their_first_job(fresh: None) -> None:
    flow.enable_eager_execution(True)
    flow.train.CheckPoint().init()
    assert flow.get_all_variables() == {}

    def step() -> float:
        return float(run(lambda x: train(math.reduce_mean(flow.layers.dense(x, 4, name="d")), 0.1), np.ones((2, 3), np.float32), type="train")[0])

    np.testing.assert_allclose([step(), step()], [0, -0.1], rtol=1e-6)


def test_a_job_redefined_with_other_shapes_starts_anew(fresh: None) -> None:
    def cell(width: int) -> Any:
        return run(lambda x: flow.layers.dense(x, 2, name="d"), np.ones((2, width), np.float32))

    for width in (3, 4):
        assert cell(width).shape == (2, 2)
        assert flow.get_all_variables()["d-weight"].shape == (2, width)


def test_the_index_of_a_size_may_begin_later() -> None:
    size = flow.Size((2, 3, 2))
    assert (size.index(2), size.index(2, start=1), size.index(3, 0, stop=2)) == (0, 2, 1)
