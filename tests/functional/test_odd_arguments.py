"""Rare arguments: mixed element types, empty indices, numbers out of range; values of PyTorch 2.13."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from doors import gives, refuses
from ranks import with_ranks

import jobflow as flow
from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError

F = flow.nn.functional
X = np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]], np.float32)
T = np.array([[0.5, 0.25, 0.25], [0.125, 0.5, 0.375]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mse_loss", ((X - T) ** 2).mean()),
        ("l1_loss", np.abs(X - T).mean()),
        ("huber_loss", np.where(np.abs(X - T) < 1, (X - T) ** 2 / 2, np.abs(X - T) - 0.5).mean()),
        ("smooth_l1_loss", np.where(np.abs(X - T) < 1, (X - T) ** 2 / 2, np.abs(X - T) - 0.5).mean()),
        ("kl_div", (T * (np.log(T) - X)).mean()),
        ("poisson_nll_loss", (np.exp(X.astype(np.float64)) - T * X).mean()),
        ("binary_cross_entropy_with_logits", (np.log1p(np.exp(X.astype(np.float64))) - T * X).mean()),
        ("cross_entropy", -(T * (X - np.log(np.exp(X.astype(np.float64)).sum(1, keepdims=True)))).sum(1).mean()),
    ],
)
def test_losses_compute_in_the_wider_type_of_two(name: str, expected: Any) -> None:
    """The type is that of `input - target`; float64 targets from NumPy are common."""
    loss = getattr(F, name)
    gives(loss, (X, T), expected, dtype=flow.float64, rtol=1e-6)
    gives(lambda x, t: loss(x, t.float()), (X, T), np.float32(expected), dtype=flow.float32, rtol=1e-6)


def test_targets_that_are_whole_numbers() -> None:
    whole = np.array([[1, 0, 2], [0, 1, 1]])
    gives(F.l1_loss, (X, whole), np.abs(X - whole).mean(), dtype=flow.float32, rtol=1e-6)
    gives(F.mse_loss, (X, whole), ((X - whole) ** 2).mean(), dtype=flow.float32, rtol=1e-6)
    gives(lambda x, t: F.mse_loss(x.half(), t), (X, whole), ((X - whole) ** 2).mean(), dtype=flow.float16, rtol=1e-3)


def test_distances_of_mixed_types() -> None:
    gives(lambda x, t: F.pairwise_distance(x, t, eps=0), (X, T), np.sqrt(((X - T) ** 2).sum(1)), dtype=flow.float64, rtol=1e-7)
    cosine = (X * T).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(T, axis=1)
    gives(F.cosine_similarity, (X, T), cosine, dtype=flow.float64, rtol=1e-7)
    gives(F.cosine_embedding_loss, (X, T, np.ones(2)), (1 - cosine).mean(), dtype=flow.float64, rtol=1e-7)


def test_probabilities_of_another_type_raise() -> None:
    """Either type could be the intended one, as in PyTorch."""
    refuses(lambda x, t: F.binary_cross_entropy(x.sigmoid(), t), (X, T), DtypeError, "binary_cross_entropy", "float32[2,3]", "float64[2,3]", "cast")


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_targets_without_a_sign_are_1_or_0(dtype: Any) -> None:
    """A target 0 is neither of the labels 1 and -1, and both terms of the loss apply, as in PyTorch."""
    t = np.array([[1, 0, 1], [0, 0, 1]], dtype)
    expected = np.where(t == 1, 0, np.maximum(0, 1 - X)) + X
    gives(lambda x, t: F.hinge_embedding_loss(x, t, reduction="none"), (X, t), expected, dtype=flow.float32)
    gives(lambda x, t: F.soft_margin_loss(x, t, reduction="none"), (X, t), np.log1p(np.exp(t * -X)), dtype=flow.float32, rtol=1e-6)


def test_margin_losses_separate_equal_scores() -> None:
    """A score exactly at the margin has the gradient of a score inside the margin.

    Therefore equal scores, which are common at the start of training, are not a minimum.
    """
    x, y = (flow.zeros(2, requires_grad=True) for _ in range(2))
    F.margin_ranking_loss(x, y, flow.ones(2), reduction="sum").backward()
    assert x.grad.tolist() == [-1.0, -1.0] and y.grad.tolist() == [1.0, 1.0]
    z = flow.tensor([1.0, 0.5], requires_grad=True)
    F.hinge_embedding_loss(z, flow.tensor([-1.0, -1.0]), reduction="sum").backward()
    assert z.grad.tolist() == [-1.0, -1.0]


@with_ranks(1, 2)
def test_empty_indices_are_accepted(n: int) -> None:
    """An empty index may have any element type and number of axes; a missing axis is an error."""
    for how in (flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)):
        where = {"placement": flow.placement("cpu", range(n)), "sbp": how}
        base = flow.arange(6, dtype=flow.float32, placement=where["placement"], sbp=flow.sbp.broadcast).reshape(2, 3)
        x = base.to_global(sbp=how).requires_grad_()
        for shape, dtype in (((0,), flow.int64), ((0, 2, 2), flow.int64), ((4, 0), flow.int32), ((0,), flow.float32)):
            none = flow.zeros(*shape, dtype=dtype, placement=where["placement"], sbp=flow.sbp.broadcast)
            assert x.gather(1, none).shape == shape
            for output in (x.scatter(1, none, none.float()), x.scatter_add(0, none, none.float()), x.scatter(0, none, 7.0)):
                assert output is not x and output.tolist() == [[0, 1, 2], [3, 4, 5]]
            output.sum().backward()
            assert x.grad.tolist() == [[1.0] * 3] * 2
            x.grad = None
            with pytest.raises(IndexError, match=r"test_odd_arguments.py:\d+: dim 2 is out of range, -2 to 1"):
                x.gather(2, none)
            with pytest.raises(IndexError, match=r"scatter at test_odd_arguments.py:\d+: dim 2"):
                x.scatter(2, none, 1.0)


def test_numbers_out_of_range_for_integers_raise() -> None:
    whole, mask = np.arange(3, dtype=np.int32), np.array([True, False, True])
    refuses(lambda x, m: x.masked_fill(m, float("inf")), (whole, mask), DtypeError, "inf is out of range for int32")
    refuses(lambda x: x.scatter(0, x.long(), float("-inf")), (whole,), DtypeError, "-inf is out of range for int32")
    refuses(lambda x: x.index_fill(0, x.long(), float("nan")), (whole,), DtypeError, "nan is out of range for int32")
    gives(lambda x, m: x.masked_fill(m, 2.75), (whole, mask), np.array([2, 1, 2]), dtype=flow.int32)
    for number in (0.5, float("inf"), -1):  # whatever is not 0 is true
        gives(lambda m, number=number: m.masked_fill(~m, number), (mask,), np.ones(3, bool), dtype=flow.bool)
    refuses(lambda x: x.index_add(0, x.long(), x, alpha=0.5), (whole,), DtypeError, "index_add", "alpha 0.5", "int32[3]")
    gives(lambda x: x.index_add(0, x.long(), x, alpha=2.0), (whole,), whole * 3, dtype=flow.int32)


def test_whole_numbers_become_floats() -> None:
    whole = np.array([-1, 0, 2])
    gives(F.tanh, (whole,), np.tanh(whole.astype(np.float32)), dtype=flow.float32, rtol=1e-6)
    gives(flow.sigmoid, (whole > 0,), 1 / (1 + np.exp(-(whole > 0).astype(np.float32))), dtype=flow.float32, rtol=1e-6)


def test_variances_with_too_few_elements() -> None:
    gives(lambda x: x.var(correction=5), (np.array([1.0, 3.0]),), np.inf)
    gives(lambda x: x.std(0, correction=2), (np.array([[1.0, 2.0], [3.0, 2.0]]),), np.array([np.inf, np.nan]))


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_deviations_are_representable_where_variances_are_not(size: float) -> None:
    """Values and gradients of PyTorch."""
    array = np.array([size, -size], np.float32)
    gives(lambda x: x.std(), (array,), np.float32(size * np.sqrt(2.0)), dtype=flow.float32, rtol=1e-6)
    x = flow.tensor(array, requires_grad=True)
    x.std().backward()
    np.testing.assert_allclose(x.grad.numpy(), [np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-6)


WHOLE = np.array([[1, 0, 2], [0, 1, 1]])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cosine_similarity", lambda x: F.cosine_similarity(x, x)),
        ("l1_loss", lambda x: F.l1_loss(x, x)),
        ("normalize", F.normalize),
        ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True)),
        ("kl_div", lambda x: F.kl_div(x, x)),
        ("mish", F.mish),
        ("std", flow.std),
        ("avg_pool1d", lambda x: F.avg_pool1d(x, 2)),
        ("conv1d", lambda x: F.conv1d(x, x.reshape(1, 2, 3))),
    ],
)
def test_errors_for_whole_numbers_name_the_called_function(name: str, call: Any) -> None:
    refuses(call, (WHOLE,), DtypeError, f"{name} at ", "int64[", "float")


@pytest.mark.parametrize(("values", "label"), [([0, -1], -1), ([1, 4], 4)])
def test_one_hot_names_a_label_out_of_range(values: list[int], label: int) -> None:
    refuses(
        lambda x: F.one_hot(x, 4), (np.array(values),), ArgumentError, "one_hot at test_odd_arguments.py:", f"label {label} at [1] is outside [0, 4)"
    )


def test_truth_along_no_axes_is_each_elements() -> None:
    for name in ("all", "any"):
        gives(lambda x, name=name: getattr(flow, name)(x, dim=()), (np.array([[0.0, 2.0]]),), np.array([[False, True]]), dtype=flow.bool)
    gives(lambda x: x.all(), (np.array([[0.0, 2.0]]),), np.array(False), dtype=flow.bool)


def test_missing_and_invalid_arguments_raise() -> None:
    refuses(lambda x: x.scatter(0, x.long()), (X,), ArgumentError, "scatter at test_odd_arguments.py", "src or value is missing")
    refuses(lambda x: x.movedim(0.5, 0), (X,), DtypeError, "movedim", "0.5", "test_odd_arguments.py")
    refuses(lambda x: F.embedding(x.long(), x.sum()), (X,), ShapeError, "embedding at test_odd_arguments.py", "float32[] must be [rows")
    bags = (np.arange(4), np.ones((5, 2)), np.array([0, 3, 1]))
    refuses(F.embedding_bag, bags, ArgumentError, "embedding_bag at", "difference -2 at [1]", "decrease")
    for call, error, facts in (
        (lambda: "a" in flow.ones(2), DtypeError, "in at test_odd_arguments.py.*'a'"),
        (lambda: flow.nn.Unflatten("x", (2, -1)), ArgumentError, "Unflatten at .*'x' is a name"),
        (lambda: flow.ones(2).storage(), JobError, "storage at .*untyped_storage"),
        (lambda: flow.load("nowhere", map_location=5), ArgumentError, "map_location .* got 5"),
    ):
        with pytest.raises(error, match=facts):
            call()


def test_methods_of_earlier_programs_equal_pytorch() -> None:
    x = flow.ones(2, 3, dtype=flow.float64)
    assert x.new([1]).tolist() == [1.0] and x.new([1]).dtype is flow.float64
    assert [tuple(each.shape) for each in (x.new(), x.new(2, 3), x.new(x.shape), x.new(x))] == [(0,), (2, 3), (2, 3), (2, 3)]
    assert flow.manual_seed(0) is flow.default_generator and 1 in x and 2 not in x
    assert (x.requires_grad_() * 2).grad_fn.name() == "scaleBackward"
    for layer in (flow.nn.LSTM(2, 3), flow.nn.GRU(2, 3)):
        assert tuple(layer(flow.ones(4, 0, 2))[0].shape) == (4, 0, 3)


def test_element_types_say_what_they_are() -> None:
    for dtype in (flow.float16, flow.bfloat16, flow.float32, flow.float64):
        assert dtype.is_floating_point and dtype.is_signed and not dtype.is_complex
    assert not any(dtype.is_floating_point or dtype.is_complex for dtype in (flow.bool, flow.uint8, flow.int8, flow.int64))
    assert [dtype.is_signed for dtype in (flow.bool, flow.uint8, flow.int8, flow.int64)] == [False, False, True, True]


def test_a_plateau_says_the_rates() -> None:
    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.zeros(1))], lr=0.5)
    schedule = flow.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    rates = []
    for _ in range(3):
        schedule.step(1.0)
        rates.append(schedule.get_last_lr())
    assert rates == [[0.5], [0.25], [0.125]]


@pytest.mark.parametrize("make", [flow.tensor, flow.as_tensor, flow.zeros(1).new_tensor])
def test_python_numbers_keep_all_their_digits(make: Any) -> None:
    """A list of floats is float32 only without an explicit type."""
    assert make([0.1, 1e300], dtype=flow.float64).tolist() == [0.1, 1e300]
    assert make([[16777217.0]], dtype=flow.int64).tolist() == [[16777217]]
    assert make([0.1]).dtype is flow.float32 and make([2.75, -2.75], dtype=flow.int32).tolist() == [2, -2]
    where = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
    assert flow.tensor(0.1, dtype=flow.float64, **where).item() == 0.1


@pytest.mark.parametrize(
    ("data", "dtype", "number"),
    [
        ([1, 300], flow.uint8, "300"),
        ([-256], flow.uint8, "-256"),
        (2**40, flow.int32, "1099511627776"),
        ([1e10], flow.int32, "10000000000.0"),
        ([2.0**63], flow.int64, "9.223372036854775807e"),
        ([[0.5, float("nan")]], flow.int64, "nan"),
        ([float("-inf")], flow.int8, "-inf"),
        ([-129], flow.int8, "-129"),
    ],
)
def test_python_numbers_out_of_range_raise(data: Any, dtype: Any, number: str) -> None:
    for make in (flow.tensor, flow.as_tensor, flow.zeros(1).new_tensor):
        message = rf"at test_odd_arguments.py:\d+: {number[:6]}.* is out of range for {dtype.name}, .*; pass a larger dtype"
        with pytest.raises(DtypeError, match=message):
            make(data, dtype=dtype)


def test_python_numbers_at_the_bounds_of_types() -> None:
    for dtype in (flow.int8, flow.int32, flow.int64):
        low, high = map(int, dtype.span)
        assert flow.tensor([low, high], dtype=dtype).tolist() == [low, high]
    assert flow.tensor([-(2.0**63)], dtype=flow.int64).tolist() == [-(2**63)] and flow.tensor([127.9], dtype=flow.int8).tolist() == [127]
    assert flow.tensor([-1, 255], dtype=flow.uint8).tolist() == [255, 255]  # as PyTorch counts
    assert flow.tensor(np.array([300]), dtype=flow.uint8).tolist() == [44]  # an array is cast, as by x.to


def test_a_zero_beta_ignores_the_input() -> None:
    x, a = np.full((2, 2), np.nan), np.eye(2)
    for beta in (0, 0.0):
        gives(lambda x, a, beta=beta: flow.addmm(x, a, a, beta=beta), (x, a), a)
    gives(lambda x, a: flow.baddbmm(x, a[None], a[None], beta=0, alpha=2), (x, a), 2 * a[None])


def test_grids_are_of_vectors_and_pools_give_something() -> None:
    refuses(lambda x: flow.meshgrid(x)[0], (X,), ShapeError, "meshgrid at test_odd_arguments.py", "float32[2,3]", "flatten")
    for pool in (F.adaptive_max_pool1d, F.adaptive_avg_pool1d):
        refuses(lambda x, pool=pool: pool(x, 0), (X,), ShapeError, f"{pool.__name__} at test_odd_arguments.py", "at least 1")


@pytest.mark.parametrize("wrong", [0.5, [0.5], None])
def test_functions_of_the_step_are_functions(wrong: Any) -> None:
    optimizer = flow.optim.SGD([flow.nn.Parameter(flow.zeros(1))], lr=0.5)
    with pytest.raises(
        flow.JobflowError, match=r"lr_scheduler.LambdaLR at test_odd_arguments.py:\d+: lr_lambda must be a function of the number of steps"
    ):
        flow.optim.lr_scheduler.LambdaLR(optimizer, wrong)
