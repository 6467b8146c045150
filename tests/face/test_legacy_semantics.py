"""Functions and jobs of the job API where the published framework has special rules.

The results are equal on every device and in both views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

X = np.float32([[1, -2, 3], [0, 5, 6], [1, 2, 3], [4, 4, 4]])
WHOLE = np.int32([[7, -7, 0], [2, 9, -1], [1, 1, 1], [0, 0, 2]])
math, nn = flow.math, flow.nn
#: runs a body on arrays in a predict job, or in one that trains `w`, of ones in the shape of a row: what it returned
Run = Callable[..., Any]


def rate(value: float = 0.1) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [value])


def row(values: Any, trainable: bool = True) -> Any:
    return flow.get_variable("w", values, initializer=flow.ones_initializer(), trainable=trainable)


def minimize(*losses: Any) -> Any:
    flow.optimizer.SGD(rate(), momentum=0).minimize(list(losses))
    return losses[0]


@pytest.fixture(scope="module", params=[(1, False), (2, False), (2, True)], ids=["one device", "two devices", "two devices, mirrored"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    devices, mirrored = request.param

    def run(body: Callable[..., Any], *arrays: Any, type: str = "predict") -> Any:
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        config = flow.function_config()
        config.default_logical_view(flow.scope.mirrored_view() if mirrored else flow.scope.consistent_view())
        declared = [tp.Numpy.Placeholder(a.shape, flow.int32 if a.dtype.kind == "i" else flow.float) for a in arrays]

        def job(*_: Any) -> None: ...

        names = [f"a{i}" for i in range(len(arrays))]
        namespace = {"body": body, "Given": tp.Bundle[tp.Numpy], **{f"P{name}": each for name, each in zip(names, declared, strict=True)}}
        exec(f"def job({', '.join(f'{n}: P{n}' for n in names)}) -> Given:\n    return body({', '.join(names)})", namespace)
        return flow.global_function(type, config)(namespace["job"])(*arrays)

    run.devices, run.mirrored = devices, mirrored  # type: ignore[attr-defined]
    yield run
    flow.clear_default_session()


def slopes(run: Run, f: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Return the gradient of the sum of f(x) from a watch."""
    gradients: list[Any] = []

    def body(x: Any, *others: Any) -> Any:
        x = x * row((x.shape[-1],))
        flow.watch_diff(x, lambda gradient: gradients.append(gradient.numpy()))
        return minimize(f(x, *others))

    run(body, x, *others, type="train")
    return gradients[0]


AT_BOUNDS = np.float32([[0, 6, 3], [-3, -4, 7], [3, -3, 1], [0, 6, 5]])


def prelu(x: Any) -> Any:
    return flow.layers.prelu(x, flow.constant_initializer(0.25), name="p")


def zero(x: Any) -> Any:
    return x * 0


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (nn.relu6, lambda x: (x > 0) & (x < 6)),
        (nn.hardsigmoid, lambda x: ((x > -3) & (x < 3)) / 6),
        (nn.hardswish, lambda x: np.where(x >= 3, 1, np.where(x > -3, x / 3 + 0.5, 0))),
        (prelu, lambda x: np.where(x > 0, 1, 0.25)),
        (math.floor, zero),
        (math.ceil, zero),
        (math.round, zero),
        (math.rint, zero),
        (math.sign, zero),
        (lambda x: math.floordiv(x, x + 0.5), zero),
        (lambda x: math.reduce_variance(x, []), zero),
        (lambda x: math.pow(flow.constant_like(x, -2), x), zero),
        (lambda x: math.pow(flow.constant_like(x, -2), x + 0.5), zero),
    ],
    ids=["relu6", "hardsigmoid", "hardswish", "prelu", "floor", "ceil", "round", "rint", "sign", "floordiv", "variance", "power", "nan"],
)
def test_gradients_at_bounds(run: Run, f: Callable[..., Any], expected: Callable[[Any], Any]) -> None:
    np.testing.assert_allclose(slopes(run, f, AT_BOUNDS), expected(AT_BOUNDS), rtol=1e-6)


@pytest.mark.parametrize("kind", ["double", "int32"])
def test_labels_of_another_type(run: Run, kind: str) -> None:
    labels = np.int32([[0, 1, 1], [1, 0, 0], [2, 0, 0], [0, 0, 1]])
    result = slopes(run, lambda x, y: nn.sigmoid_cross_entropy_with_logits(flow.cast(y, getattr(flow, kind)), x), X, labels)
    np.testing.assert_allclose(result, 1 / (1 + np.exp(-X)) - labels, atol=1e-6)


@pytest.mark.parametrize("axes", [[1], [2], [1, 2]])
def test_sums_of_replicated_values(run: Run, axes: list[int]) -> None:
    """No element is read, and rows have the length of the filled tensor's rows."""
    x = np.zeros((4, 5, 60), np.float32)
    total, spread = run(lambda x: (math.reduce_sum(flow.ones_like(x), axes), flow.broadcast_like(math.reduce_sum(x + 1, axes, True), x)), x)
    count = np.prod([x.shape[axis] for axis in axes])
    np.testing.assert_array_equal((total.min(), total.max(), spread.max()), count)
    np.testing.assert_allclose(slopes(run, lambda x: flow.broadcast_like(math.reduce_max(x, axes, True), x), x + 1).sum((1, 2)), 300)


def test_the_gradient_of_a_cross_entropy_takes_labels_for_distributions(run: Run) -> None:
    labels = np.float32([[0.2, 0.2, 0.1], [1, 0, 0], [2, 0, 0], [0, 0, 1]])
    result = slopes(run, lambda x, y: nn.softmax_cross_entropy_with_logits(labels=y, logits=x), X, labels)
    np.testing.assert_allclose(result, np.exp(X) / np.exp(X).sum(1, keepdims=True) - labels, atol=1e-6)


def test_reductions_over_no_axes(run: Run) -> None:
    same = [math.reduce_sum, math.reduce_mean, math.reduce_min, math.reduce_max, math.reduce_prod, math.reduce_logsumexp]
    for result in run(lambda x: [f(x, axis=[]) for f in same], X):
        np.testing.assert_array_equal(result, X)
    variance, deviation, norm = run(lambda x: [f(x, axis=[]) for f in (math.reduce_variance, math.reduce_std, math.reduce_euclidean_norm)], X)
    assert not variance.any() and not deviation.any() and (norm == abs(X)).all()
    for result in run(lambda i: [math.reduce_any(i, axis=[]), math.reduce_all(i, axis=[]), math.reduce_sum(i, axis=[])], WHOLE)[:2]:
        assert result.dtype == np.int8 and (result == (WHOLE != 0)).all()


def test_a_single_element_has_shape_1(run: Run) -> None:
    def body(x: Any, i: Any) -> Any:
        flat = flow.reshape(x, (-1,))
        one = flow.reshape(flow.slice(i, [0, 0], [1, 1]), (1,))
        means = [math.reduce_mean(flat, 0), math.reduce_max(x), nn.MSELoss(x, x), math.reduce_any(x)]
        losses = [nn.softmax_cross_entropy_with_logits(flat, flat), nn.sparse_softmax_cross_entropy_with_logits(one * 0, flat)]
        return [math.argmax(flat), flow.squeeze(math.reduce_sum(x, None, True)), *means, *losses]

    for result in run(body, X, WHOLE):
        assert result.shape == (run.devices if run.mirrored else 1,)  # type: ignore[attr-defined]


def test_quotients_of_integers_lose_their_fraction(run: Run) -> None:
    def body(i: Any) -> list[Any]:
        two = flow.constant(2, flow.int32, (1,))
        return [i / two, i / 2, math.divide(i, two), math.divide(i, 2), i / 0, 7 / i]

    *halves, none, sevenths = run(body, WHOLE)
    assert all(half.dtype == np.int32 and (half == np.trunc(WHOLE / 2)).all() for half in halves) and not none.any()
    assert sevenths.tolist() == [[1, -1, 0], [3, 0, -7], [7, 7, 7], [0, 0, 3]]


def test_scalars_take_the_type_of_the_tensor_operand(run: Run) -> None:
    squares, filled = run(lambda x, i: [math.squared_difference(x, 1), flow.masked_fill(i, i, 2.5)], X, WHOLE)
    assert squares.tolist() == ((X - 1) ** 2).tolist() and (filled == np.where(WHOLE, 2, WHOLE)).all()
    for wrong in (lambda i: flow.masked_fill(i, i, float("inf")), lambda i: i / 2.5):
        with pytest.raises(flow.DtypeError, match=r"inf|2\.5"):
            run(wrong, WHOLE)


@pytest.mark.parametrize(
    ("through", "elements"),
    [
        (lambda x: flow.cast(x, flow.int32), 12),
        (lambda x: flow.cast(flow.reshape(flow.cast(x, flow.int8) * 1, (-1,)), flow.double), 12),
        (lambda x: math.reduce_sum(flow.cast(x, flow.int64), 1), 4),
    ],
    ids=["a loss of integers", "there and back", "sums"],
)
def test_gradients_go_through_casts_to_integers(run: Run, through: Callable[[Any], Any], elements: int) -> None:
    np.testing.assert_allclose(slopes(run, through, X), np.ones_like(X))
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 1 - 0.1 * X.sum(0) / elements, rtol=1e-6)


def test_seeds_need_no_names(run: Run) -> None:
    def body(x: Any) -> list[Any]:
        minimize(x * row((3,)))
        drawn = [nn.dropout(x, 0.5, seed=3), nn.random_mask_like(x, 0.5, seed=3), flow.random.shuffle(x, seed=3)]
        return [*drawn, flow.random.generate_random_batch_permutation_indices(x, seed=3)]

    dropped, mask, shuffled, order = run(body, X, type="train")
    assert set(np.unique(dropped / np.where(X, X, 1))) == {0, 2} and set(np.unique(mask)) == {0, 1}
    assert sorted(map(tuple, shuffled)) == sorted(map(tuple, X)) and set(order) == set(range(len(order) // (1 + run.mirrored)))  # type: ignore[attr-defined]


def test_minimize_trains_in_a_predict_job_too(run: Run) -> None:
    def body(x: Any) -> Any:
        before = flow.current_global_function_desc().IsTrainable()
        loss = minimize(x * row((3,)))
        assert not before and flow.current_global_function_desc().IsTrainable()
        return loss

    np.testing.assert_array_equal(run(body, X), X)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 1 - 0.1 * X.sum(0) / 12, rtol=1e-6)


def test_device_of_a_tensor(run: Run) -> None:
    def body(x: Any) -> Any:
        assert x.parallel_conf == ("cpu[0-1]" if run.devices == 2 else "cpu[0]")  # type: ignore[attr-defined]
        return x + 0

    run(body, X)


def test_gather_with_leading_axes_of_a_batch(run: Run) -> None:
    table = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    places = np.int32([[[0, 2], [1, 1]], [[2, 0], [0, 1]], [[1, 2], [2, 2]], [[0, 0], [2, 1]]])
    along = run(lambda x, i: flow.gather(x, i, axis=2, batch_dims=2), table, places)
    rows = run(lambda x, i: flow.gather(x, i, batch_dims=1), table, places[:, 0] % 2)
    assert (along == np.take_along_axis(table, places, 2)).all()
    assert (rows == np.take_along_axis(table, places[:, 0, :, None] % 2, 1)).all()


# Arrays of each device's own ----------------------------------------------------------------------------------------


def per_device(devices: int, body: Callable[..., Any], type: str = "predict") -> Callable[..., Any]:
    """Run a job of the mirrored view on one array [4,3] per device."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(type, config)
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.Bundle[tp.ListNumpy]:  # type: ignore[valid-type]
        return body(x)

    return lambda *shapes: job([np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes])


def test_a_body_has_declared_shapes_and_computes_passed_arrays() -> None:
    shapes_in_body = set()

    def body(x: Any) -> list[Any]:
        row = flow.reshape(x, (x.shape[0], -1))  # in a shape, a size is that of the call
        shapes_in_body.add((x.shape, (x * 2).shape, flow.flatten(x).shape, row.shape, 2 * x.shape[0], x.is_dynamic))
        return [x / x.shape[0], row, flow.constant(1, flow.float, x.shape) + x, flow.cast_to_static_shape(x)]

    job = per_device(2, body)
    for shapes in (((4, 3), (4, 3)), ((3, 3), (1, 3)), ((6, 2), (0, 3)), ((4, 1), (12, 1))):
        quarters, rows, more, static = job(*shapes)
        for shape, *columns in zip(shapes, quarters, rows, more, static, strict=True):
            x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            for each, expected in zip(columns, (x / 4, x, x + 1, x), strict=True):
                np.testing.assert_array_equal(each, expected)
    assert shapes_in_body == {((4, 3), (4, 3), (12,), (4, 3), 8, True)}


def test_lengths_that_vary_are_limited_together() -> None:
    def body(x: Any) -> list[Any]:
        both = flow.concat([x, x], 0, max_dim_size=6)
        assert both.shape == (6, 3) and (both + 1).shape == (6, 3)
        return [both]

    job = per_device(2, body)
    assert [each.shape for each in job((3, 3), (1, 3))[0]] == [(6, 3), (2, 3)]
    for shapes in (((4, 3), (4, 3)), ((1, 3), (4, 3))):
        with pytest.raises(flow.ShapeError, match=r"concat at .*: size 8 along axis 0 exceeds max_dim_size 6"):
            job(*shapes)
    job = per_device(1, lambda x: [flow.concat([x, flow.constant(1, flow.float, (7, 3))], 0, max_dim_size=6)])
    with pytest.raises(flow.ArgumentError, match="max_dim_size 6 is below 7"):
        job((1, 3))


def test_dynamic_losses_are_means_over_the_samples_of_all_devices() -> None:
    """The mean of a static loss is over its elements, also for shared arrays and for shapes declared equal."""
    for shapes in (((4, 3), (4, 3)), ((3, 3), (1, 3)), ((2, 3), (0, 3)), ((4, 2), (6, 2))):
        total = np.float32(0)
        for shape in shapes:
            total += np.arange(np.prod(shape), dtype=np.float32).sum()
        job = per_device(2, lambda x: [minimize(x * row((1,)))], "train")
        job(*shapes)
        np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 1 - 0.1 * total / sum(n for n, _ in shapes), rtol=1e-5)
    job = per_device(2, lambda x: [minimize(flow.cast_to_static_shape(x) * row((1,)))], "train")
    job((4, 3), (4, 3))
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 1 - 0.1 * 132 / 24, rtol=1e-5)


def test_programs_per_shape_are_cached_and_evicted() -> None:
    traced = []
    job = per_device(1, lambda x: [traced.append(1), x + 1][1:])
    flow.config.compiled_shapes(2)
    for rows in (4, 3, 3, 2, 3, 4):
        np.testing.assert_array_equal(job((rows, 3))[0][0], np.arange(rows * 3).reshape(rows, 3) + 1)
    assert len(traced) == 4  # 4, 3, 2, and 4 again, which was the longest unused when 2 came


def test_fill_values_of_integers_lose_their_fraction(run: Run) -> None:
    """Bounds of clip_by_value lose it too; arithmetic raises for such a number."""
    filled = run(lambda x: [flow.constant(-2.5, flow.int32, (2,)), flow.constant_like(x, 5.5), math.clip_by_value(x, -1.5, 2.5)], WHOLE)
    assert [a.dtype for a in filled] == [np.int32] * 3
    assert set(filled[0]) == {-2}
    for array, expected in zip(filled[1:], (np.full_like(WHOLE, 5), WHOLE.clip(-1, 2)), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_tensor_is_true(run: Run) -> None:
    """Programs write `if bias:` to test that a bias exists."""
    (selected,) = run(lambda x: [x + 1 if x else x], X)
    np.testing.assert_array_equal(selected, X + 1)
