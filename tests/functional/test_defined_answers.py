"""Values at the edges of the domains of functions: the limit if it exists, else an error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from doors import gives, modes, refuses
from parts import declare

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import typing as tp
from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError

NAN = float("nan")


# Losses of probabilities --------------------------------------------------------------------------------------------

P, T = np.float64([0, 1, 0, 1, 0.5]), np.float64([1, 0, 0, 1, 0.3])
#: as PyTorch has it: logarithms are at least -100, and the gradient's divisor x (1 - x) at least 1e-12
LOSSES, SLOPES = [100.0, 100.0, 0.0, 0.0, -math.log(0.5)], [-1e12, 1e12, 0.0, 0.0, 0.8]


def test_binary_cross_entropy_at_0_and_1() -> None:
    gives(lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), [P, T], LOSSES, rtol=1e-12)
    x = flow.tensor(P, requires_grad=True)
    F.binary_cross_entropy(x, flow.tensor(T), reduction="sum").backward()
    np.testing.assert_allclose(x.grad.numpy(), SLOPES, rtol=1e-12)
    assert flow.nn.BCELoss()(flow.tensor([0.0, 1.0]), flow.tensor([0.0, 1.0])).item() == 0


def test_binary_cross_entropy_at_0_and_1_in_a_job() -> None:
    slopes: list[Any] = []

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((5,)), t: tp.Numpy.Placeholder((5,))) -> tp.Numpy:
        w = flow.get_variable("w", (5,), initializer=flow.constant_initializer(0.0))
        p = x + w
        loss = flow.nn.BCELoss(p, t, reduction="none")
        flow.watch_diff(p, lambda d: slopes.append(d.numpy()))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(loss)
        return loss

    np.testing.assert_allclose(job(P.astype(np.float32), T.astype(np.float32)), LOSSES, rtol=1e-6)
    np.testing.assert_allclose(slopes[0], SLOPES, rtol=1e-6)


def test_binary_cross_entropy_raises_for_values_outside_0_to_1() -> None:
    refuses(F.binary_cross_entropy, [np.float32([0.5, 1.5]), np.float32([1, 1])], ArgumentError, "1.5", "[1]", "input")
    refuses(F.binary_cross_entropy, [np.float32([0.5, 0.5]), np.float32([1, -1])], ArgumentError, "-1", "[1]", "target")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
@pytest.mark.parametrize("ignored", [-100, 2, 255])
def test_ignore_index_may_be_out_of_range_for_the_label_type(dtype: Any, ignored: int) -> None:
    x, labels = np.random.default_rng(1).normal(size=(4, 3)), np.array([0, 2, 1, 2])
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    counted = labels != ignored
    mean = -(0.9 * logs[np.arange(4), labels] + 0.1 * logs.mean(1))[counted].mean()
    gives(lambda x, t: F.cross_entropy(x, t, ignore_index=ignored, label_smoothing=0.1), [x, labels.astype(dtype)], mean, rtol=1e-12)


def test_attention_without_features_has_equal_weights() -> None:
    q, k, v = np.zeros((2, 3, 0)), np.zeros((2, 4, 0)), np.random.default_rng(2).normal(size=(2, 4, 5))
    expected = np.broadcast_to(v.mean(1, keepdims=True), (2, 3, 5))
    gives(F.scaled_dot_product_attention, [q, k, v], expected, rtol=1e-12)


def test_empty_tensors_count_in_the_type_of_a_concatenation() -> None:
    joined = flow.cat([flow.ones(2, 3, dtype=flow.float16), flow.ones(0, dtype=flow.float64)], 1)
    assert joined.shape == (2, 3) and joined.dtype is flow.float64


def test_similarity_broadcasts() -> None:
    a, b = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(4, 1, 3), (5, 3)]))
    x, y = np.broadcast_arrays(a, b)
    for dim in (0, 1, 2, -1):
        expected = (x * y).sum(dim) / np.sqrt((x * x).sum(dim) * (y * y).sum(dim))
        gives(lambda p, q, dim=dim: F.cosine_similarity(p, q, dim=dim), [a, b], expected, rtol=1e-12)
    refuses(F.cosine_similarity, [np.ones((2, 3)), np.ones((2, 4))], ShapeError, "[2,3]", "[2,4]")


def test_gaussian_likelihood_broadcasts() -> None:
    x, t, v = (np.random.default_rng(i).uniform(0.5, 2, shape) for i, shape in enumerate([(2, 3), (3,), (2,)]))

    def expected(var: Any) -> Any:
        return (0.5 * (np.log(var) + (x - t) ** 2 / var)).mean()

    gives(F.gaussian_nll_loss, [x, t, v], expected(v[:, None]), rtol=1e-12)
    gives(F.gaussian_nll_loss, [x, t, v[:, None]], expected(v[:, None]), rtol=1e-12)
    gives(lambda p, q: F.gaussian_nll_loss(p, q, 2.0), [x, t], expected(2.0), rtol=1e-12)
    refuses(F.gaussian_nll_loss, [x, t, np.ones(3)], ShapeError, "[3]", "[2,3]")
    refuses(F.gaussian_nll_loss, [x, t, -v], ArgumentError, "variance", "[0]" if v.ndim == 2 else "[0, 0]")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((-1, 2), [1, 2, 3, 4, 1, 2]),
        ((2, -1), [2, 3, 0, 1, 2, 3]),
        ((-1, 4), [1, 2, 3, 4, 1, 2, 3, 4]),
        ((-2, -1), [2, 3]),
        ((1, 2), [4, 0, 1, 2, 3, 4, 0, 1]),
    ],
)
def test_circular_padding_repeats_the_cropped_elements(pair: tuple[int, int], expected: list[int]) -> None:
    gives(lambda x: F.pad(x, pair, mode="circular"), [np.arange(5.0).reshape(1, 1, 5)], [[expected]])


def test_circular_padding_longer_than_the_axis_raises() -> None:
    for pair in ((6, 0), (-3, 3), (-3, -3)):
        refuses(lambda x, pair=pair: F.pad(x, pair, mode="circular"), [np.arange(5.0).reshape(1, 1, 5)], ShapeError, str(pair[0]))


# Extremes and medians -----------------------------------------------------------------------------------------------

WITH_NAN = np.float64([[1, NAN, 3, 2], [4, 1, 2, 3]])


def test_extremes_and_medians_with_nan_are_nan() -> None:
    gives(lambda x: (x.max(), x.min(), x.median(), x.amax(), x.amin()), [WITH_NAN], *[NAN] * 5)
    gives(lambda x: (x.amax(1), x.amin(1), x.median(1).values), [WITH_NAN], [NAN, 4], [NAN, 1], [NAN, 2])
    gives(lambda x: (*x.max(1), *x.min(1), *x.median(1)), [WITH_NAN], [NAN, 4], [1, 0], [NAN, 1], [1, 1], [NAN, 2], [1, 2])
    gives(lambda x: (x.argmax(1), x.argmin(1), x.maximum(x * 0 + 2), x.clamp(0, 1)), [WITH_NAN[0:1]], [1], [1], [[2, NAN, 3, 2]], [[1, NAN, 1, 1]])
    gives(lambda x: (x.sort().values, x.topk(2).values), [WITH_NAN], np.sort(WITH_NAN), [[NAN, 3], [4, 3]])
    gives(lambda x: (x.median(), *x.median(0)), [np.int64([3, 1, 2, 5])], 2, 2, 2)
    gives(lambda x: x.logsumexp(1), [np.float64([[-np.inf, -np.inf], [np.inf, 0.0]])], [-np.inf, np.inf])


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "amax", "amin", "median"])
def test_extremes_of_empty_tensors_raise_and_medians_are_nan(name: str) -> None:
    empty = np.zeros((0, 3), np.float32)
    if name == "median":
        gives(lambda x: x.median(), [empty], NAN)
    else:
        shape = "[0]" if name in ("argmax", "argmin") else "[0,3]"
        refuses(lambda x: getattr(x, name)(), [empty], ShapeError, "test_defined_answers.py:", shape)
    refuses(lambda x: getattr(x, name)(0), [empty], ShapeError, "axis 0", "[0,3]")
    for _, run in modes(lambda x: getattr(x, name)(1), empty):
        output = run()
        assert tuple((output[0] if isinstance(output, tuple) else output).shape) == (0,)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "argmax"])
def test_extremes_of_empty_tensors_raise_in_a_job(name: str) -> None:
    job = declare(lambda x: getattr(flow.math, name)(flow.slice_v2(x, [(0, 0, 1)]), 0), tp.Numpy.Placeholder((2, 3)))
    with pytest.raises((ShapeError, ValueError), match=r"test_defined_answers.py:\d+"):
        job(np.ones((2, 3), np.float32))


# Random numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [1.5, -0.25, NAN])
def test_invalid_probabilities_raise(wrong: float) -> None:
    refuses(lambda x: x.bernoulli(), [np.float32([0.5, wrong])], ArgumentError, "[1]", f"{wrong:g}")
    refuses(lambda x: x.bernoulli(wrong), [np.float32([0.5, 1])], ArgumentError, f"{wrong:g}")
    with pytest.raises(ArgumentError):
        flow.ones(3).bernoulli_(wrong)

    job = declare(lambda x: flow.random.bernoulli(x), tp.Numpy.Placeholder((2,)))
    with pytest.raises(ArgumentError, match=r"test_defined_answers.py:\d+.*\[1\]"):
        job(np.float32([0.5, wrong]))
    assert job(np.float32([0, 1])).tolist() == [0, 1]


def test_multinomial_raises_for_invalid_weights() -> None:
    for weights, fact in (([1, -1, 2], "-1"), ([1, NAN, 2], "nan"), ([1, np.inf, 2], "inf"), ([0, 0, 0], "fewer than 1 weights")):
        refuses(lambda w: flow.multinomial(w, 1), [np.float32(weights)], ArgumentError, fact)
    refuses(lambda w: flow.multinomial(w, 2), [np.float32([[1, 1, 0], [0, 1, 0]])], ArgumentError, "row [1]", "fewer than 2 weights")
    gives(lambda w: flow.multinomial(w, 2, replacement=True), [np.float32([0, 3, 0])], [1, 1])


def test_invalid_deviations_and_ranges_raise() -> None:
    refuses(lambda m, s: flow.normal(m, s), [np.float32([0, 0]), np.float32([1, -2])], ArgumentError, "-2", "[1]")
    for wrong in (
        lambda: flow.normal(0.0, -1.0, 3),
        lambda: flow.ones(3).normal_(0, -1),
        lambda: flow.normal(flow.zeros(2), -1.0),
        lambda: flow.ones(3).uniform_(1, 0),
        lambda: flow.randint(0, 300, (2,), dtype=flow.uint8),
        lambda: flow.randint(-1, 3, (2,), dtype=flow.uint8),
        lambda: flow.randperm(-1),
    ):
        with pytest.raises(ArgumentError, match=r"test_defined_answers.py:\d+"):
            wrong()
    assert flow.normal(flow.zeros(3, 1), flow.zeros(2)).shape == (3, 2)
    assert flow.randint(0, 256, (100,), dtype=flow.uint8).dtype is flow.uint8


# Indices and tensors without axes -----------------------------------------------------------------------------------


def test_bounds_and_sizes_are_integers() -> None:
    x = np.arange(6.0)
    for wrong in (
        lambda x: x[0.5:],
        lambda x: x[:2.0],
        lambda x: x[::1.5],
        lambda x: x.reshape(2.5, 2),
        lambda x: x.select(0, 1.5),
        lambda x: x.narrow(0, 0.5, 2),
        lambda x: x.topk(2.5),
        lambda x: x.split([2.5, 3.5]),
        lambda x: x.sum(0.0),
    ):
        refuses(wrong, [x], (DtypeError, ShapeError), "test_defined_answers.py:")  # type: ignore[arg-type]
    gives(lambda x: x[np.int64(1) : flow.tensor(3) if isinstance(x, flow.Tensor) else 3], [x], [1.0, 2.0])


ZERO, FIRST = np.int64(0), np.int64([0])
#: of a tensor without axes that is 2
WITHOUT_AXES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "topk": (lambda x: x.topk(1), (2.0, 0)),
    "kthvalue": (lambda x: x.kthvalue(1), (2.0, 0)),
    "sort": (lambda x: x.sort(0), (2.0, 0)),
    "median": (lambda x: x.median(), (2.0,)),
    "median of an axis": (lambda x: x.median(0), (2.0, 0)),
    "max": (lambda x: x.max(0), (2.0, 0)),
    "normalize": (lambda x: F.normalize(x, dim=0), (1.0,)),
    "normalize by 1": (lambda x: F.normalize(x, 1.0, dim=0), (1.0,)),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x, dim=0), (1.0,)),
    "pairwise_distance": (lambda x: F.pairwise_distance(x, x, eps=0.5), (0.5,)),
    "index_select": (lambda x: x.index_select(0, flow.zeros_like(x, dtype=flow.int64)), (2.0,)),
    "gather": (lambda x: x.gather(0, flow.zeros_like(x, dtype=flow.int64)), (2.0,)),
    "gather by a vector": (lambda x: x.gather(0, flow.zeros_like(x, dtype=flow.int64).reshape(1)), ([2.0],)),
    "scatter": (lambda x: x.scatter(0, flow.zeros_like(x, dtype=flow.int64), 3.0), (3.0,)),
    "scatter_add": (lambda x: x.scatter_add(0, flow.zeros_like(x, dtype=flow.int64), x), (4.0,)),
    "index_add": (lambda x: x.index_add(0, flow.zeros_like(x, dtype=flow.int64), x), (4.0,)),
    "index_fill": (lambda x: x.index_fill(0, flow.zeros_like(x, dtype=flow.int64), 5.0), (5.0,)),
    "take": (lambda x: x.take(flow.zeros_like(x, dtype=flow.int64)), (2.0,)),
    "movedim": (lambda x: x.movedim(0, 0), (2.0,)),
    "softmax": (lambda x: x.softmax(0), (1.0,)),
    "cumsum": (lambda x: x.cumsum(0), (2.0,)),
}


@pytest.mark.parametrize("name", WITHOUT_AXES)
def test_functions_accept_tensors_without_axes(name: str) -> None:
    function, expected = WITHOUT_AXES[name]
    gives(function, [np.float64(2.0)], *expected)


def test_functions_of_an_axis_raise_without_axes() -> None:
    for wrong in (
        lambda x: x.narrow(0, 0, 1),
        lambda x: x.chunk(1),
        lambda x: x.split(1),
        lambda x: x.unbind(),
        lambda x: x.topk(2),
        lambda x: F.glu(x),
    ):
        refuses(wrong, [np.float64(2.0)], ShapeError, "test_defined_answers.py:", "float64[")
    assert flow.tensor(2.0).nonzero().shape == (1, 0) and flow.tensor(0.0).argwhere().shape == (0, 0)
    assert flow.tensor(2.0).nonzero(as_tuple=True)[0].tolist() == [0]


@pytest.mark.parametrize("function", [lambda x: x.std(1), lambda x: (x - x.mean(1, keepdim=True)).norm(dim=1), lambda x: flow.math.reduce_std(x, 1)])
def test_gradients_of_zero_distances_are_zero(function: Any) -> None:
    """The gradient is the smallest subgradient, not infinity times 0."""
    x = flow.tensor([[1.0, 1.0], [1.0, 3.0]], requires_grad=True)
    function(x).sum().backward()
    assert x.grad.numpy()[0].tolist() == [0, 0] and (x.grad.numpy()[1] * [-1, 1] > 0.4).all()


def test_nested_lists_of_unequal_lengths_raise() -> None:
    """Eager, and in the body of a job, where tensors have no values."""
    with pytest.raises(ShapeError, match=r"tensor at test_defined_answers.py:\d+: nested lists have different lengths .*equal length"):
        flow.tensor([[1, 2], [3]])

    job = declare(lambda x: flow.tensor([x, x]), tp.Numpy.Placeholder((2,)))
    with pytest.raises(JobError, match=r"tensor at test_defined_answers.py:\d+: the data contain a tensor float32\[2\].*flow.stack"):
        job(np.ones(2, np.float32))


# Arguments of other kinds -------------------------------------------------------------------------------------------


def test_truth_values_have_extremes() -> None:
    truth = np.array([[True, False], [False, False]])
    gives(lambda x: (x.max(), x.amin(1), x.amax(0), x.max(1).values), [truth], True, [False, False], [True, False], [True, False], dtype=flow.bool)
    gives(lambda x: (x.maximum(x.logical_not()), x.minimum(x.logical_not())), [truth], np.ones((2, 2), bool), np.zeros((2, 2), bool))


def test_scalar_values_broadcast_in_assignments() -> None:
    gives(lambda x: x.index_fill(0, flow.zeros_like(x[:1], dtype=flow.int64), x.sum() * 0 + 5), [np.float64([1, 2])], [5.0, 2.0])
    gives(lambda x: x.scatter(0, flow.zeros_like(x[:1], dtype=flow.int64) + 1, x.sum()), [np.float64([1, 2])], [1.0, 3.0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x + np.ones(3, np.uint16),
        lambda x: x.clamp("1"),
        lambda x: x.isclose(x, rtol=-0.1),
        lambda x: F.pad(x, 1),
        lambda x: F.pad(x, (0.5, 1)),
        lambda x: x.multinomial("2"),
        lambda x: flow.randint(0.5, 2, (2,)),
    ],
)
def test_arguments_of_the_wrong_kind_raise(wrong: Any) -> None:
    with pytest.raises((DtypeError, ShapeError, ArgumentError), match=r"test_defined_answers.py:\d+"):
        wrong(flow.ones(3))


def test_a_sum_of_several_types_is_exact_in_the_widest() -> None:
    """The factors and the scalar are widened before the multiplication."""
    wide, narrow = flow.tensor([1.0], dtype=flow.float64), flow.tensor([1.1])
    factor = float(np.float32(1.1))
    assert flow.addcmul(wide, narrow, narrow, value=0.1).item() == 1.0 + 0.1 * (factor * factor)
    assert flow.addcdiv(wide, wide, narrow, value=0.1).item() == 1.0 + 0.1 * (1.0 / factor)


def test_the_gradient_of_atan2_at_the_origin() -> None:
    y, x = (flow.tensor([0.0, 3.0], requires_grad=True) for _ in range(2))
    flow.atan2(y, x).sum().backward()
    np.testing.assert_allclose([y.grad.numpy(), x.grad.numpy()], [[0, 1 / 6], [0, -1 / 6]], rtol=1e-6)
